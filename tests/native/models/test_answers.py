"""What a program answers is compared with what its export verified, by every loader.

Shape letters: B batch, N number of IDs.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from export.config import ExportConfig
from export.pipeline import export_model
from recsys.artifact.batches.answers import Answers
from recsys.artifact.load import load_artifact
from recsys.artifact.manifest import Manifest
from recsys.errors import ManifestError, TargetError
from recsys.kernels import operators
from tests.conformance.support.artifacts import export_small
from tests.native.models.test_effects import Towers
from tests.native.tool import NativeError, NativeModel, needs_tool
from tests.support.kernels import needs_kernels
from tests.support.models.export_models import dlrm

pytestmark = needs_kernels


@pytest.fixture
def exported(tmp_path: Path) -> Path:
    export_model(dlrm().eval(), tmp_path / "a", ExportConfig())
    return tmp_path / "a"


def manifest_of(path: Path) -> Manifest:
    return Manifest.loads((path / "manifest.json").read_bytes())


def set_answers(path: Path, answers: Mapping[str, Any]) -> None:
    """Let an artifact hold other answers, with a digest that fits."""
    (path / "manifest.json").write_text(replace(manifest_of(path), answers=answers).dumps())


def answer_as_plain(path: Path, tolerance: float) -> None:
    """Let an artifact hold exactly what its TorchScript answers, from which its program differs by rounding."""
    plain = load_artifact(path, scripted=True)
    answers = Answers.from_json(plain.manifest.answers, plain.signature)
    outputs = plain.forward(*answers.batch.inputs())
    set_answers(path, replace(answers, outputs=outputs, tolerance=tolerance).to_json())


def spoil(path: Path) -> None:
    """Let an artifact hold answers that no graph of it gives."""
    answers = dict(manifest_of(path).answers)
    name, numbers = next(iter(answers["outputs"].items()))
    set_answers(path, {**answers, "outputs": {name: [number + 2**22 for number in numbers]}})


def test_an_export_keeps_rows_with_their_answers(exported: Path) -> None:
    loaded = load_artifact(exported)
    assert loaded.runs_program
    answers = Answers.from_json(loaded.manifest.answers, loaded.signature)
    assert answers.batch.num_rows == 16
    assert Answers.from_json(answers.to_json(), loaded.signature).to_json() == answers.to_json()


def test_a_program_that_answers_otherwise_is_not_used(
    exported: Path, caplog: pytest.LogCaptureFixture
) -> None:
    answer_as_plain(exported, tolerance=0.0)
    with caplog.at_level(logging.WARNING):
        loaded = load_artifact(exported)
    assert not loaded.runs_program
    assert "target 'cpu': its program answers otherwise than the export verified" in caplog.text
    assert "its TorchScript graph is loaded instead, which is slower" in caplog.text


def test_an_artifact_that_answers_otherwise_by_all_means_is_refused(exported: Path) -> None:
    spoil(exported)
    with pytest.raises(TargetError, match="it answers otherwise than the export verified"):
        load_artifact(exported)


def test_a_program_that_an_artifact_needs_is_refused_with_it(tmp_path: Path) -> None:
    export_model(dlrm().eval(), tmp_path / "a", ExportConfig(linear_dtype="bfloat16"))
    spoil(tmp_path / "a")
    with pytest.raises(TargetError, match="nothing else of it can run: export it on this machine"):
        load_artifact(tmp_path / "a")


@pytest.mark.parametrize("join", ["latest", "listed", "added_in_place"])
def test_an_export_without_native_kernels_is_checked_where_they_are(
    tmp_path: Path, join: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    model = Towers(join).eval()
    with monkeypatch.context() as without:
        without.setattr(operators, "_loaded", lambda: (None, "not built here"))
        export_model(model, tmp_path / "a", ExportConfig(dense_widths={"default": 8}))
        assert not load_artifact(tmp_path / "a").runs_program
    loaded = load_artifact(tmp_path / "a")
    assert loaded.runs_program
    answers = Answers.from_json(loaded.manifest.answers, loaded.signature)
    assert answers.difference(loaded.graphs.calls, loaded.signature) == ""


@pytest.mark.parametrize(
    "change",
    [
        {"num_rows": 0},
        {"num_rows": 10**9},
        {"tolerance": 2.0},
        {"dense": []},
        {"lengths": [-1] * 64},
        {"lengths": [2**62] * 64},
        {"values": [2**70]},
        {"outputs": {"nobody": []}},
        {"outputs": {"default": [2**40] * 16}},
        {"outputs": None},
    ],
    ids=str,
)
def test_wrong_answers_in_a_manifest_are_named(exported: Path, change: dict[str, Any]) -> None:
    set_answers(exported, {**manifest_of(exported).answers, **change})
    with pytest.raises(ManifestError, match=r"manifest\.answers"):
        load_artifact(exported)


@needs_tool
@pytest.mark.parametrize("has_context", [False, True])
def test_the_native_library_does_the_same(tmp_path: Path, has_context: bool) -> None:
    path = export_small(tmp_path / "a").path if has_context else tmp_path / "a"
    if not has_context:
        export_model(dlrm().eval(), path, ExportConfig())
    native = NativeModel()
    native.open(path)
    answer_as_plain(path, tolerance=0.0)
    native.open(path)
    spoil(path)
    with pytest.raises(NativeError, match="it answers otherwise than the export verified"):
        native.open(path)
    assert native.close() == 0


@needs_tool
def test_the_native_library_names_wrong_answers(exported: Path) -> None:
    set_answers(exported, {**manifest_of(exported).answers, "lengths": [-1] * 64})
    native = NativeModel()
    with pytest.raises(NativeError, match=r"manifest\.answers"):
        native.open(exported)
    assert native.close() == 0


@pytest.mark.parametrize("engine", ["native", "reference"])
def test_servers_say_that_they_leave_a_program_out(exported: Path, engine: str) -> None:
    answer_as_plain(exported, tolerance=0.0)
    command = [sys.executable, "-m", "serve.app.cli", str(exported), "--engine", engine, "--port", "0"]
    server = subprocess.Popen(
        [*command, "--no-metrics"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ},
    )
    assert server.stdout is not None
    assert "ready" in server.stdout.readline()
    server.send_signal(signal.SIGTERM)
    _, errors = server.communicate(timeout=60)
    assert "its program answers otherwise than the export verified" in errors
    spoil(exported)
    refused = subprocess.run([*command, "--no-metrics"], capture_output=True, text=True, timeout=120)
    assert refused.returncode != 0
    assert "it answers otherwise than the export verified" in refused.stdout + refused.stderr
