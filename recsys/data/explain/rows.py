"""What a trained model makes of a row: IDs without a row of their own, transformed numbers, and what each feature adds.

A feature adds the difference of the logit to that of the same row without it: an empty bag; a missing number, or 0 for
a number that may not be missing. These differences need not sum to the logit, because features act together.

Shape letters: B rows, C dense columns, F features, L labels.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray

from recsys.data.examples import Bags, Examples
from recsys.data.explain.tables import mappings_of, rows_of_ids_in
from recsys.data.lines import DataError
from recsys.data.tables.dataset import unlabeled
from recsys.data.tables.reading.files import open_files
from recsys.inputs.schema import DenseColumn, Schema
from recsys.models.click import ClickModel
from recsys.models.dense import DenseTransforms


@dataclass(frozen=True, kw_only=True)
class FeatureUse:
    """A feature of a row.

    Attributes:
        name: Its name.
        value: What the table has.
        transformed: The numbers that the model computes with, of a dense feature; empty for others.
        rows: The rows of its table that it reads; empty for a dense feature.
        num_unknown: IDs without a row of their own.
        added: What it adds to the logit of each label, by name.
    """

    name: str
    value: Any
    transformed: tuple[float, ...] = ()
    rows: tuple[int, ...] = ()
    num_unknown: int = 0
    added: Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class RowExplanation:
    """A row.

    Attributes:
        logits: By label, ``score`` where there is one or none.
        features: What adds most first.
    """

    logits: Mapping[str, float]
    features: tuple[FeatureUse, ...]

    def to_json(self) -> dict[str, Any]:
        """Return plain data; a missing number is None."""
        features = [
            {
                "name": one.name,
                "value": one.value,
                **({"transformed": list(one.transformed)} if one.transformed else {}),
                **({"rows": list(one.rows), "num_unknown": one.num_unknown} if not one.transformed else {}),
                "added": dict(one.added),
            }
            for one in self.features
        ]
        return {"logits": dict(self.logits), "features": features}


def explain(model: ClickModel, schema: Schema, data: Any, num_rows: int = 2) -> list[RowExplanation]:
    """Return what a model makes of the first rows of a table.

    Args:
        model: A model that gives logits, in evaluation mode.
        schema: Its columns.
        data: As ``recsys.train.Model.predict`` takes it.
        num_rows: How many rows.

    Raises:
        DataError: The table cannot be read, or lacks a column.
    """
    found: list[RowExplanation] = []
    columns = schema.input_columns()
    for file in open_files(data):
        for examples, kept in unlabeled(file, schema, columns):
            for row in range(min(len(examples), num_rows - len(found))):
                found.append(_explained(model, schema, examples.take(np.array([row])), kept.slice(row, 1)))
            if len(found) == num_rows:
                return found
    if not found:
        raise DataError("data: got no rows, expected at least one")
    return found


@torch.no_grad()
def _explained(model: ClickModel, schema: Schema, row: Examples, kept: pa.Table) -> RowExplanation:
    whole = _logits(model, row)
    names = ("score",) if len(schema.labels) < 2 else schema.label_names
    without = {
        **{column.name: _without_number(row, i, column) for i, column in enumerate(schema.dense)},
        **{name: _without_feature(row, name, schema) for name in schema.feature_names},
    }
    # Each row of this batch lacks one feature.
    lacking = _logits(model, Examples.concatenate(list(without.values())))
    added = {
        name: dict(zip(names, (whole[0] - lacking[i]).tolist(), strict=True))
        for i, name in enumerate(without)
    }
    features = [*_dense_uses(schema, row, added), *_sparse_uses(model, schema, row, kept, added)]
    features.sort(key=lambda one: -max(map(abs, one.added.values())))
    return RowExplanation(logits=dict(zip(names, whole[0].tolist(), strict=True)), features=tuple(features))


def _logits(model: ClickModel, examples: Examples) -> NDArray[np.float32]:
    batch = examples.batch(np.arange(len(examples)))
    found: NDArray[np.float32] = model.logits(batch.dense, batch.kjt).numpy()
    return found


def _without_number(row: Examples, at: int, column: DenseColumn) -> Examples:
    dense = row.dense.copy()
    dense[:, at] = 0.0 if column.is_plain else np.nan
    return replace(row, dense=dense)


def _without_feature(row: Examples, name: str, schema: Schema) -> Examples:
    """Return a row without a feature's values and their combinations with others."""
    empty = Bags(np.zeros(0, dtype=np.int64), np.zeros(2, dtype=np.int64))
    crosses = [cross.name for cross in schema.crosses if name in cross.feature_names]
    return replace(row, bags={**row.bags, **dict.fromkeys([name, *crosses], empty)})


def _dense_uses(schema: Schema, row: Examples, added: Mapping[str, Mapping[str, float]]) -> list[FeatureUse]:
    uses = []
    for i, column in enumerate(schema.dense):
        number = float(row.dense[0, i])
        transformed = DenseTransforms([column])(torch.from_numpy(row.dense[:, i : i + 1]))
        uses.append(
            FeatureUse(
                name=column.name,
                value=None if np.isnan(number) else number,
                transformed=tuple(transformed[0].tolist()),
                added=added[column.name],
            )
        )
    return uses


def _sparse_uses(
    model: ClickModel, schema: Schema, row: Examples, kept: pa.Table, added: Mapping[str, Mapping[str, float]]
) -> list[FeatureUse]:
    mappings = mappings_of(model)
    uses = []
    for spec in schema.tables:
        for name in spec.feature_names:
            rows, is_own = rows_of_ids_in(mappings.get(spec.name), row.bags[name].values)
            uses.append(
                FeatureUse(
                    name=name,
                    value=_shown(kept.column(spec.date or name)[0].as_py()),
                    rows=tuple(rows.tolist()),
                    num_unknown=int((~is_own).sum()),
                    added=added[name],
                )
            )
    return uses


def _shown(value: Any) -> Any:
    """Return a value as JSON has it: dates are texts."""
    return value if isinstance(value, str | int | float | bool | list | None) else str(value)
