"""Files that are replaced in one step, and JSON that is not trusted."""

from __future__ import annotations

from pathlib import Path

import pytest

from recsys.errors import PlanError
from recsys.files import parse_json, read_json, replacing


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
    "content", ["", "{", "[" * 100_000, b"\xff"], ids=["empty", "open", "deep", "no text"]
)
def test_what_is_not_json_is_one_named_error(content: str | bytes) -> None:
    with pytest.raises(PlanError, match=r"^plan: not readable as JSON: "):
        parse_json(content, "plan", PlanError)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match=r"^plan: cannot read 'plan\.json': FileNotFoundError"):
        read_json(tmp_path / "plan.json", "plan", PlanError)
