"""Initial weights of a shard: the same numbers under every plan and on any number of ranks.

Shape letters: D embedding dim, R rows.
"""

from __future__ import annotations

import zlib

import torch
from torch import Tensor

from recsys.configs import BaseEmbeddingConfig
from recsys.sharding.plan import ShardMetadata

# Rows that are drawn at a time, each block by a generator of its own.
_BLOCK_ROWS = 1 << 14


def fill_rows(config: BaseEmbeddingConfig, where: ShardMetadata, weight: Tensor) -> None:
    """Draw a shard's weights.

    Uniform numbers are drawn for whole rows, block by block, from generators that are seeded by torch's initial
    seed, the table's name and the block; a shard takes its part. A table with an ``init_fn`` has it called on
    the shard, with torch's own generator.

    Args:
        config: the table.
        where: the shard's rectangle.
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
