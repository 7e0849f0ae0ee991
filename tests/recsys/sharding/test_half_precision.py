"""Lookups that answer in half precision: what row-wise shards hold of a bag is added before it is rounded.

Shape letters: B batch, D embedding dimension.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from recsys import DataType, EmbeddingBagCollection, KeyedJaggedTensor
from recsys.quant import QuantEmbeddingBagCollection
from recsys.sharding.plan.env import ShardingEnv
from recsys.sharding.plan.sharding_types import row_wise
from recsys.sharding.sharded import ShardedOptions
from tests.support.helpers import bag

HALVES = pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["FP16", "BF16"])
POOLINGS = pytest.mark.parametrize("pooling", ["SUM", "MEAN"])
ROWS, DIM = 400, 8


def _both(
    pooling: str, dtype: torch.dtype, weight: Tensor, batch: KeyedJaggedTensor
) -> tuple[Tensor, Tensor]:
    """What the whole table answers in float32, and what its two row-wise shards answer in ``dtype``."""
    table = bag("t", ROWS, DIM, ["f"], pooling)
    module = EmbeddingBagCollection([table])
    with torch.no_grad():
        next(module.parameters()).copy_(weight)
    plan, env = {"t": row_wise(table, [0, 1])}, ShardingEnv.over_devices(["cpu", "cpu"])
    halves = QuantEmbeddingBagCollection.from_float(
        module, data_type=DataType.FP32, options=ShardedOptions(output_dtype=dtype)
    )
    whole = QuantEmbeddingBagCollection.from_float(module, data_type=DataType.FP32)
    return whole(batch).values(), halves.shard(plan, env)(batch).values()


def _long_bag(num_ids: int) -> KeyedJaggedTensor:
    """One bag over all rows, so over both shards, and one of a single ID."""
    ids = torch.arange(num_ids) % ROWS
    return KeyedJaggedTensor(["f"], torch.cat([ids, ids[:1]]), lengths=torch.tensor([num_ids, 1]))


@HALVES
def test_a_mean_is_finite_where_the_sum_would_not_be(dtype: torch.dtype) -> None:
    """The sum is 300 000; float16 ends at 65 504."""
    _, found = _both("MEAN", dtype, torch.full((ROWS, DIM), 100.0), _long_bag(3000))
    assert found.dtype == dtype
    assert found.tolist() == [[100.0] * DIM] * 2


@HALVES
@pytest.mark.parametrize("num_ids", [580, 2960])
def test_a_sum_of_equal_rows_is_rounded_once(dtype: torch.dtype, num_ids: int) -> None:
    """Bags of lengths where rounding both shards' parts first would give another number."""
    whole, found = _both("SUM", dtype, torch.full((ROWS, DIM), 100.0), _long_bag(num_ids))
    assert whole[0, 0] == 100.0 * num_ids
    assert found.dtype == dtype
    assert torch.equal(found, whole.to(dtype))
    if not (dtype is torch.float16 and num_ids == 2960):
        assert found.isfinite().all()


@HALVES
@POOLINGS
def test_shards_round_no_more_than_the_whole(dtype: torch.dtype, pooling: str) -> None:
    generator = torch.Generator().manual_seed(0)
    # Whole numbers: float32 sums of them are exact in any order.
    weight = torch.randint(-20, 120, (ROWS, DIM), generator=generator).float()
    lengths = torch.randint(0, 90, (200,), generator=generator)
    ids = torch.randint(0, ROWS, (int(lengths.sum()),), generator=generator)
    whole, found = _both(pooling, dtype, weight, KeyedJaggedTensor(["f"], ids, lengths=lengths))
    assert found.dtype == dtype
    if pooling == "SUM":
        assert torch.equal(found, whole.to(dtype))
    else:
        # A mean's float32 rounding may differ, so only half a step of the output dtype is certain.
        half_step = torch.finfo(dtype).eps / 2
        assert float(((found.float() - whole).abs() - whole.abs() * (half_step + 2**-20)).max()) <= 0.0
