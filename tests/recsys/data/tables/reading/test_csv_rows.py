"""Rows of CSV are those that Python's csv and Arrow read, however the file is cut; else an error names the line."""

from __future__ import annotations

import csv
import io
import random
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import csv as arrow_csv

from recsys.data.lines import DataError
from recsys.data.tables import text_file as module
from recsys.data.tables.reading import csv_rows
from recsys.data.tables.reading.csv_rows import CsvRows
from recsys.data.tables.text_file import TextFile

_HEADER = "x,y,z\n"
# Good rows, and what stray quotes and other line ends make of them.
_PARTS = [
    "a",
    "b c",
    '"',
    '""',
    ",",
    ",",
    ",",
    "\n",
    "\r\n",
    "\r",
    '5" disk',
    '"q"',
    '"q, r"',
    '"two\nlines"',
    "é",
    " ",
]


def _by_csv(text: str) -> list[list[str]]:
    return [row for row in csv.reader(io.StringIO(text, newline="")) if row]


def _by_arrow(text: str) -> list[list[str]] | None:
    names = ["x", "y", "z"]
    try:
        table = arrow_csv.read_csv(
            pa.BufferReader(text.encode()),
            read_options=arrow_csv.ReadOptions(column_names=names),
            parse_options=arrow_csv.ParseOptions(newlines_in_values=True),
            convert_options=arrow_csv.ConvertOptions(column_types=dict.fromkeys(names, pa.string())),
        )
    except pa.ArrowInvalid:
        return None
    return [[row[name] for name in names] for row in table.to_pylist()]


def _ours(path: Path, text: str) -> list[list[str]] | str:
    path.write_bytes((_HEADER + text).encode())
    file = TextFile(path)
    try:
        pieces = list(file.pieces())
    except DataError as error:
        return str(error)
    tables = [piece.read(["x", "y", "z"]) for piece in pieces]
    assert [piece.num_rows for piece in pieces] == [table.num_rows for table in tables]
    return [[row[name] or "" for name in "xyz"] for table in tables for row in table.to_pylist()]


def _random_text(draw: random.Random) -> str:
    if draw.random() < 0.5:  # rows of three fields
        fields = ["", "a", '5" x', '"q"', '"q, r"', '"two\nlines"', '"a ""b"" c"', '"ends"x', "é", '" \r\n "']
        ends = draw.choice([["\n"], ["\r\n"], ["\r"], ["\n", "\r\n", "\r", "\n\n"]])
        rows = [",".join(draw.choices(fields, k=3)) + draw.choice(ends) for _ in range(draw.randrange(9))]
        return "".join(rows)
    return "".join(draw.choices(_PARTS, k=draw.randrange(1, 30)))


@pytest.mark.parametrize("block_bytes", [1, 7, 40, 1 << 20])
def test_the_rows_are_those_of_csv_and_arrow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block_bytes: int
) -> None:
    monkeypatch.setattr(module, "_BLOCK_BYTES", block_bytes)
    monkeypatch.setattr(csv_rows, "_WINDOW", 5)
    draw = random.Random(block_bytes)
    num_read = 0
    for _ in range(400):
        text = _random_text(draw)
        found = _ours(tmp_path / "a.csv", text)
        if isinstance(found, list):
            assert found == _by_csv(text), repr(text)
            assert found == (_by_arrow(text) or []), repr(text)
            num_read += 1
        else:
            assert "a.csv, line " in found, found
            expected = _by_csv(text)
            is_ragged = any(len(row) != 3 for row in expected)
            assert is_ragged or "closing quote" in found, (text, found)
    assert num_read > 100


def test_rows_are_counted_as_python_counts_them() -> None:
    draw = random.Random(0)
    for _ in range(500):
        text = _random_text(draw)
        rows = CsvRows(text.encode(), ",")
        expected = _by_csv(text)
        if (rows.wrong_quote() or ("", 0))[0] != "open":
            assert rows.num_rows == len(expected), repr(text)
            assert rows.num_fields().tolist() == [len(row) for row in expected], repr(text)
        reader = csv.reader(io.StringIO(text, newline=""))
        lines, before = [], 0
        for row in reader:
            lines += [before] if row else []
            before = reader.line_num
        assert [rows.line_of(row) for row in range(rows.num_rows)] == lines, repr(text)


@pytest.mark.parametrize("line_end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("block_bytes", [16, 1 << 20])
def test_lines_are_counted_over_quoted_and_empty_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line_end: str, block_bytes: int
) -> None:
    monkeypatch.setattr(module, "_BLOCK_BYTES", block_bytes)
    lines = ['x,"y', ' z"', '1,"two', 'lines"', "", "3,4", "5,6", "", '7,"a', "b", 'c"', "8"]
    path = tmp_path / "a.csv"
    path.write_bytes(line_end.join(lines[:-1]).encode())
    file = TextFile(path)
    assert list(file.types) == ["x", "y z"]
    places = [piece.place(row) for piece in file.pieces() for row in range(piece.num_rows)]
    assert places == [f"a.csv, line {line}" for line in (3, 6, 7, 9)]
    path.write_bytes(line_end.join(lines).encode())
    with pytest.raises(DataError, match=r"a.csv, line 12: got 1 fields, expected 2 separated by ','"):
        list(TextFile(path).pieces())


@pytest.mark.parametrize("block_bytes", [8, 64, 1 << 20])
@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param(
            '1,a\n2,"b\n3,c\n', r"line 3: a field begins with a quote and has no closing", id="open"
        ),
        pytest.param('1,"a\n2,"b\n3,c\n', r"line 2: a quoted field goes over several lines", id="spilled"),
        pytest.param(
            '1,"a""b\n2,"b\n3,c\n', r"line 2: a quoted field goes over several", id="spilled-doubled"
        ),
        pytest.param('1,a\n\n2,b\n3,"c"d"', None, id="stray"),
        pytest.param("1,a\n2,b\r3\n", r"line 4: got 1 fields, expected 2", id="cr"),
        pytest.param("1,a\n  \n", r"line 3: got 1 fields, expected 2", id="blanks"),
    ],
)
def test_stray_quotes_lose_no_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block_bytes: int, text: str, message: str | None
) -> None:
    monkeypatch.setattr(module, "_BLOCK_BYTES", block_bytes)
    path = tmp_path / "a.csv"
    path.write_bytes(f"x,y\n{text}".encode())
    if message is None:
        assert sum(piece.num_rows for piece in TextFile(path).pieces()) == 3
        return
    with pytest.raises(DataError, match=message):
        list(TextFile(path).pieces())


def test_a_text_that_is_not_utf8_is_named_with_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_BLOCK_BYTES", 10)
    path = tmp_path / "a.csv"
    path.write_bytes("x,y\n1,é\n2,b\n".encode() + "3,é\n4,d\n".encode("latin-1"))
    with pytest.raises(DataError, match=r"a.csv, line 4: not UTF-8 text"):
        list(TextFile(path).pieces())


def test_many_stray_quotes_are_found_in_one_pass() -> None:
    # Quadratic work would take hours for these.
    data = b'1,5" disk,3\n' * 200_000
    rows = CsvRows(data, ",")
    assert rows.end() == len(data)
    assert rows.num_rows == 200_000
    assert set(rows.num_fields().tolist()) == {3}
