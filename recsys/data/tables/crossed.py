"""Crossed features of a table's rows.

Shape letters: N number of examples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from recsys.base.hashing import Int64s
from recsys.data.examples import Bags
from recsys.data.tables.columns import Columns
from recsys.inputs.columns import RAW, TableSpec
from recsys.inputs.crosses import CrossSpec, mixed_combinations, rows_of_combinations


def crossed(columns: Columns, cross: CrossSpec, tables: Sequence[TableSpec]) -> Bags:
    """Return the rows of a crossed feature: one for each of N examples, none where a feature is missing.

    Args:
        columns: The rows.
        cross: The feature.
        tables: Those of the features that are crossed.

    Raises:
        DataError: A value is wrong, or a row has several values of a feature.
    """
    ids, lengths = _ids_of(columns, cross, tables)
    return Bags(rows_of_combinations(ids, cross.num_embeddings), np.concatenate(([0], np.cumsum(lengths))))


def different_combinations(columns: Columns, cross: CrossSpec, tables: Sequence[TableSpec]) -> Int64s:
    """Return the number of each combination, once, as ``mixed_combinations`` defines it.

    Takes and raises what ``crossed`` does.
    """
    return np.unique(mixed_combinations(_ids_of(columns, cross, tables)[0]))


def _ids_of(columns: Columns, cross: CrossSpec, tables: Sequence[TableSpec]) -> tuple[list[Int64s], Int64s]:
    """Return the raw IDs of each feature of the combinations, and how many combinations each row has, 0 or 1."""
    table_of = {name: table for table in tables for name in table.feature_names}
    found = [columns.bags(name, replace(table_of[name], ids=RAW)) for name in cross.feature_names]
    for name, bags in zip(cross.feature_names, found, strict=True):
        expected = f"at most one: {cross.name!r} crosses the column"
        columns.expect_at_most(1, name, np.diff(bags.offsets), expected)
    lengths = np.min([np.diff(bags.offsets) for bags in found], axis=0, initial=1)
    places = np.flatnonzero(lengths)
    return [bags.values[bags.offsets[places]] for bags in found], lengths
