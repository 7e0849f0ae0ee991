"""In which type linear layers multiply on each instruction set, and who says so."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch
from rich.console import Console
from torch import nn

from export.config import ExportConfig
from export.pipeline import export_model
from export.report import print_report
from recsys.artifact.load import load_artifact
from recsys.kernels.operators import LINEAR_DTYPES, multiplies_in
from tests.support.kernels import needs_kernels
from tests.support.models.export_models import batch_of, dlrm

pytestmark = needs_kernels

#: Those that multiply bfloat16 faster than float32.
NATIVE = ("avx512", "amx") if "AuthenticAMD" in Path("/proc/cpuinfo").read_text() else ("amx",)


def rounded(model: nn.Module) -> nn.Module:
    """Return the model with the weights of its linear layers rounded to bfloat16."""
    for part in model.modules():
        if isinstance(part, nn.Linear):
            part.weight.data = part.weight.bfloat16().float()
    return model


def test_bfloat16_multiplies_in_float32_where_no_instruction_is_faster(isa: str) -> None:
    expected = "bfloat16" if isa in NATIVE else "float32"
    assert [multiplies_in(dtype) for dtype in LINEAR_DTYPES] == ["float32", expected, "int8"]


def test_it_then_answers_as_float32_with_rounded_weights(isa: str, tmp_path: Path) -> None:
    export_model(dlrm().eval(), tmp_path / "a", ExportConfig(linear_dtype="bfloat16"))
    export_model(rounded(dlrm().eval()), tmp_path / "b", ExportConfig())
    found, expected = load_artifact(tmp_path / "a"), load_artifact(tmp_path / "b")
    batch = batch_of(found.signature, 33)
    for name, scores in expected.forward(*batch.inputs()).items():
        # Interactions too: bits are those of float32.
        assert torch.equal(found.forward(*batch.inputs())[name], scores) is (isa not in NATIVE)


def test_the_log_and_the_export_say_so(isa: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    report = export_model(dlrm().eval(), tmp_path / "a", ExportConfig(linear_dtype="bfloat16"))
    with caplog.at_level(logging.INFO):
        load_artifact(tmp_path / "a")
    said = f"linear layers in bfloat16 multiply in float32 here: {isa} has no faster instruction for their products"
    assert (f"target 'cpu': {said}" in caplog.text) is (isa not in NATIVE)
    noted = any(note.startswith("linear layers in bfloat16 multiply in float32") for note in report.notes)
    assert noted is (isa not in NATIVE)


def test_auto_takes_no_type_that_gains_nothing(isa: str, tmp_path: Path) -> None:
    config = ExportConfig(linear_dtype="auto", auto_bound=1e9)
    report = export_model(dlrm().eval(), tmp_path / "a", config)
    of_type = {trial.dtype: trial for trial in report.linear_dtypes}
    assert of_type["bfloat16"].multiplies_in == multiplies_in("bfloat16")
    console = Console(record=True, width=160)
    print_report(report, console)
    said = "multiplies in float32 on this processor" in console.export_text()
    assert said is (isa not in NATIVE)
    if isa not in NATIVE:
        assert not of_type["bfloat16"].is_chosen
