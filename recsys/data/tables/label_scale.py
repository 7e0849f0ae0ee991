"""The mean and the unit of labels that are numbers, of the training rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from recsys.data.lines import DataError
from recsys.data.tables.kept_rows import label_blocks
from recsys.data.tables.quantiles import MOST_ROWS
from recsys.data.tables.reading.pieces import Piece
from recsys.inputs.columns import LabelColumn
from recsys.inputs.schema import Schema


def with_label_scales(schema: Schema, train: Sequence[Piece]) -> Schema:
    """Return a schema whose labels that are numbers have a mean and a unit.

    Args:
        schema: The schema; what it gives stays.
        train: The rows to learn from; the first of them are read.

    Raises:
        DataError: A number is the same in all rows, or a value is wrong.
    """
    wanted = [
        label for label in schema.labels if label.is_number and (label.mean is None or label.std is None)
    ]
    if not wanted:
        return schema
    blocks, num_rows = [], 0
    for block in label_blocks(train, wanted):
        blocks.append(block)
        num_rows += len(block)
        if num_rows >= MOST_ROWS:
            break
    numbers = np.concatenate(blocks).astype(np.float64)
    scaled = {label.name: _scaled(label, numbers[:, i]) for i, label in enumerate(wanted)}
    return replace(schema, labels=tuple(scaled.get(label.name, label) for label in schema.labels))


def _scaled(label: LabelColumn, numbers: np.ndarray) -> LabelColumn:
    # As float32, which the graph computes with.
    mean, std = float(np.float32(numbers.mean())), float(np.float32(numbers.std()))
    if label.std is None and std == 0:
        raise DataError(
            f"label: column {label.name!r}: got {numbers[0]:g} in all {len(numbers):,} rows, expected different numbers"
        )
    return replace(
        label, mean=mean if label.mean is None else label.mean, std=std if label.std is None else label.std
    )
