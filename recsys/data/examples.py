"""Training data in columns, and the batches made of them.

Shape letters: B batch, F features, L labels, N number of IDs or of examples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from recsys import KeyedJaggedTensor
from recsys.data.labels import check_both_classes
from recsys.inputs.example_rows import ExampleRows
from recsys.inputs.schema import Schema, TableSpec
from recsys.metrics.ranked import RankMetrics

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Bags:
    """One feature of N examples: the IDs of example ``i`` are ``values[offsets[i]:offsets[i + 1]]``.

    Attributes:
        values: int64, all IDs one after the other.
        offsets: int64 ``[N + 1]``.
    """

    values: Ints
    offsets: Ints

    @staticmethod
    def single(ids: Ints) -> Bags:
        """Return one ID per example."""
        return Bags(ids, _counted(len(ids) + 1))

    @staticmethod
    def optional(ids: Ints) -> Bags:
        """Return one ID per example, none if it is negative."""
        known = ids >= 0
        if known.all():
            return Bags.single(ids)
        return Bags(ids[known], np.concatenate(([0], np.cumsum(known))))

    @staticmethod
    def from_lists(bags: Sequence[Sequence[int]]) -> Bags:
        """Make bags of any number of IDs per example."""
        lengths = np.fromiter(map(len, bags), dtype=np.int64, count=len(bags))
        values = np.fromiter((i for bag in bags for i in bag), dtype=np.int64, count=int(lengths.sum()))
        return Bags(values, np.concatenate(([0], np.cumsum(lengths))))

    @staticmethod
    def concatenate(parts: Sequence[Bags]) -> Bags:
        """Return the parts' bags one after the other; at least one part."""
        if len(parts) == 1:
            return parts[0]
        lengths = np.concatenate([part.lengths for part in parts])
        return Bags(
            np.concatenate([part.values for part in parts]), np.concatenate(([0], np.cumsum(lengths)))
        )

    @cached_property
    def lengths(self) -> Ints:
        """The number of IDs of each example, ``[N]``."""
        return np.diff(self.offsets)

    @cached_property
    def is_single(self) -> bool:
        """Whether each example has one ID."""
        return len(self.values) == len(self.offsets) - 1 and bool((self.lengths == 1).all())

    def take(self, rows: Ints) -> Bags:
        """Return the bags of the given examples, in that order."""
        if self.is_single:
            return Bags.single(self.values[rows])
        starts = self.offsets[rows]
        lengths = self.offsets[rows + 1] - starts
        if len(rows) and (lengths == 1).all():
            return Bags.single(self.values[starts])
        offsets = np.concatenate(([0], np.cumsum(lengths)))
        within = np.arange(offsets[-1]) - np.repeat(offsets[:-1], lengths)
        return Bags(self.values[np.repeat(starts, lengths) + within], offsets)


@lru_cache(maxsize=2)
def _counted(number: int) -> Ints:
    """Return the numbers below ``number``, one array for all features of a block."""
    numbers = np.arange(number)
    numbers.setflags(write=False)
    return numbers


@dataclass(frozen=True)
class LabeledBatch:
    """The training data of one step.

    Attributes:
        dense: float32 ``[B, number of dense features]``.
        kjt: F features of B rows; its lengths per key are known.
        labels: float32 ``[B, L]``, 0 or 1, or numbers.
        num_global_rows: Rows of this step on all ranks together; B with one rank.
        weights: float32 ``[B]``, the factor of each example's loss; None for 1.
    """

    dense: Tensor
    kjt: KeyedJaggedTensor
    labels: Tensor
    num_global_rows: int
    weights: Tensor | None = None

    def to(self, device: torch.device, *, non_blocking: bool = False) -> LabeledBatch:
        """Return the batch on a device, except the sparse features, which are split in host memory."""
        return LabeledBatch(
            self.dense.to(device, non_blocking=non_blocking),
            self.kjt,
            self.labels.to(device, non_blocking=non_blocking),
            self.num_global_rows,
            None if self.weights is None else self.weights.to(device, non_blocking=non_blocking),
        )

    def pin_memory(self) -> LabeledBatch:
        """Return the batch with what ``to`` copies in page-locked memory, for asynchronous copies to CUDA."""
        weights = None if self.weights is None else self.weights.pin_memory()
        return LabeledBatch(
            self.dense.pin_memory(), self.kjt, self.labels.pin_memory(), self.num_global_rows, weights
        )


class Block(Protocol):
    """Consecutive examples of a source, not parsed until they are taken."""

    def __len__(self) -> int: ...

    def take(self, rows: Ints) -> Examples:
        """Return the given examples, in that order. Only these are parsed."""
        ...


