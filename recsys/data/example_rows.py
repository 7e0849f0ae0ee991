"""Held-out rows that stay with the model: what they look like tells exports, servers and tools what requests hold."""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from recsys.data.examples import Bags, Dataset
from recsys.inputs.example_rows import ExampleRows
from recsys.inputs.sketch import DataSketch, sketch_of

#: The limit for the text of all rows, which are in each artifact's manifest.
_MOST_BYTES = 1 << 20


def example_rows(dataset: Dataset, num_rows: int) -> ExampleRows | None:
    """Return held-out rows of a data set as clients send them; None for none.

    Args:
        dataset: The examples.
        num_rows: The number of rows. There are fewer in a small data set, or if the rows are large.
    """
    if not num_rows:
        return None
    rows = dataset.rows_as_sent(num_rows) if dataset.rows_as_sent else _rows_of_block(dataset, num_rows)
    num_bytes = len(json.dumps(rows.to_json()))
    if num_bytes > _MOST_BYTES:
        rows = rows.first(rows.num_rows * _MOST_BYTES // num_bytes)
    return rows if rows.num_rows else None


def data_sketch(dataset: Dataset, num_rows: int) -> DataSketch | None:
    """Return the sketch of up to ``num_rows`` held-out rows as clients send them; None if there are none."""
    if not num_rows:
        return None
    rows = dataset.rows_as_sent(num_rows) if dataset.rows_as_sent else _rows_of_block(dataset, num_rows)
    return sketch_of(rows) if rows.num_rows else None


def _rows_of_block(dataset: Dataset, num_rows: int) -> ExampleRows:
    """Return rows of the first block, with the IDs that the model takes."""
    block = next(dataset.held_out())
    places = np.unique(np.linspace(0, len(block) - 1, num_rows).astype(np.int64))
    examples = block.take(places)
    dense = {name: examples.dense[:, i] for i, name in enumerate(dataset.dense_names)}
    sparse: dict[str, list[list[int] | list[str]]] = {
        name: lists_of(bags) for name, bags in examples.bags.items()
    }
    return ExampleRows(num_rows=len(places), dense=columns_of_dense(dense), sparse=sparse)


def columns_of_dense(columns: Mapping[str, NDArray[np.float32]]) -> dict[str, list[float | None]]:
    """Return float32 columns as lists of numbers as short as they can be, None for NaN."""
    return {
        name: [None if np.isnan(value) else float(str(value)) for value in column]
        for name, column in columns.items()
    }


def lists_of(bags: Bags) -> list[list[int] | list[str]]:
    """Return bags as lists of IDs."""
    values = bags.values.tolist()
    ends = bags.offsets.tolist()
    return [values[start:end] for start, end in pairwise(ends)]
