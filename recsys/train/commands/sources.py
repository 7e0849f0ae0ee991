"""The data sources by name, and how they are opened."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from recsys.data.examples import Dataset
from recsys.data.next_items import NextItemColumns, next_item_dataset
from recsys.data.sources.criteo import criteo
from recsys.data.sources.movielens import movielens
from recsys.data.sources.synthetic import synthetic
from recsys.data.tables.dataset import table_dataset
from recsys.data.tables.infer import infer
from recsys.data.tables.infer.summary import column_lines
from recsys.data.tables.row_use import row_uses, warnings_of
from recsys.data.tables.schema_file import read_schema
from recsys.inputs.schema import Schema
from recsys.train.commands.defaults import DEFAULTS, SYNTHETIC_ROWS


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """The data source.

    Attributes:
        name: "synthetic", "criteo", "movielens", or "table" for files of any columns.
        path: A file (criteo), a folder (movielens), or what ``table_dataset`` takes (table); None for synthetic.
        limit_rows: Read at most this many rows; for synthetic, the length of the stream.
        hash_rows: Rows of each Criteo table, and of tables without a schema that have many different values.
        schema: File that says which column is what; None infers it.
        inputs: The schema of a model to start from or to go on with; None for a new model.
        labels: The labels' columns, for a table without a schema; empty finds them by their names.
        ignore: Columns to leave out, of a table without a schema.
        seed: The seed of the synthetic stream.
        next_item: What a model learns that learns next items, of a table; None for labels.
    """

    name: str
    path: Any = None
    limit_rows: int | None = None
    hash_rows: int = 100_000
    schema: Path | None = None
    inputs: Schema | None = None
    labels: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    seed: int = 0
    next_item: NextItemColumns | None = None


def open_dataset(config: DataConfig) -> Dataset:
    """Open a data source.

    Raises:
        ValueError: The name is unknown, the path is missing or not allowed, or the data is invalid.
    """
    if config.name not in DEFAULTS:
        raise ValueError(f"data: got {config.name!r}, expected one of {sorted(DEFAULTS)}")
    if config.limit_rows is not None and config.limit_rows < 2:
        raise ValueError(f"limit_rows: got {config.limit_rows}, expected at least 2")
    for name, given in (("schema", config.schema), ("labels", config.labels), ("ignore", config.ignore)):
        if given and config.name != "table":
            raise ValueError(f"{name}: got {str(given)!r}, expected none: {config.name} data has its own")
    if config.next_item is not None and config.name != "table":
        raise ValueError(
            f"objective: got next-item with {config.name} data, expected a table with a column of histories"
        )
    if config.name == "synthetic":
        if config.path is not None:
            raise ValueError(f"path: got {str(config.path)!r}, expected none: synthetic data is not read")
        return synthetic(config.limit_rows or SYNTHETIC_ROWS, config.seed)
    if config.path is None:
        raise ValueError(f"path: got none, expected where the {config.name} data lies")
    if config.name == "criteo":
        return criteo(config.path, config.hash_rows, config.limit_rows)
    if config.name == "table":
        if config.schema is not None and (config.labels or config.ignore):
            raise ValueError(
                f"{'labels' if config.labels else 'ignore'}: got them with a schema, expected one of the two: the "
                "schema names the labels and all other columns that are read"
            )
        if config.schema is not None:
            schema = read_schema(config.schema)
        elif config.inputs is not None:
            schema = config.inputs
        elif config.next_item is not None:
            raise ValueError(
                "schema: got none, expected one with the table of the histories: a table without labels does not say "
                "what its columns are for"
            )
        else:
            schema, columns, notices = _inferred(config)
            pa.default_memory_pool().release_unused()  # the sample is larger than what is read at a time
            dataset = table_dataset(config.path, schema, config.limit_rows)
            notices = tuple(dict.fromkeys((*notices, *dataset.notices)))
            return replace(dataset, columns=columns, notices=notices)
        if config.next_item is not None:
            return next_item_dataset(config.path, schema, config.next_item, config.limit_rows)
        return table_dataset(config.path, schema, config.limit_rows)
    return movielens(config.path, config.limit_rows)


def _inferred(config: DataConfig) -> tuple[Schema, tuple[str, ...], tuple[str, ...]]:
    """Return the schema of a table, the use of its columns and warnings for the user, and free the sample."""
    inferred = infer(config.path, config.labels, config.hash_rows, config.ignore)
    warnings = warnings_of(row_uses(inferred.sample, inferred.schema.tables), inferred.schema.tables)
    return inferred.schema, column_lines(inferred, config.path), (*inferred.notices, *warnings)
