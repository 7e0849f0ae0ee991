"""A disk that is full during an export: one error, and nothing is left."""

from __future__ import annotations

import resource
from pathlib import Path
from typing import Any

import pytest
import torch

from export.artifact import single_file
from export.cli import main
from recsys.checkpoint import Checkpoint, save_checkpoint
from recsys.models.click import build_dlrm
from tests.support.children.full_disk import Ended, on_small_disk, with_file_limit

pytestmark = pytest.mark.slow

_LIMIT = 100_000


def _checkpoint(path: Path, rows: int, width: int) -> Path:
    """A model of one table with 20 bytes a row, and of two layers of this width."""
    arguments: dict[str, Any] = {
        "tables": [
            {"name": "t", "num_embeddings": rows, "embedding_dim": 16, "feature_names": ["f"]},
        ],
        "dense_in_features": 3,
        "dense_arch_layer_sizes": [width, 16],
        "over_arch_layer_sizes": [8, 1],
    }
    torch.manual_seed(0)
    state_dict = build_dlrm(**arguments).state_dict()
    factory = "recsys.models.click:build_dlrm"
    save_checkpoint(path, Checkpoint(factory=factory, arguments=arguments, state_dict=state_dict))
    return path


def _check(ended: Ended, expected: str) -> None:
    assert ended.code == 1, ended.err
    assert ended.err.startswith("recsys-export: ")
    assert ended.err.count("\n") == 1
    assert expected in ended.err


# What does not fit under the limit: the rows, or only rows and graph together.
_PARTS = {
    "rows": (20_000, 16, [], "File too large: 400,128 bytes are needed; "),
    "single file": (4_000, 500, ["--single-file"], "File too large; "),
}


@pytest.mark.parametrize(("rows", "width", "options", "expected"), _PARTS.values(), ids=_PARTS)
def test_a_part_that_cannot_be_written(
    tmp_path: Path, rows: int, width: int, options: list[str], expected: str
) -> None:
    checkpoint = _checkpoint(tmp_path / "model.pt", rows, width)
    ended = with_file_limit(_LIMIT, "export", checkpoint, *options, "--out", tmp_path / "a")
    _check(ended, f"out: 'a' cannot be written: {expected}")
    assert "have the limit on the size of files (ulimit -f) raised" in ended.err
    assert [path.name for path in tmp_path.iterdir()] == ["model.pt"]


def test_a_single_file_that_another_process_cannot_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint = _checkpoint(tmp_path / "model.pt", 4_000, 500)
    monkeypatch.setattr(single_file, "MOST_COPIED_BYTES", 0)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (_LIMIT, before[1]))
    try:
        code = main([str(checkpoint), "--single-file", "--out", str(tmp_path / "a")])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert code == 1
    assert "out: 'a' cannot be written: File too large: " in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["model.pt"]


def test_a_graph_on_a_disk_without_space(tmp_path: Path) -> None:
    checkpoint, place = _checkpoint(tmp_path / "model.pt", 10, 5_000), tmp_path / "small"
    place.mkdir()
    ended = on_small_disk(place, "64k", "export", checkpoint, "--out", place / "a")
    _check(
        ended, "out: 'a' cannot be written: No space left on device; free space there, or choose another disk"
    )
    assert ended.out == "left: \n"


def test_a_delta_that_cannot_be_written(tmp_path: Path) -> None:
    old = _checkpoint(tmp_path / "old.pt", 20_000, 16)
    assert main([str(old)]) == 0
    content = torch.load(old, weights_only=True)
    (name,) = (name for name in content["state_dict"] if name.endswith("t.weight"))
    content["state_dict"][name] += 1
    torch.save(content, tmp_path / "new.pt")
    before = sorted(path.name for path in tmp_path.iterdir())
    ended = with_file_limit(_LIMIT, "export", "--delta", old, tmp_path / "new.pt")
    _check(ended, "'new.delta' cannot be written: File too large; ")
    assert sorted(path.name for path in tmp_path.iterdir()) == before
