"""The rows of a trained model's tables: which IDs read them, how long their vectors are, and which are alike.

Shape letters: D embedding dim, N number of IDs, R rows of a table.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from torch import Tensor

from recsys.data.examples import Ints
from recsys.data.lines import DataError
from recsys.data.tables.columns import Columns
from recsys.data.tables.dataset import unlabeled
from recsys.data.tables.reading.files import open_files
from recsys.data.tables.row_use import row_uses
from recsys.data.tables.values.arrow_types import plain_table
from recsys.embedding import FloatCollection
from recsys.inputs.schema import Schema, TableSpec
from recsys.managed import ManagedCollisionCollection, ManagedCollisionModule
from recsys.models.click import ClickModel

#: The most different values that are compared with one.
_MOST_VALUES = 1_000_000
_SAMPLE_ROWS = 65_536


@dataclass(frozen=True, kw_only=True)
class TableReport:
    """A table of a trained model.

    Attributes:
        name: Its name.
        num_rows: R.
        embedding_dim: D.
        num_zero_rows: Rows of zeros: training never touched them.
        norms: The median, the 99th percentile and the largest Euclidean norm of the others; empty if there is none.
        num_lookups: IDs in the data; None without data.
        num_read: Rows that they read.
        num_unknown: IDs without a row of their own.
        num_sharing: Different IDs of hashed features, or combinations, in a sample, that share a row with another one.
        top_share: The share of the lookups that the hundredth part of the rows gets which gets most.
    """

    name: str
    num_rows: int
    embedding_dim: int
    num_zero_rows: int
    norms: tuple[float, ...]
    num_lookups: int | None = None
    num_read: int = 0
    num_unknown: int = 0
    num_sharing: int = 0
    top_share: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return asdict(self)


def weights_of(model: ClickModel) -> dict[str, Tensor]:
    """Return the rows of each table, ``[R, D]``, by name."""
    found: dict[str, Tensor] = {}
    for part in model.modules():
        if isinstance(part, FloatCollection):
            for name, parameter in part.named_parameters():
                found[name.split(".")[-2]] = parameter.detach()
    return found


def mappings_of(model: ClickModel) -> dict[str, ManagedCollisionModule]:
    """Return the mappings of raw IDs, by table."""
    return {
        table: mapping
        for part in model.modules()
        if isinstance(part, ManagedCollisionCollection)
        for table, mapping in part.managed_collision_modules().items()
    }


def rows_of_ids_in(mapping: ManagedCollisionModule | None, ids: Ints) -> tuple[Ints, NDArray[np.bool_]]:
    """Return the row of each ID, and whether it is its own; both ``[N]``.

    Args:
        mapping: The table's; None where IDs are rows.
        ids: As examples have them.
    """
    if mapping is None:
        return ids, np.ones(len(ids), dtype=bool)
    rows: Ints = mapping.remap(torch.from_numpy(ids)).numpy()
    return rows, rows != mapping.output_size() - 1


def table_reports(model: ClickModel, schema: Schema, data: Any = None) -> list[TableReport]:
    """Return a report on each table, those of crossed features last.

    Args:
        model: The model.
        schema: Its columns.
        data: A table whose IDs are counted; None for none.

    Raises:
        DataError: The table cannot be read.
    """
    weights, mappings = weights_of(model), mappings_of(model)
    counts = {} if data is None else _counts(schema, mappings, weights, data)
    reports = []
    for table in _features_of(schema):
        norms = weights[table].norm(dim=1).numpy()
        used = norms[norms > 0]
        quantiles = np.quantile(used, (0.5, 0.99, 1.0)).tolist() if len(used) else []
        counted = counts.get(table)
        reports.append(
            TableReport(
                name=table,
                num_rows=len(norms),
                embedding_dim=weights[table].shape[1],
                num_zero_rows=int((norms == 0).sum()),
                norms=tuple(quantiles),
                **({} if counted is None else counted.to_fields()),
            )
        )
    return reports


def _features_of(schema: Schema) -> dict[str, tuple[str, ...]]:
    """Return the features of each table, by its name."""
    return {
        **{spec.name: spec.feature_names for spec in schema.tables},
        **{cross.name: (cross.name,) for cross in schema.crosses},
    }


@dataclass
class _Counted:
    by_row: Ints
    num_unknown: int = 0
    num_sharing: int = 0

    def to_fields(self) -> dict[str, Any]:
        total = int(self.by_row.sum())
        most = np.sort(self.by_row)[::-1][: -(-len(self.by_row) // 100)]
        return {
            "num_lookups": total,
            "num_read": int((self.by_row > 0).sum()),
            "num_unknown": self.num_unknown,
            "num_sharing": self.num_sharing,
            "top_share": float(most.sum() / total) if total else 0.0,
        }


def _counts(
    schema: Schema, mappings: dict[str, ManagedCollisionModule], weights: dict[str, Tensor], data: Any
) -> dict[str, _Counted]:
    features_of = _features_of(schema)
    counted = {table: _Counted(np.zeros(len(weights[table]), dtype=np.int64)) for table in features_of}
    names = schema.input_columns()
    sample: pa.Table | None = None
    for file in open_files(data):
        for examples, kept in unlabeled(file, schema, names if sample is None else ()):
            if sample is None:
                sample = kept.slice(0, _SAMPLE_ROWS)
            for table, names_of_table in features_of.items():
                of_table = counted[table]
                for name in names_of_table:
                    rows, is_own = rows_of_ids_in(mappings.get(table), examples.bags[name].values)
                    of_table.by_row += np.bincount(rows, minlength=len(of_table.by_row))
                    of_table.num_unknown += int((~is_own).sum())
    uses = {} if sample is None else row_uses(sample, schema.tables, schema.crosses)
    for table, names_of_table in features_of.items():
        found = [uses[name] for name in names_of_table if name in uses]
        counted[table].num_sharing = sum(use.num_ids - use.num_rows for use in found)
    return counted


@dataclass(frozen=True, kw_only=True)
class Similar:
    """A value whose row is like another one's.

    Attributes:
        value: The value, as the data has it.
        cosine: The cosine of the two rows.
    """

    value: Any
    cosine: float


def similar(
    model: ClickModel, schema: Schema, data: Any, feature: tuple[str, Any], top: int = 10
) -> list[Similar]:
    """Return the values of a column whose rows are most like that of one, the most like first.

    Args:
        model: The model.
        schema: Its columns.
        data: A table with the column, whose values are compared.
        feature: The column and the value; a text stands for a number, too.
        top: How many.

    Raises:
        DataError: The feature does not exist, the table cannot be read, or the value has no row of its own.
    """
    name, value = feature
    spec = next((one for one in schema.tables if name in one.feature_names), None)
    if spec is None or spec.date:
        raise DataError(f"near: got the column {name!r}, expected one of {list(schema.feature_names)}")
    mapping, weight = mappings_of(model).get(spec.name), weights_of(model)[spec.name]
    values = _values(data, name, spec)
    own, is_known = _rows(name, spec, mapping, pa.array([str(value)]))
    rows, is_own = _rows(name, spec, mapping, values)
    if not is_known.all() or not weight[own].any():
        raise DataError(
            f"near: {value!r} of column {name!r} has no row that training touched, expected a known value"
        )
    vectors = torch.nn.functional.normalize(weight, dim=1)
    cosines = (vectors[torch.from_numpy(rows)] @ vectors[int(own[0])]).numpy()
    cosines[~is_own | (weight[torch.from_numpy(rows)] == 0).all(dim=1).numpy()] = -np.inf
    plain = values.to_pylist()
    order = [i for i in np.argsort(-cosines, kind="stable") if str(plain[i]) != str(value)]
    return [Similar(value=plain[i], cosine=float(cosines[i])) for i in order[:top] if np.isfinite(cosines[i])]


def _rows(
    name: str, spec: TableSpec, mapping: ManagedCollisionModule | None, values: pa.Array
) -> tuple[Ints, NDArray[np.bool_]]:
    columns = Columns(plain_table(pa.table({name: values})), lambda row: f"value {row}")
    return rows_of_ids_in(mapping, columns.bags(name, spec).values)


def _values(data: Any, name: str, spec: TableSpec) -> pa.Array:
    """Return the different values of a column, those of lists one by one, in the order in which they come."""
    found: dict[Any, None] = {}
    for file in open_files(data):
        if name not in file.types:
            raise DataError(f"near: the table has no column {name!r}, expected it: its values are compared")
        for piece in file.pieces():
            column = piece.read([name]).column(name).unique().to_pylist()
            for value in column:
                parts = value.split(spec.separator) if spec.separator and isinstance(value, str) else [value]
                for part in parts:
                    found.update(dict.fromkeys(part if isinstance(part, list) else [part]))
            if len(found) > _MOST_VALUES:
                raise DataError(
                    f"near: got more than {_MOST_VALUES:,} different values of {name!r}, expected fewer"
                )
    found.pop(None, None)
    found.pop("", None)
    return pa.array(list(found))
