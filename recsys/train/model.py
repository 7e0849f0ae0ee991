"""A trained model in Python: scores of tables, and the file that ``recsys-export`` takes."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from recsys.checkpoint import Checkpoint, build_model, load_checkpoint, save_checkpoint
from recsys.data.batches import row_chunks
from recsys.data.examples import Examples
from recsys.data.explain.rows import RowExplanation, explain
from recsys.data.explain.tables import Similar, TableReport, similar, table_reports
from recsys.data.tables.dataset import unlabeled
from recsys.data.tables.reading.files import open_files
from recsys.errors import CheckpointError
from recsys.inputs.schema import Schema
from recsys.models.click import ClickModel

_BATCH_ROWS = 1024


class Model:
    """A model that ``fit`` or ``recsys-train`` trained.

    Args:
        checkpoint: The trained model.

    Attributes:
        checkpoint: The same.
        module: The model in evaluation mode; ``recsys.export.export_model`` takes it.
        schema: The columns of its tables.

    Raises:
        CheckpointError: The checkpoint is damaged, or has no schema: it was not written by ``recsys-train``.
    """

    def __init__(self, checkpoint: Checkpoint) -> None:
        schema = checkpoint.arguments.get("inputs")
        if schema is None:
            raise CheckpointError("arguments.inputs: got none, expected the schema that recsys-train writes")
        self.checkpoint = checkpoint
        self.module: nn.Module = build_model(checkpoint).eval()
        self.schema = Schema.from_json(schema)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Model:
        """Read a file that ``save`` or ``recsys-train --out`` wrote.

        Raises:
            CheckpointError: The file cannot be used; the message says why.
        """
        return cls(load_checkpoint(path))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the file, atomically. ``recsys-export`` takes it.

        Raises:
            DiskFullError: There is no room for it.
            OSError: The file cannot be written.
        """
        save_checkpoint(path, self.checkpoint)

    def predict(self, data: Any) -> dict[str, NDArray[Any]]:
        """Return the outputs for each row of a table, in its order.

        Args:
            data: A file, a folder, a pattern, or a frame of pandas, polars or Arrow, with the columns of the model's
                inputs; labels are not needed.

        Returns:
            Each output by name, ``[N, ...]``: probabilities (``score``, or by label), or the best items.

        Raises:
            DataError: The table cannot be read, lacks a column, or has a wrong value.
        """
        parts = [
            self._outputs(examples, rows)
            for file in open_files(data)
            for examples, _ in unlabeled(file, self.schema)
            for rows in row_chunks(len(examples), _BATCH_ROWS)
        ]
        return {name: torch.cat([part[name] for part in parts]).numpy() for name in parts[0]} if parts else {}

    def explain(self, data: Any, num_rows: int = 2) -> list[RowExplanation]:
        """Return what the model makes of the first rows of a table; see ``recsys.data.explain.rows``.

        Raises:
            DataError: The table cannot be read, lacks a column.
        """
        return explain(self._click_model(), self.schema, data, num_rows)

    def similar(self, column: str, value: Any, data: Any, top: int = 10) -> list[Similar]:
        """Return the values of a table's column whose rows are most like that of one, the most like first.

        Raises:
            DataError: The table cannot be read, or the value has no row of its own.
        """
        return similar(self._click_model(), self.schema, data, (column, value), top)

    def tables(self, data: Any = None) -> list[TableReport]:
        """Return a report on the rows of each table, and on how often the IDs of some data read them."""
        return table_reports(self._click_model(), self.schema, data)

    def _click_model(self) -> ClickModel:
        assert isinstance(self.module, ClickModel)
        return self.module

    @torch.no_grad()
    def _outputs(self, examples: Examples, rows: NDArray[np.int64]) -> dict[str, Tensor]:
        batch = examples.batch(rows)
        return self._click_model().predictions(batch.dense if self.schema.dense else None, batch.kjt)
