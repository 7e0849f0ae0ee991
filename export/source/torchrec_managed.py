"""TorchRec's managed collisions as ours: each raw ID keeps its row.

Shape letters: Z rows of a table.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from recsys.configs import BaseEmbeddingConfig
from recsys.errors import ExportError
from recsys.managed import LFU_EvictionPolicy, ManagedCollisionCollection, MCHManagedCollisionModule
from recsys.managed.mapping import FREE

# The class whose mapping is a list of raw IDs and their rows, the only one of TorchRec's that can be frozen.
_KIND = "MCHManagedCollisionModule"


def our_mapping(path: str, theirs: Any, tables: list[BaseEmbeddingConfig]) -> ManagedCollisionCollection:
    """Return our mapping with what one of TorchRec's has learned. Reads tensors.

    Args:
        path: The path of the module that holds it, for messages.
        theirs: A ``ManagedCollisionCollection`` of TorchRec's.
        tables: Our tables that the mapped IDs are looked up in.

    Raises:
        ExportError: A table's module is of another kind, or its mapping is damaged.
    """
    modules = {
        name: _module(f"{path!r}: table {name!r}", module)
        for name, module in theirs._managed_collision_modules.items()
    }
    return ManagedCollisionCollection(modules, tables, need_preprocess=theirs.need_preprocess)


def _module(at: str, theirs: Any) -> MCHManagedCollisionModule:
    if type(theirs).__name__ != _KIND:
        raise ExportError(f"{at}: got a {type(theirs).__name__}, expected a {_KIND}: no other can be frozen")
    raw_ids: Tensor = theirs._mch_sorted_raw_ids
    rows: Tensor = theirs._mch_remapped_ids_mapping - theirs._output_global_offset
    ours = MCHManagedCollisionModule(
        zch_size=theirs.output_size(),
        device=torch.device("cpu"),
        eviction_policy=LFU_EvictionPolicy(),
        eviction_interval=1,
        input_hash_size=theirs.input_size(),
        input_hash_func=theirs._input_hash_func,
    )
    if raw_ids.is_meta:
        return ours.to("meta")
    last = theirs.output_size() - 1
    with torch.no_grad():
        ours.raw_ids.copy_(raw_ids)
        ours.rows.copy_(torch.where(raw_ids == FREE, last, rows))
    try:
        ours.validate_state()
    except ValueError as error:
        raise ExportError(f"{at}: its mapping is damaged: {error}") from None
    return ours
