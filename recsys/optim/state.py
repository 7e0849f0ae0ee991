"""Loading of optimizer state into existing tensors after checks, and conversion to new column blocks.

Shape letters: D embedding dimension, R rows.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor
from torch.distributed._shard.sharded_tensor.api import ShardedTensor

from recsys.errors import CheckpointError


def check_names(at: str, got: Iterable[str], expected: Iterable[str]) -> None:
    """Check that both contain the same names.

    Raises:
        CheckpointError: The message names missing and unknown names.
    """
    found, wanted = set(got), set(expected)
    missing, unknown = sorted(wanted - found), sorted(found - wanted)
    if missing or unknown:
        raise CheckpointError(
            f"{at}: the checkpoint does not fit this optimizer"
            + (f"; it lacks {missing}" if missing else "")
            + (f"; unknown here: {unknown}" if unknown else "")
        )


def check_state(at: str, current: Any, new: Any) -> None:
    """Check that ``copy_state`` can take ``new``; ``at`` is its path for messages.

    Raises:
        CheckpointError: A place is wrong; the message names it, what was found and what was expected.
    """
    if isinstance(current, dict):
        if not isinstance(new, dict):
            raise CheckpointError(f"{at}: got {_kind(new)}, expected a dict with {sorted(current)}")
        check_names(at, map(str, new), map(str, current))
        for name, value in current.items():
            check_state(f"{at}[{name!r}]", value, new[name])
    elif isinstance(current, ShardedTensor):
        _check_shards(at, current, new)
    elif isinstance(current, Tensor):
        if isinstance(new, int | float) and current.dim() == 0:
            return
        if not isinstance(new, Tensor) or isinstance(new, ShardedTensor):
            raise CheckpointError(f"{at}: got {_kind(new)}, expected a tensor of shape {list(current.shape)}")
        if new.shape != current.shape:
            raise CheckpointError(f"{at}: got shape {list(new.shape)}, expected {list(current.shape)}")


@torch.no_grad()
def copy_state(current: dict[Any, Any], new: dict[Any, Any]) -> None:
    """Copy into the tensors of ``current``, in place; other values are replaced. ``check_state`` comes first."""
    for name, value in current.items():
        if isinstance(value, dict):
            copy_state(value, new[name])
        elif isinstance(value, ShardedTensor):
            for mine, theirs in _shard_pairs(value, new[name]):
                mine.copy_(theirs)
        elif isinstance(value, Tensor):
            value.copy_(torch.as_tensor(new[name]))
        elif hasattr(value, "load_state_dict"):
            value.load_state_dict(new[name])
        else:
            current[name] = copy.deepcopy(new[name])


def _check_shards(at: str, current: ShardedTensor, new: Any) -> None:
    size = list(current.metadata().size)
    if not isinstance(new, Tensor):
        raise CheckpointError(f"{at}: got {_kind(new)}, expected a tensor of shape {size}")
    if not isinstance(new, ShardedTensor):
        if list(new.shape) != size:
            raise CheckpointError(f"{at}: got shape {list(new.shape)}, expected {size}")
        return
    if list(new.metadata().size) != size:
        raise CheckpointError(f"{at}: got shape {list(new.metadata().size)}, expected {size}")
    got, expected = _places(new), _places(current)
    if got != expected:
        raise CheckpointError(
            f"{at}: got shards at (offsets, sizes) {got}, expected {expected}: it was saved under another plan; "
            "load the full tensor, or load with torch.distributed.checkpoint, which cuts it for these ranks"
        )


def _shard_pairs(current: ShardedTensor, new: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield each local shard and its new content: the same shard, or a piece of a full tensor."""
    if isinstance(new, ShardedTensor):
        theirs = {tuple(shard.metadata.shard_offsets): shard.tensor for shard in new.local_shards()}
        for shard in current.local_shards():
            yield shard.tensor, theirs[tuple(shard.metadata.shard_offsets)]
        return
    for shard in current.local_shards():
        piece = new
        for dim, (offset, size) in enumerate(
            zip(shard.metadata.shard_offsets, shard.metadata.shard_sizes, strict=True)
        ):
            piece = piece.narrow(dim, offset, size)
        yield shard.tensor, piece


def _places(tensor: ShardedTensor) -> list[tuple[list[int], list[int]]]:
    return sorted(
        (list(s.metadata.shard_offsets), list(s.metadata.shard_sizes)) for s in tensor.local_shards()
    )


def _kind(value: Any) -> str:
    return "a sharded tensor" if isinstance(value, ShardedTensor) else f"a {type(value).__name__}"


def recut_row_state(state: Tensor, old_widths: Sequence[int], new_widths: Sequence[int]) -> Tensor:
    """Return the state for new blocks of columns: the mean of the overlapping old blocks, weighted by shared columns.

    For joined blocks, this is the state that the joined block would have had with the same gradients. For a
    split block, every part starts from the mean of the whole, because only that was stored.

    Args:
        state: ``[R]`` for one block, else ``[R, K]``, with any number of the table's rows.
        old_widths: Columns of each block of ``state``, from left to right; they sum to D.
        new_widths: Columns of each requested block.

    Returns:
        ``[R]`` for one new block, else ``[R, K]``; ``state`` itself if nothing changes.

    Raises:
        ValueError: The widths do not cover the same columns, or their number differs from the state's blocks.
    """
    for name, widths in (("old_widths", old_widths), ("new_widths", new_widths)):
        if not widths or min(widths) < 1:
            raise ValueError(
                f"{name}: got {list(widths)}, expected at least one block of at least one column"
            )
    if sum(old_widths) != sum(new_widths):
        raise ValueError(
            f"new_widths: got {list(new_widths)}, which cover {sum(new_widths)} columns, expected "
            f"{sum(old_widths)} as old_widths {list(old_widths)} do"
        )
    flat = state.dim() == 1 and len(old_widths) == 1
    if not flat and tuple(state.shape[1:]) != (len(old_widths),):
        raise ValueError(
            f"state: got shape {list(state.shape)}, expected [rows, {len(old_widths)}], a column for each of "
            f"old_widths {list(old_widths)}"
        )
    if list(old_widths) == list(new_widths):
        return state
    shares = torch.tensor(_shares(old_widths, new_widths), dtype=torch.float64, device=state.device)
    # In float64, so that a split and a join restore the original values.
    made = (state.double().view(len(state), len(old_widths)) @ shares).to(state.dtype)
    return made.squeeze(1) if len(new_widths) == 1 else made


def _shares(old_widths: Sequence[int], new_widths: Sequence[int]) -> list[list[float]]:
    """Return for each old block its share in each new one; the shares of a new block sum to 1."""
    old, new = _bounds(old_widths), _bounds(new_widths)
    return [
        [
            max(0, min(end, new_end) - max(start, new_start)) / (new_end - new_start)
            for new_start, new_end in new
        ]
        for start, end in old
    ]


def _bounds(widths: Sequence[int]) -> list[tuple[int, int]]:
    ends = list(accumulate(widths))
    return list(zip([0, *ends], ends, strict=False))
