"""A shard's bytes and times, against sums made by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from recsys import DataType
from recsys.errors import PlanError
from recsys.planner.cost.constraints import ParameterConstraints
from recsys.planner.cost.estimate import Estimator, ShardCost, ShardShape, Workload, step_latency_us
from recsys.planner.cost.tables import planned_tables
from recsys.planner.cost.topology import Topology
from tests.recsys.planner.sets import problem, table, topology
from tests.support.helpers import sequence

INFERENCE = Workload(is_training=False)


def shard(
    kind: str = "table_wise",
    kernel: str = "fused",
    size: tuple[int, int] = (1000, 64),
    *,
    ranks: Topology | None = None,
    workload: Workload | None = None,
    data_type: DataType = DataType.FP32,
    **constraints: object,
) -> ShardCost:
    """A shard of a table of 1000 × 64, 100 samples a rank, 5 IDs each."""
    asked = ParameterConstraints(**{"pooling_factors": (5.0,), **constraints})  # type: ignore[arg-type]
    made = problem([table("t", 1000, 64, data_type)], ranks or topology(4), workload, {"t": asked})
    shape = ShardShape(sharding_type=kind, compute_kernel=kernel, num_rows=size[0], num_columns=size[1])
    return Estimator(made.topology, made.workload).shard(made.tables[0], shape)


@pytest.mark.parametrize(
    ("optimizer", "numbers"),
    [
        ("sgd", 0),
        ("rowwise_adagrad", 1000),
        ("adagrad", 64_000),
        ("adam", 128_000),
    ],
)
def test_optimizer_state_is_of_the_shards_size(optimizer: str, numbers: int) -> None:
    workload = Workload(optimizer=optimizer)
    cost = shard(workload=workload)
    assert cost.optimizer_bytes == 4 * numbers
    assert shard(workload=workload, size=(250, 64)).optimizer_bytes == numbers


@pytest.mark.parametrize(
    ("data_type", "alignment", "row_bytes"),
    [
        (DataType.INT8, 1, 68),
        (DataType.INT8, 16, 80),
        (DataType.INT4, 1, 36),
        (DataType.INT4, 16, 48),
        (DataType.INT2, 1, 20),
        (DataType.FP16, 1, 128),
        (DataType.FP32, 16, 256),
    ],
    ids=str,
)
def test_stored_rows_count_with_their_real_bytes(data_type: DataType, alignment: int, row_bytes: int) -> None:
    workload = Workload(is_training=False, row_alignment=alignment)
    cost = shard(workload=workload, data_type=data_type)
    assert cost.weight_bytes == 1000 * row_bytes
    assert cost.optimizer_bytes == 0
    assert cost.backward_us == 0


def test_each_column_shard_of_int8_rows_has_a_scale_and_a_bias() -> None:
    half = shard("column_wise", size=(1000, 32), workload=INFERENCE, data_type=DataType.INT8)
    assert half.weight_bytes == 1000 * (32 + 4)


@pytest.mark.parametrize("data_type", [DataType.INT8, DataType.INT4, DataType.INT2], ids=str)
def test_rows_of_few_bits_are_not_trained(data_type: DataType) -> None:
    with pytest.raises(PlanError, match=f"got {data_type.value} for training, expected FP32"):
        shard(data_type=data_type)


def test_buffers_of_ids_outputs_and_gradients() -> None:
    ids, lengths, outputs = 4 * 500 * 8, 4 * 100 * 8, 4 * 100 * 64 * 4
    assert shard().buffer_bytes == ids + lengths + 2 * outputs
    assert shard(workload=INFERENCE).buffer_bytes == (ids + lengths + outputs) // 4
    assert shard(workload=Workload(counts_buffers=False)).buffer_bytes == 0
    weighted = shard(is_weighted=True).buffer_bytes
    assert weighted - shard().buffer_bytes == 4 * 500 * 4


@pytest.mark.parametrize(
    ("kernel", "hbm_part", "ddr_part"),
    [("fused", 1, 0), ("fused_uvm", 0, 1), ("fused_uvm_caching", 0.25, 1)],
)
def test_kernels_decide_which_memory_holds_rows(kernel: str, hbm_part: float, ddr_part: float) -> None:
    cost = shard(kernel=kernel, workload=Workload(counts_buffers=False), cache_load_factor=0.25)
    rows = cost.weight_bytes + cost.optimizer_bytes
    assert rows == 1000 * (256 + 4)
    assert (cost.hbm_bytes, cost.ddr_bytes) == (hbm_part * rows, ddr_part * rows)


def test_on_cpu_all_memory_is_host_memory() -> None:
    cost = shard(ranks=topology(4, device="cpu"))
    assert cost.hbm_bytes == 0
    assert cost.ddr_bytes == cost.weight_bytes + cost.optimizer_bytes + cost.buffer_bytes


def test_times_of_a_whole_table_by_hand() -> None:
    cost = shard()
    num_ids, input_bytes, output_bytes = 4 * 500, 4 * 500 * 8 + 4 * 100 * 8, 4 * 100 * 64 * 4
    assert cost.input_us == pytest.approx(input_bytes * 3 / 4 / 1e11 * 1e6)
    assert cost.forward_us == pytest.approx(num_ids * (1e-3 + 256 / 1e12 * 1e6) + output_bytes / 1e12 * 1e6)
    assert cost.output_us == pytest.approx(2 * output_bytes * 3 / 4 / 1e11 * 1e6)
    distinct = 1000 * (1 - (1 - 1 / 1000) ** num_ids)
    expected = num_ids * 256 / 1e12 * 1e6 + distinct * (2e-3 + 260 / 5e11 * 1e6)
    assert cost.backward_us == pytest.approx(expected, rel=1e-3)


def test_beyond_the_host_bytes_take_the_slower_link() -> None:
    cost = shard(ranks=topology(4, 2))
    output_bytes = 4 * 100 * 64 * 4
    assert cost.output_us == pytest.approx(2 * output_bytes * (1 / 4 / 1e11 + 2 / 4 / 1e10) * 1e6)


def test_a_row_cut_sends_all_bags_and_reads_its_part_of_the_ids() -> None:
    part, whole = shard("row_wise", size=(250, 64)), shard()
    assert part.output_us == pytest.approx(whole.output_us)
    assert part.forward_us < whole.forward_us / 2


def test_within_a_host_only_one_sum_leaves_it() -> None:
    ranks = topology(4, 2)
    within = shard("table_row_wise", size=(500, 64), ranks=ranks)
    output_bytes = 4 * 100 * 64 * 4
    expected = output_bytes * (1 / 2 / 1e11 + 1 / 2 * 1 / 2 / 1e10) * 1e6
    assert within.output_us == pytest.approx(2 * expected)
    assert within.output_us < shard("row_wise", size=(250, 64), ranks=ranks).output_us


def test_dense_kernels_hold_a_gradient_of_the_shards_size() -> None:
    assert shard(kernel="dense").buffer_bytes - shard().buffer_bytes == 1000 * 64 * 4
    assert shard(kernel="dense", size=(250, 64)).hbm_bytes < shard(kernel="dense").hbm_bytes


def test_copies_move_gradients_of_the_tables_size_and_no_ids() -> None:
    cost = shard("data_parallel", "dense")
    assert cost.input_us == 0
    assert cost.output_us == pytest.approx(2 * 1000 * 256 * 3 / 4 / 1e11 * 1e6)


def test_single_rows_leave_a_row_cut_once() -> None:
    made = planned_tables(
        {"": [sequence("s", 1000, 64, ["f"])]}, {"s": ParameterConstraints(pooling_factors=(5.0,))}, 100
    )
    estimator = Estimator(topology(4), Workload())

    def of(kind: str, rows: int) -> ShardCost:
        return estimator.shard(
            made[0], ShardShape(sharding_type=kind, compute_kernel="fused", num_rows=rows, num_columns=64)
        )

    assert of("row_wise", 250).output_us == pytest.approx(of("table_wise", 1000).output_us / 4)


def test_rows_in_host_memory_cost_more_and_a_cache_that_hits_less() -> None:
    fused, uvm = shard().total_us, shard(kernel="fused_uvm").total_us
    hits = [shard(kernel="fused_uvm_caching", cache_hit_rate=rate).total_us for rate in (0.1, 0.5, 0.9, 1.0)]
    assert hits == sorted(hits, reverse=True)
    assert uvm > fused
    assert hits[-1] == pytest.approx(fused)


def test_one_rank_sends_nothing() -> None:
    alone = shard(ranks=topology(1))
    assert (alone.input_us, alone.output_us) == (0, 0)
    assert step_latency_us(topology(1), Workload()) == 0


@pytest.mark.parametrize(
    ("ranks", "workload", "expected"),
    [(topology(4), Workload(), 40), (topology(4), INFERENCE, 30), (topology(4, 2), Workload(), 80)],
    ids=["training", "inference", "two hosts"],
)
def test_collective_calls_are_counted_once_for_the_plan(
    ranks: Topology, workload: Workload, expected: float
) -> None:
    assert step_latency_us(ranks, workload) == expected


def test_an_unknown_optimizer_is_refused() -> None:
    with pytest.raises(PlanError, match="optimizer: got 'adamw', expected one of sgd"):
        replace(Workload(), optimizer="adamw")
