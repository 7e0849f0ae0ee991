"""A disk that is full when a training saves: one line, and nothing is left but what was whole before."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from recsys.checkpoint.lock import LOCK_NAME
from recsys.train.commands.run_file import RUN_NAME
from recsys.train.commands.train import main
from tests.support.children.full_disk import Ended, on_small_disk, with_file_limit

pytestmark = pytest.mark.slow

# Tables of 60 KB.
_WORDS = ["--data", "synthetic", "--limit-rows", "2000", "--epochs", "1", "--embedding-dim", "4"]
_LIMIT = 40_000


def _check(ended: Ended, expected: str) -> None:
    assert ended.code == 1, ended.err
    assert ended.err.startswith("recsys-train: failed: ")
    assert ended.err.count("\n") == 1
    assert expected in ended.err


def test_the_whole_model(tmp_path: Path) -> None:
    ended = with_file_limit(_LIMIT, "recsys.train", *_WORDS, "--out", tmp_path / "model.pt")
    _check(
        ended, "'model.pt' cannot be written: File too large; have the limit on the size of files (ulimit -f)"
    )
    assert list(tmp_path.iterdir()) == []


def test_a_checkpoint(tmp_path: Path) -> None:
    run = tmp_path / "run"
    ended = with_file_limit(_LIMIT, "recsys.train", *_WORDS, "--checkpoint-dir", run)
    _check(ended, "checkpoint of step ")
    assert " cannot be written: File too large; " in ended.err
    assert sorted(path.name for path in run.iterdir()) == [LOCK_NAME, RUN_NAME]


def test_a_disk_without_space_is_found_before_training(tmp_path: Path) -> None:
    place = tmp_path / "small"
    place.mkdir()
    ended = on_small_disk(place, "32k", "recsys.train", *_WORDS, "--out", place / "model.pt")
    _check(ended, " bytes are needed, 32,768 are free; free space there, or choose another disk")
    assert "epoch" not in ended.out
    assert ended.out.endswith("left: \n")


def test_the_checkpoint_before_stays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    assert main([*_WORDS, "--checkpoint-dir", str(run), "--json"]) == 0
    capsys.readouterr()
    before = sorted(path.name for path in run.iterdir())
    words = [*_WORDS[:4], "--epochs", "2", *_WORDS[6:], "--checkpoint-dir", run, "--resume"]
    _check(with_file_limit(_LIMIT, "recsys.train", *words), "checkpoint of step ")
    assert sorted(path.name for path in run.iterdir()) == before
    assert main([*map(str, words), "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["epochs"]) == 2
