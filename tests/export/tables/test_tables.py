"""What becomes of tables: row types, plans, targets; predictions do not depend on where rows lie.

Shape letters: B batch.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from export.config import ExportConfig, target_name
from export.pipeline import export_model
from recsys import EmbeddingBagCollection
from recsys.artifact.load import load_artifact, rank_rows
from recsys.artifact.manifest_file import MANIFEST_NAME
from recsys.artifact.parts import ROWS_NAME
from recsys.configs import BaseEmbeddingConfig, DataType
from recsys.errors import ExportError, PlanError, TargetError
from recsys.quant import float_tables, float_weights
from recsys.sharding.plan.plan import ParameterSharding, ShardingPlan
from recsys.sharding.plan.sharding_types import column_wise, row_wise, table_wise
from tests.support.helpers import bag
from tests.support.models.export_models import (
    CASES,
    ExportedCase,
    arguments,
    assert_close,
    bare,
    batch_of,
    collections,
    dlrm,
    exported,
    predicted,
    rounded,
    spread,
)

THREE = ("cpu", "cpu", "cpu")


def plan_for(model: nn.Module, kinds: Mapping[str, str], default: str = "table") -> ShardingPlan:
    """Each table cut as named, its ranks never in order."""

    def cut(table: BaseEmbeddingConfig, at: int) -> ParameterSharding:
        kind = kinds.get(table.name, default)
        if kind == "column":
            return column_wise(table, [2, 0][: max(min(2, table.embedding_dim // 8), 1)])
        if kind == "row":
            return row_wise(table, [2, 0, 1])
        return table_wise(table, (at + 1) % 3)

    return ShardingPlan(
        plan={
            path: {table.name: cut(table, i) for i, table in enumerate(float_tables(collection))}
            for path, collection in collections(model).items()
        }
    )


def _all_equal(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    return list(one) == list(other) and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("name", ["dlrm", "bare collection", "bare weighted collection", "sequences"])
def test_placement_alone_changes_no_bit(
    tmp_path: Path, name: str, case_named: Callable[[str], ExportedCase]
) -> None:
    _, model, alone = case_named(name)
    batches = [batch_of(alone.signature, num_rows, seed=num_rows) for num_rows in (0, 1, 2, 300)]
    for kinds in ("table", "column", "table and column"):
        default, _, _ = kinds.partition(" ")
        named = {"users": "column", "t1": "column", "goods": "column"} if kinds == "table and column" else {}
        plan = plan_for(model, named, default)
        _, sharded = exported(model, tmp_path / kinds, targets=(THREE,), plan=plan)
        for batch in batches:
            assert _all_equal(sharded.forward(*batch.inputs()), alone.forward(*batch.inputs())), kinds


@pytest.mark.parametrize("name", ["dlrm", "bare collection", "bare weighted collection", "sequences"])
def test_a_plan_of_all_kinds_predicts_the_same(
    tmp_path: Path, name: str, case_named: Callable[[str], ExportedCase]
) -> None:
    _, model, alone = case_named(name)
    kinds = {"users": "row", "goods": "row", "wide": "column", "t0": "row", "t1": "row", "t2": "column"}
    report, sharded = exported(model, tmp_path / "three", targets=(THREE,), plan=plan_for(model, kinds))
    placed = {table.name.rpartition(".")[2]: table.placement["cpu,cpu,cpu"] for table in report.tables}
    for table, kind in kinds.items():
        assert placed.get(table, kind).startswith(kind)
    for num_rows, empty in ((0, False), (1, False), (2, False), (300, False), (4, True)):
        batch = batch_of(alone.signature, num_rows, seed=num_rows, empty=empty)
        assert_close(sharded.forward(*batch.inputs()), alone.forward(*batch.inputs()))


def test_sequences_cut_by_rows_keep_their_order_bit_for_bit(
    tmp_path: Path, case_named: Callable[[str], ExportedCase]
) -> None:
    _, model, alone = case_named("sequences")
    _, sharded = exported(model, tmp_path / "three", targets=(THREE,), plan=plan_for(model, {}, "row"))
    batch = batch_of(alone.signature, 50)
    one, other = alone.forward(*batch.inputs()), sharded.forward(*batch.inputs())
    assert torch.equal(one["clicked"], other["clicked"])


@pytest.mark.parametrize("kind", ["table", "column", "row"])
def test_trained_weights_are_carried_over(tmp_path: Path, kind: str) -> None:
    """Peers' sharded outputs sum to 0: their rows stay empty."""
    model = bare()
    spread(model, 1.0)
    _, artifact = exported(model, tmp_path / "a", targets=(THREE,), plan=plan_for(model, {}, kind))
    batch = batch_of(artifact.signature, 30)
    found = artifact.forward(*batch.inputs())
    assert_close(found, predicted(rounded(model, DataType.INT8), arguments(artifact.signature, batch)))
    for output in found.values():
        assert float(output.abs().sum()) > 1.0


