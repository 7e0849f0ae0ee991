"""Optimizer state from a checkpoint into tensors that stand already, after all of it was checked.

Shape letters: D embedding dim, R rows.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.distributed._shard.sharded_tensor.api import ShardedTensor

from recsys.errors import CheckpointError


def check_names(at: str, got: Iterable[str], expected: Iterable[str]) -> None:
    """Both must name the same.

    Raises:
        CheckpointError: names what is missing and what is unknown.
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
    """Whether ``copy_state`` can take ``new``; ``at`` says where it stands.

    Raises:
        CheckpointError: names the place, with what was found and what was expected.
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
            "load the full tensor, or load with torch.distributed.checkpoint, which cuts it anew"
        )


def _shard_pairs(current: ShardedTensor, new: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Each local shard and what belongs in it: the same shard, or a piece of a full tensor."""
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
