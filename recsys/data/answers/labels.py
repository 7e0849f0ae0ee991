"""Labels of requests, read from tables and sorted by request ID.

Shape letters: N labels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from recsys.base.hashing import hash_texts
from recsys.data.labels import LABELS, word_labels
from recsys.data.tables.columns import Columns
from recsys.data.tables.reading.files import listed, open_files
from recsys.data.tables.reading.pieces import TableFile
from recsys.data.tables.values.arrow_types import is_text, plain
from recsys.data.tables.values.conversions import without_missing
from recsys.errors import AnswerLogError

REQUEST_ID = "request_id"
ROW = "row"
_TIME = "time"


@dataclass(frozen=True, kw_only=True)
class LabelColumns:
    """Which columns of a table of labels are what.

    Attributes:
        labels: The labels.
        time: When a label came to be; empty if the table does not say.
        candidate: The column that identifies a request's row by the ID of that sparse input; empty for none.
        has_row: Whether ``row`` is the number of the request's row.
    """

    labels: tuple[str, ...]
    time: str = ""
    candidate: str = ""
    has_row: bool = False

    def names(self) -> list[str]:
        """Return all columns."""
        others = [self.time, self.candidate, ROW if self.has_row else ""]
        return [REQUEST_ID, *self.labels, *(name for name in others if name)]


@dataclass(frozen=True)
class Labels:
    """Labels in the order of their request IDs' hashes.

    Attributes:
        hashes: int64 ``[N]``, ascending.
        ids: Texts ``[N]``.
        order: int64 ``[N]``: their places in the tables.
        values: float32 ``[N, labels]``, NaN for missing ones.
        times_us: int64 ``[N]``, microseconds since 1970; None without times.
        rows: int64 ``[N]``; None without.
        candidates: Texts ``[N]``; None without.
    """

    hashes: NDArray[np.int64]
    ids: pa.Array
    order: NDArray[np.int64]
    values: NDArray[np.float32]
    times_us: NDArray[np.int64] | None
    rows: NDArray[np.int64] | None
    candidates: pa.Array | None

    def __len__(self) -> int:
        return len(self.hashes)


def open_labels(
    path: Path, wanted: Sequence[str], time: str, candidate: str
) -> tuple[list[TableFile], LabelColumns]:
    """Open a table of labels.

    Args:
        path: A file, a folder of them, or a pattern.
        wanted: The labels' columns; empty for all that are nothing else.
        time: The column of their times; empty for ``time`` if there is one.
        candidate: See ``LabelColumns``.

    Raises:
        AnswerLogError: A column is missing.
        DataError: The table cannot be read.
    """
    files = open_files(path)
    known = set(files[0].types)
    time = time or (_TIME if _TIME in known else "")
    has_row = ROW in known and not candidate
    special = {REQUEST_ID, ROW, time, candidate}
    labels = tuple(wanted) or tuple(name for name in files[0].types if name not in special)
    columns = LabelColumns(labels=labels, time=time, candidate=candidate, has_row=has_row)
    missing = [name for name in columns.names() if name not in known]
    if missing:
        raise AnswerLogError(f"--labels: missing column {missing[0]!r}, got {', '.join(sorted(known)[:20])}")
    if not labels:
        raise AnswerLogError(
            "--labels: got no column of labels beside those of the request, expected at least one"
        )
    return files, columns


def read_labels(files: Sequence[TableFile], columns: LabelColumns, part: int, num_parts: int) -> Labels:
    """Return the labels of one part of the request IDs.

    Args:
        files: The tables.
        columns: Their columns.
        part: The part's number.
        num_parts: How many parts there are.

    Raises:
        AnswerLogError: A label has no request ID or time, or is no number.
        DataError: The table cannot be read.
    """
    parts: list[Labels] = []
    first = 0
    for piece in listed(files):
        table = piece.read(columns.names())
        ids = plain(table.column(REQUEST_ID)).cast(pa.string())
        if ids.null_count:
            at = int(np.flatnonzero(ids.is_null().to_numpy(zero_copy_only=False))[0])
            raise AnswerLogError(f"{piece.place(at)}: got no {REQUEST_ID}, expected one in each row")
        hashes = hash_texts(ids.to_pylist())
        chosen = hashes % num_parts == part
        order = first + np.flatnonzero(chosen)
        first += table.num_rows
        given = Columns(table, piece.place)
        values = np.stack([_label(table, given, name) for name in columns.labels], axis=1)
        times = rows = candidates = None
        if columns.time:
            times = _times_us(given, columns.time, piece.place)[chosen]
        if columns.has_row:
            rows = plain(table.column(ROW)).cast(pa.int64()).fill_null(-1).to_numpy()[chosen]
        if columns.candidate:
            candidates = plain(table.column(columns.candidate)).cast(pa.string()).filter(pa.array(chosen))
        parts.append(
            Labels(
                hashes[chosen], ids.filter(pa.array(chosen)), order, values[chosen], times, rows, candidates
            )
        )
    return _sorted(parts, columns)


def _label(table: pa.Table, given: Columns, name: str) -> NDArray[np.float32]:
    array = plain(table.column(name))
    if pa.types.is_boolean(array.type):
        numbers: NDArray[np.float32] = array.cast(pa.int8()).cast(pa.float32()).to_numpy(zero_copy_only=False)
        return numbers
    if is_text(array.type):
        words = word_labels(without_missing(array))
        odd = np.flatnonzero(np.isinf(words))
        if len(odd):
            got = str(array[int(odd[0])])[:60]
            raise AnswerLogError(f"--labels: got {got!r} in column {name!r}, expected {LABELS} or a number")
        return words.astype(np.float32)
    return given.numbers(name).astype(np.float32)


def _times_us(given: Columns, name: str, place: Callable[[int], str]) -> NDArray[np.int64]:
    dates = given.dates(name)
    if dates.null_count:
        at = int(np.flatnonzero(dates.is_null().to_numpy(zero_copy_only=False))[0])
        raise AnswerLogError(f"{place(at)}: got no {name!r}, expected the time of the label")
    times: NDArray[np.int64] = dates.cast(pa.int64()).to_numpy()
    return times


def _sorted(parts: Sequence[Labels], columns: LabelColumns) -> Labels:
    hashes = np.concatenate([part.hashes for part in parts]) if parts else np.empty(0, np.int64)
    by_hash = np.argsort(hashes, kind="stable")

    def joined(name: str) -> NDArray[np.int64] | None:
        arrays = [getattr(part, name) for part in parts]
        return None if not arrays or arrays[0] is None else np.concatenate(arrays)[by_hash]

    def texts(name: str) -> pa.Array:
        arrays = [getattr(part, name) for part in parts]
        return pa.concat_arrays(arrays or [pa.array([], pa.string())]).take(pa.array(by_hash))

    empty = np.empty((0, len(columns.labels)), np.float32)
    return Labels(
        hashes[by_hash],
        texts("ids"),
        joined("order") if parts else np.empty(0, np.int64),  # type: ignore[arg-type]
        np.concatenate([part.values for part in parts])[by_hash] if parts else empty,
        joined("times_us"),
        joined("rows"),
        texts("candidates") if columns.candidate else None,
    )
