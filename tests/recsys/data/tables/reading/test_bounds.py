"""Files that never come to an end of a line, a row or a field are refused while little of them is in memory."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from recsys.data import lines
from recsys.data.lines import DataError
from recsys.data.tables import text_file
from recsys.data.tables.reading import json_file
from recsys.data.tables.reading.json_file import JsonFile
from recsys.data.tables.text_file import TextFile

KIB = 1 << 10


@pytest.fixture(autouse=True)
def small_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name in (
        (text_file, "_BLOCK_BYTES"),
        (json_file, "_BLOCK_BYTES"),
        (text_file, "_MAX_ROW_BYTES"),
        (text_file, "_MAX_HEADER_BYTES"),
        (json_file, "_MAX_LINE_BYTES"),
        (lines, "_MAX_LINE_BYTES"),
    ):
        monkeypatch.setattr(module, name, KIB if name == "_BLOCK_BYTES" else 4 * KIB)


def written(path: Path, data: bytes) -> Path:
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


@pytest.mark.parametrize("name", ["a.csv", "a.csv.gz"])
@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"x,y\n1,2\n3," + b"long" * 10 * KIB, r"line 3: got a row of more than .*, expected a line end"),
        (
            b'x,y\n1,2\n3,4\n5,"' + b"6,7\n" * 10 * KIB,
            r"line 4: a field begins with a quote and has no closing",
        ),
        (b"x" * 100 * KIB, r"line 1: got more than .* without a line end, expected the columns' names"),
        (b'"x' + b"\n" * 100 * KIB, r"line 1: "),
    ],
    ids=["row", "field", "header", "name"],
)
def test_tables_of_texts(tmp_path: Path, name: str, data: bytes, said: str) -> None:
    with pytest.raises(DataError, match=said):
        list(TextFile(written(tmp_path / name, data)).pieces())


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz"])
@pytest.mark.parametrize(
    "data",
    [b'{"x": 1}\n{"x": "' + b"long" * 10 * KIB, b'{"x": 1}\n' + b"[" * 100 * KIB],
    ids=["text", "lists"],
)
def test_lines_of_json(tmp_path: Path, name: str, data: bytes) -> None:
    with pytest.raises(DataError, match="got a line of more than"):
        list(JsonFile(written(tmp_path / name, data)).pieces())


def test_lines(tmp_path: Path) -> None:
    path = written(tmp_path / "a.txt", b"one\n" + b"two" * 10 * KIB)
    with pytest.raises(DataError, match=r"a.txt, line 2: got more than .*, expected a line end"):
        list(lines.numbered_lines(path))
