"""Command lines: option values, tables and sizes for the terminal, and what was probably meant."""

from __future__ import annotations

import argparse
import io
from collections.abc import Callable, Sequence

import pytest
from rich.console import Console

from export.cli import main as export
from recsys.base.cli import count, counts, size
from recsys.base.terminal import whole_table
from recsys.planner.cli import main as plan
from recsys.train.commands.train import main as train


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [
        ("4096", 4096),
        ("1KB", 1000),
        ("80GB", 80 * 10**9),
        ("80g", 80 * 10**9),
        ("1.5 TB", 1_500_000_000_000),
        ("16GiB", 16 << 30),
        ("2Ki", 2048),
    ],
)
def test_sizes(text: str, num_bytes: int) -> None:
    assert size(text) == num_bytes


@pytest.mark.parametrize("text", ["", "lots", "-1GB", "5iB", "1e9", "GB", "²GB", "1.GB", "1" * 20])
def test_no_sizes(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="expected a size such as 80GB or 80GiB"):
        size(text)


def test_counts() -> None:
    assert count("17") == 17
    assert counts("1,20,300") == (1, 20, 300)


@pytest.mark.parametrize("text", ["", "0", "-1", "1.5", "²", "1,", "9" * 5000])
def test_no_counts(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="expected a whole number of at least 1"):
        counts(text)


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


def test_the_last_columns_go_below_where_they_do_not_fit() -> None:
    headings = ("name", "type", "rows", "why")
    rows = [("users", "texts" * 6, "1,000", "because " * 12), ("n" * 50, "numbers", "7", "no")]
    for width in (30, 60, 80):
        console = Console(file=io.StringIO(), width=width)
        console.print(whole_table("columns", headings, rows, left=(0, 1, 3)))
        assert isinstance(console.file, io.StringIO)
        lines = console.file.getvalue().splitlines()
        assert max(map(len, lines)) <= width
        words = " ".join(lines).split()
        assert set(headings) <= set(words)
        assert words.count("because") == 12
        assert sum(len(word) for word in words if set(word) == {"n"}) == 50 * words.count("name")
        assert words.count("users") == words.count("name")
        assert words.count("1,000") == 1
    assert words.count("users") == 2
    assert words.count("continued") == 1


def test_no_rows() -> None:
    assert _printed([]) == [["tables"], ["name", "rows"]]


@pytest.mark.parametrize(
    ("main", "words", "suggestion"),
    [
        (train, ["--data", "synthetic", "--model", "deepfn"], "did you mean deepfm?"),
        (train, ["--data", "synthetic", "--ouut", "m.pt"], "did you mean --out?"),
        (plan, ["model.pt", "--world-sise", "2"], "did you mean --world-size?"),
        (export, ["model.pt", "--dtpye", "int8"], "did you mean --dtype?"),
    ],
)
def test_commands_suggest_what_was_probably_meant(
    main: Callable[[Sequence[str]], int],
    words: list[str],
    suggestion: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(words)
    assert caught.value.code == 2
    assert suggestion in capsys.readouterr().err
