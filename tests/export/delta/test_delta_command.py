"""recsys-export --delta: what it takes, prints and refuses."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from export.cli import main
from export.pipeline import export_model
from recsys.artifact.load import load_artifact, load_rows
from tests.export.delta.test_delta import BARE, assert_becomes, trained
from tests.export.source.test_shards import _save as save_sharded
from tests.recsys.artifact.delta.deltas import digest_of, header_of
from tests.support.models.export_models import CopyCase, bare, dlrm


@pytest.fixture
def states(tmp_path: Path, copy_case: CopyCase) -> Path:
    """``old.pt`` and ``new.pt``, and ``old.artifact``."""
    old = bare()
    torch.save(old.state_dict(), tmp_path / "old.pt")
    torch.save(trained(old).state_dict(), tmp_path / "new.pt")
    copy_case("bare collection", tmp_path / "old.artifact")
    return tmp_path


def run(*arguments: str | Path) -> int:
    """The exit code, usage errors included."""
    try:
        return main([str(argument) for argument in arguments])
    except SystemExit as end:
        return int(end.code or 0)


class TestCommand:
    def test_two_checkpoints_alone(self, states: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert run("--delta", states / "old.pt", states / "new.pt", *BARE) == 0
        printed = capsys.readouterr()
        assert printed.err == ""
        for word in (
            "users",
            "goods",
            "wide",
            "tiny",
            "changed",
            digest_of(states / "new.delta"),
            "new.delta",
        ):
            assert word in printed.out
        artifact = load_artifact(states / "old.artifact")
        export_model(trained(bare()), states / "fresh")
        assert_becomes(artifact, states / "new.delta", load_artifact(states / "fresh"))

    def test_json(self, states: Path, capsys: pytest.CaptureFixture[str]) -> None:
        command = ["--delta", states / "old.pt", states / "new.pt", *BARE, "--json", "--out", states / "x"]
        assert run(*command, "--artifact", states / "old.artifact") == 0
        report = json.loads(capsys.readouterr().out)
        assert report["digest"] == digest_of(states / "x")
        assert report["base"] == report["artifact"] == load_rows(states / "old.artifact").digest
        assert {t["name"] for t in report["tables"]} == {"users", "goods", "wide", "tiny"}
        assert report["delta_bytes"] == (states / "x").stat().st_size

    def test_a_delta_after_a_delta(self, states: Path, capsys: pytest.CaptureFixture[str]) -> None:
        torch.save(trained(trained(bare()), seed=9).state_dict(), states / "newer.pt")
        assert run("--delta", states / "old.pt", states / "new.pt", *BARE) == 0
        second = [
            "--delta",
            states / "new.pt",
            states / "newer.pt",
            "--artifact",
            states / "old.artifact",
            *BARE,
        ]
        assert run(*second) == 1
        assert "the artifact holds other numbers" in capsys.readouterr().err
        assert run(*second, "--after", states / "new.delta") == 0
        assert (states / "newer.delta").is_file()

    def test_directories_of_sharded_checkpoints(self, states: Path) -> None:
        for name in ("old", "new"):
            save_sharded(torch.load(states / f"{name}.pt"), states / name)
        started_s = time.time()
        command = ["--delta", states / "old", states / "new", *BARE]
        assert run(*command) == 0
        assert run("--delta", states / "old.pt", states / "new.pt", *BARE, "--out", states / "same") == 0
        headers = [header_of(states / name) for name in ("new.delta", "same")]
        made_s = [header.pop("created_s") for header in headers]
        assert headers[0] == headers[1]
        assert started_s - 0.001 <= made_s[0] <= made_s[1] <= time.time() + 0.001

    def test_nothing_differs(self, states: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert run("--delta", states / "old.pt", states / "old.pt", *BARE, "--out", states / "x") == 0
        assert "no row differs" in capsys.readouterr().out

    def test_dense_weights(
        self, tmp_path: Path, copy_case: CopyCase, capsys: pytest.CaptureFixture[str]
    ) -> None:
        new = trained(dlrm())
        with torch.no_grad():
            next(new.over_arch.parameters()).add_(1)
        torch.save(dlrm().state_dict(), tmp_path / "old.pt")
        torch.save(new.state_dict(), tmp_path / "new.pt")
        copy_case("dlrm", tmp_path / "old.artifact")
        command = [
            "--delta",
            tmp_path / "old.pt",
            tmp_path / "new.pt",
            "--factory",
            "tests.support.models.factories:make_dlrm",
        ]
        assert run(*command) == 0
        assert "1 dense weights changed" in capsys.readouterr().out
        assert run(*command, "--tables-only", "--force") == 0
        assert "warning: 1 dense weights differ and stay" in capsys.readouterr().err

    def test_force(self, states: Path, capsys: pytest.CaptureFixture[str]) -> None:
        command = ["--delta", states / "old.pt", states / "new.pt", *BARE]
        assert run(*command) == 0
        assert run(*command) == 1
        assert "out: 'new.delta' exists; choose another name or pass --force" in capsys.readouterr().err
        assert run(*command, "--force") == 0
        assert run(*command, "--force", "--out", states / "old.pt") == 1
        assert "out: 'old.pt' exists and is no delta; it is not replaced" in capsys.readouterr().err

    @pytest.mark.parametrize(
        ("arguments", "text"),
        [
            (["--delta", "a.pt"], "--delta: got 1 checkpoints, expected two: OLD NEW"),
            (["--delta", "a.pt", "b.pt", "c.pt"], "--delta: got 3 checkpoints"),
            (["--delta", "a.pt", "b.pt", "--dtype", "int4"], "--dtype: got it, expected none with --delta"),
            (["--delta", "a.pt", "b.pt", "--target", "cpu"], "--target: got it"),
            (["--delta", "a.pt", "b.pt", "--single-file"], "--single-file: got it"),
            (["--delta", "a.pt", "b.pt", "--factory-args", "{"], "factory-args: not readable as JSON"),
            (["a.pt", "--artifact", "x"], "--artifact: got it, expected --delta with it"),
            (["a.pt", "--tables-only"], "--tables-only: got it, expected --delta"),
            (["a.pt", "--after", "x"], "--after: got it, expected --delta"),
        ],
    )
    def test_bad_usage(self, arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
        assert run(*arguments) == 2
        printed = capsys.readouterr()
        assert printed.out == ""
        assert printed.err.startswith("recsys-export: ")
        assert printed.err.count("\n") == 1
        assert text in printed.err

    @pytest.mark.parametrize(
        ("damage", "text"),
        [
            (lambda p: (p / "new.pt").unlink(), "got 'new.pt', which does not exist"),
            (lambda p: (p / "old.artifact" / "rows.bin").unlink(), "part 'rows.bin': missing"),
            (
                lambda p: (p / "old.artifact").rename(p / "elsewhere"),
                "got 'old.artifact', which does not exist",
            ),
        ],
        ids=["checkpoint", "rows", "artifact"],
    )
    def test_failures(
        self, states: Path, damage: Callable[[Path], Any], text: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        damage(states)
        assert run("--delta", states / "old.pt", states / "new.pt", *BARE) == 1
        assert text in capsys.readouterr().err
        assert not (states / "new.delta").exists()
