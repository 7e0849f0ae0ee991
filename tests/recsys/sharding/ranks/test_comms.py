"""What crosses between ranks: embeddings and gradients in fewer bits as asked, IDs as they are.

Shape letters: E (feature, table) pairs, W world size.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from recsys import CommsConfig, ShardingEnv
from recsys.kernels.bounds import BoundsCheckMode
from recsys.sharding.plan.layout import make_layout
from recsys.sharding.plan.sharding_types import row_wise, table_wise
from recsys.sharding.transport.group_transport import GroupTransport
from recsys.sharding.transport.inputs import PairIds
from tests.recsys.sharding.ranks.cases import Draw, RankCase, case_of_every_type
from tests.recsys.sharding.ranks.oracle import LEARNING_RATE
from tests.recsys.sharding.ranks.training import RankResult, group_of, train_sharded
from tests.support.helpers import bag, kjt_of
from tests.support.helpers import sequence as of_rows
from tests.support.ranks import live_pool

DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}
#: Of 4 tables' worth of partial sums, each rounded once, and the largest row of a normal distribution.
_LARGEST_BAG = 4 * 4.5


def _both(case: RankCase, comms: CommsConfig) -> tuple[list[RankResult], list[RankResult]]:
    pool = live_pool(case.draw.world_size)
    return tuple(pool.run(train_sharded, case, "sgd", settings) for settings in ({}, {"comms": comms}))  # type: ignore[return-value]


def _largest_difference(exact: list[Tensor], rounded: list[Tensor]) -> float:
    return max(float((a - b).abs().max()) for a, b in zip(exact, rounded, strict=True) if a.numel())


def _outputs(results: list[RankResult]) -> list[Tensor]:
    return [output for result in results for output in result.outputs[0].values()]


def _weights(results: list[RankResult]) -> list[Tensor]:
    return [shard.tensor for result in results for shards in result.weights.values() for shard in shards]


@pytest.mark.parametrize("sequence", [False, True], ids=["pooled", "sequence"])
@pytest.mark.parametrize("dtype", list(DTYPES))
def test_embeddings_are_rounded_to_what_crosses(dtype: str, sequence: bool) -> None:
    case = case_of_every_type("rounded forth", Draw(world_size=2, num_steps=1, sequence=sequence))
    exact, rounded = _both(case, CommsConfig(forward=DTYPES[dtype]))
    difference = _largest_difference(_outputs(exact), _outputs(rounded))
    assert 0 < difference <= torch.finfo(DTYPES[dtype]).eps * _LARGEST_BAG
    # The loss is linear: gradients, which cross in float32, are the same.
    assert _largest_difference(_weights(exact), _weights(rounded)) == 0


@pytest.mark.parametrize("sequence", [False, True], ids=["pooled", "sequence"])
@pytest.mark.parametrize("dtype", list(DTYPES))
def test_gradients_are_rounded_to_what_crosses(dtype: str, sequence: bool) -> None:
    case = case_of_every_type("rounded back", Draw(world_size=2, num_steps=1, sequence=sequence))
    exact, rounded = _both(case, CommsConfig(backward=DTYPES[dtype]))
    assert _largest_difference(_outputs(exact), _outputs(rounded)) == 0
    difference = _largest_difference(_weights(exact), _weights(rounded))
    num_ids = max(case.batch(0, rank).values().numel() for rank in range(2))
    assert 0 < difference <= LEARNING_RATE * torch.finfo(DTYPES[dtype]).eps * 4.5 * num_ids
    assert difference < 0.1


@pytest.mark.parametrize("dtype", list(DTYPES))
def test_two_hops_are_rounded_too(dtype: str) -> None:
    case = case_of_every_type("two hops", Draw(world_size=4, num_steps=1), local_world_size=2)
    comms = CommsConfig(forward=DTYPES[dtype], backward=DTYPES[dtype])
    exact, rounded = _both(case, comms)
    difference = _largest_difference(_outputs(exact), _outputs(rounded))
    assert 0 < difference <= 2 * torch.finfo(DTYPES[dtype]).eps * _LARGEST_BAG


NUM_ROWS = {"int32": 2**31 - 1, "int64": 2**40}


def send_ids(rank: int, world_size: int, num_rows: int, sequence: bool) -> list[tuple[Any, ...]]:
    """IDs and weights as they arrive at this rank's shards. There are no rows: the tables would not fit."""
    make = of_rows if sequence else bag
    tables = [make("by_rows", num_rows, 4, ["f"]), make("whole", num_rows, 4, ["g"])]
    plan = {"by_rows": row_wise(tables[0], range(world_size)), "whole": table_wise(tables[1], 1)}
    layout = make_layout(tables, plan, world_size)
    env = ShardingEnv.from_process_group(group_of(world_size), "cpu")
    comms = CommsConfig(forward=torch.float16, backward=torch.float16)
    transport = GroupTransport(layout, env, comms, sequence=sequence)
    pair_ids = PairIds(layout, not sequence, {}, BoundsCheckMode.FATAL)
    batch = kjt_of(ids_of(rank, num_rows), None if sequence else [0.1 + i + rank for i in range(6)])
    inputs = transport.input_dist(pair_ids(batch)).wait().wait()
    return [
        (group.values.tolist(), None if group.weights is None else group.weights.tolist())
        for group in inputs.groups
    ]


def ids_of(rank: int, num_rows: int) -> dict[str, list[list[int]]]:
    """Neighbours that float32 cannot tell apart, the last row, and low ones."""
    near = 2**24 + 1 + 2 * rank
    return {"f": [[near, near + 1], [num_rows - 1 - rank]], "g": [[num_rows - 1], [near, rank]]}


@pytest.mark.parametrize("sequence", [False, True], ids=["pooled, weighted", "sequence"])
@pytest.mark.parametrize("wire", list(NUM_ROWS))
def test_ids_and_weights_arrive_as_they_were(wire: str, sequence: bool) -> None:
    num_rows = NUM_ROWS[wire]
    first, second = live_pool(2).run(send_ids, num_rows, sequence)
    half = num_rows // 2
    ids = [ids_of(rank, num_rows) for rank in range(2)]
    low = [i for of_rank in ids for found in of_rank["f"] for i in found if i < half]
    high = [i - half for of_rank in ids for found in of_rank["f"] for i in found if i >= half]
    whole = [i for of_rank in ids for found in of_rank["g"] for i in found]
    assert [i for values, _ in first for i in values] == low
    assert [i for values, _ in second for i in values] == high + whole
    if not sequence:
        weights = [[float(torch.tensor(0.1 + i + rank)) for i in range(6)] for rank in range(2)]
        assert [w for _, found in first for w in found] == [w for of_rank in weights for w in of_rank[:2]]
        of_last = [of_rank[2] for of_rank in weights]
        assert [w for _, found in second for w in found] == of_last + [w for r in weights for w in r[3:]]


@pytest.mark.parametrize("name", ["forward", "backward"])
def test_other_dtypes_are_refused(name: str) -> None:
    with pytest.raises(
        ValueError, match=f"comms.{name}: got torch.int8, expected float32, float16 or bfloat16"
    ):
        CommsConfig(**{name: torch.int8})
