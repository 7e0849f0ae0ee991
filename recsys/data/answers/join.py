"""The log of answers joined with labels: a table of examples, a row for each row of each request.

The rules, each with its count in ``JoinCounts``:

* A label belongs to the request with its ID and, where the labels say so, to the row with its number or its candidate.
* A label before its request's answer, or later than ``within`` after it, is not used.
* Of several labels of a row one is used: the first, the last, or ``any``: the largest.
* A row without a label is negative, or left out.
* A request is left out if its time for labels has not ended at the end of the log, if it has no ID, and if an earlier
  one has the same ID.

Memory is bounded: request IDs are split by their hashes into parts, and the log is read once for each part.

Shape letters: R rows of some requests, Q these requests, P pairs of a row and a label, N labels.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyarrow import parquet

from recsys.base.files import replacing
from recsys.data.answers.columns import row_columns, table_schema
from recsys.data.answers.labels import LabelColumns, Labels, open_labels, read_labels
from recsys.data.answers.log_files import LogFiles, Requests, input_columns, open_log, requests_of, text_of
from recsys.data.answers.rules import JoinCounts, JoinRules
from recsys.data.tables.reading.pieces import TableFile
from recsys.errors import AnswerLogError

# Bytes of memory for a request ID, and for a label with its ID, time and columns.
_SEEN_BYTES, _LABEL_BYTES = 100, 200

Ints = NDArray[np.int64]


@dataclass
class _Part:
    """One part of the request IDs."""

    labels: Labels
    seen: set[int] = field(default_factory=set)
    is_known: NDArray[np.bool_] = field(init=False)

    def __post_init__(self) -> None:
        self.is_known = np.zeros(len(self.labels), np.bool_)


@dataclass(frozen=True, kw_only=True)
class JoinInputs:
    """A log and labels, opened.

    Attributes:
        files: The log's files.
        tables: The tables of labels.
        columns: Their columns.
    """

    files: LogFiles
    tables: Sequence[TableFile]
    columns: LabelColumns


def open_inputs(log: Path, labels: Path, rules: JoinRules) -> JoinInputs:
    """Open a log and labels.

    Args:
        log: The folder of the answer log.
        labels: A table of labels: a file, a folder of them, or a pattern.
        rules: How they meet.

    Raises:
        AnswerLogError: The log or the labels cannot be used.
        DataError: The labels cannot be read.
    """
    files = open_log(log, rules.model, rules.version)
    sparse = {one.name for one in files.layout.sparse}
    if rules.candidate and rules.candidate not in sparse:
        raise AnswerLogError(
            f"--candidate: got {rules.candidate!r}, expected a sparse input of the log: {', '.join(sorted(sparse))}"
        )
    if rules.candidate in files.layout.hashed:
        raise AnswerLogError(
            f"--candidate: got {rules.candidate!r}, which the log has hashes of, expected an input with IDs or texts"
        )
    tables, columns = open_labels(labels, rules.labels, rules.label_time, rules.candidate)
    return JoinInputs(files=files, tables=tables, columns=columns)


def join_labels(inputs: JoinInputs, out: Path, rules: JoinRules) -> JoinCounts:
    """Write the table of examples, as Parquet that only its owner can read; it appears when it is whole.

    Args:
        inputs: The log and the labels.
        out: The table.
        rules: How they meet.

    Raises:
        AnswerLogError: The log or the labels cannot be used.
        DataError: The labels cannot be read.
        OSError: The table cannot be written.
    """
    files = inputs.files
    counts = JoinCounts(files=len(files.paths))
    num_labels = sum(piece.num_rows for table in inputs.tables for piece in table.pieces())
    needed = files.num_rows * _SEEN_BYTES + num_labels * _LABEL_BYTES
    counts.passes = max(1, -(-needed // rules.memory_bytes))
    schema = table_schema(files.layout, inputs.columns.labels)
    with replacing(out) as partial:
        partial.touch(mode=0o600)
        with parquet.ParquetWriter(partial, schema, compression="zstd") as writer:
            for part in range(counts.passes):
                for table in _part(inputs, schema, rules, counts, part):
                    writer.write_table(table)
    return counts


def _part(
    inputs: JoinInputs, schema: pa.Schema, rules: JoinRules, counts: JoinCounts, number: int
) -> Iterator[pa.Table]:
    files = inputs.files
    part = _Part(read_labels(inputs.tables, inputs.columns, number, counts.passes))
    counts.labels += len(part.labels)
    end_us = files.end_us if rules.until_us is None else rules.until_us
    for all_requests in requests_of(files, input_columns(files.layout)):
        requests = all_requests.where(all_requests.hashes % counts.passes == number)
        requests = _usable(requests, part, counts)
        is_young = requests.times_us + int(rules.within_s * 1e6) > end_us
        counts.requests_young += int(is_young.sum())
        pair_requests, pair_labels = _meet(requests, part)
        of_young = is_young[pair_requests]
        counts.labels_of_young += int(of_young.sum())
        rows, used = _rows_of(
            requests, (pair_requests[~of_young], pair_labels[~of_young]), part.labels, rules
        )
        counts.labels_without_row += int((~of_young).sum()) - len(np.unique(used))
        rows, used = _in_time(requests, (rows, used), part.labels, rules, counts)
        values, has_label = _values(requests, (rows, used), part.labels, rules, counts)
        is_old_row = np.repeat(~is_young, requests.lengths)
        counts.rows += int(is_old_row.sum())
        counts.rows_labelled += int((has_label & is_old_row).sum())
        counts.rows_missing += int((~has_label & is_old_row).sum())
        if rules.missing == "negative":
            kept, values = is_old_row, np.nan_to_num(values, nan=0.0)
        else:
            kept = is_old_row & ~np.isnan(values).any(axis=1)
        counts.rows_written += int(kept.sum())
        if kept.any():
            arrays = [
                *row_columns(files.layout, requests),
                *(pa.array(values[:, i], pa.float32()) for i in range(values.shape[1])),
            ]
            table = pa.table(arrays, schema=schema)
            yield table.filter(pa.array(kept))
    counts.labels_unknown += int((~part.is_known).sum())


def _usable(requests: Requests, part: _Part, counts: JoinCounts) -> Requests:
    """Return the requests with an ID that no earlier one has."""
    counts.requests += len(requests)
    has_id = pc.not_equal(requests.ids, "").to_numpy(zero_copy_only=False)
    counts.requests_without_id += int((~has_id).sum())
    requests = requests.where(has_id)
    is_new = np.empty(len(requests), np.bool_)
    for i, value in enumerate(requests.hashes.tolist()):
        is_new[i] = value not in part.seen
        part.seen.add(value)
    counts.requests_repeated += int((~is_new).sum())
    return requests.where(is_new)


def _meet(requests: Requests, part: _Part) -> tuple[Ints, Ints]:
    """Return pairs of a request and a label with its ID, int64 ``[P]`` each."""
    hashes = part.labels.hashes
    first = np.searchsorted(hashes, requests.hashes, "left")
    lengths = np.searchsorted(hashes, requests.hashes, "right") - first
    of_request = np.repeat(np.arange(len(requests)), lengths)
    within = np.arange(len(of_request)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    of_label = np.repeat(first, lengths) + within
    same = pc.equal(requests.ids.take(pa.array(of_request)), part.labels.ids.take(pa.array(of_label)))
    same = same.to_numpy(zero_copy_only=False).astype(np.bool_)
    part.is_known[of_label[same]] = True
    return of_request[same], of_label[same]


def _rows_of(
    requests: Requests, pairs: tuple[Ints, Ints], labels: Labels, rules: JoinRules
) -> tuple[Ints, Ints]:
    """Return pairs of a row and its label."""
    of_request, of_label = pairs
    lengths = requests.lengths[of_request]
    if labels.rows is not None:
        number = labels.rows[of_label]
        is_there = (number >= 0) & (number < lengths)
        return (requests.starts[of_request] + number)[is_there], of_label[is_there]
    if labels.candidates is None:
        if (lengths > 1).any():
            at = int(np.flatnonzero(lengths > 1)[0])
            name = requests.ids[int(of_request[at])].as_py()
            raise AnswerLogError(
                f"--labels: got a label of request {name[:60]!r}, which has {lengths[at]} rows, without saying which: "
                "expected a column 'row', or --candidate"
            )
        return requests.starts[of_request], of_label
    rows = np.repeat(requests.starts[of_request], lengths)
    rows += np.arange(len(rows)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    of_label = np.repeat(of_label, lengths)
    given = text_of(requests, rules.candidate).take(pa.array(rows))
    same = pc.fill_null(pc.equal(given, labels.candidates.take(pa.array(of_label))), False)
    is_same = same.to_numpy(zero_copy_only=False)
    return rows[is_same], of_label[is_same]


def _in_time(
    requests: Requests, pairs: tuple[Ints, Ints], labels: Labels, rules: JoinRules, counts: JoinCounts
) -> tuple[Ints, Ints]:
    rows, used = pairs
    if labels.times_us is None:
        return pairs
    after_us = labels.times_us[used] - requests.times_us[requests.of_row[rows]]
    is_early, is_late = after_us < 0, after_us > int(rules.within_s * 1e6)
    counts.labels_early += len(np.unique(used[is_early]))
    counts.labels_late += len(np.unique(used[is_late]))
    in_time = ~is_early & ~is_late
    return rows[in_time], used[in_time]


def _values(
    requests: Requests, pairs: tuple[Ints, Ints], labels: Labels, rules: JoinRules, counts: JoinCounts
) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """Return each row's labels, ``[R, labels]``, NaN for missing ones, and whether a row has any."""
    rows, used = pairs
    num_rows = requests.table.num_rows
    values = np.full((num_rows, labels.values.shape[1]), np.nan, np.float32)
    times: Any = labels.times_us[used] if labels.times_us is not None else np.zeros(len(used), np.int64)
    by_row = np.lexsort((labels.order[used], times, rows))
    rows, used = rows[by_row], used[by_row]
    has_label = np.zeros(num_rows, np.bool_)
    has_label[rows] = True
    if len(rows):
        is_first = np.append(True, rows[1:] != rows[:-1])
        starts = np.flatnonzero(is_first)
        given = labels.values[used]
        if rules.doubled == "any":
            chosen = np.fmax.reduceat(given, starts, axis=0)
        else:
            chosen = given[starts if rules.doubled == "first" else np.append(starts[1:], len(rows)) - 1]
        values[rows[starts]] = chosen
        counts.labels_used += len(starts)
        counts.labels_doubled += len(rows) - len(starts)
    return values, has_label
