"""The columns of a schema: labels, dense features, and tables of sparse features, each with what reads it."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from itertools import pairwise
from typing import Any

from recsys.base.hashing import STRING_HASHES
from recsys.base.json_checks import a_list, choice, count, flag, json_field, known_fields, text, whole, wrong

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
#: The losses of labels that are numbers.
NUMBER_LOSSES = ("mse", "huber")
#: The parts of a date that are IDs, and how many there are: hours are 0 to 23, weekdays 0 (Monday) to 6.
DATE_PARTS = {"hour": 24, "weekday": 7}


@dataclass(frozen=True, kw_only=True)
class LabelColumn:
    """A label: 0 or 1, or a number.

    Attributes:
        name: The column.
        at_least: The label is 1 where the column is at least this; None where it holds 0 and 1.
        positive: The label is 1 where the column is one of these texts; empty where it holds 0 and 1.
        loss: One of ``NUMBER_LOSSES`` where the label is a number; empty where it is 0 or 1.
        delta: With "huber": the error, in ``std``, from which the loss grows by it and no longer by its square.
        mean: Of a number: the prediction where the model gives 0. None for the mean of the training rows.
        std: Of a number: the unit of what the model gives. None for that of the training rows.
    """

    name: str
    at_least: float | None = None
    positive: tuple[str, ...] = ()
    loss: str = ""
    delta: float = 1.0
    mean: float | None = None
    std: float | None = None

    @property
    def is_number(self) -> bool:
        """Whether the model predicts the column's number, and not the chance of a 1."""
        return bool(self.loss)

    @property
    def scale(self) -> tuple[float, float]:
        """The mean and the unit of a number; 0 and 1 where the training rows have not set them."""
        return self.mean or 0.0, self.std or 1.0


def learns_numbers(labels: Sequence[LabelColumn]) -> bool:
    """Return whether any label is a number."""
    return any(label.is_number for label in labels)


