"""The state of TorchRec's managed collision module, as it stands in checkpoints, in the form of ours.

Shape letters: Z ``zch_size``: rows of the table.

TorchRec keeps one entry for each row, sorted by raw ID, with the largest int64 as the raw ID of a free row. Counts and
steps are in the order of the entries; ours are in the order of the rows. The parts of a state that was divided between
ranks are put together as TorchRec does it: all entries sorted again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from recsys.errors import CheckpointError
from recsys.managed.mapping import FREE

#: The buffers of TorchRec's module; policies have one or both of the last two.
TORCHREC_BUFFERS = (
    "_mch_sorted_raw_ids",
    "_mch_remapped_ids_mapping",
    "_current_iter_tensor",
    "_output_segments_tensor",
    "_mch_counts",
    "_mch_last_access_iter",
)


def state_of_torchrec(given: Mapping[str, Tensor | None]) -> dict[str, Tensor]:
    """Return the buffers of a ``MCHManagedCollisionModule``.

    Args:
        given: TorchRec's by name, as in ``TORCHREC_BUFFERS``; None for those that are missing. Without counts an ID
            that owns a row counts as used once; without steps, as used at the present one.

    Raises:
        CheckpointError: A buffer is missing, or its shape is wrong, or rows are not those of one whole table.
    """
    raw_ids = _buffer(given, "_mch_sorted_raw_ids")
    mapping = _buffer(given, "_mch_remapped_ids_mapping", raw_ids.numel())
    step = _buffer(given, "_current_iter_tensor", 1)
    last_row = raw_ids.numel() - 1
    if not torch.equal(mapping.sort().values, torch.arange(last_row + 1, device=mapping.device)):
        raise CheckpointError(
            f"managed_collision_module._mch_remapped_ids_mapping: expected each of the rows 0 to {last_row} once; is "
            "this the state of a single rank of several?"
        )
    order = torch.argsort(raw_ids, stable=True)
    raw_ids, mapping = raw_ids[order], mapping[order]
    is_owned = (raw_ids != FREE) & (mapping != last_row)
    owned = mapping[is_owned]
    buffers = {
        "counts": ("_mch_counts", torch.ones_like(step)),
        "last_steps": ("_mch_last_access_iter", step),
    }
    found = {
        "raw_ids": torch.full_like(raw_ids, FREE),
        "rows": torch.full_like(mapping, last_row),
        "step": step,
    }
    found["raw_ids"][: owned.numel()] = raw_ids[is_owned]
    found["rows"][: owned.numel()] = owned
    for name, (theirs, default) in buffers.items():
        found[name] = torch.zeros_like(mapping)
        entries = default.expand_as(mapping)
        if given.get(theirs) is not None:
            entries = _buffer(given, theirs, mapping.numel())[order]
        found[name][owned] = entries[is_owned]
    return found


def _buffer(given: Mapping[str, Tensor | None], name: str, size: int | None = None) -> Tensor:
    tensor = given.get(name)
    at = f"managed_collision_module.{name}"
    if tensor is None:
        raise CheckpointError(f"{at}: missing, expected TorchRec's buffers {list(TORCHREC_BUFFERS[:3])}")
    if tensor.dtype != torch.int64 or tensor.dim() != 1 or tensor.numel() != (size or tensor.numel()):
        raise CheckpointError(
            f"{at}: got {tensor.dtype} {list(tensor.shape)}, expected int64 [{size or 'rows'}]"
        )
    return tensor


def from_torchrec(module: Any, state: dict[str, Any], prefix: str, *_: object) -> None:
    """Replace a state of TorchRec's module by one of ours."""
    if prefix + "_mch_sorted_raw_ids" not in state:
        return
    if module.buckets() > 1:
        raise CheckpointError(
            f"{prefix}_mch_sorted_raw_ids: got a state of TorchRec for a module with {module.buckets()} buckets, "
            "expected a module with one: TorchRec's buckets hold other IDs"
        )
    given = {name: state.pop(prefix + name, None) for name in TORCHREC_BUFFERS}
    state.update({prefix + name: tensor for name, tensor in state_of_torchrec(given).items()})
