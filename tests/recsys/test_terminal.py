"""Tables for people at a terminal."""

from __future__ import annotations

import io

from rich.console import Console

from recsys.terminal import whole_table


def _printed(rows: list[list[str]], width: int = 80) -> list[list[str]]:
    console = Console(file=io.StringIO(), width=width)
    console.print(whole_table("tables", ("name", "rows"), rows, left=(0,)))
    assert isinstance(console.file, io.StringIO)
    return [line.split() for line in console.file.getvalue().splitlines() if line.strip(" ─")]


def test_a_row_for_each() -> None:
    assert _printed([["[b]users", "1 000"], ["days", "7"]]) == [
        ["tables"],
        ["name", "rows"],
        ["[b]users", "1", "000"],
        ["days", "7"],
    ]


def test_the_first_column_gives_way() -> None:
    printed = _printed([["a" * 30, "123456"]], width=24)
    assert "123456" in printed[2]
    assert "".join(line[0] for line in printed[2:]) == "a" * 30


def test_no_rows() -> None:
    assert _printed([]) == [["tables"], ["name", "rows"]]
