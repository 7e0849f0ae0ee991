"""Plans by the planner's parts: what they find fits, lies where its type says, and is what the interfaces promise."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from recsys import EmbeddingBagCollection, EmbeddingCollection, EmbeddingConfig
from recsys.as_torchrec.planner.enumerators import EmbeddingEnumerator
from recsys.as_torchrec.planner.interfaces import Enumerator, Proposer, Shard, ShardingOption
from recsys.as_torchrec.planner.partitioners import GreedyPerfPartitioner, MemoryBalancedPartitioner, SortBy
from recsys.as_torchrec.planner.perf_models import NoopPerfModel, NoopStorageModel
from recsys.as_torchrec.planner.planner import EmbeddingShardingPlanner
from recsys.as_torchrec.planner.proposers import (
    DynamicProgrammingProposer,
    GreedyProposer,
    GridSearchProposer,
    UniformProposer,
)
from recsys.as_torchrec.planner.reservations import FixedPercentageStorageReservation
from recsys.as_torchrec.planner.search import Parts, find_plan
from recsys.as_torchrec.planner.stats import EmbeddingStats, NoopEmbeddingStats
from recsys.planner.cost.capacity import Perf, Storage
from recsys.planner.cost.constraints import ParameterConstraints
from recsys.planner.cost.topology import Topology
from recsys.planner.errors import PlannerError, PlannerErrorType
from recsys.sharding.plan.plan import check_plan
from recsys.sharding.sharders import EmbeddingBagCollectionSharder, get_default_sharders
from tests.recsys.planner.sets import table, topology, with_memory

TABLES = [table(f"t{i}", 1000 * (i + 1), 64) for i in range(5)]
RANKS = topology(4, 2)
SHARDERS = get_default_sharders()


def model() -> nn.Module:
    rows = EmbeddingConfig(name="r", num_embeddings=500, embedding_dim=32, feature_names=["of r"])
    with torch.device("meta"):
        return nn.ModuleDict({"bags": EmbeddingBagCollection(TABLES), "rows": EmbeddingCollection([rows])})


def options(**changes: Any) -> list[ShardingOption]:
    return EmbeddingEnumerator(RANKS, 16, **changes).enumerate(model(), SHARDERS)


PROPOSERS = {
    "greedy": GreedyProposer,
    "greedy, all shards": lambda: GreedyProposer(use_depth=False, threshold=20),
    "uniform": UniformProposer,
    "dynamic": lambda: DynamicProgrammingProposer(hbm_bins_per_device=10),
}
PARTITIONERS = {
    "by bytes": GreedyPerfPartitioner,
    "by time": lambda: GreedyPerfPartitioner(SortBy.PERF, balance_modules=True),
    "balanced": MemoryBalancedPartitioner,
}


@pytest.mark.parametrize("partitioner", PARTITIONERS)
@pytest.mark.parametrize("proposer", PROPOSERS)
def test_every_pair_of_parts_finds_a_plan_that_fits(proposer: str, partitioner: str) -> None:
    ranks = with_memory(RANKS, hbm=2_500_000)
    planner = EmbeddingShardingPlanner(
        ranks,
        16,
        enumerator=EmbeddingEnumerator(ranks, 16),
        storage_reservation=FixedPercentageStorageReservation(0.1),
        proposer=PROPOSERS[proposer](),
        partitioner=PARTITIONERS[partitioner](),
        performance_model=NoopPerfModel(ranks),
        stats=[EmbeddingStats(), NoopEmbeddingStats()],
        debug=True,
    )
    plan = planner.plan(model(), SHARDERS)
    check_plan(TABLES, plan.of("bags"), 4)
    assert list(plan.plan) == ["bags", "rows"]
    evaluated = planner.evaluated(planner.problem(model(), SHARDERS, ranks), plan)
    by_rank = [0] * 4
    for shard in evaluated.evaluation.shards:
        by_rank[shard.rank] += shard.cost.hbm_bytes
    assert max(by_rank) <= 2_250_000


def worst_rank_us(planner: EmbeddingShardingPlanner) -> float:
    own = EmbeddingShardingPlanner(RANKS, 16)
    shards = own.evaluated(own.problem(model(), SHARDERS), planner.plan(model(), SHARDERS)).evaluation.shards
    return max(sum(s.cost.total_us for s in shards if s.rank == rank) for rank in range(4))


@pytest.mark.parametrize(
    "given",
    [
        {"enumerator": EmbeddingEnumerator(RANKS, 16)},
        {"callbacks": [lambda options: options]},
        {"timeout_seconds": 1},
    ],
    ids=["enumerator", "callbacks", "timeout"],
)
def test_what_replaces_no_step_of_the_search_gets_its_plan(given: dict[str, Any]) -> None:
    own = worst_rank_us(EmbeddingShardingPlanner(RANKS, 16))
    assert worst_rank_us(EmbeddingShardingPlanner(RANKS, 16, **given)) == pytest.approx(own)


def test_proposers_are_nearly_as_good_as_the_search() -> None:
    proposers = [GreedyProposer(), DynamicProgrammingProposer()]
    own = worst_rank_us(EmbeddingShardingPlanner(RANKS, 16))
    assert own <= worst_rank_us(EmbeddingShardingPlanner(RANKS, 16, proposer=proposers)) <= 1.5 * own


class _Fastest(Proposer):
    """Proposes the fastest options of each type, and records what it hears."""

    def __init__(self) -> None:
        self.heard: list[tuple[bool, float | None]] = []

    def load(self, search_space: list[ShardingOption], enumerator: Enumerator | None = None) -> None:
        self.left = [
            [o for o in search_space if (o.sharding_type, o.compute_kernel) == (kind, "fused")]
            for kind in ("table_wise", "row_wise")
        ]

    def propose(self) -> list[ShardingOption] | None:
        return self.left[0] if self.left else None

    def feedback(
        self,
        partitionable: bool,
        plan: list[ShardingOption] | None = None,
        perf_rating: float | None = None,
        storage_constraint: Topology | None = None,
    ) -> None:
        assert (plan is not None) == partitionable
        self.heard.append((partitionable, perf_rating))
        self.left = self.left[1:]


def test_a_proposer_of_others_hears_what_came_of_its_proposals() -> None:
    proposer = _Fastest()
    plan = EmbeddingShardingPlanner(RANKS, 16, proposer=proposer).plan(model(), SHARDERS)
    assert [fits for fits, _ in proposer.heard] == [True, True]
    ratings = [rating for _, rating in proposer.heard if rating is not None]
    kind = ("table_wise", "row_wise")[ratings.index(min(ratings))]
    assert {sharding.sharding_type for path in plan.plan for sharding in plan.of(path).values()} == {kind}


def test_the_dynamic_proposer_finds_plans_where_memory_is_scarce() -> None:
    ranks = topology(4, 2, "cpu")
    enough = EmbeddingShardingPlanner(ranks, 16).result(EmbeddingShardingPlanner(ranks, 16).problem(model()))
    needed = max(cost.ddr_bytes for cost in enough.evaluation.of_ranks())
    scarce = with_memory(ranks, ddr=int(needed / 0.85 * 1.1))
    proposer = DynamicProgrammingProposer()
    plan = EmbeddingShardingPlanner(scarce, 16, proposer=proposer).plan(model(), SHARDERS)
    check_plan(TABLES, plan.of("bags"), 4)


def test_shards_of_columns_on_one_of_several_hosts_lie_together() -> None:
    (whole,) = [
        o for o in options() if (o.name, o.sharding_type, o.compute_kernel) == ("t0", "table_wise", "fused")
    ]
    whole.sharding_type, whole.partition_by = "table_column_wise", "host"
    whole.shards = [
        Shard([1000, 32], [0, column], Storage(1000, 0), Perf(1.0, 0.0, 0.0, 0.0)) for column in (0, 32)
    ]
    found = find_plan(Parts(), [whole], RANKS)
    assert set(found.options[0].get_shards_assignment()) in ({0, 1}, {2, 3})


def test_options_have_the_shards_of_their_types() -> None:
    of_t0 = {
        (o.sharding_type, o.compute_kernel): o for o in options() if o.name == "t0" and o.num_shards <= 4
    }
    shapes = {kind: [(s.size, s.offset) for s in o.shards] for (kind, _), o in of_t0.items()}
    assert shapes["table_wise"] == [([1000, 64], [0, 0])]
    assert shapes["data_parallel"] == [([1000, 64], [0, 0])] * 4
    assert shapes["row_wise"] == [([250, 64], [250 * i, 0]) for i in range(4)]
    assert shapes["table_row_wise"] == [([500, 64], [0, 0]), ([500, 64], [500, 0])]
    assert shapes["column_wise"] == [([1000, 32], [0, 0]), ([1000, 32], [0, 32])]
    assert shapes["grid_shard"] == [([500, 32], [r, c]) for c in (0, 32) for r in (0, 500)]
    whole = of_t0["table_wise", "fused"]
    assert (whole.fqn, whole.path, whole.input_lengths, whole.is_pooled) == ("bags.t0", "bags", [1.0], True)
    assert (whole.partition_by, whole.tensor.shape) == ("device", (1000, 64))
    assert whole.total_storage.hbm > 1000 * 64 * 4
    assert whole.total_perf > 0
    (rows,) = [
        o for o in options() if (o.name, o.sharding_type, o.compute_kernel) == ("r", "table_wise", "fused")
    ]
    assert not rows.is_pooled
    assert len({o.storage_hash() for o in options()}) == len(options())


def test_estimates_follow_changed_options() -> None:
    enumerator = EmbeddingEnumerator(RANKS, 16)
    (cached,) = [
        o
        for o in enumerator.enumerate(model(), SHARDERS)
        if (o.name, o.sharding_type, o.compute_kernel) == ("t4", "table_wise", "fused_uvm_caching")
    ]
    before = copy.deepcopy(cached.shards[0])
    assert before.storage is not None
    from recsys.sharding.plan.kinds import CacheParams

    cached.cache_params = CacheParams(load_factor=0.8)
    enumerator.populate_estimates([cached])
    after = cached.shards[0].storage
    assert after is not None
    assert after.hbm > 2 * before.storage.hbm
    assert after.ddr == before.storage.ddr


@pytest.mark.parametrize(
    "kind", ["table_row_wise", "table_column_wise", "grid_shard", "row_wise", "column_wise"]
)
def test_shards_lie_where_their_type_says(kind: str) -> None:
    constraints = {t.name: ParameterConstraints(sharding_types=[kind], min_partition=32) for t in TABLES}
    kinds = [] if kind in ("table_row_wise", "grid_shard", "row_wise", "column_wise") else [kind]
    ranks = topology(4) if kinds else RANKS
    found = EmbeddingEnumerator(ranks, 16, constraints).enumerate(model().get_submodule("bags"), SHARDERS)
    proposer = UniformProposer()
    proposer.load(found)
    proposal = proposer.propose()
    assert proposal is not None
    for option in GreedyPerfPartitioner().partition(proposal, ranks):
        placed = [shard.rank for shard in option.shards]
        assert None not in placed
        hosts = [rank // 2 for rank in placed if rank is not None]
        match kind:
            case "table_row_wise":
                assert placed in ([0, 1], [2, 3])
            case "grid_shard":
                assert set(placed) == {0, 1, 2, 3}
                assert hosts[0] == hosts[1] != hosts[2] == hosts[3]
            case "row_wise":
                assert placed == [0, 1, 2, 3]
            case _:
                assert len(placed) == 2


def test_tables_that_depend_on_each_other_lie_together() -> None:
    proposal = [o for o in options() if (o.sharding_type, o.compute_kernel) == ("table_wise", "fused")]
    for option in proposal:
        option.dependency = "tower" if option.name in ("t0", "t3", "r") else None
    ranks = {o.name: o.shards[0].rank for o in GreedyPerfPartitioner().partition(proposal, RANKS)}
    assert ranks["t0"] == ranks["t3"] == ranks["r"]
    assert len(set(ranks.values())) > 1
    assert all(option.shards[0].rank is None for option in proposal)


def test_balanced_memory_takes_less_where_it_is_nearly_as_fast() -> None:
    proposal = [o for o in options() if (o.sharding_type, o.compute_kernel) == ("table_wise", "fused")]
    rates = NoopStorageModel(RANKS)
    greedy = GreedyPerfPartitioner(SortBy.PERF).partition(proposal, RANKS)
    balanced = MemoryBalancedPartitioner(tolerance=1.0).partition(proposal, RANKS)
    assert rates.rate(balanced) <= rates.rate(greedy)
    assert NoopPerfModel(RANKS).rate(balanced) <= 2 * NoopPerfModel(RANKS).rate(greedy)


def test_every_combination_unless_there_are_too_many() -> None:
    space = [o for o in options() if o.name in ("t0", "t1") and o.sharding_type in ("table_wise", "row_wise")]
    proposer, seen = GridSearchProposer(), []
    proposer.load(space)
    while (proposal := proposer.propose()) is not None:
        seen.append(tuple(o.storage_hash() for o in proposal))
        proposer.feedback(True, proposal, 1.0)
    of_table = len(space) // 2
    assert len(set(seen)) == len(seen) == of_table**2
    few = GridSearchProposer(max_proposals=of_table**2 - 1)
    few.load(space)
    assert few.propose() is None


def test_a_greedy_proposer_stops_after_too_much_in_vain() -> None:
    proposer = GreedyProposer(threshold=2)
    proposer.load(options())
    for _ in range(4):
        assert proposer.propose() is not None
        proposer.feedback(True, [], 5.0)
    assert proposer.propose() is None


def test_what_does_not_fit_is_said() -> None:
    planner = EmbeddingShardingPlanner(with_memory(RANKS, hbm=10_000, ddr=0), 16, proposer=UniformProposer())
    with pytest.raises(
        PlannerError, match=r"no proposal of \d+ fits: table 't4': no rank has room"
    ) as caught:
        planner.plan(model(), SHARDERS)
    assert caught.value.error_type is PlannerErrorType.INSUFFICIENT_STORAGE
    own = EmbeddingShardingPlanner(with_memory(RANKS, hbm=10_000, ddr=0), 16)
    with pytest.raises(PlannerError) as caught:
        own.plan(model(), SHARDERS)
    assert caught.value.error_type is PlannerErrorType.INSUFFICIENT_STORAGE


class _RowsOnly(EmbeddingBagCollectionSharder):
    """A sharder that cuts rows."""

    def sharding_types(self, compute_device_type: str) -> list[str]:
        del compute_device_type
        return ["row_wise"]

    def compute_kernels(self, sharding_type: str, compute_device_type: str) -> list[str]:
        del sharding_type, compute_device_type
        return ["fused_uvm"]


@pytest.mark.parametrize("by_parts", [False, True], ids=["own search", "parts"])
def test_sharders_say_what_they_can(by_parts: bool) -> None:
    given: dict[str, Any] = {"proposer": GreedyProposer()} if by_parts else {}
    plan = EmbeddingShardingPlanner(RANKS, 16, **given).plan(model().get_submodule("bags"), [_RowsOnly()])
    kinds = {(t.sharding_type, t.compute_kernel) for t in plan.of("").values()}
    assert kinds == {("row_wise", "fused_uvm")}


def test_callbacks_change_the_plan() -> None:
    def all_on_last(options: list[ShardingOption]) -> list[ShardingOption]:
        for option in options:
            option.shards[0].rank = 3
        return options

    constraints = {t.name: ParameterConstraints(sharding_types=["table_wise"]) for t in [*TABLES]}
    planner = EmbeddingShardingPlanner(RANKS, 16, constraints=constraints, callbacks=[all_on_last])
    plan = planner.plan(model().get_submodule("bags"), SHARDERS)
    assert {rank for sharding in plan.of("").values() for rank in sharding.ranks} == {3}


def test_plans_are_reported(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO"):
        EmbeddingShardingPlanner(RANKS, 16, stats=EmbeddingStats()).plan(model(), SHARDERS)
    assert "plan of 6 tables for 4 ranks of cuda, batches of 16: 1 of 1 proposals fit" in caplog.text
    assert "rank 3: " in caplog.text


def test_the_partitioner_keeps_what_is_left_of_the_ranks() -> None:
    partitioner, proposal = (
        GreedyPerfPartitioner(),
        [o for o in options() if o.sharding_type == "table_wise"][:3],
    )
    plan = partitioner.partition(proposal, RANKS)
    left = partitioner._topology
    assert left is not None
    for rank, device in enumerate(left.devices):
        shards = [shard for option in plan for shard in option.shards if shard.rank == rank]
        held = sum((shard.storage.hbm for shard in shards if shard.storage), 0)
        assert device.storage.hbm == RANKS.devices[rank].storage.hbm - held
        assert device.perf.total == pytest.approx(sum(shard.perf.total for shard in shards if shard.perf))
    assert sum(device.perf.total for device in RANKS.devices) == 0
