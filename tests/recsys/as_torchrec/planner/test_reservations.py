"""Reservations of memory, and topologies by TorchRec's arguments."""

from __future__ import annotations

from typing import Any

import pytest
from torch import nn

from recsys import EmbeddingBagCollection
from recsys.as_torchrec.planner.interfaces import StorageReservation
from recsys.as_torchrec.planner.planner import EmbeddingShardingPlanner
from recsys.as_torchrec.planner.reservations import (
    FixedAbsoluteStorageReservation,
    FixedPercentageStorageReservation,
    HeuristicalStorageReservation,
    InferenceStorageReservation,
)
from recsys.errors import PlanError
from recsys.planner.constants import DDR_CAP, HBM_CAP
from recsys.planner.cost.capacity import BasicCommsBandwidths, CustomTopologyData, Storage
from recsys.planner.cost.constraints import ParameterConstraints
from recsys.planner.cost.topology import Topology
from recsys.planner.errors import PlannerError, PlannerErrorType
from recsys.sharding.sharders import get_default_sharders
from tests.recsys.planner.sets import table

GB = 1024**3
SHARDERS = get_default_sharders()


def model() -> nn.Module:
    """100 dense numbers over two tables."""
    return nn.ModuleDict(
        {
            "bags": EmbeddingBagCollection([table("a", 40), table("b", 40)]),
            "over": nn.Linear(99, 1),
        }
    )