@dataclass(frozen=True, kw_only=True)
class Examples:
    """N examples in columns.

    Attributes:
        dense: float32 ``[N, number of dense features]``.
        bags: The features' IDs, by feature.
        labels: float32 ``[N, L]``, 0 or 1, or numbers.
        weights: float32 ``[N]``, the factor of each example's loss; None for 1.
    """

    dense: NDArray[np.float32]
    bags: dict[str, Bags]
    labels: NDArray[np.float32]
    weights: NDArray[np.float32] | None = None

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, rows: Ints) -> Examples:
        """Return the given examples, in that order."""
        return Examples(
            dense=self.dense[rows],
            bags={name: bags.take(rows) for name, bags in self.bags.items()},
            labels=self.labels[rows],
            weights=None if self.weights is None else self.weights[rows],
        )

    @staticmethod
    def concatenate(parts: Sequence[Examples]) -> Examples:
        """Return the parts' examples one after the other; at least one part."""
        if len(parts) == 1:
            return parts[0]
        weights = [part.weights for part in parts if part.weights is not None]
        return Examples(
            dense=np.concatenate([part.dense for part in parts]),
            bags={name: Bags.concatenate([part.bags[name] for part in parts]) for name in parts[0].bags},
            labels=np.concatenate([part.labels for part in parts]),
            weights=None if not weights else np.concatenate(weights),
        )

    def batch(self, rows: Ints, num_global_rows: int | None = None) -> LabeledBatch:
        """Return the given examples as tensors.

        Args:
            rows: Which examples.
            num_global_rows: See ``LabeledBatch``; None if there is one rank.
        """
        return self.take(rows).batch_between(
            0, len(rows), len(rows) if num_global_rows is None else num_global_rows
        )

    def batch_between(self, first: int, end: int, num_global_rows: int) -> LabeledBatch:
        """Return consecutive examples as tensors; see ``batch``."""
        all_bags = self.bags.values()
        if all(bags.is_single for bags in all_bags):
            ids = [bags.values[first:end] for bags in all_bags]
            lengths = np.ones(len(ids) * (end - first), dtype=np.int64)
        else:
            ids = [bags.values[bags.offsets[first] : bags.offsets[end]] for bags in all_bags]
            lengths = np.concatenate([bags.lengths[first:end] for bags in all_bags])
        kjt = KeyedJaggedTensor(
            keys=list(self.bags),
            values=torch.from_numpy(np.concatenate(ids)),
            lengths=torch.from_numpy(lengths),
            stride=end - first,
            length_per_key=[len(of_key) for of_key in ids],
        )
        return LabeledBatch(
            torch.from_numpy(self.dense[first:end]),
            kjt,
            torch.from_numpy(self.labels[first:end]),
            num_global_rows,
            None if self.weights is None else torch.from_numpy(self.weights[first:end]),
        )


@dataclass(frozen=True, kw_only=True)
class Reference:
    """A reference for the model's AUC.

    Attributes:
        name: A short name, for JSON: ``popularity``, ``planted``.
        text: A description.
        auc: The AUC on the held-out examples; None if it is not defined.
        ranked: How it ranks the held-out next items; None where labels are learned.
    """

    name: str
    text: str
    auc: float | None = None
    ranked: RankMetrics | None = None


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """A source of examples, read block by block, any number of times.

    Attributes:
        name: The name of the source.
        schema: The columns by their use.
        num_train_rows: Examples to learn from.
        num_held_out_rows: Examples to measure on.
        train: Starts an epoch over the training examples; each epoch gives the same blocks.
        held_out: Starts a pass over the held-out examples.
        fingerprint: Returns a digest of the data: the same for the same examples.
        reference: Computes the reference; None if there is none.
        vocabularies: Returns the IDs of each table with a vocabulary, int64, in the order of their rows.
        labels: Starts a pass over the labels of the training examples, ``[N, L]`` each; None reads the examples.
        rows_as_sent: Returns so many held-out rows, or fewer, as clients send them; None where they send the IDs of
            ``held_out``.
        splits_histories: Whether the next item of each row is the last of a history, which is then without it.
        notices: What a user should know of the data, one line each.
        columns: What the columns were taken for where the schema was inferred, in a few lines.
    """

    name: str
    schema: Schema
    num_train_rows: int
    num_held_out_rows: int
    train: Callable[[], Iterator[Block]]
    held_out: Callable[[], Iterator[Block]]
    fingerprint: Callable[[], str]
    reference: Callable[[], Reference | None] = lambda: None
    vocabularies: Callable[[], dict[str, Ints]] = dict
    labels: Callable[[], Iterator[NDArray[np.float32]]] | None = None
    rows_as_sent: Callable[[int], ExampleRows] | None = None
    splits_histories: bool = False
    notices: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()

    def check_labels(self) -> None:
        """Check that each label is 0 for some training examples and 1 for others. Numbers are not looked at.

        Raises:
            DataError: One is not.
        """
        if not self.schema.labels:
            return
        if self.labels is not None:
            check_both_classes(self.schema.labels, self.labels())
            return
        blocks = (block.take(np.arange(len(block))).labels for block in self.train())
        check_both_classes(self.schema.labels, blocks)

    @property
    def dense_names(self) -> tuple[str, ...]:
        """The dense features, in order."""
        return self.schema.dense_names

    @property
    def tables(self) -> tuple[TableSpec, ...]:
        """The tables of the sparse features."""
        return self.schema.tables


def held_out_rows(num_rows: int, share: float = 0.1) -> int:
    """Return the number of last rows that are held out: a share of all, at least one.

    Raises:
        ValueError: There are too few rows to hold any out.
    """
    if num_rows < 2:
        raise ValueError(f"rows: got {num_rows}, expected at least 2: one to learn from, one to measure on")
    return min(max(1, int(num_rows * share + 1e-9)), num_rows - 1)