_ELEMENT = re.compile(r"(.+)\[(\d{1,6})\]")
# Fields of a dense column that say how it is read, and are no transforms.
_READ = ("decimal", "size", "element", "since", "until", "format")


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
        quantiles: Buckets that hold as many training rows each, for which the data set sets ``buckets``; 0 for none.
        size: Numbers of each list, where the column holds vectors; 0 for one number.
        element: Which number of a vector this is; its name is ``vector[element]``. A schema's entry with a size alone
            stands for all of them.
        since: The column of a time, where the number is the seconds from it to ``until``; empty where the column holds
            numbers.
        until: The column of the row's own time, with ``since``. A schema's entry without it means the schema's time.
        format: How both times are written, as ``strptime`` takes it; empty for ISO 8601 and numbers since 1970.
    """

    name: str
    missing: float = 0.0
    clip: tuple[float, float] | None = None
    log1p: bool = False
    mean: float = 0.0
    std: float = 1.0
    buckets: tuple[float, ...] = ()
    decimal: str = "."
    quantiles: int = 0
    size: int = 0
    element: int = 0
    since: str = ""
    until: str = ""
    format: str = ""

    @property
    def column(self) -> str:
        """The column of numbers that it is read from."""
        return self.name.removesuffix(f"[{self.element}]") if self.size else self.name

    @property
    def columns(self) -> tuple[str, ...]:
        """All columns that it is read from."""
        return (self.since, self.until) if self.since else (self.column,)

    @property
    def width(self) -> int:
        """Number of features that the transforms give."""
        return len(self.buckets) + 1 if self.buckets else 1

    @property
    def is_plain(self) -> bool:
        """Whether there is no transform; a missing value is an error then."""
        read = {name: getattr(self, name) for name in _READ}
        return self == DenseColumn(name=self.name, **read)


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


def vectors_in(columns: Sequence[str]) -> dict[str, int]:
    """Return the vectors that columns such as ``vector[0]``, ``vector[1]`` are the numbers of, with their sizes."""
    matches = [found for name in columns if (found := _ELEMENT.fullmatch(name))]
    sizes: dict[str, int] = {}
    for found in matches:
        if int(found[2]) == sizes.get(found[1], 0):
            sizes[found[1]] = int(found[2]) + 1
    return sizes


#: The names of fields of a table in files, where they are others.
TABLE_FIELDS = {"num_embeddings": "rows", "feature_names": "features"}


def plain_column(item: LabelColumn | DenseColumn | TableSpec) -> dict[str, Any]:
    """Return the fields that differ from their defaults, as plain data."""
    values = asdict(item)
    given = {f.name: values[f.name] for f in fields(item) if values[f.name] != f.default}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in given.items()}


def label_of(data: Any, at: str) -> LabelColumn:
    """Return a label from untrusted data.

    Raises:
        ManifestError: A field is wrong; the message names it.
    """
    known_fields(data, at, {field.name for field in fields(LabelColumn)})
    optional: dict[str, Any] = {
        name: number_of(data, name, at) for name in ("at_least", "delta", "mean", "std") if name in data
    }
    if "positive" in data:
        optional["positive"] = texts_of(data, "positive", at)
    if "loss" in data:
        optional["loss"] = choice(data, "loss", at, NUMBER_LOSSES)
    if len({"at_least", "positive", "loss"} & set(optional)) > 1:
        field = "loss" if "loss" in optional else "positive"
        raise wrong(at, field, data[field], "one of at_least, positive and loss")
    for name, needed in (("delta", ("huber",)), ("mean", NUMBER_LOSSES), ("std", NUMBER_LOSSES)):
        if name in optional and optional.get("loss") not in needed:
            raise wrong(at, name, data[name], f"it with the loss {' or '.join(needed)} alone")
    for name in ("delta", "std"):
        if optional.get(name, 1.0) <= 0:
            raise wrong(at, name, data[name], "a number above 0")
    return LabelColumn(name=text(data, "name", at), **optional)


def dense_of(data: Any, at: str) -> tuple[DenseColumn, ...]:
    """Return a dense feature, or each number of a vector, as ``label_of``."""
    if isinstance(data, str) and data:
        return (DenseColumn(name=data),)
    known_fields(data, at, {field.name for field in fields(DenseColumn)})
    column: dict[str, Any] = {
        name: number_of(data, name, at) for name in ("missing", "mean", "std") if name in data
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
    if "quantiles" in data:
        column["quantiles"] = count(data, "quantiles", at)
        if column["quantiles"] < 2 or "buckets" in data:
            raise wrong(at, "quantiles", data["quantiles"], "at least 2, and no buckets beside it")
    for field in ("since", "until", "format"):
        if field in data:
            column[field] = text(data, field, at)
    if column.keys() & {"until", "format"} and "since" not in column:
        field = "until" if "until" in column else "format"
        raise wrong(at, field, data[field], "it with since, the column of the time that the age counts from")
    if "since" in column and ("size" in data or "decimal" in data):
        raise wrong(at, "since", data["since"], "no size and no decimal: an age is one number")
    return _elements(data, at, column)


def _elements(data: Any, at: str, column: dict[str, Any]) -> tuple[DenseColumn, ...]:
    """Return the features of a column with these fields."""
    name = text(data, "name", at)
    if "size" not in data:
        if "element" in data:
            raise wrong(at, "element", data["element"], "it with size alone")
        return (DenseColumn(name=name, **column),)
    size = count(data, "size", at)
    if "element" not in data and not name.endswith("[0]"):
        return tuple(DenseColumn(name=f"{name}[{i}]", size=size, element=i, **column) for i in range(size))
    element = whole(data, "element", at) if "element" in data else 0
    if element >= size or not name.endswith(f"[{element}]"):
        raise wrong(at, "element", element, f"a number below {size}, at the end of the name {name!r}")
    return (DenseColumn(name=name, size=size, element=element, **column),)


def table_of(data: Any, at: str) -> TableSpec:
    """Return a table from untrusted data, as ``label_of``."""
    known = {TABLE_FIELDS.get(field.name, field.name) for field in fields(TableSpec)}
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
        feature_names=texts_of(data, "features", at),
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


def texts_of(data: Any, key: str, at: str) -> tuple[str, ...]:
    """Return a list of at least one text, as ``label_of``."""
    texts = json_field(data, key, at)
    if not isinstance(texts, list) or not texts or not all(isinstance(t, str) and t for t in texts):
        raise wrong(at, key, texts, "a list of at least one text")
    return tuple(texts)


def number_of(data: Any, key: str, at: str) -> float:
    """Return a finite number, as ``label_of``."""
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
