"""What all trainers of a comparison get: the same rows, split and sizes. It needs NumPy alone.

Shape letters: F features of one ID, I dense features, L longest list, N rows.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

_TASK_FILE = "task.json"
#: The rows as recsys-train and the plain loop read them.
TABLE_FILE = "table.parquet"


#: The rows of a step, which are next items for a SASRec.
BATCH_SIZE = 1024
#: Next items are ranked among the first so many.
TOP = 10


@dataclass(frozen=True, kw_only=True)
class Sequence:
    """A SASRec's sizes.

    Attributes:
        max_history: Of longer histories the last so many items count.
        num_layers: Blocks; the inner layers are as wide as the vectors.
        num_heads: Of their attention.
        dropout: The share of numbers that training leaves out.
    """

    max_history: int = 20
    num_layers: int = 2
    num_heads: int = 2
    dropout: float = 0.2


@dataclass(frozen=True, kw_only=True)
class Task:
    """A comparison.

    Attributes:
        name: Of the table.
        model: "deepfm", or "sasrec", whose rows are users: the first list is the items of each, the latest last, and of
            held-out rows the first feature is the item that follows.
        sequence: Of a SASRec.
        embedding_dim: Of every table.
        layers: Sizes of the deep layers, before one of size 1.
        batch_size: Rows of a step.
        num_dense: I.
        features: The rows of each table, by feature of one ID, in order.
        lists: The rows of each table, by feature of a list of IDs, whose vectors' mean counts.
        schema: The use of the columns, as recsys-train takes it.
    """

    name: str
    model: str = "deepfm"
    embedding_dim: int = 16
    layers: tuple[int, ...] = (256, 128)
    batch_size: int = BATCH_SIZE
    sequence: Sequence = Sequence()
    num_dense: int
    features: Mapping[str, int]
    lists: Mapping[str, int]
    schema: Mapping[str, Any]

    @property
    def width(self) -> int:
        """Numbers that go into the deep layers."""
        return self.num_dense + self.embedding_dim * (len(self.features) + len(self.lists))

    def save(self, folder: Path) -> None:
        """Write the task into a folder."""
        (folder / _TASK_FILE).write_text(json.dumps(asdict(self)))

    @classmethod
    def load(cls, folder: Path) -> Task:
        """Read the task of a folder."""
        data = json.loads((folder / _TASK_FILE).read_text())
        return cls(**{**data, "layers": tuple(data["layers"]), "sequence": Sequence(**data["sequence"])})


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Rows whose IDs are rows of their tables.

    Attributes:
        ids: int64 ``[N, F]``.
        dense: float32 ``[N, I]``, transformed.
        lists: int64 ``[N, L]`` by feature, filled with -1 after the last ID.
        labels: float32 ``[N]``, 0 or 1.
    """

    ids: NDArray[np.int64]
    dense: NDArray[np.float32]
    lists: Mapping[str, NDArray[np.int64]]
    labels: NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.labels)

    def save(self, folder: Path, part: str) -> None:
        """Write the rows into a folder as its ``part``: "train" or "held_out"."""
        lists: dict[str, Any] = {f"list:{name}": ids for name, ids in self.lists.items()}
        np.savez(folder / f"{part}.npz", ids=self.ids, dense=self.dense, labels=self.labels, **lists)

    @classmethod
    def load(cls, folder: Path, part: str) -> Rows:
        """Read a part of a folder."""
        with np.load(folder / f"{part}.npz") as held:
            lists = {name.removeprefix("list:"): held[name] for name in held if name.startswith("list:")}
            return cls(ids=held["ids"], dense=held["dense"], lists=lists, labels=held["labels"])


def padded(values: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return lists one after the other, ``[sum of lengths]``, as ``[N, L]`` with -1 after the last ID of each."""
    mask = np.arange(lengths.max(initial=0)) < lengths[:, None]
    found = np.full(mask.shape, -1, np.int64)
    found[mask] = values
    return found


def rank_qualities(ranks: NDArray[np.int64]) -> dict[str, float]:
    """Return the metrics of next items with so many items before them, ``[N]``."""
    is_hit = ranks < TOP
    return {
        "ndcg": float(np.where(is_hit, 1 / np.log2(ranks + 2), 0).mean()),
        "hit_rate": float(is_hit.mean()),
    }
