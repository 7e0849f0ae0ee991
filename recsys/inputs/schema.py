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

import math
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, fields, replace
from itertools import pairwise
from typing import Any

from recsys.base.hashing import STRING_HASHES
from recsys.base.json_checks import a_list, choice, count, flag, json_field, known_fields, text, wrong
from recsys.errors import ManifestError, SchemaError

POOLINGS = ("SUM", "MEAN")
#: How IDs become rows: they are rows; modulo the rows; mixed (``recsys.base.hashing.mix_ids``), then modulo the
#: rows; by a list of the frequent ones; learned in training.
ID_KINDS = ("index", "hash", "fmix64", "vocabulary", "zero_collision")
#: The kind of columns that are read for a model that does all this itself; no schema file has it.
RAW = "raw"
#: Those of which different IDs may share a row.
HASHED_KINDS = ("hash", "fmix64")
#: What may be before the decimals of numbers that are texts.
DECIMALS = (".", ",")
#: The parts of a date that are IDs, and how many there are: hours are 0 to 23, weekdays 0 (Monday) to 6.
DATE_PARTS = {"hour": 24, "weekday": 7}


@dataclass(frozen=True, kw_only=True)
class LabelColumn:
    """A label.

    Attributes:
        name: The column.
        at_least: The label is 1 where the column is at least this; None where it holds 0 and 1.
        positive: The label is 1 where the column is one of these texts; empty where it holds 0 and 1.
    """

    name: str
    at_least: float | None = None
    positive: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class DenseColumn:
    """A dense feature and its transforms, which the model's graph applies in this order.

    Attributes:
        name: The column.
        missing: The value of a missing one.
        clip: The smallest and the largest value; others are set to the nearest. None for no bounds.
        log1p: Whether ``x`` becomes ``sign(x) log(1 + |x|)``.
        mean: Subtracted.
        std: The divisor after that.
        buckets: Ascending bounds: the feature becomes ``len(buckets) + 1`` features, of which one is 1 and the others
            0. Empty keeps the number.
        decimal: What is before the decimals where the column holds texts, one of ``DECIMALS``.
    """

    name: str
    missing: float = 0.0
    clip: tuple[float, float] | None = None
    log1p: bool = False
    mean: float = 0.0
    std: float = 1.0
    buckets: tuple[float, ...] = ()
    decimal: str = "."

    @property
    def width(self) -> int:
        """Number of features that the transforms give."""
        return len(self.buckets) + 1 if self.buckets else 1

    @property
    def is_plain(self) -> bool:
        """Whether there is no transform; a missing value is an error then."""
        return self == DenseColumn(name=self.name, decimal=self.decimal)


