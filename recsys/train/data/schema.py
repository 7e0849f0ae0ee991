"""Schemas, which define the label, dense and sparse columns of a table file.

A schema file is one JSON object::

    {"label": "clicked",
     "dense": ["price", "age"],
     "tables": [{"name": "item", "features": ["item", "recent_items"], "rows": 1000000,
                 "pooling": "MEAN", "hash": true}]}

``pooling`` (default "SUM") and ``hash`` (default false) are optional. With ``hash``, an ID is taken modulo
the table's rows; without it, an ID that is not smaller is an error.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recsys.errors import ManifestError
from recsys.files import read_json
from recsys.json_checks import a_list, choice, count, flag, json_field, known_fields, text
from recsys.train.data.examples import TableSpec
from recsys.train.data.lines import DataError

_FIELDS = {"label", "dense", "tables"}
_TABLE_FIELDS = {"name", "features", "rows", "pooling", "hash"}


@dataclass(frozen=True, kw_only=True)
class Schema:
    """The columns by their use.

    Attributes:
        label: The column of labels.
        dense: The columns of dense features, in order; at least one.
        tables: The tables of the sparse features; a feature is a column.
        hashed_tables: Names of the tables whose IDs are taken modulo their rows.
    """

    label: str
    dense: tuple[str, ...]
    tables: tuple[TableSpec, ...]
    hashed_tables: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        if not self.dense or not self.tables:
            raise DataError(
                f"schema: got {len(self.dense)} dense columns and {len(self.tables)} tables, expected at least one "
                "of each"
            )
        columns = self.columns()
        for kind, names in (("column", columns), ("table", [table.name for table in self.tables])):
            doubled = sorted({name for name in names if names.count(name) > 1})
            if doubled:
                raise DataError(f"schema: {kind} {doubled[0]!r} is named more than once")

    def columns(self) -> list[str]:
        """Return all columns that are read: label, dense, sparse."""
        return [self.label, *self.dense, *(name for table in self.tables for name in table.feature_names)]


def read_schema(path: Path) -> Schema:
    """Read a schema file.

    Raises:
        DataError: The file is missing, not JSON, or not a valid schema; the message names the field.
    """
    data = read_json(path, "schema", DataError)
    try:
        return _schema(data)
    except ManifestError as error:
        raise DataError(f"{path.name}: {error}") from None


def _schema(data: Any) -> Schema:
    known_fields(data, "schema", _FIELDS)
    tables = [(_table(item, at), item, at) for at, item in a_list(data, "tables", "schema")]
    return Schema(
        label=text(data, "label", "schema"),
        dense=_names(data, "dense", "schema"),
        tables=tuple(table for table, _, _ in tables),
        hashed_tables=frozenset(
            table.name for table, item, at in tables if "hash" in item and flag(item, "hash", at)
        ),
    )


def _table(data: Any, at: str) -> TableSpec:
    known_fields(data, at, _TABLE_FIELDS)
    return TableSpec(
        name=text(data, "name", at),
        num_embeddings=count(data, "rows", at),
        feature_names=_names(data, "features", at),
        pooling=choice(data, "pooling", at, ("SUM", "MEAN")) if "pooling" in data else "SUM",
    )


def _names(data: Any, key: str, at: str) -> tuple[str, ...]:
    names = json_field(data, key, at)
    if not isinstance(names, list) or not names or not all(isinstance(n, str) and n for n in names):
        raise ManifestError(f"{at}.{key}: got {str(names)[:80]}, expected a list of at least one column name")
    return tuple(names)
