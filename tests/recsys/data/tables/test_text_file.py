"""CSV and TSV files give the same rows however they are cut and compressed, and name the lines that are wrong."""

from __future__ import annotations

import bz2
import gzip
from collections.abc import Sequence
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
    return _texts([piece.read(columns) for piece in file.pieces()], columns)


def _texts(parts: Sequence[pa.Table], columns: list[str]) -> list[list[str]]:
    return [[row[name] or "" for name in columns] for row in pa.concat_tables(parts).to_pylist()]


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
    for num_rows in (1, 13, 40, 100):  # some lines are no rows
        assert _texts(file.sample(num_rows), ["id", "name", "note"]) == _ROWS[:num_rows]


def test_the_first_malformed_row_is_named_however_many_are_read_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_BLOCK_BYTES", 8)
    file = _file(tmp_path, "x,y\n" + "1,2\n" * 20 + "1\n" + "1,2\n" * 3 + "1,2,3\n" + '1,"2\n')
    for read in (lambda: list(file.pieces()), lambda: file.sample(100)):
        with pytest.raises(DataError, match="line 22: got 1 fields, expected 2"):
            read()
    assert len(_texts(file.sample(20), ["x"])) == 20


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
    (tmp_path / "a.csv").write_bytes(b"\xff,y\n")
    with pytest.raises(DataError, match=r"a.csv, line 1: not UTF-8 text"):
        TextFile(tmp_path / "a.csv")
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(_TEXT.encode())[:60])
    with pytest.raises(DataError, match=r"a.csv.gz: cannot be read|a.csv.gz, line"):
        list(TextFile(tmp_path / "a.csv.gz").pieces())
    with pytest.raises(DataError, match="no such file"):
        TextFile(tmp_path / "b.csv")


def _file(folder: Path, text: str) -> TextFile:
    path = folder / "a.txt"
    path.write_text(text)
    return TextFile(path)


def test_names_with_types_of_recbole(tmp_path: Path) -> None:
    file = _file(
        tmp_path, "user_id:token\tseen:token_seq\tw:float_seq\tage:float\n1\ta b\t0.5 2\t3\n2\t\t\t\n"
    )
    assert file.kinds == {"user_id": "token", "seen": "token_seq", "w": "float_seq", "age": "float"}
    assert file.types["seen"] == pa.list_(pa.string())
    assert file.types["w"] == pa.list_(pa.float64())
    table = next(file.pieces()).read(["w", "seen", "user_id"])
    assert table.to_pydict() == {"w": [[0.5, 2.0], None], "seen": [["a", "b"], None], "user_id": ["1", "2"]}
    # One name without a type: the colons are part of the names.
    assert list(_file(tmp_path, "a:token\tb\n1\t2\n").types) == ["a:token", "b"]
    with pytest.raises(DataError, match=r"a.txt, line 2 or after: column 'w'"):
        next(_file(tmp_path, "x:token\tw:float_seq\n1\ta b\n").pieces()).read(["w"])


@pytest.mark.parametrize(
    ("line", "columns"),
    [
        pytest.param("\t".join(["5"] * 13 + ["68fd1e64"] * 26), ["I1", "I2", "C26"], id="criteo-test"),
        pytest.param("1,2268318,2520377,pv,1511544070", ["user_id", "item_id", "timestamp"], id="taobao"),
        pytest.param(
            "A2SUAM1J3GNN3B,0000013714,5.0,1353456000", ["user_id", "item_id", "timestamp"], id="amazon"
        ),
    ],
)
def test_published_files_without_a_header(tmp_path: Path, line: str, columns: list[str]) -> None:
    file = _file(tmp_path, f"{line}\n{line}\n")
    names = list(file.types)
    assert [*names[:2], names[-1]] == columns
    assert sum(piece.num_rows for piece in file.pieces()) == 2


@pytest.mark.parametrize(
    ("line", "message"),
    [
        pytest.param("1 0:3:1 1:17:0.5 2:9:1", "libFFM", id="libffm"),
        pytest.param("-1 3:1 11:0.25 # x", "libsvm", id="libsvm"),
        pytest.param("feat_idx:1 feat_idx:7 feat_value:0.5 label:0", "slots", id="slots"),
        pytest.param('[{"a": 1}, {"a": 2}]', "a list of JSON, expected an object a line", id="json-list"),
        pytest.param("1,2268318,text,5", "looks like data", id="mostly-numbers"),
        pytest.param("x,,y,", "looks like data", id="empty-names"),
    ],
)
def test_rows_without_columns_are_refused_in_one_short_line(tmp_path: Path, line: str, message: str) -> None:
    with pytest.raises(DataError, match=f"^a.txt, line 1: got .*{message}") as caught:
        _file(tmp_path, f"{line}\n{line}\n")
    assert len(str(caught.value)) < 200


def test_numbers_in_order_are_names(tmp_path: Path) -> None:
    assert list(_file(tmp_path, "label,0,1,2,3\n1,2,3,4,5\n").types) == ["label", "0", "1", "2", "3"]


def test_compression_is_known_by_content_and_has_any_number_of_members(tmp_path: Path) -> None:
    half = _TEXT.index("20,text")
    (tmp_path / "a").write_bytes(gzip.compress(_TEXT[:half].encode()) + gzip.compress(_TEXT[half:].encode()))
    assert _read(TextFile(tmp_path / "a"), ["id", "name", "note"]) == _ROWS
    (tmp_path / "a.csv").write_bytes(b"PK\x03\x04...")
    with pytest.raises(DataError, match=r"a.csv: got a zip or xlsx file"):
        TextFile(tmp_path / "a.csv")