@dataclass(frozen=True, kw_only=True)
class TableSpec:
    """A table and the columns that are looked up in it; the model chooses its width.

    Attributes:
        name: The table's name.
        num_embeddings: Its rows.
        feature_names: The columns, which are features of the same names.
        pooling: "SUM" or "MEAN".
        ids: One of ``ID_KINDS``, or ``RAW``. With "vocabulary" and "zero_collision" the last row is that of all other
            IDs.
        strings: The hash that turns the columns' texts into 64-bit IDs (``recsys.base.hashing``); empty where the
            columns hold whole numbers.
        separator: Between the values of a text; empty for one value.
        min_count: With "vocabulary": how often a value must occur in the training rows to get a row.
        date: The column of dates whose part is the ID of the only feature; empty where the features are columns.
        part: One of ``DATE_PARTS``, with ``date``.
        format: How the dates are written, as ``strptime`` takes it; empty for ISO 8601 and numbers since 1970.
    """

    name: str
    num_embeddings: int
    feature_names: tuple[str, ...]
    pooling: str = "SUM"
    ids: str = "index"
    strings: str = ""
    separator: str = ""
    min_count: int = 1
    date: str = ""
    part: str = ""
    format: str = ""

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that the features are read from."""
        return (self.date,) if self.date else self.feature_names

    @property
    def is_mapped(self) -> bool:
        """Whether the model maps raw IDs to rows."""
        return self.ids in ("vocabulary", "zero_collision")

    @property
    def is_hashed(self) -> bool:
        """Whether any ID has a row, which it may share with others."""
        return self.ids in HASHED_KINDS


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
    """

    labels: tuple[LabelColumn, ...]
    dense: tuple[DenseColumn, ...]
    tables: tuple[TableSpec, ...]
    weight: str | None = None
    time: str | None = None
    time_format: str = ""
    held_out: float = 0.1
    held_out_from: str = ""

    def __post_init__(self) -> None:
        if not self.tables:
            raise SchemaError("schema.tables: got none, expected at least one")
        if not 0 < self.held_out < 1:
            raise SchemaError(f"schema.held_out: got {self.held_out}, expected a share above 0 and below 1")
        for name in ("held_out_from", "time_format"):
            if getattr(self, name) and self.time is None:
                raise SchemaError(f"schema.{name}: got it without time, expected the column that it is for")
        for kind, names in (
            ("column", [*self.label_names, *self.dense_names, *self.feature_names]),
            ("table", [table.name for table in self.tables]),
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
        return list(dict.fromkeys([*self.dense_names, *sparse]))

    def with_sparse(self, features: Collection[str]) -> Schema:
        """Return the schema with these sparse columns alone, and the tables that they are looked up in."""
        tables = [
            replace(table, feature_names=tuple(name for name in table.feature_names if name in features))
            for table in self.tables
        ]
        return replace(self, tables=tuple(table for table in tables if table.feature_names))

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
        data["labels"] = [_plain(label) for label in self.labels]
        data["dense"] = [_plain(column) for column in self.dense]
        data["tables"] = [
            {_TABLE_FIELDS.get(key, key): value for key, value in _plain(table).items()}
            for table in self.tables
        ]
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


_TEXTS = ("weight", "time", "time_format", "held_out_from")
_DEFAULTS: Mapping[str, Any] = {
    "weight": None,
    "time": None,
    "time_format": "",
    "held_out": 0.1,
    "held_out_from": "",
}
_TABLE_FIELDS = {"num_embeddings": "rows", "feature_names": "features"}


def _plain(item: LabelColumn | DenseColumn | TableSpec) -> dict[str, Any]:
    """Return the fields that differ from their defaults, as plain data."""
    values = asdict(item)
    given = {f.name: values[f.name] for f in fields(item) if values[f.name] != f.default}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in given.items()}


def _schema(data: Any) -> Schema:
    known_fields(data, "schema", {"label", "labels", "dense", "tables", *_DEFAULTS})
    if "label" in data:
        labels: tuple[LabelColumn, ...] = (LabelColumn(name=text(data, "label", "schema")),)
    else:
        labels = tuple(
            _label(item, at) for at, item in (a_list(data, "labels", "schema") if "labels" in data else [])
        )
    dense = a_list(data, "dense", "schema") if "dense" in data else []
    optional: dict[str, Any] = {name: text(data, name, "schema") for name in _TEXTS if name in data}
    if "held_out" in data:
        optional["held_out"] = _number(data, "held_out", "schema")
    return Schema(
        labels=labels,
        dense=tuple(_dense(item, at) for at, item in dense),
        tables=tuple(_table(item, at) for at, item in a_list(data, "tables", "schema")),
        **optional,
    )


def _label(data: Any, at: str) -> LabelColumn:
    known_fields(data, at, {"name", "at_least", "positive"})
    at_least = _number(data, "at_least", at) if "at_least" in data else None
    positive = _texts(data, "positive", at) if "positive" in data else ()
    if at_least is not None and positive:
        raise wrong(at, "positive", list(positive), "one of at_least and positive")
    return LabelColumn(name=text(data, "name", at), at_least=at_least, positive=positive)


