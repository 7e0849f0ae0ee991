"""Schemas: the use of each column of a table of examples, from training to serving.

A schema travels with the model: ``recsys-train`` writes it into the checkpoint, ``recsys-export`` into the
artifact. A schema file is TOML or JSON (``recsys.data.tables.schema_file``)::

    time = "hour"                       # rows are held out by it; without it, the last rows are
    [[labels]]
    name = "click"
    [[dense]]
    name = "price"
    log1p = true
    [[tables]]
    name = "site_id"
    features = ["site_id"]
    rows = 100000
    ids = "hash"
    strings = "xxh64"
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from recsys.base.json_checks import a_list, known_fields, text, wrong
from recsys.errors import ManifestError, SchemaError
from recsys.inputs.columns import (
    RAW,
    TABLE_FIELDS,
    DenseColumn,
    LabelColumn,
    TableSpec,
    dense_of,
    label_of,
    number_of,
    plain_column,
    table_of,
    texts_of,
)
from recsys.inputs.crosses import CrossSpec, check_crosses, cross_of, crosses_within

__all__ = ["CrossSpec", "DenseColumn", "LabelColumn", "Schema", "TableSpec"]

#: How the losses of several labels are weighted.
LABEL_WEIGHTS = ("", "uncertainty")


@dataclass(frozen=True, kw_only=True)
class Schema:
    """The columns by their use.

    Attributes:
        labels: The labels; none where the next item of a history is learned.
        dense: The dense features, in the order of the model's input.
        tables: The tables of the sparse features; at least one.
        weight: The column of the examples' weights; None for equal ones.
        time: The column by which rows are held out: the last of them; None where the last rows are.
        time_format: How ``time`` is written, as ``strptime`` takes it; empty for ISO 8601 and numbers.
        held_out: The share that is held out.
        held_out_from: Rows with a ``time`` of at least this are held out, whatever their share; empty for the
            share.
        counts: Sparse features whose number of values, as its ``log1p``, is a dense feature of the model too; the graph
            counts them.
        label_weights: "uncertainty" where the model learns how much each label's loss counts; empty for equal ones.
        crosses: Features that the model computes: combinations of sparse features, each with a table of its own.
    """

    labels: tuple[LabelColumn, ...]
    dense: tuple[DenseColumn, ...]
    tables: tuple[TableSpec, ...]
    weight: str | None = None
    time: str | None = None
    time_format: str = ""
    held_out: float = 0.1
    held_out_from: str = ""
    counts: tuple[str, ...] = ()
    label_weights: str = ""
    crosses: tuple[CrossSpec, ...] = ()

    def __post_init__(self) -> None:
        if not self.tables:
            raise SchemaError("schema.tables: got none, expected at least one")
        if not 0 < self.held_out < 1:
            raise SchemaError(f"schema.held_out: got {self.held_out}, expected a share above 0 and below 1")
        unknown = [name for name in self.counts if name not in self.feature_names]
        if unknown or len(set(self.counts)) != len(self.counts):
            raise SchemaError(
                f"schema.counts: got {list(self.counts)}, expected different ones of the sparse features "
                f"{list(self.feature_names)}"
            )
        if self.label_weights not in LABEL_WEIGHTS:
            raise SchemaError(
                f"schema.label_weights: got {self.label_weights!r}, expected 'uncertainty', or none for equal ones"
            )
        for name in ("held_out_from", "time_format"):
            if getattr(self, name) and self.time is None:
                raise SchemaError(f"schema.{name}: got it without time, expected the column that it is for")
        check_crosses(self.crosses, self.tables)
        crossed = [cross.name for cross in self.crosses]
        for kind, names in (
            ("column", [*self.label_names, *self.dense_names, *self.feature_names, *crossed]),
            ("table", [*(table.name for table in self.tables), *crossed]),
        ):
            doubled = sorted(name for name, number in Counter(names).items() if number > 1)
            if doubled:
                raise SchemaError(f"schema: {kind} {doubled[0]!r} is named more than once")

    @property
    def label_names(self) -> tuple[str, ...]:
        """The labels' columns."""
        return tuple(label.name for label in self.labels)

    @property
    def dense_names(self) -> tuple[str, ...]:
        """The dense features' columns."""
        return tuple(column.name for column in self.dense)

    @property
    def feature_names(self) -> tuple[str, ...]:
        """The sparse features, table by table."""
        return tuple(name for table in self.tables for name in table.feature_names)

    def columns(self) -> list[str]:
        """Return all columns that are read, each once."""
        others = [name for name in (self.weight, self.time) if name is not None]
        return list(dict.fromkeys([*self.label_names, *self.input_columns(), *others]))

    def input_columns(self) -> list[str]:
        """Return the columns that the model's inputs are read from, each once."""
        sparse = [name for table in self.tables for name in table.columns]
        dense = [name for column in self.dense for name in column.columns]
        return list(dict.fromkeys([*dense, *sparse]))

    def with_sparse(self, features: Collection[str]) -> Schema:
        """Return the schema with these sparse columns alone, and the tables that they are looked up in."""
        tables = [
            replace(table, feature_names=tuple(name for name in table.feature_names if name in features))
            for table in self.tables
        ]
        return replace(
            self,
            tables=tuple(table for table in tables if table.feature_names),
            counts=tuple(name for name in self.counts if name in features),
            crosses=crosses_within(self.crosses, features),
        )

    def with_raw(self, features: Collection[str]) -> Schema:
        """Return the schema with tables that keep IDs as they are, where they look up any of these features."""
        return replace(
            self,
            tables=tuple(
                replace(table, ids=RAW) if set(table.feature_names) & set(features) else table
                for table in self.tables
            ),
        )

    def to_json(self) -> dict[str, Any]:
        """Return plain data that ``from_json`` reads back, without fields that have their default."""
        data: dict[str, Any] = {
            name: getattr(self, name) for name in _DEFAULTS if getattr(self, name) != _DEFAULTS[name]
        }
        if self.counts:
            data["counts"] = list(self.counts)
        data["labels"] = [plain_column(label) for label in self.labels]
        data["dense"] = [plain_column(column) for column in self.dense]
        data["tables"] = [
            {TABLE_FIELDS.get(key, key): value for key, value in plain_column(table).items()}
            for table in self.tables
        ]
        if self.crosses:
            data["crosses"] = [cross.to_json() for cross in self.crosses]
        return data

    @classmethod
    def from_json(cls, data: Any) -> Schema:
        """Read untrusted data in the format of ``to_json``; ``label``, names as dense and ``hash`` are short forms.

        Raises:
            SchemaError: A field is wrong; the message names it.
        """
        try:
            return _schema(data)
        except ManifestError as error:
            raise SchemaError(str(error)) from None


