"""CSV and TSV files give the same rows however they are cut and compressed, and name the lines that are wrong."""

from __future__ import annotations

import bz2
import gzip
from pathlib import Path

import pyarrow as pa
import pytest

from recsys.data.lines import DataError
from recsys.data.tables import text_file as module
from recsys.data.tables.text_file import TextFile

_ROWS = [[str(i), f"text {i}", "" if i % 3 else f'a "quoted", {i}\nline'] for i in range(40)]


def _quoted(field: str) -> str:
    doubled = field.replace('"', '""')
    return f'"{doubled}"' if set(field) & set('",\n') else field


_TEXT = "id,name,note\n" + "".join(",".join(map(_quoted, row)) + "\n" for row in _ROWS)


def _read(file: TextFile, columns: list[str]) -> list[list[str]]:
    table = pa.concat_tables(piece.read(columns) for piece in file.pieces())
    return [[row[name] or "" for name in columns] for row in table.to_pylist()]


@pytest.mark.parametrize("block_bytes", [64, 300, 1 << 20])
@pytest.mark.parametrize("suffix", [".csv", ".csv.gz", ".csv.bz2"])
def test_blocks_and_compression_do_not_matter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block_bytes: int, suffix: str
) -> None:
    monkeypatch.setattr(module, "_BLOCK_BYTES", block_bytes)
    compress = {".csv": bytes, ".csv.gz": gzip.compress, ".csv.bz2": bz2.compress}[suffix]
    path = tmp_path / f"a{suffix}"
    path.write_bytes(compress(_TEXT.encode()))
    file = TextFile(path)
    assert list(file.types) == ["id", "name", "note"]
    assert _read(file, ["id", "name", "note"]) == _ROWS
    pieces = list(file.pieces())
    assert (len(pieces) > 1) == (block_bytes < len(_TEXT))
    assert pieces[-1].read(["id"]).to_pydict()["id"][-1] == "39"
    assert pieces[0].read(["note", "id"]).column_names == ["note", "id"]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        pytest.param("a.tsv", "x\ty\n1\t2,5\n", id="tsv"),
        pytest.param("a.csv", "x;y\n1;2,5\n", id="semicolons"),
        pytest.param("a.csv", "\ufeffx|y\r\n1|2,5\r\n", id="byte-order-mark"),
        pytest.param("a.csv", 'x,y\n1,"2,5"', id="no-last-newline"),
    ],
)
def test_separators(tmp_path: Path, name: str, text: str) -> None:
    path = tmp_path / name
    path.write_bytes(text.encode())
    assert _read(TextFile(path), ["x", "y"]) == [["1", "2,5"]]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param("x,y\n1,2\n3\n", r"a.csv, line 3: got 1 fields, expected 2 separated by ','", id="few"),
        pytest.param("x,y\n1,2,3\n", r"a.csv, line 2: got 3 fields, expected 2", id="many"),
        pytest.param("1,2\n3,4\n", r"line 1: got '1,2', which looks like data", id="no-header"),
        pytest.param("x,x\n3,4\n", r"column 'x' is named more than once", id="twice"),
        pytest.param("\nx,y\n", r"line 1: got an empty line", id="empty"),
    ],
)
def test_malformed_files(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "a.csv"
    path.write_text(text)
    with pytest.raises(DataError, match=message):
        list(TextFile(path).pieces())


def test_files_that_are_no_text(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b"\xff\xfe\n")
    with pytest.raises(DataError, match=r"a.csv, line 1: not UTF-8 text"):
        TextFile(tmp_path / "a.csv")
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(_TEXT.encode())[:60])
    with pytest.raises(DataError, match=r"a.csv.gz: cannot be read|a.csv.gz, line"):
        list(TextFile(tmp_path / "a.csv.gz").pieces())
    with pytest.raises(DataError, match="there is no such file"):
        TextFile(tmp_path / "b.csv")
