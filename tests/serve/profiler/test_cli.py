"""recsys-profile, as a user meets it: tables, pages, JSON, errors."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from export.config import ExportConfig
from export.pipeline import export_model
from recsys.artifact.graphs import LoadedGraphs
from recsys.artifact.load import load_artifact
from recsys.artifact.programs import ProgramGraphs
from recsys.kernels import operators
from serve.profiler.cli import main, mix_of
from serve.profiler.result import BETWEEN, CALL
from serve.profiler.work import INPUTS, LINEAR
from tests.recsys.artifact.damage import lie
from tests.support.kernels import needs_kernels
from tests.support.models.export_models import dlrm
from tests.support.serve.models import SmallModel
from tests.support.serve.strict_page import parsed_page

QUICK = ("--rounds", "1", "--batch-sizes", "1,8")


@pytest.fixture(autouse=True)
def short_turns(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("serve.profiler.cli._TURN_S", 0.0005)
    monkeypatch.chdir(tmp_path)


def run(*words: object, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    code = main([str(word) for word in words])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def profiled(*words: object, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    code, out, err = run(*words, "--json", capsys=capsys)
    assert code == 0, err
    found: dict[str, Any] = json.loads(out)
    return found


def names(rows: Sequence[dict[str, Any]]) -> set[str]:
    return {row["name"] for row in rows}


def test_a_table_and_a_page(artifact_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(artifact_path, *QUICK, capsys=capsys)
    assert code == 0
    for word in ("rows gathered, as loaded", "products in bfloat16", "batch sizes", "recsys", "profile.html"):
        assert word in out
    made = parsed_page((tmp_path / "profile.html").read_text())
    assert "Profile of small" in made.texts
    assert made.addresses == []


def test_time_is_bounded_and_progress_is_shown(
    artifact_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = (artifact_path, "--rounds", "1000000", "--seconds", "1", "--batch-sizes", "1,8", "--json")
    code, out, err = run(*words, capsys=capsys)
    assert code == 0
    assert [line.split(" … ")[0] for line in err.splitlines()] == [
        "recsys-profile: measuring the limits of this machine",
        "recsys-profile: measuring batches of 1, 2 of 2 sizes left",
        "recsys-profile: measuring batches of 8, 1 of 2 sizes left",
    ]
    found = json.loads(out)
    assert any("the 1 s were up after" in note for note in found["notes"])


def test_json_has_everything_and_writes_no_page(
    artifact_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = profiled(artifact_path, "--mix", "1:3,8:1", "--rounds", "1", capsys=capsys)
    assert set(data) == {
        "schema", "artifact", "about", "settings", "machine", "limits", "mix", "sizes", "hints", "notes",
    }  # fmt: skip
    assert data["mix"]["shares"] == {"1": 0.75, "8": 0.25}
    assert not list(tmp_path.glob("*.html"))
    for one in data["sizes"]:
        assert one["us"] > 0
        # One ID in each of four features.
        assert one["table_rows"] == 4 * one["batch_size"]
        assert {BETWEEN, CALL} <= names(one["operators"])
        assert sum(row["share"] for row in one["operators"]) == pytest.approx(1.0)
        assert sum(row["rows"] for row in one["operators"]) == one["table_rows"]
    linear = [row for row in data["mix"]["operators"] if row["name"] in LINEAR]
    assert [row["label"] for row in linear] == ["24 → 7"]
    assert linear[0]["flops"] == pytest.approx(2 * 24 * 7 * (0.75 + 0.25 * 8))


@pytest.fixture(scope="module")
def program_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An artifact with a program. Not to be written to."""
    path = tmp_path_factory.mktemp("profiled") / "dlrm"
    export_model(dlrm().eval(), path, ExportConfig())
    return path


