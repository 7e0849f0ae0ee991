"""Lookups that learn by row-wise Adagrad, against FBGEMM's.

Shape letters: B batch, D embedding dim, S slots.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from recsys.configs import DataType, PoolingType
from recsys.kernels.operators import rows_looker, rows_updater
from recsys.kernels.rowwise import RowWiseLookup, RowWiseStep
from recsys.kernels.training import FusedLookup, KernelConfig, ShardConfig
from recsys.optim.fused_config import EmbOptimType, FusedConfig
from tests.support.kernels import needs_kernels

_CPU = torch.device("cpu")
_DIM = 8
# Two shards, the first of two slots.
_SHARDS = [
    ShardConfig(table=name, num_rows=rows, num_columns=_DIM, data_type=DataType.FP32)
    for name, rows in (("a", 11), ("b", 7))
]
_SLOTS = [0, 0, 1]
_EACH_ITS_OWN = [PoolingType.MEAN, PoolingType.MEAN, PoolingType.SUM]
_NUM_BAGS = 6


def _lookup(poolings: Sequence[PoolingType], *, weighted: bool, own: bool) -> FusedLookup:
    config = FusedConfig(optimizer=EmbOptimType.EXACT_ROWWISE_ADAGRAD, learning_rate=0.1)
    kernel = KernelConfig(name="fused", fused=config)
    lookup = FusedLookup(_SHARDS, _SLOTS, poolings, kernel, _CPU, weighted)
    generator = torch.Generator().manual_seed(0)
    for weight in lookup.weights:
        weight.detach().copy_(torch.randn(weight.shape, generator=generator))
    assert lookup._first_rows is not None
    if not own:
        lookup._first_rows = None
    return lookup


def _trained(lookup: FusedLookup, lengths: Tensor, *, weighted: bool) -> list[Tensor]:
    """Outputs, weights and states of three steps."""
    generator = torch.Generator().manual_seed(1)
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    made: list[Tensor] = []
    for _ in range(3):
        values = torch.randint(0, 7, (int(offsets[-1]),), generator=generator)
        weights = torch.rand(values.shape, generator=generator) if weighted else None
        found = lookup(values, offsets, weights)
        made.append(found.detach().clone())
        found.backward(torch.randn(found.shape, generator=generator))
    return [*made, *(w.detach() for w in lookup.weights), *(s["momentum1"] for s in lookup.states())]


@pytest.fixture(params=[pytest.param("native", marks=needs_kernels), "torch"])
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lookups and updates by the native module, and by torch's operators."""
    if request.param == "torch":
        monkeypatch.setattr("recsys.kernels.rowwise.rows_looker", lambda: None)
        monkeypatch.setattr("recsys.kernels.rowwise.rows_updater", lambda: None)


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("pooling", [*PoolingType, "each its own"])
@pytest.mark.parametrize("lengths", ["ones", "mixed", "none"])
def test_it_trains_as_fbgemm_does(pooling: PoolingType | str, weighted: bool, lengths: str) -> None:
    sizes = {
        "ones": torch.ones(3 * _NUM_BAGS, dtype=torch.int64),
        "mixed": torch.tensor([0, 1, 3, 2, 0, 4, 1, 1, 0, 0, 2, 5, 1, 0, 7, 2, 2, 1]),
        "none": torch.zeros(3 * _NUM_BAGS, dtype=torch.int64),
    }[lengths]
    if pooling is PoolingType.NONE and weighted:
        pytest.skip("sequences take no weights")
    poolings = [pooling] * 3 if isinstance(pooling, PoolingType) else _EACH_ITS_OWN
    ours, theirs = (
        _trained(_lookup(poolings, weighted=weighted, own=own), sizes, weighted=weighted)
        for own in (True, False)
    )
    for found, expected in zip(ours, theirs, strict=True):
        assert torch.allclose(found, expected, atol=1e-6)


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize(
    ("pooling", "shape"), [(PoolingType.SUM, (0, 3 * _DIM)), (PoolingType.NONE, (0, _DIM))]
)
def test_a_batch_may_be_empty(pooling: PoolingType, shape: tuple[int, int]) -> None:
    lookup = _lookup([pooling] * 3, weighted=False, own=True)
    found = lookup(torch.zeros(0, dtype=torch.int64), torch.zeros(1, dtype=torch.int64), None)
    assert found.shape == shape
    found.sum().backward()


