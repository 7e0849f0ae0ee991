"""The Criteo reader on small files in both forms, and on the sample."""

from __future__ import annotations

import gzip
import math
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from recsys.data.examples import Block, Examples
from recsys.data.lines import DataError
from recsys.data.sources.criteo import DENSE_NAMES, SPARSE_NAMES, criteo
from recsys.data.tables import dataset, text_file
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


def test_compressed_lines_and_lines_with_a_header_are_read_too(tmp_path: Path) -> None:
    lines = ["\t".join(_fields(str(i % 2), I1=str(i))) for i in range(20)]
    header = "\ufeff" + _HEADER.replace(",", "\t")
    (tmp_path / "train.txt").write_text("\n".join([header, *lines]), encoding="utf-8")
    (tmp_path / "day_0.gz").write_bytes(gzip.compress("\n".join(lines).encode()))
    for name in ("train.txt", "day_0.gz"):
        (block,) = _parsed(criteo(tmp_path / name).train())
        assert block.dense[:, 0] == pytest.approx(np.log1p(range(18)))


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
        pytest.param(_fields()[:-1], "got 39 fields", id="field-missing"),
        pytest.param([*_fields(), "x"], "got 41 fields", id="field-too-many"),
        pytest.param(_fields("2"), "label: got '2', expected 0 or 1", id="label"),
        pytest.param(_fields(""), "label: got '', expected 0 or 1", id="label-missing"),
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


def test_lines_are_numbered_as_in_the_file(tmp_path: Path) -> None:
    csv = tmp_path / "sample.csv"
    csv.write_text("\n".join([_HEADER, ",".join(_fields()), "", "0,1", ",".join(_fields())]))
    with pytest.raises(DataError, match=r"sample\.csv, line 4: got 2 fields, expected 40 separated by ','"):
        criteo(csv)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        pytest.param("user,item,label\n1,2,0\n", "got 3 fields separated by ','", id="csv"),
        pytest.param("label;age\n1;33\n", "got 2 fields separated by ';'", id="semicolons"),
        pytest.param("196\t242\t3\t881250949\n", r"got 4 fields separated by '\\t'", id="movielens"),
        pytest.param(",".join(_fields()) + "\n", "got 40 fields separated by ','", id="csv-without-header"),
        pytest.param("\t".join(_fields()[1:]) + "\n", r"got 39 fields separated by '\\t'", id="test-set"),
        pytest.param("", "got 1 fields", id="empty"),
    ],
)
def test_another_kind_of_file_is_recognised_before_training(tmp_path: Path, content: str, text: str) -> None:
    path = tmp_path / "clicks.txt"
    path.write_text(content)
    with pytest.raises(
        DataError,
        match=rf"^clicks\.txt, line 1: {text}.*, expected .*; --data PATH takes tables of other columns",
    ):
        criteo(path)


def test_a_file_that_is_no_text_is_recognised(tmp_path: Path) -> None:
    (tmp_path / "train.zip").write_bytes(b"PK\x03\x04" + bytes(range(256)))
    with pytest.raises(DataError, match=r"train\.zip: got a zip or xlsx file; unpack it"):
        criteo(tmp_path / "train.zip")


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="got a folder, expected a file"):
        criteo(tmp_path)


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    path = tmp_path / "train.txt"
    path.write_bytes(b"\t".join(f.encode() for f in _fields()) + b"\n\xff\n")
    with pytest.raises(DataError, match=r"train\.txt, line 2: not UTF-8"):
        criteo(path)


@pytest.mark.parametrize(("text", "num"), [(_HEADER, 0), ("\t".join(_fields()), 1)])
def test_too_few_lines(tmp_path: Path, text: str, num: int) -> None:
    path = tmp_path / "train.txt"
    path.write_text(text)
    with pytest.raises(DataError, match=f"got {num} rows, expected at least 2"):
        criteo(path)


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such file"):
        criteo(tmp_path / "train.txt")


def test_files_are_read_block_by_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [_fields(str(i % 2), I1=f"{i:02}") for i in range(20)]
    rows[9][2] = "broken"
    monkeypatch.setattr(text_file, "_BLOCK_BYTES", 4 * len("\t".join(rows[0]) + "\n"))
    monkeypatch.setattr(dataset, "_BLOCK_ROWS", 4)
    found = criteo(_tsv(tmp_path / "train.txt", rows))
    train = found.train()
    blocks = _parsed(islice(train, 2))
    assert [len(block) for block in blocks] == [4, 4]
    assert blocks[1].dense[:, 0] == pytest.approx(np.log1p([4, 5, 6, 7]))
    with pytest.raises(DataError, match=r"train\.txt, line 10: I2: got 'broken'"):
        _parsed(train)
    (held_out,) = _parsed(found.held_out())
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
