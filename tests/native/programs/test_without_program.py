"""Artifacts without a program: torch's operators run them, if no layer needs a program."""

from __future__ import annotations

import logging
import re
from pathlib import Path

import pytest

from export.config import ExportConfig
from export.lower import scheduling
from export.lower.plan import Plan
from export.pipeline import export_model
from recsys.artifact.graphs import LoadedGraphs
from recsys.artifact.load import load_artifact
from recsys.errors import ExportError, TargetError
from tests.export.lower.test_effects import REFUSED
from tests.native.models.test_model import batches, python_answer
from tests.native.program_models import MODELS, loaded
from tests.native.programs.test_programs import set_linear_dtype
from tests.native.tool import NativeModel, assert_same_error, needs_tool
from tests.recsys.artifact.damage import lie
from tests.support.kernels import needs_kernels
from tests.support.models.export_models import batch_of

pytestmark = needs_kernels


@pytest.fixture
def artifact(tmp_path: Path) -> Path:
    """A DLRM."""
    loaded(tmp_path / "dlrm", MODELS["dlrm"]())
    return tmp_path / "dlrm"


#: A model that no program computes, and why.
MAKE, WHY = next(iter(REFUSED.values()))


@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
@pytest.mark.parametrize("graph_format", ["torchscript", "pt2", "both"])
def test_other_types_need_a_program(tmp_path: Path, graph_format: str, dtype: str) -> None:
    config = ExportConfig(graph_format=graph_format, linear_dtype=dtype)
    text = rf"linear_dtype: got '{dtype}', expected 'float32': .* the model has none: .*{WHY}"
    with pytest.raises(ExportError, match=text):
        export_model(MAKE().eval(), tmp_path / "a", config)
    assert not (tmp_path / "a").exists()


def test_without_a_program_the_fastest_type_is_float32(tmp_path: Path) -> None:
    report = export_model(MAKE().eval(), tmp_path / "a", ExportConfig(linear_dtype="auto"))
    assert report.linear_dtypes == ()
    assert re.search(WHY, report.without_program)
    assert load_artifact(tmp_path / "a").target.linear_dtype == "float32"


def test_a_mistake_of_lowering_leaves_the_graph(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def plan_of(*_: object) -> Plan:
        return next(iter(()))

    monkeypatch.setattr(scheduling, "plan_of", plan_of)
    report = export_model(MODELS["dlrm"]().eval(), tmp_path / "a", ExportConfig())
    text = r"lowering failed, which is a bug in recsys-export: StopIteration: \(at .*test_without_program\.py:\d+\)"
    assert re.search(text, report.without_program)
    found = load_artifact(tmp_path / "a")
    assert found.forward(*batch_of(found.signature, 9).inputs()).keys() == report.differences["cpu"].keys()


@needs_tool
@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
def test_artifacts_whose_layers_need_a_program_are_refused_without(
    native: NativeModel, artifact: Path, dtype: str
) -> None:
    set_linear_dtype(artifact, dtype)
    lie(artifact, lambda data: data["targets"][0].pop("program"))
    text = f"holds no program, .*: run recsys-export --linear-dtype {dtype} again"
    with pytest.raises(TargetError, match=f"target 'cpu': needs linear layers in {dtype}, but {text}"):
        load_artifact(artifact)
    assert_same_error(lambda: native.open(artifact), lambda: load_artifact(artifact))
    native.open(artifact, scripted=True)


@needs_tool
def test_artifacts_without_a_program_run_torchscript(
    native: NativeModel, artifact: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lie(artifact, lambda data: data["targets"][0].pop("program"))
    with caplog.at_level(logging.INFO, logger="recsys"):
        found = load_artifact(artifact)
    (line,) = caplog.messages
    assert line.startswith("target 'cpu': holds no program, so torch's operators run it: recsys-export makes")
    assert isinstance(found.graphs, LoadedGraphs)
    native.open(artifact)
    for requests in batches(found.signature, 1):
        got = native.predict(found.signature, requests)
        assert [values.tobytes() for values in got.values()] == python_answer(found, requests)