def _dense(data: Any, at: str) -> DenseColumn:
    if isinstance(data, str) and data:
        return DenseColumn(name=data)
    known_fields(data, at, {field.name for field in fields(DenseColumn)})
    column: dict[str, Any] = {
        name: _number(data, name, at) for name in ("missing", "mean", "std") if name in data
    }
    if "std" in data and column["std"] <= 0:
        raise wrong(at, "std", data["std"], "a number above 0")
    if "log1p" in data:
        column["log1p"] = flag(data, "log1p", at)
    if "clip" in data:
        column["clip"] = _ascending(data, "clip", at)
        if len(column["clip"]) != 2:
            raise wrong(at, "clip", data["clip"], "two numbers, the smallest and the largest value")
    if "buckets" in data:
        column["buckets"] = _ascending(data, "buckets", at)
    if "decimal" in data:
        column["decimal"] = choice(data, "decimal", at, DECIMALS)
    return DenseColumn(name=text(data, "name", at), **column)


def _table(data: Any, at: str) -> TableSpec:
    known = {_TABLE_FIELDS.get(field.name, field.name) for field in fields(TableSpec)}
    known_fields(data, at, {*known, "hash"})
    optional: dict[str, Any] = {}
    if "pooling" in data:
        optional["pooling"] = choice(data, "pooling", at, POOLINGS)
    if "hash" in data and flag(data, "hash", at):
        optional["ids"] = "hash"
    if "ids" in data:
        optional["ids"] = choice(data, "ids", at, ID_KINDS)
    if "strings" in data:
        optional["strings"] = choice(data, "strings", at, STRING_HASHES)
    if "separator" in data:
        optional["separator"] = text(data, "separator", at)
    if "min_count" in data:
        optional["min_count"] = count(data, "min_count", at)
    for name in ("date", "part", "format"):
        if name in data:
            optional[name] = text(data, name, at)
    spec = TableSpec(
        name=text(data, "name", at),
        num_embeddings=count(data, "rows", at),
        feature_names=_texts(data, "features", at),
        **optional,
    )
    if spec.strings and spec.ids == "index":
        raise wrong(
            at, "ids", "index", f"hash, fmix64, vocabulary or zero_collision: {spec.strings} gives 64-bit IDs"
        )
    if spec.date or spec.part or spec.format:
        _check_date(spec, at)
    if spec.is_mapped and spec.num_embeddings < 2:
        raise wrong(at, "rows", spec.num_embeddings, "at least 2: the last row is that of all other IDs")
    return spec


def _check_date(spec: TableSpec, at: str) -> None:
    if not spec.date:
        raise wrong(at, "date", "none", "the column of dates of the part")
    if spec.part not in DATE_PARTS:
        raise wrong(at, "part", spec.part or "none", f"one of {', '.join(DATE_PARTS)}")
    if len(spec.feature_names) != 1:
        raise wrong(at, "features", list(spec.feature_names), "one name, that of the part as an input")
    if spec.ids != "index" or spec.separator:
        raise wrong(at, "date", spec.date, "no ids, strings or separator: the part of a date is a row")
    if spec.num_embeddings < DATE_PARTS[spec.part]:
        raise wrong(at, "rows", spec.num_embeddings, f"{DATE_PARTS[spec.part]}, one for each {spec.part}")


def _texts(data: Any, key: str, at: str) -> tuple[str, ...]:
    texts = json_field(data, key, at)
    if not isinstance(texts, list) or not texts or not all(isinstance(t, str) and t for t in texts):
        raise wrong(at, key, texts, "a list of at least one text")
    return tuple(texts)


def _number(data: Any, key: str, at: str) -> float:
    return _finite(json_field(data, key, at), at, key)


def _finite(value: Any, at: str, key: str) -> float:
    if type(value) not in (int, float) or not math.isfinite(value):
        raise wrong(at, key, value, "a finite number")
    return float(value)


def _ascending(data: Any, key: str, at: str) -> tuple[float, ...]:
    items = a_list(data, key, at)
    found = [_finite(item, f"{at}.{key}", str(i)) for i, (_, item) in enumerate(items)]
    if not found or any(a >= b for a, b in pairwise(found)):
        raise wrong(at, key, data[key], "ascending numbers")
    return tuple(found)
