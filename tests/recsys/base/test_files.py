"""Files that are replaced in one step, and JSON that is not trusted."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from recsys.base.files import DiskFullError, check_room, parse_json, read_json, replacing
from recsys.errors import PlanError


def test_a_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    with replacing(path) as partial:
        assert partial.parent == tmp_path
        partial.write_text("new")
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


def test_an_error_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")

    def fail() -> None:
        with replacing(path) as partial:
            partial.write_text("half")
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        fail()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("number", "fix"),
    [
        (errno.ENOSPC, "free space there, or choose another disk"),
        (errno.EDQUOT, "free space there, have the quota raised, or choose another disk"),
        (errno.EFBIG, r"have the limit on the size of files \(ulimit -f\) raised, or choose another disk"),
    ],
)
def test_a_full_disk_names_the_file_and_what_to_do(tmp_path: Path, number: int, fix: str) -> None:
    text = rf"^'plan\.json' cannot be written: {os.strerror(number)}; {fix}$"
    with pytest.raises(DiskFullError, match=text), replacing(tmp_path / "plan.json"):
        raise OSError(number, os.strerror(number))


def test_other_errors_stay_as_they_are(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), replacing(tmp_path / "plan.json"):
        pass


def test_room_is_checked_before_anything_is_written(tmp_path: Path) -> None:
    check_room(tmp_path / "model.pt", 1)
    with pytest.raises(
        DiskFullError, match=r"^'model\.pt' cannot be written: 1,152,921,504,606,846,976 bytes are"
    ):
        check_room(tmp_path / "model.pt", 1 << 60)


@pytest.mark.parametrize(
    "content", ["", "{", "[" * 100_000, b"\xff"], ids=["empty", "open", "deep", "no text"]
)
def test_what_is_not_json_is_one_named_error(content: str | bytes) -> None:
    with pytest.raises(PlanError, match=r"^plan: not readable as JSON: "):
        parse_json(content, "plan", PlanError)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match=r"^plan: cannot read 'plan\.json': FileNotFoundError"):
        read_json(tmp_path / "plan.json", "plan", PlanError)
