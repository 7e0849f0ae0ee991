"""Entries of a schema for columns of known use."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from recsys.base.table_modules import TAKEN_NAMES
from recsys.data.tables.infer.column import Column
from recsys.inputs.schema import DATE_PARTS, DenseColumn, TableSpec

_MIN_ROWS = 1_000
# Rows per different value of a hashed table, so that few values share one.
_ROWS_PER_VALUE = 16
_LARGE = 100.0


def date_tables(column: Column, taken: Sequence[str]) -> Iterator[TableSpec]:
    """Yield a table for each part of a column of dates."""
    for part in column.date_parts:
        name = f"{column.name}_{part}"
        while name in taken:
            name += "_"
        yield TableSpec(
            name=_table_name(name),
            num_embeddings=DATE_PARTS[part],
            feature_names=(name,),
            date=column.name,
            part=part,
            format=column.date_form.form,
        )


def dense_column(column: Column) -> DenseColumn:
    """Return a dense column, scaled by the sample's mean and standard deviation."""
    numbers = column.numbers
    assert numbers is not None
    is_large = float(np.abs(numbers).max()) > _LARGE
    values = np.sign(numbers) * np.log1p(np.abs(numbers)) if is_large else numbers
    std = float(values.std())
    mean = float(values.mean())
    return DenseColumn(
        name=column.name,
        missing=0.0 if is_large else _rounded(mean),
        log1p=is_large,
        mean=_rounded(mean),
        std=_rounded(std) if std > 1e-6 * max(1.0, abs(mean)) else 1.0,
    )


def _rounded(number: float) -> float:
    return float(f"{number:.4g}")


def _table_name(name: str) -> str:
    """Return a name of letters, digits and underscores, those of any alphabet, that no attribute of modules has."""
    name = re.sub(r"\W+", "_", name)
    return f"{name}_table" if name in TAKEN_NAMES else name


def with_unique_names(tables: Iterable[TableSpec]) -> tuple[TableSpec, ...]:
    """Return tables with a number behind names that occurred before: columns ``a-b`` and ``a.b`` have one each."""
    taken: set[str] = set()
    unique = []
    for table in tables:
        name, number = table.name, 1
        while name in taken:
            number += 1
            name = f"{table.name}_{number}"
        taken.add(name)
        unique.append(replace(table, name=name))
    return tuple(unique)


def table_spec(column: Column, hash_rows: int) -> TableSpec:
    """Return the table of a sparse column."""
    separator = column.separator
    num_values = len(column.items)
    # A table whose values the sample has seen is made small; other values share its rows.
    is_seen = num_values * _ROWS_PER_VALUE <= max(len(column.values), _MIN_ROWS)
    rows = max(_MIN_ROWS, 1 << (num_values * _ROWS_PER_VALUE - 1).bit_length()) if is_seen else hash_rows
    are_texts = column.ids in ("texts", "beyond", "signed")
    return TableSpec(
        name=_table_name(column.name),
        num_embeddings=min(rows, hash_rows),
        feature_names=(column.name,),
        pooling="MEAN" if separator or column.is_list else "SUM",
        ids="hash" if are_texts else "fmix64",  # the IDs of texts are hashes already
        strings="xxh64" if are_texts else "",
        separator=separator,
    )
