"""The columns of the joined table: those that ``recsys-train`` takes, made from the log's.

Shape letters: R rows, N IDs of one input.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from recsys.base.hashing import hash_texts
from recsys.data.answers.log_files import Requests
from recsys.errors import AnswerLogError
from recsys.inputs.answer_columns import DENSE, HASHES, IDS, TEXTS, AnswerLayout, column_of
from recsys.inputs.columns import LabelColumn, vectors_in
from recsys.inputs.crosses import crosses_within
from recsys.inputs.schema import Schema
from recsys.inputs.signature import DenseInput

#: Columns of the requests in the table, which no schema names but for the time.
REQUEST_COLUMNS = (
    pa.field("request_id", pa.string()),
    pa.field("row", pa.int32()),
    pa.field("time", pa.timestamp("us", "UTC")),
)


def table_schema(layout: AnswerLayout, labels: Sequence[str]) -> pa.Schema:
    """Return the columns of the table: those of requests, of inputs, and labels.

    Raises:
        AnswerLogError: Two of them have one name.
    """
    fields = [*REQUEST_COLUMNS]
    for dense in layout.dense:
        fields += [
            pa.field(one.name, pa.list_(pa.float32()) if one.is_vector else pa.float32())
            for one in _columns_of(dense)
        ]
    for sparse in layout.sparse:
        kind = pa.string() if is_text(layout, sparse.name) else pa.int64()
        fields.append(pa.field(sparse.name, pa.list_(kind)))
    fields += [pa.field(name, pa.float32()) for name in labels]
    names = [one.name for one in fields]
    doubled = [name for i, name in enumerate(names) if name in names[:i]]
    if doubled:
        raise AnswerLogError(
            f"columns: got {doubled[0]!r} more than once among inputs, labels and request columns"
        )
    return pa.schema(fields)


def dense_names(dense: DenseInput) -> list[str]:
    """Return the columns of a dense input: as the training had them, if they are known."""
    if dense.columns:
        return list(dense.columns)
    return [dense.name] if dense.width == 1 else [f"{dense.name}_{i}" for i in range(dense.width)]


class _Column(NamedTuple):
    """A column of the table: which numbers of a row of a dense input it has, and whether as a list."""

    name: str
    places: list[int]
    is_vector: bool


def _columns_of(dense: DenseInput) -> list[_Column]:
    """Return the columns of a dense input: the numbers of a vector are one."""
    names = dense_names(dense)
    vectors = vectors_in(names)
    of_vector = {f"{name}[{i}]": name for name, size in vectors.items() for i in range(size)}
    places: dict[str, list[int]] = {}
    for i, name in enumerate(names):
        places.setdefault(of_vector.get(name, name), []).append(i)
    return [_Column(name, found, name in vectors) for name, found in places.items()]


def is_text(layout: AnswerLayout, name: str) -> bool:
    """Return whether a sparse input's column has texts: where all requests gave it so."""
    return name in layout.has_texts - layout.has_ids - layout.hashed


def row_columns(layout: AnswerLayout, requests: Requests) -> list[pa.Array]:
    """Return the arrays of ``table_schema`` without labels."""
    arrays: list[Any] = [requests.table.column(one.name).combine_chunks() for one in REQUEST_COLUMNS]
    for dense in layout.dense:
        arrays += _dense(dense, requests.input(column_of(DENSE, dense.name)))
    for sparse in layout.sparse:
        if sparse.name in layout.hashed:
            arrays.append(requests.input(column_of(HASHES, sparse.name)))
        elif is_text(layout, sparse.name):
            arrays.append(requests.input(column_of(TEXTS, sparse.name)))
        else:
            ids = requests.input(column_of(IDS, sparse.name))
            if sparse.name in layout.has_texts:
                ids = pc.coalesce(ids, _hashed(requests.input(column_of(TEXTS, sparse.name))))
            arrays.append(ids)
    return arrays


def trained_schema(schema: Schema, layout: AnswerLayout, labels: Sequence[str]) -> Schema:
    """Return the schema of the table for a model that was trained with ``schema``.

    Columns that the log leaves out are left out; parts of dates, whose dates no request has, are numbers; texts that
    came as IDs or hashes are numbers too.

    Args:
        schema: That of the model.
        layout: The log's.
        labels: The labels' columns.
    """
    has = {one.name for one in layout.sparse}
    dense = {name for one in layout.dense for name in dense_names(one)}
    tables = []
    for table in schema.tables:
        names = tuple(name for name in table.feature_names if name in has)
        if not names:
            continue
        texts = [is_text(layout, name) for name in names]
        if any(texts) and not all(texts):
            raise AnswerLogError(
                f"table {table.name!r}: got texts for {names[texts.index(True)]!r} and IDs for "
                f"{names[texts.index(False)]!r}, which share it, expected one of the two"
            )
        is_hashed = any(name in layout.hashed for name in names)
        tables.append(
            replace(
                table,
                feature_names=names,
                strings=table.strings if all(texts) else "",
                separator="",
                ids="fmix64" if is_hashed and table.ids == "index" else table.ids,
                date="",
                part="",
                format="",
            )
        )
    old = {label.name: label for label in schema.labels}
    return replace(
        schema,
        labels=tuple(replace(old.get(name, LabelColumn(name=name)), positive=()) for name in labels),
        # Ages came as numbers too.
        dense=tuple(
            replace(one, decimal=".", since="", until="", format="")
            for one in schema.dense
            if one.name in dense
        ),
        tables=tuple(tables),
        crosses=crosses_within(schema.crosses, has),
        weight=None,
        time="time",
        time_format="",
        held_out_from="",
    )


def _dense(dense: DenseInput, array: pa.Array) -> list[pa.Array]:
    """Return a column for each number of a row, and for each vector; null for NaN, which is a missing number."""
    if dense.width == 1:
        numbers = array.to_numpy(zero_copy_only=False)[:, None]
    else:
        numbers = array.flatten().to_numpy(zero_copy_only=False).reshape(-1, dense.width)
    return [
        _vectors(numbers[:, one.places]) if one.is_vector else _numbers(numbers[:, one.places[0]])
        for one in _columns_of(dense)
    ]


def _numbers(numbers: NDArray[np.float32]) -> pa.Array:
    return pa.array(numbers, pa.float32(), mask=np.isnan(numbers))


def _vectors(rows: NDArray[np.float32]) -> pa.Array:
    """Return a list for each row; null where all its numbers are missing."""
    offsets = np.arange(len(rows) + 1, dtype=np.int32) * rows.shape[1]
    mask = pa.array(np.isnan(rows).all(axis=1))
    return pa.ListArray.from_arrays(pa.array(offsets), _numbers(rows.ravel()), mask=mask)


def _hashed(lists: pa.Array) -> pa.Array:
    texts = lists.flatten()
    ids = pa.array(hash_texts(texts.to_pylist()), pa.int64())
    lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False)
    offsets = np.concatenate(([0], np.cumsum(lengths))).astype(np.int32)
    mask = lists.is_null() if lists.null_count else None
    return pa.ListArray.from_arrays(pa.array(offsets), ids, mask=mask)
