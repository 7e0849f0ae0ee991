"""The plain PyTorch loop with a DeepFM; it reads the Parquet file in each epoch.

Shape letters: B batch, D embedding dim, F features, I dense features, N rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from pyarrow import parquet
from torch import Tensor, nn

from benchmarks.measure.machine import prepare
from benchmarks.trainers.plain_training import Plain, dense_layers, plain_ids
from benchmarks.trainers.public.task import TABLE_FILE, Rows, Task, padded
from benchmarks.trainers.public.worker import serve

#: Dense features ``[B, I]``, IDs ``[B, F]``, and values ``[N]`` and offsets ``[B]`` of each list.
Inputs = tuple[Tensor, ...]
_SCORED_ROWS = 4096


class PlainDeepFM(nn.Module):
    """A DeepFM as a tutorial has it: a table for each feature, and one of width 1 for the first-order terms."""

    def __init__(self, task: Task) -> None:
        super().__init__()
        dim = task.embedding_dim
        self.tables = nn.ModuleList(nn.Embedding(rows, dim, sparse=True) for rows in task.features.values())
        self.biases = nn.ModuleList(nn.Embedding(rows, 1, sparse=True) for rows in task.features.values())
        lists = task.lists.values()
        self.list_tables = nn.ModuleList(nn.EmbeddingBag(n, dim, mode="mean", sparse=True) for n in lists)
        self.list_biases = nn.ModuleList(nn.EmbeddingBag(n, 1, mode="mean", sparse=True) for n in lists)
        for part in self.modules():
            if isinstance(part, (nn.Embedding, nn.EmbeddingBag)):
                nn.init.uniform_(part.weight, -0.01, 0.01)
        self.first = nn.Linear(task.num_dense, 1) if task.num_dense else None
        self.deep = dense_layers([task.width, *task.layers, 1], ends_linear=True)

    def forward(self, dense: Tensor, ids: Tensor, *lists: Tensor) -> Tensor:
        """Map the inputs to logits ``[B]``."""
        bags = list(zip(lists[::2], lists[1::2], strict=True))
        columns = list(ids.unbind(1))
        vectors = torch.stack(_looked_up(self.tables, columns) + _pooled(self.list_tables, bags), dim=1)
        biases = torch.cat(_looked_up(self.biases, columns) + _pooled(self.list_biases, bags), dim=1)
        total = vectors.sum(1)
        pairs = 0.5 * (total.square() - vectors.square().sum(1)).sum(1)
        logits: Tensor = (
            biases.sum(1) + pairs + self.deep(torch.cat([dense, vectors.flatten(1)], dim=1)).squeeze(1)
        )
        return logits if self.first is None else logits + self.first(dense).squeeze(1)


def _looked_up(tables: nn.ModuleList, columns: list[Tensor]) -> list[Tensor]:
    return [table(column) for table, column in zip(tables, columns, strict=True)]


def _pooled(tables: nn.ModuleList, bags: list[tuple[Tensor, Tensor]]) -> list[Tensor]:
    return [table(*bag) for table, bag in zip(tables, bags, strict=True)]


class PlainSide:
    """The plain loop."""

    def __init__(self, task: Task, folder: Path) -> None:
        self._task, self._folder = task, folder
        self._held_out = Rows.load(folder, "held_out")
        self._num_train = len(Rows.load(folder, "train"))
        torch.manual_seed(0)
        self._model = PlainDeepFM(task)
        self._epoch = 0
        self._loop = Plain(self._read, self._model)

    def epoch(self, number: int) -> None:
        """Train on all rows."""
        self._epoch = number
        self._loop.epoch()

    @torch.no_grad()
    def scores(self) -> NDArray[Any]:
        """Return logits ``[N]``."""
        rows = self._held_out
        found = []
        for start in range(0, len(rows), _SCORED_ROWS):
            found.append(self._model(*inputs(rows, slice(start, start + _SCORED_ROWS))))
        return torch.cat(found).numpy()

    def _read(self) -> Iterator[tuple[Tensor, ...]]:
        """Yield inputs and labels ``[B]`` in a random order."""
        rows = read_rows(self._folder / TABLE_FILE, self._task, self._num_train)
        order = np.random.default_rng(self._epoch).permutation(len(rows))
        for start in range(0, len(rows), self._task.batch_size):
            part = order[start : start + self._task.batch_size]
            yield (*inputs(rows, part), torch.from_numpy(rows.labels[part]))


def read_rows(path: Path, task: Task, num_rows: int) -> Rows:
    """Return the first rows of the table: texts are hashed, a missing number is 0."""
    types = {field.name: field.type for field in parquet.read_schema(path)}
    texts = [name for name in task.features if pa.types.is_string(types[name])]
    table = parquet.read_table(path, read_dictionary=texts).slice(0, num_rows).combine_chunks()

    def ids(name: str, table_rows: int) -> NDArray[np.int64]:
        column = table.column(name).combine_chunks()
        return plain_ids(column, table_rows) if name in texts else column.to_numpy()

    numbers = [table.column(column["name"]).fill_null(0).to_numpy() for column in task.schema["dense"]]
    dense = np.stack(numbers, axis=1, dtype=np.float32, casting="unsafe") if numbers else None
    return Rows(
        ids=np.stack([ids(name, rows) for name, rows in task.features.items()], axis=1),
        dense=np.zeros((num_rows, 0), np.float32) if dense is None else np.log1p(dense),
        lists={name: _lists(table.column(name).combine_chunks()) for name in task.lists},
        labels=table.column(task.schema["labels"][0]["name"]).to_numpy().astype(np.float32),
    )


def _lists(lists: pa.ListArray) -> NDArray[np.int64]:
    return padded(lists.flatten().to_numpy(), lists.value_lengths().to_numpy())


def inputs(rows: Rows, part: NDArray[np.int64] | slice) -> Inputs:
    """Return the model's arguments for some rows."""
    bags = []
    for lists in rows.lists.values():
        mask = lists[part] >= 0
        lengths = mask.sum(1)
        bags += [torch.from_numpy(lists[part][mask]), torch.from_numpy(np.cumsum(lengths) - lengths)]
    return (torch.from_numpy(rows.dense[part]), torch.from_numpy(rows.ids[part]), *bags)


if __name__ == "__main__":
    prepare()
    serve("plain PyTorch", ["torch"], PlainSide)
