"""The graph: dense layers in bfloat16, operators of ours only, a single file, report and progress."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from io import StringIO
from pathlib import Path

import pytest
import torch
from rich.console import Console
from torch import Tensor, nn

from export.artifact import single_file
from export.config import ExportConfig
from export.pipeline import export_model
from export.report import print_report
from recsys import EmbeddingBagCollection, KeyedJaggedTensor
from recsys.artifact.load import load_artifact
from recsys.configs import DataType
from recsys.errors import ExportError
from recsys.scripting import torchscript
from tests.support.helpers import bag
from tests.support.models.export_models import (
    CASES,
    ExportedCase,
    arguments,
    batch_of,
    dlrm,
    exported,
    predicted,
    rounded,
)


@pytest.mark.parametrize("name", CASES)
def test_dense_layers_in_bfloat16(tmp_path: Path, name: str) -> None:
    case = CASES[name]
    model = case.make()
    _, artifact = exported(
        model, tmp_path / "a", dense_dtype="bfloat16", table_data_types=case.table_data_types
    )
    assert artifact.target.dense_dtype == "bfloat16"
    oracle = rounded(model, DataType.INT8, case.table_data_types)
    for num_rows in (0, 1, 300):
        batch = batch_of(artifact.signature, num_rows, seed=4)
        expected = predicted(oracle, arguments(artifact.signature, batch, case.sparse))
        found = artifact.forward(*batch.inputs())
        assert list(found) == list(expected)
        for output, want in expected.items():
            assert found[output].dtype == torch.float32
            assert found[output].shape == want.shape
            if want.numel():
                # bfloat16 keeps 8 bits: a few roundings on the way.
                worst = float((found[output] - want).abs().max())
                assert worst <= 2.0**-5 * float(want.abs().max())
                assert worst > 0 or num_rows == 1


def test_bfloat16_is_where_the_dense_weights_are(tmp_path: Path) -> None:
    model = dlrm()
    exported(model, tmp_path / "a", dense_dtype="bfloat16")
    script = torch.jit.load(str(tmp_path / "a" / "target-0.pt"))
    dtypes = {name: tensor.dtype for name, tensor in script.named_parameters()}
    assert dtypes
    assert set(dtypes.values()) == {torch.bfloat16}
    assert {p.dtype for p in model.parameters()} == {torch.float32}


class _Custom(nn.Module):
    """Calls an operator that no serving machine has."""

    def __init__(self) -> None:
        super().__init__()
        self.ebc = EmbeddingBagCollection([bag("t", 20, 4, ["f"])])

    def forward(self, features: KeyedJaggedTensor) -> Tensor:
        doubled: Tensor = torch.ops.exporttest.double(self.ebc(features).values())
        return doubled


def test_foreign_operators_are_refused(tmp_path: Path) -> None:
    with torch.library._scoped_library("exporttest", "DEF") as library:
        library.define("double(Tensor x) -> Tensor")
        library.impl("double", lambda x: x * 2, "CPU")
        with pytest.raises(
            ExportError, match=r"the graph calls \['exporttest::double'\], expected operators of"
        ):
            export_model(_Custom(), tmp_path / "a")
    assert list(tmp_path.iterdir()) == []


def test_operators_are_counted_in_branches_too() -> None:
    class Branch(nn.Module):
        def forward(self, x: Tensor, yes: bool) -> Tensor:
            return torch.sin(x) if yes else torch.cos(torch.cos(x))

    found = torchscript.operators(torchscript.script(Branch()))
    assert found["aten::sin"] == 1
    assert found["aten::cos"] == 2


_DOUBLING = """
import torch

class Doubling(torch.nn.Module):
    def forward(self, x: list[torch.Tensor]) -> torch.Tensor:
        return torch.cat([y * 2 for y in x])
"""


def test_the_text_of_a_graph_does_not_tell_where_its_code_lies(tmp_path: Path) -> None:
    def text_of(file: Path, code: str) -> str:
        file.write_text(code)
        spec = importlib.util.spec_from_file_location("doubling", file)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(sys.modules, "doubling", module)
            spec.loader.exec_module(module)
            torchscript.save(torchscript.script(module.Doubling()), file.with_suffix(".pt"))
        return torchscript.graph_text(torchscript.load(file.with_suffix(".pt")))

    # A delta compares graphs that were made in other folders, and of code whose lines have moved.
    one = text_of(tmp_path / "one.py", _DOUBLING)
    assert one == text_of(tmp_path / "other.py", "\n" + _DOUBLING)
    assert one != text_of(tmp_path / "third.py", _DOUBLING.replace("2", "3"))


@pytest.mark.parametrize(
    ("name", "is_apart"),
    [("dlrm", False), ("weighted and unweighted", True), ("sequences", False), ("mixed row types", False)],
)
def test_a_single_file_predicts_the_same(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    case_named: Callable[[str], ExportedCase],
    name: str,
    is_apart: bool,
) -> None:
    case, model, directory = case_named(name)
    if is_apart:  # as of large rows, by a process of its own
        monkeypatch.setattr(single_file, "MOST_COPIED_BYTES", 0)
    options = {"table_data_types": case.table_data_types}
    report, single = exported(model, tmp_path / "a.pt", single_file=True, **options)
    assert report.artifact_bytes == (tmp_path / "a.pt").stat().st_size
    for num_rows in (0, 1, 30):
        batch = batch_of(single.signature, num_rows)
        one, other = directory.forward(*batch.inputs()), single.forward(*batch.inputs())
        assert all(torch.equal(one[output], other[output]) for output in one)


def test_progress_is_told_step_by_step(tmp_path: Path) -> None:
    told: list[tuple[str, int, int]] = []
    export_model(dlrm(), tmp_path / "a", None, lambda *step: told.append(step))
    steps = list(dict.fromkeys(step for step, _, _ in told))
    assert steps[0] == "plan"
    assert steps.index("quantize") < steps.index("verify")
    assert all(0 <= done <= total for _, done, total in told)
    assert ("quantize", 50 + 80 + 110 + 140, 50 + 80 + 110 + 140) in told


@pytest.mark.parametrize("width", [80, 140])
def test_the_report_for_people(tmp_path: Path, width: int) -> None:
    report, _ = exported(dlrm(), tmp_path / "a", targets=(("cpu",), ("cpu", "cpu")))
    text = StringIO()
    print_report(report, Console(file=text, width=width))
    lines = [line.split() for line in text.getvalue().splitlines()]
    row = next(line for line in lines if line and line[0] == "t1")
    assert row[:8] == ["t1", "80", "16", "INT8", "5.1", "KB", "1.6", "KB"]
    shards = [line for line in lines if line and line[0] == "t1"][1]
    assert shards.count("table-wise") == 2
    assert any(line[:2] == ["cpu,cpu", "default"] for line in lines if line)
    assert "verified on 256 random rows (the checkpoint holds none)" in " ".join(text.getvalue().split())


def test_the_report_is_plain_data(tmp_path: Path) -> None:
    report, _ = exported(dlrm(), tmp_path / "a")
    data = report.to_json()
    assert data["differences"]["cpu"]["default"].keys() == {"max_abs", "mean_abs"}
    assert len(data["tables"]) == 4


def test_an_artifact_is_named(tmp_path: Path) -> None:
    export_model(dlrm(), tmp_path / "a", ExportConfig(name="clicks v2"))
    assert load_artifact(tmp_path / "a").manifest.name == "clicks v2"
