"""Items' vectors of a two-tower model, for a search index.

Shape letters: D width of a tower's vectors, N number of items.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from pyarrow import parquet

from recsys.checkpoint.single_file import build_model, load_checkpoint
from recsys.data.examples import Bags
from recsys.data.lines import DataError
from recsys.data.tables.dataset import open_files, unlabeled
from recsys.files import replacing
from recsys.models.click import ClickModel
from recsys.models.zoo import TwoTowerModel
from recsys.schema import Schema

_BATCH_ROWS = 4096


def write_item_vectors(checkpoint: Path, items: Path, output: Path, keep: Sequence[str] = ()) -> int:
    """Write a row ``vector`` for each row of a table of items, in its order; return their number.

    Args:
        checkpoint: A two-tower model that recsys-train wrote.
        items: A table with the columns of the item tower.
        output: The Parquet file to write.
        keep: Columns of the table to write too, such as the items' IDs.

    Raises:
        DataError: The model has no towers, or the table cannot be read.
        OSError: The file cannot be written.
    """
    model = build_model(load_checkpoint(checkpoint)).eval()
    if (
        not isinstance(model, ClickModel)
        or not isinstance(model.model, TwoTowerModel)
        or model.inputs is None
    ):
        raise DataError(
            "checkpoint: got a model without towers, expected one of recsys-train --model twotower"
        )
    schema = item_schema(model.inputs, model.model.item_features)
    num_rows = 0
    writer: Any = None
    with replacing(output) as partial:
        for file in open_files(items):
            missing = [name for name in keep if name not in file.types]
            if missing:
                raise DataError(
                    f"keep: got unknown columns {missing[:5]}, expected some of {list(file.types)[:20]}"
                )
            for piece, examples in unlabeled(file, schema):
                empty = Bags(np.zeros(0, dtype=np.int64), np.zeros(len(examples) + 1, dtype=np.int64))
                bags = {name: examples.bags.get(name, empty) for name in model.inputs.feature_names}
                vectors = _vectors(model.model, replace(examples, bags=bags))
                flat = pa.FixedSizeListArray.from_arrays(vectors.ravel(), vectors.shape[1])
                kept = {name: piece.read([name]).column(name) for name in keep}
                table = pa.table({**kept, "vector": flat})
                writer = writer or parquet.ParquetWriter(partial, table.schema)
                writer.write_table(table)
                num_rows += table.num_rows
        if writer is None:
            raise DataError("items: got no rows, expected at least one")
        writer.close()
    return num_rows


def item_schema(schema: Schema, item_features: Sequence[str]) -> Schema:
    """Return the schema with the items' sparse columns alone."""
    tables = [
        replace(table, feature_names=tuple(name for name in table.feature_names if name in item_features))
        for table in schema.tables
    ]
    return replace(schema, dense=(), tables=tuple(table for table in tables if table.feature_names))


@torch.no_grad()
def _vectors(model: TwoTowerModel, examples: Any) -> Any:
    """Return ``[N, D]``."""
    parts = [
        model.item_vectors(
            examples.batch(np.arange(first, min(first + _BATCH_ROWS, len(examples)))).kjt
        ).numpy()
        for first in range(0, len(examples), _BATCH_ROWS)
    ]
    return np.concatenate(parts)