CASES: dict[str, tuple[StorageReservation, int]] = {
    "share": (FixedPercentageStorageReservation(0.25), GB // 4),
    "bytes": (FixedAbsoluteStorageReservation.from_gb(0.5), GB // 2),
    # Six copies of 100 numbers; 20 of 16 * (3 + 1) IDs.
    "estimate": (HeuristicalStorageReservation(0.25), GB // 4 + 2400 + 20 * 64 * 8),
    "given": (
        HeuristicalStorageReservation(0.25, dense_tensor_estimate=1000),
        GB // 4 + 1000 + 20 * 64 * 8,
    ),
    "inference": (InferenceStorageReservation(0.25), GB // 4 + 400 + 64 * 8),
}


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("case", CASES)
def test_what_is_taken_off(case: str, device: str) -> None:
    reservation, taken = CASES[case]
    ranks = Topology(2, device, GB, GB)
    constraints = {"a": ParameterConstraints(pooling_factors=[3.0])}
    left = reservation.reserve(ranks, 16, model(), SHARDERS, constraints)
    on_host = device == "cpu"
    expected = Storage(
        0 if on_host else GB - taken, GB - taken if on_host else GB, left.devices[0].storage.ssd
    )
    assert [d.storage for d in left.devices] == [expected] * 2
    assert reservation.last_reserved_topology == left
    assert ranks.devices[0].storage.ddr == GB


def test_nothing_left_is_said() -> None:
    reservation = HeuristicalStorageReservation(0.5, dense_tensor_estimate=GB)
    with pytest.raises(PlannerError, match=r"nothing is left of the .* bytes of a rank: 50%") as caught:
        reservation.reserve(Topology(2, "cuda", GB), 16, model(), SHARDERS)
    assert caught.value.error_type is PlannerErrorType.INSUFFICIENT_STORAGE
    for wrong in (
        lambda: FixedPercentageStorageReservation(1.5),
        lambda: FixedAbsoluteStorageReservation(-1),
    ):
        with pytest.raises(PlannerError, match="got"):
            wrong()


def test_the_planner_plans_with_what_is_left() -> None:
    ranks = Topology(2, "cuda", GB, GB, local_world_size=2)
    planner = EmbeddingShardingPlanner(
        ranks, 16, storage_reservation=FixedAbsoluteStorageReservation(GB - 5000)
    )
    assert planner.problem(model(), SHARDERS).capacity().hbm_bytes == 5000


def test_a_topology_by_torchrecs_arguments() -> None:
    ranks = Topology(world_size=4, compute_device="cuda", local_world_size=2)
    assert (ranks.hbm_bytes, ranks.ddr_bytes, ranks.num_hosts) == (HBM_CAP, DDR_CAP, 2)
    slow = Topology(4, "cuda", hbm_mem_bw=ranks.hbm_mem_bw / 2, intra_host_bw=1e6, inter_host_bw=1e5)
    assert (slow.intra_host.bandwidth, slow.inter_host.bandwidth) == (1e9, 1e8)
    assert (slow.intra_host_bw, slow.comms_bandwidths.inter_host_bw) == (1e6, 1e5)
    assert slow.hbm is not None
    assert ranks.hbm is not None
    assert slow.hbm.row_read_bandwidth == pytest.approx(ranks.hbm.row_read_bandwidth / 2)
    same = Topology(4, "cuda", generalized_comms_bandwidths=BasicCommsBandwidths(1e5, 1e6))
    assert (same.intra_host, same.inter_host) == (slow.intra_host, slow.inter_host)
    host = Topology(2, "cpu", ddr_cap=GB)
    assert [d.storage.hbm for d in host.devices] == [0, 0]
    assert host.ddr_bytes == GB
    assert Topology.from_json(host.to_json()) == host


def test_capacities_rank_by_rank() -> None:
    custom = CustomTopologyData({"hbm_cap": [3 * GB, GB]}, 2)
    ranks = Topology(2, "cuda", custom_topology_data=custom)
    assert [d.storage.hbm for d in ranks.devices] == [3 * GB, GB]
    assert ranks.hbm_bytes == GB
    assert ranks.replaced(shard_us=1.0).hbm_bytes == GB
    with pytest.raises(PlanError, match=r"data\['hbm_cap'\]: got 2 numbers, expected 3"):
        CustomTopologyData({"hbm_cap": [1, 2]}, 3)
    with pytest.raises(PlanError, match="expected some of"):
        CustomTopologyData({"cap": [1]}, 1)


def test_backward_passes_are_scaled() -> None:
    def backward_us(**changes: Any) -> float:
        planner = EmbeddingShardingPlanner(Topology(2, "cuda", **changes), 16)
        made = planner.plan(model(), SHARDERS)
        shards = planner.evaluated(planner.problem(model(), SHARDERS), made).evaluation.shards
        return sum(shard.cost.backward_us for shard in shards)

    assert backward_us(bwd_compute_multiplier=6) == pytest.approx(3 * backward_us(), rel=0.01)
    assert backward_us(weighted_feature_bwd_compute_multiplier=6) == backward_us()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"compute_device": "mtia"}, "compute_device: got 'mtia', expected cuda or cpu"),
        ({"local_world_size": 3}, "local_world_size: got 3"),
        ({"pod_size": 2}, "pod_size: got 2, expected 1"),
        ({"uneven_sharding_perf_multiplier": 2.0}, "uneven_sharding_perf_multiplier: got 2.0"),
        ({"hbm_mem_bw": 0.0}, "got the bandwidth 0.0"),
    ],
)
def test_topologies_that_cannot_be(arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(PlanError, match=text):
        Topology(**{"world_size": 4, "compute_device": "cuda", **arguments})


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"output_dtype": "FP16"}, "output_dtype: got FP16"),
        ({"use_virtual_table": True}, "use_virtual_table"),
        ({"compute_kernels": ["fast"]}, "compute_kernels: got .*fast"),
    ],
)
def test_constraints_that_cannot_be(arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(PlanError, match=text):
        ParameterConstraints(**arguments)


def test_kernels_that_do_not_exist_here_are_never_chosen() -> None:
    asked = ParameterConstraints(["table_wise"], ["key_value", "fused"], 8, [2.0])
    plan = EmbeddingShardingPlanner(Topology(2, "cuda"), 16, constraints={"a": asked}).plan(model())
    assert plan.of("bags")["a"].compute_kernel == "fused"