def test_every_trained_row_is_carried_over(tmp_path: Path) -> None:
    """Each row holds its own number in FP32: all rows of all shards come back exactly."""
    model = EmbeddingBagCollection([bag("a", 31, 16, ["a"]), bag("b", 7, 24, ["b"])])
    for i, weight in enumerate(float_weights(model).values()):
        weight.data = torch.arange(weight.numel(), dtype=torch.float32).view_as(weight) + 1000 * i
    kinds = {"a": "row", "b": "column"}
    _, artifact = exported(
        model, tmp_path / "a", targets=(THREE,), plan=plan_for(model, kinds), data_type=DataType.FP32
    )
    values = torch.cat([torch.arange(31), torch.arange(7).repeat(5)[:31]])
    found = artifact.forward(torch.ones(62, dtype=torch.int64), values)
    weights = float_weights(model)
    assert torch.equal(found["a"], weights["a"].detach())
    assert torch.equal(found["b"], weights["b"].detach()[values[31:]])


def test_row_wise_mean_spans_shards(tmp_path: Path) -> None:
    """Peers divide by the IDs of each shard."""
    model = EmbeddingBagCollection([bag("t", 30, 8, ["f"], "MEAN")])
    _, artifact = exported(
        model, tmp_path / "a", targets=(THREE,), plan=plan_for(model, {}, "row"), data_type=DataType.FP32
    )
    ids = torch.tensor([0, 29, 15, 14, 3, 28, 27])
    found = artifact.forward(torch.tensor([4, 0, 3]), ids)["f"]
    weight = float_weights(model)["t"].detach()
    expected = torch.stack([weight[ids[:4]].mean(dim=0), torch.zeros(8), weight[ids[4:]].mean(dim=0)])
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)


def _bytes(path: Path) -> dict[str, int]:
    return {file.name: file.stat().st_size for file in path.iterdir()}


def test_targets_share_the_rows(tmp_path: Path, case_path: Callable[[str], Path]) -> None:
    model = dlrm()
    targets = (("cpu",), ("cpu", "cpu"), ("cuda:0", "cuda:1"))
    report, artifact = exported(model, tmp_path / "three", targets=targets)
    one, three = _bytes(case_path("dlrm")), _bytes(tmp_path / "three")
    assert three[ROWS_NAME] == one[ROWS_NAME]
    program = "program.safetensors"
    assert set(three) == {MANIFEST_NAME, ROWS_NAME, program, "target-0.pt", "target-1.pt", "target-2.pt"}
    assert three[program] == one[program]
    dense_bytes = sum(p.numel() * 4 for name, p in model.named_parameters() if "embedding_bags" not in name)
    for skeleton in ("target-0.pt", "target-1.pt", "target-2.pt"):
        assert dense_bytes < three[skeleton] < dense_bytes + 100_000
    assert [t.name for t in artifact.manifest.targets] == ["cpu", "cpu,cpu", "cuda:0,cuda:1"]
    assert set(report.differences) == {"cpu", "cpu,cpu", "cuda:0,cuda:1"}
    assert report.artifact_bytes == sum(three.values())


def test_a_target_with_column_cuts_beside_one_without(tmp_path: Path) -> None:
    """The rows are stored in the column blocks of either; both read the same bytes."""
    model = EmbeddingBagCollection([bag("wide", 40, 64, ["f"]), bag("odd", 20, 30, ["g"], "MEAN")])
    plan = ShardingPlan(
        plan={
            "": {
                "wide": column_wise(model.embedding_bag_configs()[0], [1, 0]),
                "odd": table_wise(model.embedding_bag_configs()[1], 0),
            }
        }
    )
    _, cut = exported(model, tmp_path / "cut", targets=(("cpu", "cpu"), ("cpu", "cpu", "cpu")), plan=plan)
    _, whole = exported(model, tmp_path / "whole")
    other = load_artifact(tmp_path / "cut", target="cpu,cpu,cpu", scripted=True)
    batch = batch_of(whole.signature, 30)
    for artifact in (cut, other):
        assert _all_equal(artifact.forward(*batch.inputs()), whole.forward(*batch.inputs()))
    blocks = [(block.table, block.column_start, block.column_end) for block in cut.manifest.layout.blocks]
    assert blocks == [("wide", 0, 32), ("wide", 32, 64), ("odd", 0, 30)]


