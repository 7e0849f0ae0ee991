"""The Criteo reader on small files in both forms, and on the sample."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from recsys.data import criteo as module
from recsys.data.criteo import DENSE_NAMES, SPARSE_NAMES, criteo
from recsys.data.examples import Block, Examples
from recsys.data.lines import DataError
from tests.recsys.data.blocks import all_of
from tests.support.shared_data import data_file

_HEADER = ",".join(["label", *DENSE_NAMES, *SPARSE_NAMES])


def _fields(label: str = "0", **changes: str) -> list[str]:
    values = {name: str(i) for i, name in enumerate(DENSE_NAMES)}
    values |= {name: f"{i:08x}" for i, name in enumerate(SPARSE_NAMES)}
    return [label, *{**values, **changes}.values()]


def _tsv(path: Path, rows: list[list[str]]) -> Path:
    path.write_text("".join("\t".join(row) + "\n" for row in rows))
    return path


def _parsed(blocks: Iterator[Block]) -> list[Examples]:
    return [all_of(block) for block in blocks]


def test_tsv_fields(tmp_path: Path) -> None:
    rows = [
        _fields("1", I1="", I2="-2", I3="100", C1="68fd1e64", C26=""),
        _fields("0", C1=""),
        _fields("1", C1="ffffffff"),
    ]
    dataset = criteo(_tsv(tmp_path / "train.txt", rows), hash_rows=1000)
    assert (dataset.num_train_rows, dataset.num_held_out_rows) == (2, 1)
    (block,) = _parsed(dataset.train())
    assert block.labels.tolist() == [[1.0], [0.0]]
    assert block.dense[0, :4] == pytest.approx([0.0, 0.0, math.log(101), math.log(4)])
    assert block.bags["C1"].values.tolist() == [0x68FD1E64 % 1000]
    assert block.bags["C1"].offsets.tolist() == [0, 1, 1]
    assert block.bags["C26"].offsets.tolist() == [0, 0, 1]
    assert block.bags["C2"].values.tolist() == [1, 1]
    (held_out,) = _parsed(dataset.held_out())
    assert held_out.labels.tolist() == [[1.0]]
    assert held_out.bags["C1"].values.tolist() == [0xFFFFFFFF % 1000]


def test_csv_gives_what_tsv_gives(tmp_path: Path) -> None:
    rows = [_fields(str(i % 2), I5="", C3="") for i in range(20)]
    floats = [[f"{f}.0" if 1 <= i <= 13 and f else f for i, f in enumerate(row)] for row in rows]
    csv = tmp_path / "sample.csv"
    csv.write_text("\r\n".join([_HEADER, *(",".join(row) for row in floats)]))
    (a,) = _parsed(criteo(_tsv(tmp_path / "train.txt", rows)).train())
    (b,) = _parsed(criteo(csv).train())
    assert len(a) == len(b) == 18
    assert np.array_equal(a.dense, b.dense)
    assert np.array_equal(a.labels, b.labels)
    for name in SPARSE_NAMES:
        assert np.array_equal(a.bags[name].values, b.bags[name].values)
        assert np.array_equal(a.bags[name].offsets, b.bags[name].offsets)


@pytest.mark.parametrize(
    ("line", "text"),
    [
        pytest.param(_fields()[:-1], "got 39 fields, expected 40", id="field-missing"),
        pytest.param([*_fields(), "x"], "got 41 fields, expected 40", id="field-too-many"),
        pytest.param(_fields("2"), "label: got '2', expected 0 or 1", id="label"),
        pytest.param(_fields(I4="x"), "I4: got 'x', expected a whole number", id="number"),
        pytest.param(_fields(I13="0.5"), "I13: got '0.5'", id="fraction"),
        pytest.param(_fields(I1="nan"), "I1: got 'nan'", id="nan"),
        pytest.param(_fields(I1="inf"), "I1: got 'inf'", id="infinite"),
        pytest.param(_fields(C2="68fd1e6g"), "C2: got '68fd1e6g', expected 8 hex", id="not-hex"),
        pytest.param(_fields(C26="68fd"), "C26: got '68fd'", id="short"),
        pytest.param(_fields(C1=" 68fd1e6"), "C1: got ' 68fd1e6'", id="blank"),
        pytest.param(_fields(C1="68 fd 1e"), "C1: got '68 fd 1e'", id="blanks-between"),
    ],
)
@pytest.mark.parametrize("at", [1, 3], ids=["first-line", "last-line"])
def test_a_malformed_line_is_named(tmp_path: Path, line: list[str], text: str, at: int) -> None:
    rows = [_fields(), _fields(), _fields()]
    rows[at - 1] = line
    with pytest.raises(DataError, match=rf"train\.txt, line {at}: {text}"):
        criteo(_tsv(tmp_path / "train.txt", rows))


def test_a_malformed_line_behind_the_first_lines_is_found_when_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_NUM_CHECKED_LINES", 2)
    dataset = criteo(_tsv(tmp_path / "train.txt", [_fields(), _fields(), _fields("2")]))
    with pytest.raises(DataError, match=r"train\.txt, line 3: label: got '2'"):
        _parsed(dataset.held_out())


def test_lines_are_numbered_as_in_the_file(tmp_path: Path) -> None:
    csv = tmp_path / "sample.csv"
    csv.write_text("\n".join([_HEADER, ",".join(_fields()), "", "0,1", ",".join(_fields())]))
    with pytest.raises(
        DataError, match=r"sample\.csv, line 4: got 2 fields, expected 40 separated by commas"
    ):
        criteo(csv)


_FORM = (
    r"expected Criteo's 40 fields \(label, I1-I13, C1-C26\).*; --data parquet takes files of other columns"
)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        pytest.param(
            "user,item,label\n1,2,0\n",
            rf"it has 3 fields separated by commas, and a header \(user, item, label\); {_FORM}",
            id="csv",
        ),
        pytest.param(
            "label;age;city;device;hour;click\n1;33;Oslo;2;3;1\n",
            r"6 fields separated by semicolons, and a header \(label, age, city, device, hour, …\)",
            id="semicolons",
        ),
        pytest.param("1 0:3 7:1\n0 2:1\n", r"3 fields separated by blanks; expected", id="libsvm"),
        pytest.param("1|2|3\n", r"3 fields separated by bars; expected", id="bars"),
        pytest.param("just a line\n" * 3, "3 fields separated by blanks", id="words"),
        pytest.param("word\n", "it has one field; expected", id="one-field"),
        pytest.param('{"label": 1, "user": 7}\n', "it has lines of JSON; expected", id="json"),
        pytest.param("196\t242\t3\t881250949\n", "movielens with the folder", id="movielens"),
        pytest.param("1::1193::5::978300760\n", "movielens with the folder", id="movielens-1m"),
        pytest.param(
            ",".join(_fields()) + "\n",
            r"40 fields separated by commas and no header; expected the header label,I1,.*,C26 as the first line",
            id="csv-without-header",
        ),
        pytest.param(
            "\t".join(["label", *DENSE_NAMES, *SPARSE_NAMES]) + "\n" + "\t".join(_fields()) + "\n",
            r"it has a header \(label, I1, I2, I3, I4, …\) and tabs; expected no header: remove the first line",
            id="tsv-with-header",
        ),
        pytest.param(
            "\ufeff" + _HEADER + "\n" + ",".join(_fields()),
            r"it begins with a byte order mark; expected plain UTF-8: remove its first 3 bytes",
            id="byte-order-mark",
        ),
        pytest.param(
            "\t".join(_fields()[1:]) + "\n",
            "it has 39 fields separated by tabs, as Criteo's test.txt without labels; expected train.txt",
            id="test-set",
        ),
        pytest.param(
            _HEADER.removeprefix("label,") + "\n" + ",".join(_fields()[1:]),
            "it has 39 fields separated by commas, as Criteo's test.txt without labels",
            id="test-set-csv",
        ),
    ],
)
def test_another_kind_of_file_is_recognised_before_training(tmp_path: Path, content: str, text: str) -> None:
    path = tmp_path / "clicks.txt"
    path.write_text(content)
    with pytest.raises(DataError, match=rf"^clicks\.txt does not look like Criteo's data: .*{text}"):
        criteo(path)


@pytest.mark.parametrize(
    ("head", "text"),
    [
        pytest.param(b"\x1f\x8b\x08", r"it is a gzip file; expected text: unpack it first", id="gzip"),
        pytest.param(b"PK\x03\x04", r"it is a zip file; expected text: unpack it first", id="zip"),
        pytest.param(b"PAR1", r"it is a Parquet file; use --data parquet", id="parquet"),
    ],
)
def test_a_packed_file_is_recognised(tmp_path: Path, head: bytes, text: str) -> None:
    path = tmp_path / "train.bin"
    path.write_bytes(head + bytes(range(256)))
    with pytest.raises(DataError, match=rf"^train\.bin does not look like Criteo's data: {text}"):
        criteo(path)


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    (tmp_path / "train.txt").write_text("")
    with pytest.raises(DataError, match=r"got a folder, expected a file: it holds train\.txt"):
        criteo(tmp_path)


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    path = tmp_path / "train.txt"
    path.write_bytes(b"\t".join(f.encode() for f in _fields()) + b"\n\xff\n")
    with pytest.raises(DataError, match=r"train\.txt, line 2: not utf-8"):
        criteo(path)


@pytest.mark.parametrize(("text", "num"), [("", 0), ("\n", 0), (_HEADER, 0), ("\t".join(_fields()), 1)])
def test_too_few_lines(tmp_path: Path, text: str, num: int) -> None:
    path = tmp_path / "train.txt"
    path.write_text(text)
    with pytest.raises(DataError, match=f"got {num} lines of data"):
        criteo(path)


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="there is no such file"):
        criteo(tmp_path / "train.txt")


def test_files_are_read_block_by_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_BLOCK_ROWS", 4)
    monkeypatch.setattr(module, "_NUM_CHECKED_LINES", 4)
    rows = [_fields(str(i % 2), I1=str(i)) for i in range(20)]
    rows[9] = ["broken"]
    dataset = criteo(_tsv(tmp_path / "train.txt", rows))
    blocks = _parsed(islice(dataset.train(), 2))  # the line behind them is not parsed yet
    assert [len(block) for block in blocks] == [4, 4]
    assert blocks[1].dense[:, 0] == pytest.approx(np.log1p([4, 5, 6, 7]))
    (held_out,) = _parsed(dataset.held_out())
    assert held_out.dense[:, 0] == pytest.approx(np.log1p([18, 19]))


def test_limit_rows(tmp_path: Path) -> None:
    path = _tsv(tmp_path / "train.txt", [_fields(I1=str(i)) for i in range(30)])
    dataset = criteo(path, limit_rows=10)
    (train,), (held_out,) = _parsed(dataset.train()), _parsed(dataset.held_out())
    assert train.dense[:, 0] == pytest.approx(np.log1p(range(9)))
    assert held_out.dense[:, 0] == pytest.approx(np.log1p([9]))


def test_the_sample() -> None:
    dataset = criteo(data_file("criteo_sample.csv"), hash_rows=500)
    (train,), (held_out,) = _parsed(dataset.train()), _parsed(dataset.held_out())
    assert (len(train), len(held_out)) == (180, 20)
    assert train.dense.shape == (180, 13)
    assert np.isfinite(train.dense).all()
    assert train.dense[0, :4] == pytest.approx([0, math.log(4), math.log(261), 0])
    assert train.bags["C1"].values[0] == 0x05DB9164 % 500
    assert all(bags.values.max() < 500 for bags in train.bags.values())
