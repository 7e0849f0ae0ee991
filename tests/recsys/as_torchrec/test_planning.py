"""Steps of TorchRec's planner."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from recsys.as_torchrec.parts.planning import (
    get_num_poolings,
    get_partition_by_type,
    placement,
    prod,
    reset_shard_rank,
)
from recsys.planner.cost.constraints import ParameterConstraints
from recsys.planner.cost.topology import Topology
from recsys.planner.parts.interfaces import Shard, ShardingOption


def option(num_poolings: list[float] | None = None) -> ShardingOption:
    return ShardingOption(
        name="t",
        tensor=torch.empty(4, 2),
        module=("m", nn.Module()),
        input_lengths=[1.0, 3.0],
        batch_size=8,
        sharding_type="row_wise",
        partition_by=get_partition_by_type("row_wise"),
        compute_kernel="fused",
        shards=[Shard(size=[2, 2], offset=[i, 0], rank=i) for i in (0, 2)],
        num_poolings=num_poolings,
    )


def test_shards_are_placed_by_their_sharding_type() -> None:
    found = [
        get_partition_by_type(kind) for kind in ("table_wise", "table_row_wise", "row_wise", "grid_shard")
    ]
    assert found == ["device", "host", "uniform", "multi_host"]
    with pytest.raises(ValueError, match="sharding_type: got 'rows', expected one of"):
        get_partition_by_type("rows")


def test_an_options_own_poolings_come_first() -> None:
    constraints = {"t": ParameterConstraints(num_poolings=[2.0, 5.0])}
    assert get_num_poolings(constraints, option([4.0, 4.0])) == [4.0, 4.0]
    assert get_num_poolings(constraints, option([4.0])) == [2.0, 5.0]
    assert get_num_poolings(None, option()) == [1.0, 1.0]


def test_small_steps() -> None:
    assert prod([2, 3, 4]) == 24
    assert placement("cuda", 9, 8) == "rank:9/cuda:1"
    assert placement("cpu", 9, 8) == "rank:9/cpu"
    options = [option(), option()]
    reset_shard_rank(options)
    assert [rank for one in options for rank in one.get_shards_assignment()] == [None] * 4


@pytest.mark.parametrize("given", [None, 0])
def test_without_ranks_per_host_all_are_on_one(given: int | None) -> None:
    topology = Topology(2, "cpu", local_world_size=given)
    assert (topology.local_world_size, topology.num_hosts) == (2, 1)
