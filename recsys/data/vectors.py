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
from pyarrow import compute, parquet
from torch import Tensor, nn

from recsys.base.files import replacing
from recsys.checkpoint.single_file import build_model, load_checkpoint
from recsys.data.batches import row_chunks
from recsys.data.examples import Bags
from recsys.data.lines import DataError
from recsys.data.tables.dataset import check_kept, unlabeled
from recsys.data.tables.reading.files import open_files
from recsys.models.click import ClickModel
from recsys.models.retrieval import item_digest
from recsys.models.zoo import TwoTowerModel, towers_of

_BATCH_ROWS = 4096
_COLUMN = "vector"
# The file's metadata: ``item_digest`` of the model that gave the vectors.
_MODEL_KEY = "recsys.item_digest"


def write_item_vectors(checkpoint: Path, items: Path, output: Path, keep: Sequence[str] = ()) -> int:
    """Write a row ``vector`` for each row of a table of items, in its order; return their number.

    Args:
        checkpoint: A two-tower model that recsys-train wrote.
        items: A table with the columns of the item tower.
        output: The Parquet file to write.
        keep: Columns of the table to write too, such as the items' IDs.

    Raises:
        DataError: The model has no schema, or the table cannot be read.
        ValueError: The model has no towers.
        OSError: The file cannot be written.
    """
    model = build_model(load_checkpoint(checkpoint)).eval()
    towers = towers_of(model)
    if not isinstance(model, ClickModel) or model.inputs is None:
        raise DataError("checkpoint: got a model without a schema, expected one of recsys-train --data")
    schema = replace(model.inputs, dense=()).with_sparse(towers.item_features)
    metadata = {_MODEL_KEY: item_digest(towers)}
    num_rows = 0
    writer: Any = None
    files = open_files(items)
    check_kept(files, keep)
    with replacing(output) as partial:
        for file in files:
            for examples, kept in unlabeled(file, schema, keep):
                empty = Bags(np.zeros(0, dtype=np.int64), np.zeros(len(examples) + 1, dtype=np.int64))
                bags = {name: examples.bags.get(name, empty) for name in model.inputs.feature_names}
                vectors = _vectors(towers, replace(examples, bags=bags))
                flat = pa.FixedSizeListArray.from_arrays(vectors.ravel(), vectors.shape[1])
                columns = {name: kept.column(name) for name in keep}
                table = pa.table({**columns, _COLUMN: flat}).replace_schema_metadata(metadata)
                writer = writer or parquet.ParquetWriter(partial, table.schema)
                writer.write_table(table)
                num_rows += table.num_rows
        if writer is None:
            raise DataError("items: got no rows, expected at least one")
        writer.close()
    return num_rows


@torch.no_grad()
def _vectors(model: TwoTowerModel, examples: Any) -> Any:
    """Return ``[N, D]``."""
    parts = [
        model.item_vectors(examples.batch(rows).kjt).numpy()
        for rows in row_chunks(len(examples), _BATCH_ROWS)
    ]
    return np.concatenate(parts)


def read_item_vectors(path: Path, model: nn.Module) -> Tensor:
    """Return the vectors of a Parquet file, float32 ``[N, D]``.

    Args:
        path: What ``write_item_vectors`` wrote, or any file with a column ``vector`` of lists of numbers.
        model: The two-tower model that the vectors are of.

    Raises:
        DataError: The file cannot be read, its vectors are not all there, or it says that another model gave them.
        ValueError: The model has no towers.
    """
    towers = towers_of(model)
    try:
        table = parquet.read_table(path, columns=[_COLUMN])
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"items: cannot read {path.name!r} as Parquet: {type(error).__name__}") from None
    if _COLUMN not in table.column_names or not _is_list_of_floats(table.schema.field(_COLUMN).type):
        raise DataError(
            f"items: {path.name!r} has no column {_COLUMN!r} of lists of floats; write it with recsys-data item-vectors"
        )
    column = table.column(_COLUMN)
    widths = compute.list_value_length(column).unique().to_pylist()
    parts = [chunk.flatten() for chunk in column.chunks]
    if len(widths) != 1 or column.null_count or any(part.null_count for part in parts):
        raise DataError(
            f"items: {path.name!r} has vectors of the widths {widths[:5]}, or missing numbers, expected at least one "
            "vector and the same width for all"
        )
    written_by = (table.schema.metadata or {}).get(_MODEL_KEY.encode())
    if written_by is not None and written_by.decode() != item_digest(towers):
        raise DataError(
            f"items: the vectors in {path.name!r} are another model's: the item tower or its tables differ; write them "
            "with recsys-data item-vectors and this checkpoint"
        )
    numbers = np.concatenate([part.to_numpy(zero_copy_only=False) for part in parts], dtype=np.float32)
    return torch.from_numpy(numbers.reshape(-1, widths[0]))


def _is_list_of_floats(kind: Any) -> bool:
    is_list = pa.types.is_list(kind) or pa.types.is_fixed_size_list(kind) or pa.types.is_large_list(kind)
    return bool(is_list and pa.types.is_floating(kind.value_type))
