"""A rank alone takes the output of its one lookup as it is, with the results of the longer way."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
import torch
from torch import Tensor

from recsys import EmbeddingBagCollection, KeyedJaggedTensor
from recsys.model_parallel import DistributedModelParallel
from recsys.sharding.plan.plan import ShardingPlan
from recsys.sharding.plan.sharding_types import column_wise, data_parallel, table_wise
from recsys.sharding.transport.group_transport import GroupTransport
from recsys.sharding.transport.pooled import PooledColumns
from recsys.train.stepping.ranks import ONE_RANK, process_group
from tests.support.helpers import bag

_KEYS = ["f", "g", "h"]
_NUM_ROWS = 6


@pytest.fixture(autouse=True, scope="module")
def _group() -> Iterator[None]:
    with process_group(ONE_RANK):
        yield


def _model(kinds: Sequence[str], poolings: Sequence[str], kernel: str) -> DistributedModelParallel:
    make = {
        "whole": lambda table: table_wise(table, 0).with_kernel(kernel),
        "columns": lambda table: column_wise(table, [0, 0]).with_kernel(kernel),
        "replicated": data_parallel,
    }
    names = (["f", "g"], ["h"], ["h"])
    tables = [bag(f"t{i}", 5 + i, 16, names[i], pooling) for i, pooling in enumerate(poolings)]
    plan = {table.name: make[kind](table) for table, kind in zip(tables, kinds, strict=True)}
    torch.manual_seed(0)
    bags = EmbeddingBagCollection(tables)
    return DistributedModelParallel(bags, ONE_RANK.env(), plan=ShardingPlan(plan={"": plan}))


def _columns(model: DistributedModelParallel) -> PooledColumns:
    transport = model.sharded_modules()[""].transport
    assert isinstance(transport, GroupTransport)
    assert transport._columns is not None
    return transport._columns


def _trained(model: DistributedModelParallel) -> list[Tensor]:
    """Outputs of three steps, and the tables after them, or their gradients."""
    generator = torch.Generator().manual_seed(1)
    found = []
    for _ in range(3):
        lengths = torch.randint(0, 4, (len(_KEYS) * _NUM_ROWS,), generator=generator)
        values = torch.randint(0, 5, (int(lengths.sum()),), generator=generator)
        output = model(KeyedJaggedTensor(_KEYS, values, lengths=lengths)).wait().values()
        output.backward(torch.randn(output.shape, generator=generator))
        found.append(output.detach().clone())
    parameters = dict(model.named_parameters()).values()
    return [*found, *(p.detach() if p.grad is None else p.grad for p in parameters)]


@pytest.mark.parametrize("kernel", ["fused", "dense"])
@pytest.mark.parametrize("pooling", ["SUM", "MEAN"])
@pytest.mark.parametrize("kinds", [["whole"] * 3, ["whole", "columns", "whole"]])
def test_one_output_is_taken_as_it_is(kinds: list[str], pooling: str, kernel: str) -> None:
    short, long = (_model(kinds, [pooling] * 3, kernel) for _ in range(2))
    assert _columns(short).are_one_output
    _columns(long).are_one_output = False
    for found, expected in zip(_trained(short), _trained(long), strict=True):
        assert torch.equal(found, expected)


@pytest.mark.parametrize(
    ("kinds", "poolings"),
    [
        (["whole"] * 3, ["SUM", "MEAN", "SUM"]),
        (["whole", "replicated", "whole"], ["SUM"] * 3),
        (["replicated"] * 3, ["SUM"] * 3),
    ],
    ids=["poolings", "some-replicated", "all-replicated"],
)
def test_several_outputs_are_assembled(kinds: list[str], poolings: list[str]) -> None:
    assert not _columns(_model(kinds, poolings, "fused")).are_one_output
