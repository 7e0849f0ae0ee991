"""Steps of TorchRec's planner."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch
from torch import nn

from recsys import EmbeddingBagCollection, EmbeddingBagCollectionSharder
from recsys.as_torchrec.modules.embedding_tower import EmbeddingTower, EmbeddingTowerCollection
from recsys.as_torchrec.planner.enumerators import EmbeddingEnumerator, EmbeddingPerfEstimator
from recsys.as_torchrec.planner.interfaces import Shard, ShardEstimator, ShardingOption
from recsys.as_torchrec.planner.planner import EmbeddingShardingPlanner
from recsys.as_torchrec.planner.shard_sizes import calculate_shard_sizes_and_offsets, calculate_shard_storages
from recsys.as_torchrec.planner.sharder_data import SharderData, build_sharder_data_map
from recsys.as_torchrec.planner.steps import (
    get_num_poolings,
    get_partition_by_type,
    placement,
    prod,
    reset_shard_rank,
    tower_index,
)
from recsys.planner.cost.constraints import ParameterConstraints
from recsys.planner.cost.topology import Topology
from tests.support.helpers import bag


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


@pytest.mark.parametrize(
    ("sharding_type", "sizes", "offsets"),
    [
        ("data_parallel", [[5, 64]] * 4, [[0, 0]] * 4),
        ("table_wise", [[5, 64]], [[0, 0]]),
        ("row_wise", [[2, 64], [2, 64], [1, 64], [0, 64]], [[0, 0], [2, 0], [4, 0], [5, 0]]),
        ("table_row_wise", [[3, 64], [2, 64]], [[0, 0], [3, 0]]),
        ("column_wise", [[5, 32], [5, 32]], [[0, 0], [0, 32]]),
        ("grid_shard", [[3, 32], [2, 32], [3, 32], [2, 32]], [[0, 0], [3, 0], [0, 32], [3, 32]]),
    ],
)
def test_tables_are_cut(sharding_type: str, sizes: list[list[int]], offsets: list[list[int]]) -> None:
    table = torch.empty(5, 64, device="meta")
    assert calculate_shard_sizes_and_offsets(table, 4, 2, sharding_type, 32) == (sizes, offsets)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sharding_type": "rows"}, "sharding_type: got 'rows'"),
        (
            {"num_buckets": 2},
            "num_buckets: got 2, expected a divisor of the 12 rows, and at least one bucket",
        ),
        ({"num_buckets": 5}, "num_buckets: got 5, expected a divisor of the 12 rows"),
        ({"device_memory_sizes": [1]}, "device_memory_sizes: got 1, expected one for each of 4 ranks"),
    ],
)
def test_a_cut_that_is_impossible_is_named(options: dict[str, Any], message: str) -> None:
    given = {"sharding_type": "row_wise", **options}
    with pytest.raises(ValueError, match=message):
        calculate_shard_sizes_and_offsets(torch.empty(12, 4), 4, 2, **given)


def test_tables_of_towers() -> None:
    towers = EmbeddingTowerCollection(
        [
            EmbeddingTower(EmbeddingBagCollection([bag(name, 4, 4, [name])]), nn.Identity())
            for name in ("t0", "t1")
        ]
    )
    assert [tower_index(name, towers) for name in ("t1", "t0")] == [1, 0]
    with pytest.raises(RuntimeError, match="got table 't2'"):
        tower_index("t2", towers)


class Memory(ShardEstimator):
    """An estimator that is given the sharders' settings, as such of others are."""

    def estimate(
        self,
        sharding_options: list[ShardingOption],
        sharder_data_map: Mapping[str, SharderData] | None = None,
    ) -> None:
        assert sharder_data_map
        for one in sharding_options:
            storages = calculate_shard_storages(
                sharder_data=sharder_data_map[one.module_type_key],
                sharding_type=one.sharding_type,
                tensor=one.tensor,
                compute_device=self._topology.compute_device,
                compute_kernel=one.compute_kernel,
                shard_sizes=[shard.size for shard in one.shards],
                batch_sizes=[one.batch_size] * one.num_inputs,
                world_size=self._topology.world_size,
                local_world_size=self._topology.local_world_size,
                input_lengths=one.input_lengths,
                num_poolings=get_num_poolings(self._constraints, one),
                caching_ratio=0.2,
                is_pooled=one.is_pooled,
                input_data_type_size=8,
                output_data_type_size=4,
            )
            for shard, storage in zip(one.shards, storages, strict=True):
                shard.storage = storage


class ColumnsOnly(EmbeddingEnumerator):
    """An enumerator that lists the options itself, as those of TorchRec's users do."""

    def enumerate(self, module: nn.Module, sharders: Sequence[Any]) -> list[ShardingOption]:
        self._sharder_map = {f"{s.module_type.__module__}.{s.module_type.__name__}": s for s in sharders}
        self._sharder_data_map = build_sharder_data_map(self._sharder_map)
        found = []
        for name, table in sharders[0].shardable_parameters(module).items():
            sizes, offsets = calculate_shard_sizes_and_offsets(
                tensor=table,
                world_size=self._world_size,
                local_world_size=self._local_world_size,
                sharding_type="column_wise",
                device_memory_sizes=self._device_memory_sizes,
            )
            one = ShardingOption(
                name=name,
                tensor=table,
                module=("", module),
                input_lengths=[1.0],
                batch_size=self._batch_size,
                sharding_type="column_wise",
                partition_by=get_partition_by_type("column_wise"),
                compute_kernel="fused",
                shards=[Shard(size=size, offset=of) for size, of in zip(sizes, offsets, strict=True)],
            )
            found.append(one)
        self.populate_estimates(found)
        return found


def test_an_enumerator_of_others_plans() -> None:
    topology = Topology(world_size=2, compute_device="cpu")
    model = EmbeddingBagCollection([bag("t", 100, 256, ["f"]), bag("u", 10, 256, ["g"])])
    estimators = [EmbeddingPerfEstimator(topology), Memory(topology)]
    enumerator = ColumnsOnly(topology, estimator=estimators)
    planner = EmbeddingShardingPlanner(topology=topology, enumerator=enumerator)
    plan = planner.plan(model, [EmbeddingBagCollectionSharder()])
    tables = plan.plan[""]
    assert {name: table.sharding_type for name, table in tables.items()} == dict.fromkeys("tu", "column_wise")
    assert sorted(tables["t"].ranks) == [0, 1]


def test_key_value_stores_are_refused() -> None:
    with pytest.raises(ValueError, match="rows lie in memory"):
        calculate_shard_storages(  # type: ignore[call-arg]
            *(build_sharder_data_map({"s": EmbeddingBagCollectionSharder()})["s"], "table_wise"),
            *(torch.empty(4, 4), "cpu", "fused", [[4, 4]], [1], 1, 1, [1.0], [1.0], 0.2, True, 8, 4),
            use_virtual_table=True,
        )
