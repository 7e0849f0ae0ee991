"""Buckets of dense columns that hold as many training rows each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from recsys.data.lines import DataError
from recsys.data.tables.kept_rows import kept_columns
from recsys.data.tables.reading.pieces import Piece
from recsys.inputs.schema import Schema

#: Rows whose quantiles are taken: their error is some tenths of a percent of the rows.
MOST_ROWS = 1 << 20


def with_quantiles(schema: Schema, train: Sequence[Piece]) -> Schema:
    """Return a schema whose columns with quantiles have these as bounds of buckets.

    A quantile that several share is one bound, so that there may be fewer buckets. Numbers are clipped and scaled as
    the model does before it compares them.

    Args:
        schema: The schema.
        train: The rows to learn from; the first of them are read.

    Raises:
        DataError: A column is the same in all rows, or a value is wrong.
    """
    wanted = [column for column in schema.dense if column.quantiles]
    if not wanted:
        return schema
    names = list(dict.fromkeys(name for column in wanted for name in column.columns))
    read: dict[str, list[np.ndarray]] = {column.name: [] for column in wanted}
    num_rows = 0
    for piece in train:
        columns = kept_columns(piece, names, np.arange(len(piece)))
        for column in wanted:
            numbers = columns.dense(column).astype(np.float64)
            numbers = np.where(np.isnan(numbers), column.missing, numbers)
            if column.clip:
                numbers = np.clip(numbers, *column.clip)
            if column.log1p:
                numbers = np.sign(numbers) * np.log1p(np.abs(numbers))
            read[column.name].append((numbers - column.mean) / column.std)
        num_rows += len(piece)
        if num_rows >= MOST_ROWS:
            break
    resolved = {}
    for column in wanted:
        numbers = np.concatenate(read[column.name])
        shares = np.arange(1, column.quantiles) / column.quantiles
        # Bounds are float32 in the graph. The least value is no bound: nothing lies below it.
        bounds = np.unique(np.quantile(numbers, shares).astype(np.float32))
        bounds = bounds[bounds > np.float32(numbers.min())]
        if not len(bounds):
            raise DataError(
                f"column {column.name!r}: got one value in most rows, expected several for quantiles"
            )
        resolved[column.name] = replace(column, quantiles=0, buckets=tuple(bounds.tolist()))
    return replace(schema, dense=tuple(resolved.get(column.name, column) for column in schema.dense))
