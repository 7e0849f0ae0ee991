"""From a model over ranks to a whole one on rank 0, one table at a time.

Shape letters: D embedding dim, R rows.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch import distributed as dist
from torch.distributed._shard.sharded_tensor.api import ShardedTensor

from recsys.model_parallel import DistributedModelParallel


@torch.no_grad()
def whole_state_dict(model: DistributedModelParallel) -> dict[str, Tensor] | None:
    """The unsharded state dict in rank 0's host memory; None on other ranks. Every rank must call it.

    Rank 0 needs memory for all tables, other ranks for no more than they have.
    """
    group = model.env.process_group
    assert group is not None
    whole: dict[str, Tensor] = {}
    for name, value in model.state_dict().items():
        if isinstance(value, ShardedTensor):
            table = _gathered(value, group, model.device)
        else:
            table = value.detach().to("cpu", copy=True) if model.env.rank == 0 else None
        if table is not None:
            whole[name] = table
    return whole if model.env.rank == 0 else None


def _gathered(tensor: ShardedTensor, group: dist.ProcessGroup, device: torch.device) -> Tensor | None:
    rank = dist.get_rank(group)
    metadata = tensor.metadata()
    dtype = metadata.tensor_properties.dtype
    whole = torch.empty(metadata.size, dtype=dtype) if rank == 0 else None
    local = {tuple(shard.metadata.shard_offsets): shard.tensor for shard in tensor.local_shards()}
    # The same order on all ranks: messages between two ranks arrive in the order in which they are sent.
    for shard in sorted(metadata.shards_metadata, key=lambda shard: list(shard.shard_offsets)):
        assert shard.placement is not None
        owner = shard.placement.rank()
        if whole is None:
            if owner == rank:
                dist.send(local[tuple(shard.shard_offsets)].contiguous(), group=group, group_dst=0)
            continue
        if owner == 0:
            rows = local[tuple(shard.shard_offsets)]
        else:
            rows = torch.empty(shard.shard_sizes, dtype=dtype, device=device)
            dist.recv(rows, group=group, group_src=owner)
        part = tuple(
            slice(start, start + size)
            for start, size in zip(shard.shard_offsets, shard.shard_sizes, strict=True)
        )
        whole[part] = rows.cpu()
    return whole
