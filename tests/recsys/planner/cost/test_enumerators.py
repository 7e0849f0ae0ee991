"""Every way to shard a table, and no other."""

from __future__ import annotations

import pytest
import torch

from recsys.configs import DataType
from recsys.errors import PlanError
from recsys.kernels.training import KernelConfig, ShardConfig, check_shard
from recsys.optim.fused_config import FusedConfig
from recsys.planner.cost.constraints import ParameterConstraints
from recsys.planner.cost.estimate import Workload
from recsys.planner.cost.topology import Topology
from recsys.sharding.plan.kinds import ShardingType
from recsys.sharding.plan.sharding_types import column_wise
from tests.recsys.planner.sets import problem, table, topology

UVM = {"fused", "fused_uvm", "fused_uvm_caching"}


def found(
    ranks: Topology, workload: Workload | None = None, dim: int = 64, rows: int = 1000, **constraints: object
) -> set[tuple[str, str, int]]:
    asked = ParameterConstraints(**constraints)  # type: ignore[arg-type]
    (options,) = problem([table("t", rows, dim)], ranks, workload, {"t": asked}).options()
    return {(o.sharding_type, o.compute_kernel, o.span * len(o.blocks)) for o in options}


def test_training_on_hosts_has_all_types_and_kernels() -> None:
    sharded = {
        ("table_wise", 1),
        ("column_wise", 2),
        ("row_wise", 8),
        ("table_row_wise", 4),
        ("grid_shard", 8),
    }
    expected = {(kind, kernel, n) for kind, n in sharded for kernel in UVM} | {("data_parallel", "dense", 8)}
    assert found(topology(8, 4)) == expected


@pytest.mark.parametrize(
    ("ranks", "workload", "expected"),
    [
        (topology(1), None, {("table_wise", k, 1) for k in UVM}),
        (topology(1, device="cpu"), None, {("table_wise", "fused", 1)}),
        (
            topology(2, device="cpu"),
            None,
            {("table_wise", "fused", 1), ("column_wise", "fused", 2), ("row_wise", "fused", 2)}
            | {("data_parallel", "dense", 2)},
        ),
        (
            topology(2),
            Workload(is_training=False),
            {("table_wise", "fused", 1), ("column_wise", "fused", 2), ("row_wise", "fused", 2)},
        ),
    ],
    ids=["one device", "one cpu", "two cpus", "inference"],
)
def test_what_ranks_can_have(
    ranks: Topology, workload: Workload | None, expected: set[tuple[str, str, int]]
) -> None:
    assert found(ranks, workload) == expected


def test_fewer_rows_than_ranks_are_not_cut() -> None:
    assert not {kind for kind, _, _ in found(topology(8, 4), rows=3)} & {
        "row_wise",
        "table_row_wise",
        "grid_shard",
    }


@pytest.mark.parametrize(
    ("dim", "asked", "parts"),
    [(64, None, {2}), (128, None, {2, 3, 4}), (48, None, set()), (48, 8, {2, 3, 4, 5, 6}), (48, 20, {2})],
)
def test_column_parts_are_no_narrower_than_asked(dim: int, asked: int | None, parts: set[int]) -> None:
    options = found(topology(8), dim=dim, sharding_types=("column_wise", "table_wise"), min_partition=asked)
    assert {n for kind, _, n in options if kind == "column_wise"} == parts


def test_dense_is_for_sharded_tables_only_where_asked() -> None:
    asked = found(topology(2), compute_kernels=("dense",), sharding_types=("table_wise", "data_parallel"))
    assert asked == {("table_wise", "dense", 1), ("data_parallel", "dense", 2)}


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("dim", [6, 30, 64, 70, 100])
def test_the_kernels_take_the_shards_that_are_planned(dim: int, device: str) -> None:
    for kind, kernel, num_parts in found(topology(2, device=device), dim=dim):
        cut = column_wise(table("t", 10, dim), range(num_parts if kind == "column_wise" else 1))
        for part in cut.shards:
            shard = ShardConfig(
                table="t", num_rows=10, num_columns=part.shard_sizes[1], data_type=DataType.FP32
            )
            config = KernelConfig(name=kernel, fused=None if kernel == "dense" else FusedConfig())
            check_shard(shard, config, torch.device(device))


def test_widths_that_no_fused_kernel_has_are_dense_and_no_others() -> None:
    assert found(topology(1), dim=30) == {("table_wise", "dense", 1)}
    assert ("column_wise", "dense", 2) in found(topology(2), dim=70)
    inference = Workload(is_training=False)
    assert ("table_wise", "fused", 1) in found(topology(2), inference, dim=30)
    with pytest.raises(PlanError, match=r"possible: .*table_wise dense"):
        found(topology(1), dim=30, compute_kernels=("fused",))


def test_bf16_is_dense_in_host_memory() -> None:
    def kernels(device: str) -> set[str]:
        tables = [table("t", 1000, 64, DataType.BF16)]
        (options,) = problem(tables, topology(1, device=device)).options()
        return {option.compute_kernel for option in options}

    assert kernels("cpu") == {"dense"}
    assert kernels("cuda") == UVM


@pytest.mark.parametrize("kind", [kind.value for kind in ShardingType])
def test_the_only_type_that_is_asked_for_is_an_option_everywhere(kind: str) -> None:
    for ranks in (topology(1), topology(2)):
        assert {found_kind for found_kind, _, _ in found(ranks, sharding_types=(kind,), dim=16)} == {kind}


@pytest.mark.parametrize(
    ("ranks", "constraints"),
    [
        (topology(2, device="cpu"), {"compute_kernels": ("fused_uvm",)}),
        (topology(2), {"sharding_types": ("data_parallel",), "compute_kernels": ("fused",)}),
    ],
    ids=["UVM on cpu", "fused copies"],
)
def test_constraints_that_leave_nothing_say_so(
    ranks: Topology, constraints: dict[str, tuple[str, ...]]
) -> None:
    with pytest.raises(
        PlanError, match=r"table .t.: constraints .* leave no way to shard 1000 × 64.*possible: .*table_wise"
    ):
        found(ranks, **constraints)
