"""The Criteo reader on small files in both forms, and on the sample."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from recsys.train.data import criteo as module
from recsys.train.data.criteo import DENSE_NAMES, SPARSE_NAMES, criteo
from recsys.train.data.examples import Block, Examples
from recsys.train.data.lines import DataError
from tests.recsys.train.data.blocks import all_of
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
    assert block.labels.tolist() == [1.0, 0.0]
    assert block.dense[0, :4] == pytest.approx([0.0, 0.0, math.log(101), math.log(4)])
    assert block.bags["C1"].values.tolist() == [0x68FD1E64 % 1000]
    assert block.bags["C1"].offsets.tolist() == [0, 1, 1]
    assert block.bags["C26"].offsets.tolist() == [0, 0, 1]
    assert block.bags["C2"].values.tolist() == [1, 1]
    (held_out,) = _parsed(dataset.held_out())
    assert held_out.labels.tolist() == [1.0]
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
    dataset = criteo(_tsv(tmp_path / "train.txt", rows))
    with pytest.raises(DataError, match=rf"train\.txt, line {at}: {text}"):
        _parsed(dataset.held_out() if at == 3 else dataset.train())


def test_lines_are_numbered_as_in_the_file(tmp_path: Path) -> None:
    csv = tmp_path / "sample.csv"
    csv.write_text("\n".join([_HEADER, ",".join(_fields()), "", "0,1", ",".join(_fields())]))
    with pytest.raises(
        DataError, match=r"sample\.csv, line 4: got 2 fields, expected 40 separated by commas"
    ):
        _parsed(criteo(csv).train())


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    path = tmp_path / "train.txt"
    path.write_bytes(b"\t".join(f.encode() for f in _fields()) + b"\n\xff\n")
    with pytest.raises(DataError, match=r"train\.txt, line 2: not utf-8"):
        criteo(path)


@pytest.mark.parametrize(("text", "num"), [("", 0), ("\n", 0), (_HEADER, 0), ("x\n", 1)])
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
