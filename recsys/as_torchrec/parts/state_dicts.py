"""State dicts: sharded tensors gathered on one rank or moved to a device, and prefixes of names."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor, distributed
from torch.distributed import ProcessGroup
from torch.distributed._shard.sharded_tensor import Shard, ShardedTensor

_Value = TypeVar("_Value")


def state_dict_gather(src: Mapping[str, Tensor | ShardedTensor], dst: Mapping[str, Tensor]) -> None:
    """Copy values into full tensors, in place. Of sharded ones rank 0 gets all rows, in the destination's type.

    Args:
        src: This rank's state dict, with the destination's names among its own.
        dst: The full tensors.

    Raises:
        ValueError: A value is missing, or is no tensor.
    """
    for name, target in dst.items():
        value = src.get(name)
        if isinstance(value, ShardedTensor):
            first = distributed.get_rank() == 0
            value.gather(dst=0, out=target if first else None, dtype=target.dtype)
        elif isinstance(value, Tensor):
            target.detach().copy_(value)
        else:
            raise ValueError(f"src[{name!r}]: got {type(value).__name__}, expected a tensor")


def state_dict_all_gather_keys(
    state_dict: Mapping[str, Tensor | ShardedTensor], pg: ProcessGroup
) -> list[str]:
    """Return the names of all ranks' state dicts, each once, sorted.

    Args:
        state_dict: This rank's.
        pg: The ranks. Each of them calls this.
    """
    names: list[Any] = [None] * distributed.get_world_size(pg)
    distributed.all_gather_object(names, list(state_dict), pg)
    return sorted({name for of_rank in names for name in of_rank})


def state_dict_to_device(
    state_dict: Mapping[str, Tensor | ShardedTensor], pg: ProcessGroup, device: torch.device
) -> dict[str, Tensor | ShardedTensor]:
    """Return a state dict with tensors on a device, and the names of all ranks.

    A table that this rank has no part of is a sharded tensor without shards here.

    Args:
        state_dict: This rank's.
        pg: The ranks. Each of them calls this.
        device: The device.

    Raises:
        ValueError: A value is no tensor.
    """
    moved: dict[str, Tensor | ShardedTensor] = {}
    for name in state_dict_all_gather_keys(state_dict, pg):
        value = state_dict.get(name)
        if value is None or isinstance(value, ShardedTensor):
            moved[name] = _sharded_to(value, pg, device)
        elif isinstance(value, Tensor):
            moved[name] = value.to(device)
        else:
            raise ValueError(f"state_dict[{name!r}]: got {type(value).__name__}, expected a tensor")
    return moved


def _sharded_to(value: ShardedTensor | None, pg: ProcessGroup, device: torch.device) -> ShardedTensor:
    rank = distributed.get_rank(pg)
    shards = [
        Shard.from_tensor_and_offsets(shard.tensor.to(device), shard.metadata.shard_offsets, rank)
        for shard in ([] if value is None else value.local_shards())
    ]
    size = [] if value is None else value.metadata().size
    return ShardedTensor._init_from_local_shards(shards, size, process_group=pg)  # type: ignore[no-any-return]


def append_prefix(prefix: str, name: str) -> str:
    """Return a name below a prefix; either may be empty."""
    return f"{prefix}.{name}" if prefix and name else prefix + name


def filter_state_dict(state_dict: OrderedDict[str, _Value], name: str) -> OrderedDict[str, _Value]:
    """Return what lies below a name, without that name.

    Args:
        state_dict: Values by name.
        name: The beginning of the names, without the dot after it.
    """
    start = f"{name}."
    return OrderedDict(
        (key.removeprefix(start), value) for key, value in state_dict.items() if key.startswith(start)
    )


def add_prefix_to_state_dict(state_dict: dict[str, Any], prefix: str) -> None:
    """Put a prefix, with the dot at its end, before all names of a state dict, in place."""
    for name in sorted(state_dict):
        state_dict[prefix + name] = state_dict.pop(name)
