"""Files of record batches against PyArrow's reader."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from recsys.kernels.operators import why_missing
from serve.observe.answers.parquet import pages
from serve.observe.answers.parquet.file import ParquetFile, write_parts

_TIMES = pa.timestamp("us", "UTC")
SCHEMA = pa.schema(
    [
        pa.field("time", _TIMES, nullable=False),
        pa.field("id", pa.string(), nullable=False),
        pa.field("model", pa.string(), nullable=False),
        pa.field("row", pa.int32(), nullable=False),
        pa.field("number", pa.float32()),
        pa.field("ids", pa.list_(pa.int64())),
        pa.field("texts", pa.list_(pa.string())),
        pa.field("weights", pa.list_(pa.float32())),
        pa.field("vector", pa.list_(pa.float32()), nullable=False),
    ]
)
LISTS: dict[str, list[Any]] = {
    "one each": [[1], [2], [3]],
    "several": [[1, 2], [3], [4, 5, 6]],
    "empty": [[], [1], []],
    "all empty": [[], [], []],
    "null": [None, [1, 2], None],
    "null and empty": [None, [], [7]],
    "all null": [None, None, None],
}


def _written(path: Path, batches: Sequence[pa.RecordBatch], group_rows: int = 1 << 20) -> parquet.ParquetFile:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    try:
        file = ParquetFile(partial(write_parts, descriptor), batches[0].schema, unique=("id",))
        for batch in batches:
            file.add(batch)
            if file.num_waiting_rows >= group_rows:
                file.end_group()
        file.close({b"about": b"a test"})
        assert file.num_bytes == path.stat().st_size
    finally:
        os.close(descriptor)
    return parquet.ParquetFile(path)


def _random_batch(rng: np.random.Generator, rows: int) -> pa.RecordBatch:
    def lists(values: Any, dtype: pa.DataType, longest: int, null_share: float) -> pa.Array:
        lengths = rng.integers(0, longest + 1, rows) if longest > 1 else np.ones(rows, np.int64)
        nulls = rng.random(rows) < null_share
        offsets = np.concatenate([[0], np.cumsum(np.where(nulls, 0, lengths))]).astype(np.int32)
        mask = pa.array(nulls) if nulls.any() else None
        return pa.ListArray.from_arrays(offsets, pa.array(values(int(offsets[-1])), dtype), mask=mask)

    def words(number: int) -> list[str]:
        return [f"wörd {place}" for place in rng.integers(0, 300, number)]

    def floats(number: int) -> Any:
        return rng.random(number, np.float32)

    width = int(rng.integers(1, 4))
    limits = np.iinfo(np.int64)
    columns = [
        pa.array(rng.integers(0, 2**50, rows), _TIMES),
        pa.array([f"{place}" for place in rng.integers(0, 1 << 40, rows)]),
        pa.repeat(pa.scalar("dlrm"), rows) if rng.random() < 0.5 else pa.array(words(rows), pa.string()),
        pa.array(rng.integers(-(2**31), 2**31, rows), pa.int32()),
        pa.array(floats(rows), mask=rng.random(rows) < rng.choice([0, 0.3])),
        lists(lambda n: rng.integers(limits.min, limits.max, n), pa.int64(), int(rng.integers(1, 4)), 0.1),
        lists(words, pa.string(), 3, float(rng.choice([0, 0.5, 1]))),
        lists(floats, pa.float32(), 5, 0.0),
        pa.ListArray.from_arrays(np.arange(rows + 1, dtype=np.int32) * width, pa.array(floats(rows * width))),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def test_random_batches_are_read_as_they_were_written(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for group_rows in (1, 200, 1 << 20):
        batches = [_random_batch(rng, int(rows)) for rows in (1, 0, 7, 128, 129, 300, 1)]
        file = _written(tmp_path / "random.parquet", batches, group_rows)
        table = file.read()
        assert table.schema.remove_metadata() == SCHEMA
        assert table.equals(pa.Table.from_batches(batches))
        assert file.metadata.metadata == {b"about": b"a test"}
        assert sum(file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)) == table.num_rows


@pytest.mark.parametrize("kind", LISTS)
def test_lists_of_every_shape_are_read_as_they_were_written(tmp_path: Path, kind: str) -> None:
    for dtype, convert in ((pa.int64(), int), (pa.string(), str)):
        values = [None if one is None else [convert(value) for value in one] for one in LISTS[kind]]
        batch = pa.RecordBatch.from_arrays([pa.array(values, pa.list_(dtype))], names=["lists"])
        # Slices begin within the memory of an array.
        for part in (batch, batch.slice(1)):
            assert _written(tmp_path / "lists.parquet", [part]).read().to_batches()[0].equals(part)


@pytest.mark.parametrize("kind", [pa.int32(), pa.int64()])
def test_numbers_at_the_limits_are_read_as_they_were_written(tmp_path: Path, kind: pa.DataType) -> None:
    limits = np.iinfo(kind.to_pandas_dtype())
    rng = np.random.default_rng(1)
    for bits in range(limits.bits + 1):
        # Differences of so many bits, also those that overflow.
        steps = rng.integers(0, 1 << bits, 200, np.uint64, endpoint=bits == limits.bits and bits < 64)
        steps[::2] = 0
        numbers = np.concatenate([[limits.min, limits.max, limits.min], steps.astype(limits.dtype)])
        batch = pa.RecordBatch.from_arrays([pa.array(numbers.astype(limits.dtype), kind)], names=["numbers"])
        assert _written(tmp_path / "numbers.parquet", [batch]).read().to_batches()[0].equals(batch)


def test_times_have_limits_and_long_dictionaries_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "_DICTIONARY_BYTES", 100)
    rng = np.random.default_rng(2)
    batches = [_random_batch(rng, 50) for _ in range(3)]
    file = _written(tmp_path / "dictionary.parquet", batches)
    assert file.read().equals(pa.Table.from_batches(batches))
    group = file.metadata.row_group(0)
    times = np.concatenate([batch.column("time").cast(pa.int64()) for batch in batches])
    statistics = group.column(0).statistics
    found = [
        pa.scalar(limit).cast(_TIMES).cast(pa.int64()).as_py() for limit in (statistics.min, statistics.max)
    ]
    assert found == [times.min(), times.max()]
    assert "RLE_DICTIONARY" in group.column(6).encodings
    assert group.column(1).dictionary_page_offset is None


def test_without_native_kernels_numbers_are_plain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "delta_packer", lambda: None)
    batch = _random_batch(np.random.default_rng(3), 100)
    file = _written(tmp_path / "plain.parquet", [batch])
    assert file.read().equals(pa.Table.from_batches([batch]))
    assert "DELTA_BINARY_PACKED" not in file.metadata.row_group(0).column(0).encodings


@pytest.mark.skipif(bool(why_missing()), reason="needs the native kernels")
def test_numbers_that_are_alike_take_few_bytes(tmp_path: Path) -> None:
    numbers = pa.array(np.arange(10_000) + 2**40)
    batch = pa.RecordBatch.from_arrays([numbers], names=["numbers"])
    file = _written(tmp_path / "alike.parquet", [batch])
    assert file.metadata.row_group(0).column(0).total_compressed_size < 1000


def test_a_file_without_rows_is_whole(tmp_path: Path) -> None:
    batch = _random_batch(np.random.default_rng(4), 0)
    assert _written(tmp_path / "none.parquet", [batch]).read().equals(pa.Table.from_batches([batch]))


def test_what_cannot_be_written_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="got double, expected int32"):
        _written(tmp_path / "a.parquet", [pa.RecordBatch.from_pydict({"a": [1.5]})])
    nested = pa.RecordBatch.from_arrays([pa.array([[1, None]], pa.list_(pa.int64()))], names=["a"])
    with pytest.raises(ValueError, match="null in a list"):
        _written(tmp_path / "b.parquet", [nested])
