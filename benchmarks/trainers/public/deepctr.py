"""DeepCTR-Torch's DeepFM, as its examples train it: encoded columns in memory, ``compile("adam")`` and ``fit``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.trainers.public.task import Rows, Task
from benchmarks.trainers.public.worker import serve


class DeepCTRSide:
    """``DeepFM.fit`` with one epoch for each call."""

    def __init__(self, task: Task, folder: Path) -> None:
        from deepctr_torch.inputs import DenseFeat, SparseFeat, VarLenSparseFeat
        from deepctr_torch.models import DeepFM

        train, held_out = Rows.load(folder, "train"), Rows.load(folder, "held_out")
        dim = task.embedding_dim
        columns: list[Any] = [
            SparseFeat(name, rows, embedding_dim=dim) for name, rows in task.features.items()
        ]
        columns += [DenseFeat(f"dense_{i}", 1) for i in range(task.num_dense)]
        # An ID of 0 is no ID in a list.
        columns += [
            VarLenSparseFeat(
                SparseFeat(name, rows + 1, embedding_dim=dim),
                maxlen=max(train.lists[name].shape[1], held_out.lists[name].shape[1]),
                combiner="mean",
            )
            for name, rows in task.lists.items()
        ]
        self._task, self._labels = task, train.labels
        self._lengths = {column.name: column.maxlen for column in columns if hasattr(column, "maxlen")}
        self._train, self._held_out = self._inputs(train), self._inputs(held_out)
        self._model = DeepFM(columns, columns, dnn_hidden_units=task.layers)
        self._model.compile("adam", "binary_crossentropy")

    def _inputs(self, rows: Rows) -> dict[str, NDArray[Any]]:
        found: dict[str, NDArray[Any]] = {name: rows.ids[:, i] for i, name in enumerate(self._task.features)}
        found |= {f"dense_{i}": rows.dense[:, i] for i in range(self._task.num_dense)}
        for name, length in self._lengths.items():
            ids = rows.lists[name] + 1
            found[name] = np.pad(ids, ((0, 0), (0, length - ids.shape[1])))
        return found

    def epoch(self, number: int) -> None:  # noqa: ARG002
        """Train on all rows."""
        self._model.fit(self._train, self._labels, batch_size=self._task.batch_size, epochs=1, verbose=0)

    def scores(self) -> NDArray[Any]:
        """Return probabilities ``[N]``."""
        found: NDArray[Any] = self._model.predict(self._held_out, 4096)[:, 0]
        return found


if __name__ == "__main__":
    torch.set_num_threads(1)
    serve("DeepCTR-Torch", ["deepctr-torch", "torch"], DeepCTRSide)