def test_a_cuda_target_is_exported_without_a_gpu(tmp_path: Path) -> None:
    model = dlrm()
    report, artifact = exported(model, tmp_path / "a", targets=(("cuda:0", "cuda:1"), ("cpu",)))
    told = artifact.manifest.targets[0]
    assert told.devices == ("cuda:0", "cuda:1")
    assert set(told.rows.values()) == {0, 1}
    if torch.cuda.device_count() < 2:
        assert artifact.target_name == "cpu"
        assert report.verified_on["cuda:0,cuda:1"].startswith("cpu, the same plan")
        with pytest.raises(
            TargetError, match=r"'cuda:0,cuda:1' needs .*'cuda:1'\], which this machine lacks"
        ):
            load_artifact(tmp_path / "a", target="cuda:0,cuda:1")
    skeleton = torch.jit.load(str(tmp_path / "a" / told.skeleton), map_location="cpu")
    assert "cuda:1" in str(skeleton.inlined_graph) or "cuda" in skeleton.code


def test_an_unknown_target_is_named(tmp_path: Path) -> None:
    exported(bare(), tmp_path / "a", targets=(("cpu",), ("cpu", "cpu")))
    with pytest.raises(TargetError, match=r"target: got 'cuda:0', expected one of \['cpu', 'cpu,cpu'\]"):
        load_artifact(tmp_path / "a", target="cuda:0")
    assert load_artifact(tmp_path / "a", target="cpu,cpu").target_name == "cpu,cpu"


def test_no_target_for_this_machine(tmp_path: Path) -> None:
    export_model(bare(), tmp_path / "a", ExportConfig(targets=(("cuda:97",), ("cuda:98",))))
    with pytest.raises(
        TargetError,
        match=r"target: got \['cuda:97', 'cuda:98'\], expected one whose devices this machine has: \['cpu'.*--target",
    ):
        load_artifact(tmp_path / "a")


@pytest.mark.parametrize(
    ("devices", "name"),
    [
        (("cpu",), "cpu"),
        (("cpu:0", "cpu"), "cpu,cpu"),
        (("cuda",), "cuda:0"),
        (("cuda:1", "cpu"), "cuda:1,cpu"),
    ],
)
def test_a_target_is_named_by_its_devices(devices: tuple[str, ...], name: str) -> None:
    assert target_name(devices) == name


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"targets": ()}, "targets: got none"),
        ({"targets": (("cpu",), ("cpu:0",))}, r"targets: got \['cpu', 'cpu'\], expected each once"),
        ({"targets": (("tpu",),)}, "devices: got 'tpu', expected cpu or cuda:N"),
        ({"targets": (("meta",),)}, "devices: got 'meta', expected cpu or cuda:N"),
        ({"targets": (("",),)}, "devices: got ''"),
        ({"targets": ((),)}, "devices: got none"),
        ({"dense_dtype": "float16"}, "dense_dtype: got 'float16', expected float32 or bfloat16"),
        ({"single_file": True, "targets": (("cuda:0",),)}, "single_file: got targets"),
        ({"single_file": True, "targets": (("cpu",), ("cpu", "cpu"))}, "single_file: got targets"),
    ],
)
def test_wrong_configs_are_named(options: dict[str, object], message: str) -> None:
    with pytest.raises((ExportError, PlanError), match=message):
        ExportConfig(**options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"table_data_types": {"nobody": DataType.INT4}},
            r"table_data_types: got unknown tables \['nobody'\]",
        ),
        ({"table_id_policies": {"nobody": "hash"}}, r"table_id_policies: got unknown tables \['nobody'\]"),
        ({"plan": ShardingPlan(plan={})}, "plan: missing collection ''"),
        ({"plan": ShardingPlan(plan={"": {}, "x": {}})}, r"plan: got unknown collections \['x'\]"),
        ({"plan": ShardingPlan(plan={"": {}})}, "plan: missing tables"),
        ({"device_memory_bytes": 3000}, r"table 'wide': 1800 bytes do not fit.*\d+ bytes short"),
    ],
)
def test_options_that_do_not_fit_the_model(tmp_path: Path, options: dict[str, object], message: str) -> None:
    with pytest.raises((ExportError, PlanError), match=message):
        export_model(bare(), tmp_path / "a", ExportConfig(**options))  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


def test_a_rank_beyond_a_targets_devices(tmp_path: Path) -> None:
    model = bare()
    with pytest.raises(PlanError, match=r"got ranks \[2\], expected 0 to 1"):
        export_model(
            model, tmp_path / "a", ExportConfig(plan=plan_for(model, {}), targets=(THREE, ("cpu", "cpu")))
        )


