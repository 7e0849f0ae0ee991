"""Negatives: the items that an item which was chosen is learned against.

They are the items of the batch, items that are drawn, or both (Yang et al., "Mixed Negative Sampling for Learning
Two-tower Neural Networks in Recommendations", WWW 2020). Frequent items would be held down, so that a softmax subtracts
the logarithm of the chance that an item is among the candidates (Yi et al., "Sampling-Bias-Corrected Neural Modeling
for Large Corpus Item Recommendations", RecSys 2019).

Drawn items are rows of the batch behind its own: examples of an item without anything else.

Shape letters: B rows of a batch, F features, M drawn items, N number of IDs, P predictions, R number of items.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from recsys.data.examples import Bags, Block, Examples, Ints, LabeledBatch
from recsys.data.next_items import ItemCounts, first_ids
from recsys.jagged.keyed_jagged import KeyedJaggedTensor


@dataclass(frozen=True, kw_only=True)
class Negatives:
    """What is drawn, and from what.

    Attributes:
        items: How often each item is in the training examples.
        bags: The items' features by name, ``R`` examples each, in the order of ``items``.
        kind: One of ``recsys.train.config.NEGATIVES``.
        number: M, items drawn for a batch; not read for "in-batch".
        loss: "softmax" or "bpr".
    """

    items: ItemCounts
    bags: dict[str, Bags]
    kind: str = "in-batch"
    number: int = 0
    loss: str = "softmax"

    @property
    def num_drawn(self) -> int:
        """M; 0 for the items of the batch alone."""
        return 0 if self.kind == "in-batch" else self.number

    @property
    def has_batch(self) -> bool:
        """Whether the batch's own items are candidates."""
        return self.kind in ("in-batch", "mixed")

    @cached_property
    def _cumulated(self) -> Ints:
        return np.cumsum(self.items.counts)

    def extended(self, batch: LabeledBatch) -> LabeledBatch:
        """Return a batch with the drawn items behind its rows, the same for the same batch."""
        number = self.num_drawn
        if not number:
            return batch
        generator = np.random.default_rng(zlib.crc32(batch.kjt.values().numpy().data))
        if self.kind == "popularity":
            drawn = generator.integers(self._cumulated[-1], size=number)
            rows = np.searchsorted(self._cumulated, drawn, side="right")
        else:
            rows = generator.integers(len(self.items.ids), size=number)
        return _with_rows(batch, {name: bags.take(rows) for name, bags in self.bags.items()}, number)

    def log_chances(self, num_in_batch: int, num_ranks: int = 1) -> Callable[[Ints], NDArray[np.float32]]:
        """Return the logarithm of the chance that an item is among the candidates.

        Args:
            num_in_batch: Items of the batch itself, each occurrence counted.
            num_ranks: Ranks whose candidates they are, each of which draws items.
        """
        total = max(int(self.items.counts.sum()), 1)
        num_items = max(len(self.items.ids), 1)

        def of(ids: Ints) -> NDArray[np.float32]:
            # At most a half, which stands for an item that nearly all draws give.
            share = np.minimum(np.maximum(self.items.of(ids), 1) / total, 0.5)
            log_absent = np.zeros(len(ids))
            if self.has_batch:
                log_absent += max(num_in_batch, 1) * np.log1p(-share)
            if self.num_drawn:
                drawn = share if self.kind == "popularity" else np.minimum(1 / num_items, 0.5)
                log_absent += self.num_drawn * num_ranks * np.log1p(-drawn)
            return np.asarray(np.log(-np.expm1(log_absent)), dtype=np.float32)

        return of


def candidate_losses(own: Tensor, scores: Tensor, is_left_out: Tensor, loss: str) -> Tensor:
    """Return the loss of each prediction, ``[P]``.

    Args:
        own: The scores of what was chosen, ``[P]``.
        scores: Those of the candidates, ``[P, M]``.
        is_left_out: Candidates that are none for a prediction, ``[P, M]``.
        loss: "softmax": the cross entropy of the chosen among all. "bpr": the mean of ``-log sigmoid(own - other)``.
    """
    if loss == "bpr":
        pairs = functional.softplus(scores - own.unsqueeze(1)).masked_fill(is_left_out, 0)
        return pairs.sum(dim=1) / is_left_out.logical_not().sum(dim=1).clamp(min=1)
    logits = torch.cat((own.unsqueeze(1), scores.masked_fill(is_left_out, -torch.inf)), dim=1)
    return functional.cross_entropy(
        logits, logits.new_zeros(len(logits), dtype=torch.int64), reduction="none"
    )


def catalogue(blocks: Iterator[Block], features: Sequence[str]) -> tuple[ItemCounts, dict[str, Bags]]:
    """Return the items of some examples, told apart by the first feature, and the features of each where it is first.

    Args:
        blocks: The examples.
        features: The items' features.
    """
    ids, counts = np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
    found: list[dict[str, Bags]] = []
    of_found: list[Ints] = []
    for block in blocks:
        bags = block.take(np.arange(len(block))).bags
        every, there = first_ids(bags[features[0]])
        rows = np.flatnonzero(there)
        unique, first, number = np.unique(every[rows], return_index=True, return_counts=True)
        is_new = ~np.isin(unique, ids)
        of_found.append(unique[is_new])
        found.append({name: bags[name].take(rows[first[is_new]]) for name in features})
        joined, places = np.unique(np.concatenate((ids, unique)), return_inverse=True)
        counts = np.bincount(places, np.concatenate((counts, number)), minlength=len(joined)).astype(np.int64)
        ids = joined
    if not len(ids):
        raise ValueError(f"column {features[0]!r}: got no item in any training row, expected some")
    order = np.argsort(np.concatenate(of_found))
    whole = {name: Bags.concatenate([part[name] for part in found]).take(order) for name in features}
    return ItemCounts(ids=ids, counts=counts), whole


def bags_of(features: KeyedJaggedTensor, name: str) -> Bags:
    """Return a feature of a batch in host memory."""
    lengths = features[name].lengths().numpy()
    return Bags(features[name].values().numpy(), np.concatenate(([0], np.cumsum(lengths))))


def _with_rows(batch: LabeledBatch, items: dict[str, Bags], number: int) -> LabeledBatch:
    nothing = Bags(np.zeros(0, dtype=np.int64), np.zeros(number + 1, dtype=np.int64))
    names = batch.kjt.keys()
    rows = Examples(
        dense=np.zeros((number, batch.dense.shape[1]), dtype=np.float32),
        bags={name: items.get(name, nothing) for name in names},
        labels=np.zeros((number, batch.labels.shape[1]), dtype=np.float32),
        weights=None if batch.weights is None else np.ones(number, dtype=np.float32),
    )
    own = Examples(
        dense=batch.dense.numpy(),
        bags={name: bags_of(batch.kjt, name) for name in names},
        labels=batch.labels.numpy(),
        weights=None if batch.weights is None else batch.weights.numpy(),
    )
    whole = Examples.concatenate([own, rows])
    return whole.batch_between(0, len(whole), batch.num_global_rows)


def on_device(numbers: NDArray[Any], device: torch.device) -> Tensor:
    """Return numbers of host memory on a device."""
    return torch.from_numpy(numbers).to(device)
