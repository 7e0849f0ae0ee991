"""MovieLens-100k as histories: the item that follows what a user rated before.

Shape letters: H longest history, N users.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import parquet

from benchmarks.trainers.public.task import TABLE_FILE, Rows, Sequence, Task, padded
from recsys.inputs.schema import Schema, TableSpec

_HISTORY, _NEXT = "seen", "next_item"
_DIM = 32


def histories(table: pa.Table) -> list[NDArray[np.int64]]:
    """Return the items of each user with three at least, of ratings in the order of time."""
    users, items = (table.column(name).to_numpy() for name in ("user_id", "item_id"))
    order = np.argsort(users, kind="stable")
    bounds = np.flatnonzero(np.diff(users[order])) + 1
    return [of_user for of_user in np.split(items[order], bounds) if len(of_user) > 2]


def write_histories(name: str, users: list[NDArray[np.int64]], folder: Path) -> tuple[Task, int]:
    """Write what all trainers get into a folder; the last item of each user is held out.

    The table has rows of at most H + 1 items, of which the last H are next items, then the held-out rows.

    Returns:
        The task, and the number of next items that are learned.
    """
    size = Sequence.max_history
    learned = [
        of_user[start : start + size + 1]
        for of_user in (items[:-1] for items in users)
        for start in range(0, len(of_user) - 1, size)
    ]
    rows = [*learned, *(items[-size - 1 :] for items in users)]
    lengths = np.array([len(row) for row in rows])
    column = pa.ListArray.from_arrays(np.cumsum([0, *lengths]).astype(np.int32), np.concatenate(rows))
    parquet.write_table(pa.table({_HISTORY: column}), folder / TABLE_FILE)
    num_items = 1 + max(int(items.max()) for items in users)
    table = TableSpec(name="item", num_embeddings=num_items, feature_names=(_HISTORY,))
    schema = Schema(labels=(), dense=(), tables=(table,), held_out=len(users) / len(rows))
    task = Task(
        name=name,
        model="sasrec",
        embedding_dim=_DIM,
        num_dense=0,
        features={_NEXT: num_items},
        lists={_HISTORY: num_items},
        schema=schema.to_json(),
    )
    task.save(folder)
    _rows([items[:-1] for items in users], None).save(folder, "train")
    _rows([items[-size - 1 : -1] for items in users], [items[-1] for items in users]).save(folder, "held_out")
    return task, int(sum(len(items) - 2 for items in users))


def _rows(seen: list[NDArray[np.int64]], following: list[np.int64] | None) -> Rows:
    number = len(seen)
    return Rows(
        ids=np.zeros((number, 0), np.int64) if following is None else np.array(following)[:, None],
        dense=np.zeros((number, 0), np.float32),
        lists={_HISTORY: padded(np.concatenate(seen), np.array([len(items) for items in seen]))},
        labels=np.zeros(number, np.float32),
    )
