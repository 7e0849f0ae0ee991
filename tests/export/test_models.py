"""Models of every supported shape: exported, and compared with the float model.

Shape letters: B batch.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from recsys.configs import DataType
from recsys.quant import float_weights
from recsys.rows.format import RowFormat, quantize_rows, row_error_bounds
from recsys.scripting import torchscript
from tests.support.models.export_models import (
    CASES,
    ExportedCase,
    Noisy,
    Returning,
    Twice,
    arguments,
    assert_close,
    bare,
    batch_of,
    collections,
    exported,
    predicted,
    rounded,
)

ROWS = {"0": (0, False), "1": (1, False), "2": (2, False), "300": (300, False), "no IDs": (3, True)}


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest, case_named: Callable[[str], ExportedCase]) -> ExportedCase:
    """A case, its float model and its artifact."""
    return case_named(request.param)


@pytest.mark.parametrize(("num_rows", "empty"), ROWS.values(), ids=ROWS)
def test_predicts_what_the_float_model_of_rounded_rows_predicts(
    case: ExportedCase, num_rows: int, empty: bool
) -> None:
    made, model, artifact = case
    batch = batch_of(artifact.signature, num_rows, seed=num_rows, empty=empty)
    oracle = rounded(model, DataType.INT8, made.table_data_types)
    expected = predicted(oracle, arguments(artifact.signature, batch, made.sparse))
    assert_close(artifact.forward(*batch.inputs()), expected)


def test_report_tells_how_far_it_lies_from_the_float_model(case: ExportedCase) -> None:
    made, model, artifact = case
    batch = batch_of(artifact.signature, 300, seed=7)
    expected = predicted(model, arguments(artifact.signature, batch, made.sparse))
    outputs = artifact.forward(*batch.inputs())
    told = artifact.manifest.verification["differences"]["cpu"]
    assert list(told) == list(expected)
    for name, want in expected.items():
        worst = float((outputs[name] - want).abs().max())
        assert 0 <= told[name]["mean_abs"] <= told[name]["max_abs"]
        # Other samples: alike, not equal.
        assert told[name]["max_abs"] / 3 <= worst <= 3 * told[name]["max_abs"]


def test_graph_holds_only_known_operators(case: ExportedCase) -> None:
    found = {name.split("::")[0] for name in torchscript.operators(case[2].module)}
    assert found <= {"aten", "fbgemm", "prim"}
    assert "fbgemm" in found


def test_forward_takes_tensors_and_returns_a_dict(case: ExportedCase) -> None:
    artifact = case[2]
    schema = artifact.module.forward.schema  # type: ignore[attr-defined]
    assert {str(a.type) for a in schema.arguments[1:]} == {"Tensor"}
    assert [str(r.type) for r in schema.returns] == ["Dict[str, Tensor]"]
    weighted = artifact.signature.is_weighted
    assert len(schema.arguments) == 1 + len(artifact.signature.dense) + 2 + weighted


def test_threads_get_the_same_answers(case: ExportedCase) -> None:
    artifact = case[2]
    batches = [batch_of(artifact.signature, rows, seed=rows) for rows in (1, 2, 5, 8) * 4]
    alone = [artifact.forward(*batch.inputs()) for batch in batches]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda batch: artifact.forward(*batch.inputs()), batches))
    for one, other in zip(alone, together, strict=True):
        for name, output in one.items():
            assert torch.equal(output, other[name])


@pytest.mark.parametrize("weighted", [False, True], ids=["unweighted", "weighted"])
def test_pooled_outputs_lie_within_the_rows_own_scales(
    case_named: Callable[[str], ExportedCase], weighted: bool
) -> None:
    name = "bare weighted collection" if weighted else "bare collection"
    case, model, artifact = case_named(name)
    batch = batch_of(artifact.signature, 64, seed=3)
    call = arguments(artifact.signature, batch, case.sparse)
    got, want = artifact.forward(*batch.inputs()), predicted(model, call)
    collection = collections(model)[""]
    pairs = {
        "user": "users",
        "item@goods": "goods",
        "item@wide": "wide",
        "last_item": "goods",
        "flag": "tiny",
    }
    assert set(pairs) == set(want)
    for output, table in pairs.items():
        weight = float_weights(collection)[table]
        rows = quantize_rows(weight, DataType.INT8)
        step = row_error_bounds(rows, RowFormat(data_type=DataType.INT8, dim=weight.shape[1])).max()
        jagged = call["features"][output.partition("@")[0]]
        most = int(jagged.lengths().max())
        assert float((got[output] - want[output]).abs().max()) <= float(step) * (
            1 if table == "goods" else most
        )


def test_signature_tells_what_a_collection_takes(case_named: Callable[[str], ExportedCase]) -> None:
    features = {s.name: s for s in case_named("bare collection")[2].signature.sparse}
    assert list(features) == ["user", "item", "last_item", "flag"]
    assert [t.name for t in features["item"].tables] == ["goods", "wide"]
    assert [t.num_embeddings for t in features["item"].tables] == [30, 90]
    assert features["item"].id_limit == 30
    assert features["last_item"].pooling == "mean"
    assert features["user"].pooling == "sum"


def test_signature_tells_what_a_model_takes(case_named: Callable[[str], ExportedCase]) -> None:
    weighted = case_named("weighted and unweighted")[2].signature
    assert [(d.name, d.width) for d in weighted.dense] == [("age", 3), ("price", 2)]
    assert [(s.name, s.weighted) for s in weighted.sparse] == [
        ("user", False),
        ("ad", False),
        ("tag", True),
        ("topic", True),
    ]
    assert [(o.name, o.shape) for o in weighted.outputs] == [("output_0", ()), ("output_1", (16,))]
    history = case_named("sequences")[2].signature
    assert {s.name: s.pooling for s in history.sparse} == {
        "clicked": "none",
        "bought": "none",
        "shop": "none",
        "user": "sum",
    }
    assert [(o.name, o.shape) for o in history.outputs] == [("score", ()), ("clicked", (3, 12))]


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        ("tensor", ["default"]),
        ("dict", ["click", "buy"]),
        ("tuple", ["output_0", "output_1"]),
        ("list", ["output_0", "output_1"]),
        ("named tuple", ["click", "buy"]),
        ("dataclass", ["click", "buy"]),
        ("keyed tensor", ["f"]),
    ],
)
def test_outputs_are_named(tmp_path: Path, kind: str, names: list[str]) -> None:
    model = Returning(kind)
    _, artifact = exported(model, tmp_path / "a")
    batch = batch_of(artifact.signature, 5)
    expected = predicted(rounded(model, DataType.INT8), arguments(artifact.signature, batch))
    assert list(expected) == names
    assert_close(artifact.forward(*batch.inputs()), expected)


@pytest.mark.parametrize("data_type", ["fp32", "fp16", "int8", "int4", "int2"])
def test_every_row_type_for_all_tables(tmp_path: Path, data_type: str) -> None:
    kind = DataType(data_type.upper())
    model = bare()
    report, artifact = exported(model, tmp_path / "a", data_type=kind)
    batch = batch_of(artifact.signature, 40)
    call = arguments(artifact.signature, batch)
    found = artifact.forward(*batch.inputs())
    assert_close(found, predicted(rounded(model, kind), call))
    if kind is DataType.FP32:
        assert_close(found, predicted(model, call))
    assert {table.data_type for table in report.tables} == {kind.value}
    assert all((table.sqnr_db is None) == (kind is DataType.FP32) for table in report.tables)


def _state(model: nn.Module) -> dict[str, tuple[int, Tensor]]:
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    return {name: (tensor.data_ptr(), tensor.detach().clone()) for name, tensor in tensors.items()}


@pytest.mark.parametrize(
    ("name", "dense_dtype", "training"),
    [
        ("dlrm", "float32", True),
        ("dlrm", "bfloat16", False),
        ("bare collection", "float32", False),
        ("bare collection", "bfloat16", True),
        ("sequences", "float32", False),
        ("sequences", "bfloat16", True),
    ],
)
def test_the_float_model_stays_as_it_is(tmp_path: Path, name: str, dense_dtype: str, training: bool) -> None:
    model = CASES[name].make().train(training)
    before = _state(model)
    modules = {path: (type(part), id(part), part.training) for path, part in model.named_modules()}
    exported(model, tmp_path / "a", dense_dtype=dense_dtype)
    after = _state(model)
    assert list(after) == list(before)
    for tensor_name, (pointer, tensor) in before.items():
        assert after[tensor_name][0] == pointer
        assert after[tensor_name][1].dtype == tensor.dtype
        assert torch.equal(after[tensor_name][1], tensor)
    assert {path: (type(part), id(part), part.training) for path, part in model.named_modules()} == modules
    for part in model.modules():
        assert not part._forward_hooks
        assert not part._forward_pre_hooks
    assert all(parameter.requires_grad and parameter.grad is None for parameter in model.parameters())


def test_dropout_and_batch_norm_are_exported_for_inference(tmp_path: Path) -> None:
    model = Noisy()
    _, artifact = exported(model, tmp_path / "a")
    batch = batch_of(artifact.signature, 9)
    expected = predicted(rounded(model, DataType.INT8).eval(), arguments(artifact.signature, batch))
    assert model.training
    assert_close(artifact.forward(*batch.inputs()), expected)


def test_a_collection_that_is_called_twice(tmp_path: Path) -> None:
    model = Twice()
    _, artifact = exported(model, tmp_path / "a")
    assert [s.name for s in artifact.signature.sparse] == ["mine.f", "mine.g", "theirs.f", "theirs.g"]
    batch = batch_of(artifact.signature, 20)
    sparse = {argument: {f: f"{argument}.{f}" for f in "fg"} for argument in ("mine", "theirs")}
    expected = predicted(rounded(model, DataType.INT8), arguments(artifact.signature, batch, sparse))
    assert_close(artifact.forward(*batch.inputs()), expected)
