"""``--linear-dtype auto``: each type is measured, and the fastest within the bound is taken."""

from __future__ import annotations

import csv
import json
import random
from pathlib import Path

import pytest

from export.cli import main as export_main
from export.config import ExportConfig
from export.pipeline import export_model
from export.report import ExportReport
from recsys.artifact.load import load_artifact
from recsys.errors import ExportError
from recsys.kernels import operators
from recsys.kernels.operators import LINEAR_DTYPES
from recsys.train.commands.train import main as train_main
from tests.support.kernels import needs_kernels
from tests.support.models.export_models import dlrm

needs_operators = needs_kernels


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trained checkpoint and its table; a table whose labels are all equal, and one without rows."""
    made = tmp_path_factory.mktemp("auto")
    generator = random.Random(0)
    rows = []
    for _ in range(600):
        site, price = generator.randrange(20), generator.random()
        rows.append((int(generator.random() < (site % 4 + price) / 5), site, price))
    for name, kept in (("clicks", rows), ("zeros", [row for row in rows if row[0] == 0]), ("none", [])):
        with (made / f"{name}.csv").open("w", newline="") as file:
            csv.writer(file).writerows([("click", "site_id", "price"), *kept])
    argv = ["--data", str(made / "clicks.csv"), "--out", str(made / "m.pt"), "--epochs", "2"]
    assert train_main([*argv, "--embedding-dim", "8", "--over-layers", "32", "--batch-size", "64"]) == 0
    return made


def exported(tmp_path: Path, bound: float | None) -> ExportReport:
    config = ExportConfig(linear_dtype="auto", auto_bound=bound)
    return export_model(dlrm().eval(), tmp_path / "a", config)


@needs_operators
def test_the_fastest_type_within_the_bound_is_taken(tmp_path: Path) -> None:
    report = exported(tmp_path, 1e9)
    trials = report.linear_dtypes
    assert [trial.dtype for trial in trials] == list(LINEAR_DTYPES)
    (chosen,) = [trial for trial in trials if trial.is_chosen]
    # Others differ from the type that they multiply in by noise alone.
    own = [trial for trial in trials if trial.multiplies_in == trial.dtype]
    assert chosen.us_per_row == min(trial.us_per_row for trial in own)
    exact, *rounded = trials
    assert exact.max_difference == 0
    assert all(trial.max_difference > 0 and trial.is_within for trial in rounded)
    artifact = load_artifact(tmp_path / "a")
    assert artifact.target.linear_dtype == chosen.dtype
    noted = artifact.manifest.verification["linear_dtypes"]
    assert {dtype: one["max_difference"] for dtype, one in noted.items()} == {
        trial.dtype: trial.max_difference for trial in trials
    }


@needs_operators
def test_types_beyond_the_bound_are_not_taken(tmp_path: Path) -> None:
    trials = exported(tmp_path, 0.0).linear_dtypes
    assert [trial.is_within for trial in trials] == [True, False, False]
    assert load_artifact(tmp_path / "a").target.linear_dtype == "float32"


@needs_operators
def test_the_bound_lies_on_the_auc_where_labels_are_given(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = [str(folder / "m.pt"), "--linear-dtype", "auto", "--auto-data", str(folder / "clicks.csv")]
    assert export_main([*argv, "--out", str(tmp_path / "a"), "--auto-bound", "1", "--json"]) == 0
    trials = json.loads(capsys.readouterr().out)["linear_dtypes"]
    assert all(0.5 < trial["auc"]["click"] < 1 and trial["is_within"] for trial in trials)
    assert export_main([*argv, "--out", str(tmp_path / "b")]) == 0
    report = capsys.readouterr().out
    assert "AUC click" in report
    assert report.count("chosen") == 1


@needs_operators
@pytest.mark.parametrize(
    ("table", "text"),
    [
        ("zeros", "auto_data: got 'zeros.csv', whose labels 'click' are all equal: no AUC"),
        ("none", "none.csv"),
        ("missing", "no such file or folder"),
    ],
)
def test_examples_without_an_auc_are_refused(
    folder: Path, tmp_path: Path, table: str, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = [str(folder / "m.pt"), "--linear-dtype", "auto", "--auto-data", str(folder / f"{table}.csv")]
    assert export_main([*argv, "--out", str(tmp_path / "a")]) == 1
    assert text in capsys.readouterr().err
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"auto_bound": 0.1}, "auto_bound: got it with linear_dtype 'float32', expected 'auto'"),
        ({"auto_data": Path("a.csv")}, "auto_data: got it with linear_dtype 'float32', expected 'auto'"),
        (
            {"linear_dtype": "auto", "auto_bound": -1.0},
            "auto_bound: got -1.0, expected a number of at least 0",
        ),
        ({"linear_dtype": "auto", "auto_bound": float("nan")}, "auto_bound: got nan"),
    ],
)
def test_options_that_do_not_fit_are_refused(options: dict[str, object], text: str) -> None:
    with pytest.raises(ExportError, match=text):
        ExportConfig(**options)  # type: ignore[arg-type]


def test_without_the_operators_there_is_no_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operators, "why_missing", lambda: "the native kernels are not built")
    with pytest.raises(ExportError, match="linear_dtype: got 'auto', but the native kernels are not"):
        ExportConfig(linear_dtype="auto")