def test_tables_are_named_by_path_or_by_name(tmp_path: Path) -> None:
    model = CASES["several collections"].make()
    types = {"towers.1.t": DataType.FP16, "r": DataType.INT4}
    report, _ = exported(model, tmp_path / "a", table_data_types=types)
    found = {table.name: table.data_type for table in report.tables}
    assert found == {
        "towers.0.t": "INT8",
        "towers.1.t": "FP16",
        "towers.2.t": "INT8",
        "rest.inner.ec.r": "INT4",
    }


def test_a_budget_spreads_tables_over_devices(tmp_path: Path) -> None:
    report, artifact = exported(bare(), tmp_path / "a", targets=(THREE,), device_memory_bytes=2000)
    used = dict.fromkeys("012", 0)
    for table in report.tables:
        _, _, ranks = table.placement["cpu,cpu,cpu"].partition(" ")
        for rank in ranks.split(","):
            used[rank] += table.bytes_after // len(ranks.split(","))
    assert max(used.values()) <= 2000
    assert artifact.manifest.targets[0].plan.ranks() == {0, 1, 2}


def test_numbers_that_rows_cannot_hold_name_table_and_row(tmp_path: Path) -> None:
    model = bare()
    float_weights(model)["goods"].data[17, 3] = 1e6
    with pytest.raises(ExportError, match=r"table 'goods', row 17: got a number of magnitude"):
        export_model(model, tmp_path / "a")
    assert list(tmp_path.iterdir()) == []
    exported(model, tmp_path / "a", table_data_types={"goods": DataType.FP32})


@pytest.mark.parametrize("kind", [DataType.INT8, DataType.INT4, DataType.FP16, DataType.FP32])
def test_rows_without_numbers_name_table_row_and_a_cure_that_works(tmp_path: Path, kind: DataType) -> None:
    model = bare()
    weight = float_weights(model)["goods"].data
    options: dict[str, Any] = {"table_data_types": {"goods": kind}}
    for number, name in (("nan", "NaN"), ("inf", "infinity"), ("-inf", "infinity")):
        weight[17, 3] = weight[20, 1] = float(number)
        said = rf"table 'goods', row 17: got {name}, expected finite numbers \(2 of 30 rows.*torch\.nan_to_num_\(weight"
        with pytest.raises(ExportError, match=said):
            export_model(model, tmp_path / "a", ExportConfig(**options))
        assert list(tmp_path.iterdir()) == []
        # The cure of each number is the same: one export is enough.
        torch.nan_to_num_(weight, 0, 0, 0)
        assert weight[17, 3] == weight[20, 1] == 0
    exported(model, tmp_path / "a", **options)


def test_large_numbers_are_numbers(tmp_path: Path) -> None:
    """Their sum is beyond float32's range."""
    model = bare()
    float_weights(model)["goods"].data[:2] = 3e38
    with pytest.raises(ExportError, match="got a number of magnitude"):
        export_model(model, tmp_path / "a")


def test_rows_too_small_for_fp16_scales_are_refused(tmp_path: Path) -> None:
    model = bare()
    spread(model, 1e-7, ["goods"])
    with pytest.raises(ExportError, match=r"table 'goods', row .*store the table as FP32"):
        export_model(model, tmp_path / "a")
    exported(model, tmp_path / "a", table_data_types={"goods": DataType.FP32})


def test_int2_rows_on_a_cuda_device_are_refused(tmp_path: Path) -> None:
    said = "table 'wide': got INT2 rows on 'cuda:0', where FBGEMM's lookup returns wrong numbers"
    options: dict[str, Any] = {"table_data_types": {"wide": DataType.INT2}}
    with pytest.raises(PlanError, match=said):
        export_model(bare(), tmp_path / "a", ExportConfig(targets=(("cuda:0",),), **options))
    # Artifacts of earlier releases may hold such targets.
    _, artifact = exported(bare(), tmp_path / "b", **options)
    on_gpu = replace(artifact.target, devices=("cuda:0",))
    with pytest.raises(TargetError, match=said):
        rank_rows(artifact.manifest, on_gpu, artifact.rows.ranks[0].rows)


def test_the_plan_in_the_manifest_is_the_plan(tmp_path: Path) -> None:
    model = dlrm()
    plan = plan_for(model, {"t0": "row", "t2": "column"})
    _, artifact = exported(model, tmp_path / "a", targets=(THREE,), plan=plan)
    assert artifact.manifest.targets[0].plan == plan
    text = json.loads((tmp_path / "a" / MANIFEST_NAME).read_text())
    assert ShardingPlan.from_json(text["targets"][0]["plan"]) == plan
    assert isinstance(plan.of("sparse_arch.embedding_bag_collection")["t0"], ParameterSharding)
