"""Next items: tables of histories without labels, how often items occur, and how an order by that ranks.

Shape letters: H longest history, N number of examples, R number of items.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recsys.data.examples import Bags, Block, Dataset, Examples, Ints
from recsys.data.lines import DataError
from recsys.data.tables.dataset import dataset_of
from recsys.data.tables.reading.files import open_files
from recsys.inputs.example_rows import ExampleRows
from recsys.inputs.schema import Schema
from recsys.metrics.ranked import RankMetrics, measure_ranks


@dataclass(frozen=True, kw_only=True)
class NextItemColumns:
    """Which features are learned from.

    Attributes:
        history: The feature of the history's IDs, the latest last.
        target: The feature of the item that follows.
    """

    history: str
    target: str


@dataclass(frozen=True, kw_only=True)
class ItemCounts:
    """The items of some examples.

    Attributes:
        ids: Their IDs as examples have them, int64 ``[R]``, ascending.
        counts: How often each occurs, int64 ``[R]``.
    """

    ids: Ints
    counts: Ints

    def of(self, ids: Ints) -> Ints:
        """Return how often some items occur; 0 for unknown ones."""
        if not len(self.ids):
            return np.zeros(ids.shape, dtype=np.int64)
        places = np.searchsorted(self.ids, ids).clip(max=len(self.ids) - 1)
        return np.where(self.ids[places] == ids, self.counts[places], 0)


def next_item_dataset(
    data: Any, schema: Schema, columns: NextItemColumns, limit_rows: int | None = None
) -> Dataset:
    """Return the data set of a table of histories.

    Where the table has no column of the target, the last item of each history is the target, and the history is
    without it.

    Args:
        data: As ``recsys.data.tables.dataset.table_dataset`` takes it.
        schema: The use of each column. It need not have the target, which gets the history's table.
        columns: Which features are learned from.
        limit_rows: Number of first rows to read.

    Raises:
        DataError: As ``table_dataset``; or the schema has labels, or no history of this name.
    """
    if schema.labels:
        raise DataError(
            f"schema.labels: got {', '.join(schema.label_names)}, expected none: next-item learns the items that "
            "follow histories (leave the labels out of the schema)"
        )
    whole = _with_target(schema, columns)
    files = open_files(data)
    if any(columns.target in file.types for file in files):
        return dataset_of(files, whole, limit_rows)
    dataset = dataset_of(files, whole.with_sparse(set(whole.feature_names) - {columns.target}), limit_rows)
    rows_as_sent = dataset.rows_as_sent
    assert rows_as_sent is not None
    return replace(
        dataset,
        schema=whole,
        train=partial(_split_blocks, dataset.train, whole, columns),
        held_out=partial(_split_blocks, dataset.held_out, whole, columns),
        rows_as_sent=lambda num_rows: _split_rows(rows_as_sent(num_rows), whole, columns),
        splits_histories=True,
        notices=(
            *dataset.notices,
            f"the table has no column {columns.target!r}: the last item of each {columns.history!r} is the next item, "
            "and each item is learned from those before it",
        ),
    )


def count_items(blocks: Iterator[Block], columns: NextItemColumns) -> ItemCounts:
    """Return the items of histories and targets.

    Raises:
        DataError: There are none.
    """
    found, counts = np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
    for block in blocks:
        examples = block.take(np.arange(len(block)))
        ids, number = np.unique(
            np.concatenate([examples.bags[name].values for name in (columns.history, columns.target)]),
            return_counts=True,
        )
        joined, places = np.unique(np.concatenate((found, ids)), return_inverse=True)
        counts = np.bincount(places, np.concatenate((counts, number)), minlength=len(joined)).astype(np.int64)
        found = joined
    if not len(found):
        raise DataError(
            f"columns {columns.history!r} and {columns.target!r}: got no item in any training row, expected some"
        )
    return ItemCounts(ids=found, counts=counts)


def first_ids(bags: Bags) -> tuple[Ints, NDArray[np.bool_]]:
    """Return the first ID of each example, int64 ``[N]``, and whether it has one."""
    has_one = np.diff(bags.offsets) > 0
    ids = np.zeros(len(has_one), dtype=np.int64)
    ids[has_one] = bags.values[bags.offsets[:-1][has_one]]
    return ids, has_one


def latest_ids(bags: Bags, size: int) -> tuple[Ints, NDArray[np.bool_]]:
    """Return the last IDs of each example, the latest first, int64 ``[N, size]``, and which places have one."""
    places = bags.offsets[1:, None] - 1 - np.arange(size)
    there = places >= bags.offsets[:-1, None]
    if not len(bags.values):
        return np.zeros(there.shape, dtype=np.int64), there
    return np.where(there, bags.values[places.clip(min=0)], 0), there


def by_popularity(dataset: Dataset, items: ItemCounts, columns: NextItemColumns) -> RankMetrics | None:
    """Return how the order of all items by their counts ranks the held-out next items; None without any."""
    ascending, total = np.sort(items.counts), items.counts.sum()
    parts = [np.zeros((0, 3))]
    for block in dataset.held_out():
        examples = block.take(np.arange(len(block)))
        ids, has_one = first_ids(examples.bags[columns.target])
        counts = items.of(ids[has_one])
        ranks = len(ascending) - np.searchsorted(ascending, counts) - (counts > 0)
        weights = np.ones(len(counts)) if examples.weights is None else examples.weights[has_one]
        parts.append(np.stack((ranks, -np.log(np.maximum(counts, 1) / total), weights), axis=1))
    found = np.concatenate(parts)
    return measure_ranks(*found.T, num_items=len(items.ids)) if len(found) else None


def _with_target(schema: Schema, columns: NextItemColumns) -> Schema:
    names = schema.feature_names
    if columns.history not in names or columns.history == columns.target:
        raise DataError(
            f"history: got {columns.history!r}, expected one of the schema's sparse features "
            f"{[name for name in names if name != columns.target]}"
        )
    if columns.target in names:
        return schema
    return replace(
        schema,
        tables=tuple(
            replace(table, feature_names=(*table.feature_names, columns.target))
            if columns.history in table.feature_names
            else table
            for table in schema.tables
        ),
    )


def _split_blocks(
    blocks: Callable[[], Iterator[Block]], schema: Schema, columns: NextItemColumns
) -> Iterator[_SplitBlock]:
    for block in blocks():
        yield _SplitBlock(block, schema.feature_names, columns)


class _SplitBlock:
    """A block whose histories lose their last item, which becomes the target."""

    def __init__(self, block: Block, names: Sequence[str], columns: NextItemColumns) -> None:
        self._block = block
        self._names = names
        self._columns = columns

    def __len__(self) -> int:
        return len(self._block)

    def take(self, rows: Ints) -> Examples:
        """Return the given examples, in that order."""
        examples = self._block.take(rows)
        history = examples.bags[self._columns.history]
        lengths = np.diff(history.offsets)
        is_last = np.zeros(len(history.values), dtype=bool)
        is_last[history.offsets[1:][lengths > 0] - 1] = True
        has_one = np.minimum(lengths, 1)
        split = {
            self._columns.history: Bags(history.values[~is_last], _offsets(lengths - has_one)),
            self._columns.target: Bags(history.values[is_last], _offsets(has_one)),
        }
        bags = examples.bags | split
        return replace(examples, bags={name: bags[name] for name in self._names})


def _offsets(lengths: Ints) -> Ints:
    return np.concatenate(([0], np.cumsum(lengths)))


def _split_rows(rows: ExampleRows, schema: Schema, columns: NextItemColumns) -> ExampleRows:
    histories = rows.sparse[columns.history]
    sparse = {
        **rows.sparse,
        columns.history: [history[:-1] for history in histories],
        columns.target: [history[-1:] for history in histories],
    }
    return replace(rows, sparse={name: sparse[name] for name in schema.feature_names})
