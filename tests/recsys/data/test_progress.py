"""Reading shows its progress on a terminal, after a second, and leaves nothing behind."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console
from rich.progress import Progress

from recsys.data import progress
from recsys.data.tables.reading.files import listed, open_files


def _console(*, is_terminal: bool = True) -> Console:
    return Console(file=io.StringIO(), force_terminal=is_terminal, width=100)


def _text(console: Console) -> str:
    file = console.file
    assert isinstance(file, io.StringIO)
    return file.getvalue()


@pytest.mark.parametrize(("seconds", "is_shown"), [(0.9, False), (1.1, True)])
def test_it_is_shown_after_a_second(seconds: float, is_shown: bool) -> None:
    console = _console()
    times = iter([0.0, 0.0, seconds])
    with progress.shown("reading", console, lambda: next(times)) as update:
        update(0.1, "1 row")
        update(0.5, "2 rows")
    assert ("reading 2 rows" in _text(console)) == is_shown
    assert ("50%" in _text(console)) == is_shown


def test_it_is_not_shown_in_files_nor_by_other_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([0.0, 9.0])
    console = _console(is_terminal=False)
    with progress.shown("reading", console, lambda: next(times)) as update:
        update(0.5, "2 rows")
    monkeypatch.setenv("RANK", "1")
    with progress.shown("reading", _console(), lambda: next(times)) as update:
        update(0.5, "2 rows")
    assert not _text(console)


def test_it_goes_beside_another_bar() -> None:
    console = _console()
    times = iter([0.0, 9.0, 9.0])
    with Progress(console=console), progress.shown("reading", console, lambda: next(times)) as update:
        update(0.1, "1 row")
        update(0.5, "2 rows")


def test_all_files_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "_SHOWN_AFTER_S", -1.0)
    console = _console()
    monkeypatch.setattr(progress, "Console", lambda **_: console)
    for name in "ab":
        (tmp_path / f"{name}.csv").write_text("x,y\n" + "1,2\n" * 600)
    assert [piece.num_rows for piece in listed(open_files(tmp_path))] == [600, 600]
    assert "reading 1,200 rows" in _text(console)
    assert "100%" in _text(console)
