"""The first weights of a table's shards on a rank.

Shape letters: D embedding dimension, R rows.
"""

from __future__ import annotations

import zlib

import torch
from torch import Tensor
from torch import distributed as dist

from recsys.configs import BaseEmbeddingConfig
from recsys.sharding.plan.env import ShardingEnv
from recsys.sharding.plan.plan import ShardMetadata
from recsys.sharding.table_shards import TableShards

# Rows of a block; each block has its own generator.
_BLOCK_ROWS = 1 << 14


@torch.no_grad()
def fill(table: TableShards, weight: Tensor) -> None:
    """Set a table's shards to their part of its weight, or draw them if it is on the meta device."""
    if weight.is_meta:
        for where, shard in table.local_weights():
            fill_rows(table.config, where, shard)
    else:
        table.set_weight(weight.detach(), table.config.name)


def keep_equal(table: TableShards, env: ShardingEnv) -> None:
    """Initialize a replicated table from rank 0's weights, and average its gradients over the ranks."""
    group = env.process_group
    assert group is not None
    if env.world_size == 1:
        return
    parameter = next(table.parameters())
    dist.broadcast(parameter.detach(), src=dist.get_global_rank(group, 0), group=group)
    if not parameter.requires_grad:
        return

    def average(changed: Tensor) -> None:
        assert changed.grad is not None
        dist.all_reduce(changed.grad, group=group)
        changed.grad /= env.world_size

    parameter.register_post_accumulate_grad_hook(average)


def fill_rows(config: BaseEmbeddingConfig, where: ShardMetadata, weight: Tensor) -> None:
    """Draw a shard's weights.

    Uniform numbers are drawn for whole rows, block by block, from generators that are seeded by torch's initial
    seed, the table's name and the block; a shard uses its part. An ``init_fn`` is called on the shard, with
    torch's global generator.

    Args:
        config: The table.
        where: The shard's rectangle.
        weight: ``[rows, columns]`` of the shard, filled in place.
    """
    if config.init_fn is not None:
        config.init_fn(weight)
        return
    low, high = config.get_weight_init_min(), config.get_weight_init_max()
    (first, end), (left, right) = where.rows, where.columns
    seed = torch.initial_seed()
    for block in range(first // _BLOCK_ROWS, -(-end // _BLOCK_ROWS)):
        start = block * _BLOCK_ROWS
        num_rows = min(_BLOCK_ROWS, config.num_embeddings - start)
        key = zlib.crc32(f"{seed}/{config.name}/{block}".encode())
        generator = torch.Generator().manual_seed(key)
        rows = torch.empty(num_rows, config.embedding_dim).uniform_(low, high, generator=generator)
        top, bottom = max(first, start), min(end, start + num_rows)
        weight[top - first : bottom - first].copy_(rows[top - start : bottom - start, left:right])