def test_what_it_does_not_know_is_left_to_fbgemm(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> Tensor:
        raise AssertionError("called")

    monkeypatch.setattr(RowWiseLookup, "apply", refused)
    lookup = _lookup([PoolingType.SUM] * 3, weighted=True, own=True)
    values, offsets = torch.zeros(18, dtype=torch.int64), torch.arange(19)
    with pytest.raises(AssertionError, match="called"):
        lookup(values, offsets, torch.ones(18))
    with torch.no_grad():
        lookup(values, offsets, torch.ones(18))
    weights = torch.ones(18, requires_grad=True)
    lookup(values, offsets, weights).sum().backward()
    assert weights.grad is not None
    for changes in ({"optimizer": EmbOptimType.EXACT_ADAGRAD}, {"gradient_clipping": True}):
        config = FusedConfig(**{"optimizer": EmbOptimType.EXACT_ROWWISE_ADAGRAD, **changes})  # type: ignore[arg-type]
        kernel = KernelConfig(name="fused", fused=config)
        FusedLookup(_SHARDS, _SLOTS, [PoolingType.SUM] * 3, kernel, _CPU)(values, offsets, None)


def _step(num_bags: int, values: Tensor, weights: Tensor | None = None) -> RowWiseStep:
    """One step of three slots, the first and the last of one shard of 500 rows."""
    generator = torch.Generator().manual_seed(2)
    sizes = torch.zeros(3 * num_bags, dtype=torch.int64)
    sizes += torch.bincount(
        torch.randint(0, 3 * num_bags, values.shape, generator=generator), minlength=3 * num_bags
    )
    return RowWiseStep(
        weight=torch.randn(1000, _DIM, generator=generator),
        state=torch.rand(1000, generator=generator),
        learning_rate=0.1,
        eps=1e-8,
        values=values,
        offsets=torch.cat([torch.zeros(1, dtype=torch.int64), sizes.cumsum(0)]),
        first_rows=torch.tensor([0, 500, 0]),
        weights=weights,
        means=torch.tensor([True, True, False]),
        is_pooled=True,
    )


@needs_kernels
@pytest.mark.parametrize("num_ids", [1, 40, 5000])
def test_the_native_update_is_that_of_torch(num_ids: int) -> None:
    updater, looker = rows_updater(), rows_looker()
    assert updater is not None
    assert looker is not None
    generator = torch.Generator().manual_seed(num_ids)
    values = torch.randint(0, 500, (num_ids,), generator=generator)
    weights = torch.rand(num_ids, generator=generator)
    gradient = torch.randn(50, 3 * _DIM, generator=generator)
    native, plain = _step(50, values, weights), _step(50, values, weights)
    torch.testing.assert_close(looker(native), plain.look_up_by_torch())
    updater(native, gradient)
    plain.update_by_torch(gradient)
    torch.testing.assert_close(native.state, plain.state)
    torch.testing.assert_close(native.weight, plain.weight)


@needs_kernels
def test_the_native_update_refuses_what_does_not_fit() -> None:
    updater, looker = rows_updater(), rows_looker()
    assert updater is not None
    assert looker is not None
    gradient = torch.randn(2, 3 * _DIM)
    for row in (-1, 1000):
        with pytest.raises(IndexError, match=f"row {row}, expected 0 to 999"):
            updater(_step(2, torch.tensor([row]), torch.ones(1)), gradient)
        with pytest.raises(IndexError, match=f"row {row}, expected 0 to 999"):
            looker(_step(2, torch.tensor([row]), torch.ones(1)))
    step = _step(2, torch.tensor([3, 4]))
    for changes, at in (
        ({"offsets": torch.tensor([0, 0, 3, 0, 0, 0, 2])}, "offsets"),
        ({"offsets": torch.tensor([0, 2])}, "offsets"),
        ({"values": torch.tensor([3, 4, 5])}, "offsets"),
        ({"values": torch.tensor([3, 4], dtype=torch.int32)}, "values"),
        ({"weights": torch.ones(3)}, "weights"),
        ({"means": torch.tensor([True])}, "means"),
        ({"state": torch.ones(999)}, "state"),
        ({"is_pooled": False}, "gradient"),
    ):
        with pytest.raises(ValueError, match=at):
            updater(replace(step, **changes), gradient)