@needs_kernels
def test_a_program_is_profiled_by_its_steps(program_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = profiled(program_path, *QUICK, capsys=capsys)
    about = data["about"]
    assert {"lookup", "linear", "dot"} <= set(about["program"])
    assert about["instructions"] == operators.instructions()
    for one in data["sizes"]:
        rows = one["operators"]
        assert not any("::" in name for name in names(rows))
        assert about["program"].keys() | {INPUTS, BETWEEN, CALL} == names(rows)
        assert sum(row["calls"] for row in rows if row["name"] == "linear") == about["program"]["linear"]
        assert sum(row["share"] for row in rows) == pytest.approx(1.0)
        assert sum(row["rows"] for row in rows) == one["table_rows"]
    code, out, err = run(program_path, *QUICK, "--no-html", capsys=capsys)
    assert code == 0, err
    assert f"program ({operators.instructions()}): " in out
    assert f"{about['program']['linear']} × linear" in out
    assert "steps, in the mean batch of the mix" in out


@needs_kernels
def test_a_program_needs_no_torchscript(
    program_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def scripted(_: ProgramGraphs) -> LoadedGraphs:
        raise AssertionError("TorchScript was asked for")

    monkeypatch.setattr(ProgramGraphs, "scripted", scripted)
    assert "lookup" in profiled(program_path, *QUICK, capsys=capsys)["about"]["program"]


def test_the_operators_of_torch_can_be_asked_for(
    program_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = profiled(program_path, *QUICK, "--scripted", capsys=capsys)
    assert {"aten::linear", "aten::bmm"} <= names(plain["mix"]["operators"])
    assert (plain["about"]["program"], plain["about"]["instructions"]) == (None, None)
    missing = operators.why_missing()
    assert any((missing or "--scripted") in hint["text"] for hint in plain["hints"])


def test_an_artifact_without_a_program_runs_operators_of_torch(
    artifact_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = Path(shutil.copytree(artifact_path, tmp_path / "a"))
    lie(path, lambda data: [target.pop("program") for target in data["targets"]])
    data = profiled(path, *QUICK, capsys=capsys)
    assert "aten::linear" in names(data["mix"]["operators"])
    assert data["about"]["program"] is None
    missing = operators.why_missing()
    assert any((missing or "has no program") in hint["text"] for hint in data["hints"])


def test_another_target_copied_rows_and_skewed_ids(
    artifact_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--target", "cpu,cpu", "--copy-rows", "--zipf", "1.05", "--ids-per-bag", "0-4")
    data = profiled(artifact_path, *QUICK, *words, capsys=capsys)
    assert data["about"]["target"] == "cpu,cpu"
    assert data["about"]["rows"] == "copied into memory"
    assert data["settings"]["zipf"] == 1.05


def test_ranking_batches(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = ExportConfig(dense_widths={"context": 3, "price": 1}, context=("price", "user"))
    export_model(SmallModel(), tmp_path / "ranking", config)
    data = profiled(tmp_path / "ranking", *QUICK, "--ranking", capsys=capsys)
    # The context's feature once, three others for each row.
    assert [one["table_rows"] for one in data["sizes"]] == [1 + 3, 1 + 3 * 8]
    assert data["settings"]["ranking"] is True
    if not data["about"]["program"]:
        return
    for one in (data["mix"], *data["sizes"]):
        assert 0 < one["spaces_us"]["contexts"] < one["us"]
        assert 0 < one["spaces_us"]["rows"] < one["us"]


def test_samples(artifact_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    request = {
        "dense": {"context": [[0.0, 1.0, 2.0]], "price": [[1.0]]},
        "sparse": {"user": [[1, 2]], "genres": [[]], "item": [[7]], "tags": [[3]]},
        "weights": {"tags": [[0.5]]},
    }
    (tmp_path / "requests.json").write_text(json.dumps(request))
    data = profiled(artifact_path, *QUICK, "--samples", "requests.json", capsys=capsys)
    assert [one["table_rows"] for one in data["sizes"]] == [4, 32]


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("nowhere",), 1, "artifact: got 'nowhere', which does not exist"),
        (("{artifact}", "--target", "tpu"), 1, "target: got 'tpu', expected one of"),
        (("{artifact}", "--ranking"), 1, "--ranking: got a model without a ranking form"),
        (
            ("{artifact}", "--html", "none/page.html"),
            1,
            "--html: got 'none/page.html', whose folder does not exist",
        ),
        (("{artifact}", "--samples", "none.json"), 1, "none.json"),
        (("{artifact}", "--html", "a.html", "--no-html"), 2, "--html: got it with --no-html"),
        (("{artifact}", "--batch-sizes", "0"), 2, "expected whole numbers of at least 1"),
        (("{artifact}", "--batch-sizes", "100000"), 2, "expected at most 65536 rows"),
        (("{artifact}", "--mix", "1-8:0.5,9:0.5"), 2, "expected batch sizes"),
        (("{artifact}", "--mix", "1:0.5,8"), 2, "expected CHOICE:WEIGHT"),
        (("{artifact}", "--zipf", "-1"), 2, "expected a number of at least 0, at most 100"),
        (("{artifact}", "--ids-per-bag", "x"), 2, "expected a whole number"),
    ],
)
def test_bad_usage_is_one_clear_error(
    words: tuple[str, ...], code: int, message: str, artifact_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [word.format(artifact=artifact_path) for word in words]
    try:
        found = main(given)
    except SystemExit as ended:
        found = int(str(ended.code))
    assert found == code
    assert message in capsys.readouterr().err


def test_what_has_no_torchscript_is_refused(
    artifact_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = load_artifact(artifact_path, scripted=True)
    alone = replace(plain, target=replace(plain.target, skeleton=None))
    monkeypatch.setattr("serve.profiler.run.load_artifact", lambda *_, **__: alone)
    code, _, err = run(artifact_path, *QUICK, capsys=capsys)
    assert code == 1
    assert "without TorchScript, which profiles are made of; run recsys-export --format both" in err


@pytest.mark.parametrize(
    ("sizes", "mix", "expected"),
    [
        (None, None, dict.fromkeys((1, 8, 32, 128, 512), 0.2)),
        ((4, 2), None, {2: 0.5, 4: 0.5}),
        (None, {8: 3.0, 1: 1.0}, {1: 0.25, 8: 0.75}),
        ((1, 64), {1: 5.0}, {1: 1.0, 64: 0.0}),
    ],
)
def test_a_mix_has_shares_of_all_sizes(
    sizes: tuple[int, ...] | None, mix: dict[int, float] | None, expected: dict[int, float]
) -> None:
    assert mix_of(sizes, mix) == pytest.approx(expected)
    assert list(mix_of(sizes, mix)) == sorted(expected)
