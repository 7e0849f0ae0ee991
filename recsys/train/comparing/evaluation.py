"""The measurement of models on a table: of all rows, and of slices.

Shape letters: L labels, N number of examples.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from recsys.data.lines import DataError
from recsys.data.tables.dataset import labeled, pieces_to_measure
from recsys.inputs.columns import LabelColumn
from recsys.metrics.exact import one_class_text
from recsys.metrics.resampled import Comparison, Measured, Rows, compare
from recsys.train.comparing.models import ScoredModel

_MISSING = "(missing)"
#: Values of a column that are slices of their own, the most frequent ones.
MOST_SLICES = 12
_NUM_BUCKETS = 10


@dataclass(frozen=True, kw_only=True)
class EvaluationConfig:
    """What to measure.

    Attributes:
        held_out: Only rows that ``recsys-train`` holds out of the table.
        limit_rows: Number of first rows to read.
        group: The column whose values are groups of rows, such as the user; empty for none.
        item: The column of items, for the coverage of each group's first rows; empty for none.
        top: How many rows of a group count in the metrics of its first rows.
        slices: Columns whose most frequent values are measured on their own.
        num_resamples: For intervals; 0 for none.
    """

    held_out: bool = False
    limit_rows: int | None = None
    group: str = ""
    item: str = ""
    top: int = 10
    slices: tuple[str, ...] = ()
    num_resamples: int = 0

    def __post_init__(self) -> None:
        if self.item and not self.group:
            raise ValueError(
                "item: got it without group, expected both: coverage counts the first rows of groups"
            )


@dataclass(frozen=True, kw_only=True)
class Slice:
    """The rows with one value of a column.

    Attributes:
        column: The column.
        value: The value as a text.
        num_rows: N of it.
        comparison: The models on these rows.
    """

    column: str
    value: str
    num_rows: int
    comparison: Comparison


@dataclass(frozen=True, kw_only=True)
class Bucket:
    """Rows with neighbouring predictions of one model.

    Attributes:
        num_rows: N of it.
        predicted: The mean prediction.
        observed: The mean label.
    """

    num_rows: int
    predicted: float
    observed: float


@dataclass(frozen=True, kw_only=True)
class LabelEvaluation:
    """What was measured for one label.

    Attributes:
        num_rows: N.
        num_groups: Number of groups; 0 without.
        comparison: The models on all rows.
        coverage: Of each model; empty without items.
        calibration: Of each model, rows in ascending order of its predictions, in ten parts; empty of a number.
        slices: By column, the most frequent values first.
    """

    num_rows: int
    num_groups: int
    comparison: Comparison
    coverage: list[float]
    calibration: list[list[Bucket]]
    slices: list[Slice] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """Models on the rows of a table.

    Attributes:
        models: Their names.
        labels: What was measured, by label.
        notices: What a user should know of the rows, one line each.
    """

    models: list[str]
    labels: Mapping[str, LabelEvaluation]
    notices: tuple[str, ...]


def evaluate(models: Mapping[str, ScoredModel], data: Any, config: EvaluationConfig) -> Evaluation:
    """Measure models on a table.

    Args:
        models: By name, with the same labels.
        data: A file, a folder, a pattern, or a frame of pandas, polars or Arrow.
        config: What to measure.

    Raises:
        ValueError: The table cannot be read, lacks a column, has a wrong value or no rows, or scores are not finite.
    """
    schemas = [model.schema for model in models.values()]
    keep = list(dict.fromkeys(name for name in (config.group, config.item, *config.slices) if name))
    pieces, notices = pieces_to_measure(
        data, schemas, keep, held_out=config.held_out, limit_rows=config.limit_rows
    )
    logits: list[list[NDArray[Any]]] = [[] for _ in models]
    labels, weights, kept = [], [], []
    for piece in pieces:
        examples, columns = labeled(piece, schemas, keep)
        for model, read, found in zip(models.values(), examples, logits, strict=True):
            found.append(model.logits(read))
        labels.append(examples[0].labels)
        if examples[0].weights is not None:
            weights.append(examples[0].weights)
        kept.append(columns)
    if not sum(map(len, labels)):
        raise ValueError("data: got no rows, expected at least one")
    table = pa.concat_tables(kept, promote_options="permissive") if keep else None
    rows_of = partial(
        Rows,
        weights=np.concatenate(weights) if weights else None,
        groups=None if not config.group else _codes(table, config.group, alone=True)[0],
        items=None if not config.item else _codes(table, config.item)[0],
        top=config.top,
    )
    expected, scored = np.concatenate(labels), [np.concatenate(found) for found in logits]
    slices = {name: _codes(table, name) for name in config.slices}
    measured = {
        label.name: _measured(
            [of[:, i] for of in scored], rows_of(labels=expected[:, i]), slices, config, label
        )
        for i, label in enumerate(schemas[0].labels)
    }
    return Evaluation(models=list(models), labels=measured, notices=(*notices, *_one_class_notices(measured)))


def _one_class_notices(labels: Mapping[str, LabelEvaluation]) -> Iterator[str]:
    for name, found in labels.items():
        metrics = found.comparison.metrics[0]
        if "auc" in metrics and metrics["auc"].value is None:
            is_positive = metrics["calibration"].value is not None
            yield one_class_text(name, found.num_rows, is_positive=is_positive)


def _measured(
    logits: Sequence[NDArray[Any]],
    rows: Rows,
    slices: Mapping[str, tuple[NDArray[np.int64], list[str]]],
    config: EvaluationConfig,
    label: LabelColumn,
) -> LabelEvaluation:
    measured = partial(Measured, number=label if label.is_number else None)
    models = [measured(of, rows) for of in logits]
    found = []
    for column, (codes, values) in slices.items():
        for code in np.argsort(-np.bincount(codes), kind="stable")[:MOST_SLICES].tolist():
            part = np.flatnonzero(codes == code)
            if rows.weights is not None and not rows.weights[part].any():
                continue
            of_slice = rows.take(part)
            comparison = compare(
                [measured(of[part], of_slice) for of in logits], of_slice.num_units, config.num_resamples
            )
            found.append(Slice(column=column, value=values[code], num_rows=len(part), comparison=comparison))
    return LabelEvaluation(
        num_rows=len(rows),
        num_groups=0 if rows.groups is None else rows.num_units,
        comparison=compare(models, rows.num_units, config.num_resamples),
        coverage=[model.coverage for model in models if model.coverage is not None],
        calibration=[] if label.is_number else [_buckets(of, rows) for of in logits],
        slices=found,
    )


def _buckets(logits: NDArray[Any], rows: Rows) -> list[Bucket]:
    """Return ten parts of the rows, in ascending order of predictions; fewer of fewer rows."""
    predicted = 0.5 * (1 + np.tanh(0.5 * logits.astype(np.float64)))
    weights = np.ones(len(rows)) if rows.weights is None else rows.weights.astype(np.float64)
    parts = np.array_split(np.argsort(predicted, kind="stable"), min(_NUM_BUCKETS, len(rows)))
    return [
        Bucket(
            num_rows=len(part),
            predicted=float(np.average(predicted[part], weights=weights[part])),
            observed=float(np.average(rows.labels[part], weights=weights[part])),
        )
        for part in parts
        if weights[part].any()
    ]


def _codes(table: pa.Table | None, name: str, *, alone: bool = False) -> tuple[NDArray[np.int64], list[str]]:
    """Return the number of each row's value, from 0, and the values as texts.

    Args:
        table: The kept columns.
        name: The column.
        alone: Whether rows without a value are values of their own; else they share one.

    Raises:
        DataError: The column holds lists.
    """
    assert table is not None
    array = table.column(name)
    if pa.types.is_nested(array.type):
        raise DataError(f"column {name!r}: got {array.type}, expected one value in each row")
    encoded = array.combine_chunks().dictionary_encode()
    codes = pc.fill_null(encoded.indices, -1).to_numpy(zero_copy_only=False).astype(np.int64)
    values = [str(value) for value in encoded.dictionary.to_pylist()]
    missing = np.flatnonzero(codes < 0)
    codes[missing] = len(values) + (np.arange(len(missing)) if alone else 0)
    return codes, [*values, _MISSING]