_TEXTS = ("weight", "time", "time_format", "held_out_from", "label_weights")
_DEFAULTS: Mapping[str, Any] = {
    "weight": None,
    "time": None,
    "time_format": "",
    "held_out": 0.1,
    "held_out_from": "",
    "counts": (),
    "label_weights": "",
}


def _schema(data: Any) -> Schema:
    known_fields(data, "schema", {"label", "labels", "dense", "tables", "crosses", *_DEFAULTS})
    if "label" in data:
        labels: tuple[LabelColumn, ...] = (LabelColumn(name=text(data, "label", "schema")),)
    else:
        labels = tuple(
            label_of(item, at) for at, item in (a_list(data, "labels", "schema") if "labels" in data else [])
        )
    dense = a_list(data, "dense", "schema") if "dense" in data else []
    optional: dict[str, Any] = {name: text(data, name, "schema") for name in _TEXTS if name in data}
    if "counts" in data:
        optional["counts"] = texts_of(data, "counts", "schema")
    if "crosses" in data:
        optional["crosses"] = tuple(cross_of(item, at) for at, item in a_list(data, "crosses", "schema"))
    if "held_out" in data:
        optional["held_out"] = number_of(data, "held_out", "schema")
    return Schema(
        labels=labels,
        dense=tuple(
            _until_time(column, at, optional.get("time"))
            for at, item in dense
            for column in dense_of(item, at)
        ),
        tables=tuple(table_of(item, at) for at, item in a_list(data, "tables", "schema")),
        **optional,
    )


def _until_time(column: DenseColumn, at: str, time: str | None) -> DenseColumn:
    """Return a dense column whose age ends at the schema's time where it names no other."""
    if not column.since or column.until:
        return column
    if time is None:
        raise wrong(at, "until", "none", "the column of the row's own time, or a schema with time")
    return replace(column, until=time)
