"""How many rows of their tables the IDs of a sample use: those of one row are one to the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from recsys.base.hashing import rows_of_ids
from recsys.data.lines import DataError
from recsys.data.tables.columns import Columns
from recsys.data.tables.crossed import different_combinations
from recsys.data.tables.reading.pieces import Piece
from recsys.data.tables.values.arrow_types import plain_table
from recsys.inputs.columns import RAW, TableSpec
from recsys.inputs.crosses import CrossSpec

_SAMPLE_ROWS = 65_536
# Rows per ID below which a table is too small: about a fifth of the IDs share one at random.
_FEW_ROWS_PER_ID = 2
# The least share of the rows that random IDs would read; if fewer are read, the IDs have a pattern.
_SHARE_OF_RANDOM = 0.7


@dataclass(frozen=True, kw_only=True)
class RowUse:
    """The rows that a feature's IDs read.

    Attributes:
        num_ids: Different IDs, or texts, in the sample.
        num_rows: The rows that they read.
        table_rows: The rows of the table.
    """

    num_ids: int
    num_rows: int
    table_rows: int

    def __str__(self) -> str:
        return f"{self.num_ids:,} IDs read {self.num_rows:,} of {self.table_rows:,} rows"

    @property
    def is_crowded(self) -> bool:
        """Whether the rows are much fewer than the IDs."""
        return 1 < self.num_ids >= 2 * self.num_rows


def row_uses(
    sample: pa.Table, tables: Sequence[TableSpec], crosses: Sequence[CrossSpec] = ()
) -> dict[str, RowUse]:
    """Return the rows that the IDs of a sample read, for each feature of the hashed tables and each crossed one.

    Features with a wrong value are left out: reading the whole table names its place.

    Args:
        sample: Rows with the tables' columns.
        tables: The tables.
        crosses: Crossed features of their columns.
    """
    columns = Columns(plain_table(sample), lambda row: f"row {row}")
    found = {}
    for spec in tables:
        for name in spec.feature_names if spec.is_hashed else ():
            try:
                ids = np.unique(columns.bags(name, replace(spec, ids=RAW)).values)
            except DataError:
                continue
            rows = np.unique(rows_of_ids(ids, spec.ids, spec.num_embeddings))
            found[name] = RowUse(num_ids=len(ids), num_rows=len(rows), table_rows=spec.num_embeddings)
    for cross in crosses:
        try:
            combinations = different_combinations(columns, cross, tables)
        except DataError:
            continue
        rows = np.unique(combinations % cross.num_embeddings)
        found[cross.name] = RowUse(
            num_ids=len(combinations), num_rows=len(rows), table_rows=cross.num_embeddings
        )
    return found


def warnings_of(uses: Mapping[str, RowUse], tables: Sequence[TableSpec]) -> list[str]:
    """Return a line for each feature whose IDs share few rows, with what to do about it."""
    lines = []
    for spec in tables:
        for name in spec.feature_names:
            use = uses.get(name)
            if use is None or not use.is_crowded:
                continue
            lines.append(f"{name}: {use}, so that most share theirs: {_remedy(use, spec)}")
    return lines


def sharing_notices(pieces: Sequence[Piece], tables: Sequence[TableSpec]) -> tuple[str, ...]:
    """Return a line for each feature whose many numbers share few rows of a table that hashes by a plain modulo."""
    plain = [spec for spec in tables if spec.ids == "hash" and not spec.strings]
    names = [name for spec in plain for name in spec.feature_names]
    if not names or not pieces:
        return ()
    try:
        sample = pieces[0].read(names).slice(0, _SAMPLE_ROWS)
    except DataError:  # which the training meets, and names
        return ()
    return tuple(warnings_of(row_uses(sample, plain), plain))


def _remedy(use: RowUse, spec: TableSpec) -> str:
    at_random = use.table_rows * -np.expm1(-use.num_ids / use.table_rows)
    if spec.ids == "hash" and use.num_rows < _SHARE_OF_RANDOM * at_random:
        return f'give table {spec.name!r} ids = "fmix64", which spreads IDs with equal low bits'
    return f"give table {spec.name!r} at least {_FEW_ROWS_PER_ID * use.num_ids:,} rows"
