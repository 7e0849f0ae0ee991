"""Tensors of which each rank holds some rectangles, as ``torch.distributed.checkpoint`` takes them.

``ShardedTensor`` is the one tensor of torch whose shards may be any rectangles on any ranks. (torch would rather have
DTensor used, which has no such thing, and warns where a torch function is called on one.)

Shape letters: D embedding dim, R rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist
from torch.distributed._shard.metadata import ShardMetadata as TorchShardMetadata
from torch.distributed._shard.sharded_tensor.api import ShardedTensor
from torch.distributed._shard.sharded_tensor.metadata import ShardedTensorMetadata, TensorProperties
from torch.distributed._shard.sharded_tensor.shard import Shard

from recsys.sharding.env import ShardingEnv
from recsys.sharding.plan import ShardMetadata

#: Offsets and sizes.
Rectangle = tuple[tuple[int, ...], tuple[int, ...]]


def rectangle_of(shard: ShardMetadata | TorchShardMetadata) -> Rectangle:
    """Where a shard lies in the whole tensor."""
    return tuple(shard.shard_offsets), tuple(shard.shard_sizes)


def sharded_tensor(
    size: Sequence[int],
    dtype: torch.dtype,
    shards: Mapping[Rectangle, int],
    local: Mapping[Rectangle, Tensor],
    env: ShardingEnv,
) -> ShardedTensor:
    """A tensor from what every rank knows of its shards and from those that this one holds. Nothing is sent.

    Args:
        size: of the whole.
        dtype: of its numbers.
        shards: the rank of each rectangle (offsets, sizes).
        local: this rank's, views of the memory that is trained.
        env: the ranks.
    """
    # torch names ranks of the default group, whatever the tensor's own.
    group = env.process_group
    numbers = range(env.world_size) if group is None else dist.get_process_group_ranks(group)
    metadata = {
        where: TorchShardMetadata(list(where[0]), list(where[1]), f"rank:{numbers[rank]}/{env.devices[rank]}")
        for where, rank in shards.items()
    }
    made: ShardedTensor = ShardedTensor._init_from_local_shards_and_global_metadata(
        [Shard(tensor.detach(), metadata[where]) for where, tensor in local.items()],
        ShardedTensorMetadata(
            shards_metadata=list(metadata.values()),
            size=torch.Size(size),
            tensor_properties=TensorProperties(dtype=dtype),
        ),
        process_group=env.process_group,
    )
    return made


def copy_into(targets: Mapping[Rectangle, Tensor], source: Any, name: str) -> None:
    """Fill shards from a tensor of the whole, or from a ShardedTensor with the same cuts.

    Args:
        targets: by rectangle (offsets, sizes).
        source: the tensor.
        name: for messages.

    Raises:
        ValueError: the source lacks a rectangle.
    """
    if isinstance(source, ShardedTensor):
        held = {rectangle_of(shard.metadata): shard.tensor for shard in source.local_shards()}
        missing = [where for where in targets if where not in held]
        if missing:
            raise ValueError(
                f"{name}: got a ShardedTensor without the shard at offsets {missing[0][0]}, sizes {missing[0][1]} on "
                "this rank; load checkpoints of another plan through torch.distributed.checkpoint"
            )
        for where, target in targets.items():
            target.copy_(held[where])
        return
    for (offsets, sizes), target in targets.items():
        bounds = [o + s for o, s in zip(offsets, sizes, strict=True)]
        if source.dim() != len(bounds) or any(b > n for b, n in zip(bounds, source.shape, strict=True)):
            raise ValueError(f"{name}: got shape {list(source.shape)}, expected at least {bounds}")
        target.copy_(source[tuple(slice(o, b) for o, b in zip(offsets, bounds, strict=True))])
