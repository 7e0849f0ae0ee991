"""The objective next-item: a softmax over the items of a batch, and the place of held-out items among all items.

The candidates are the items of the batch, or drawn ones (``recsys.train.losses.negatives``). An item that is in a batch
by a row's own history alone is no candidate of this row.

Shape letters: B batch, D width of the vectors, H longest history, M candidates, N number of examples, P number of
predictions, R number of items, W world size.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch import distributed as dist

from recsys.base.collectives import gather_rows
from recsys.data.batches import Share, batches
from recsys.data.examples import Bags, Dataset, Examples, Ints, LabeledBatch
from recsys.data.next_items import ItemCounts, NextItemColumns, first_ids, latest_ids
from recsys.data.prefetch import prefetched
from recsys.inputs.schema import Schema
from recsys.metrics.ranked import RankMetrics, measure_ranks
from recsys.train.losses.candidates import Chosen, ItemPlaces, find_candidates, losses_among
from recsys.train.losses.negatives import Negatives, bags_of, on_device
from recsys.train.stepping.steps import Step
from recsys.train.stepping.tasks import StepTask

#: The largest M: more items cost time and change the loss little.
_MOST_CANDIDATES = 4096
_BATCH_SIZE = 4096
_PREFETCH = 2
# Scores of held-out examples and all items that are in memory at a time.
_MOST_SCORES = 1 << 24

#: Yields users' and items' vectors, ``[B, D]`` each, and the weights ``[B]`` or None, of each batch.
Vectors = Callable[[Iterable[LabeledBatch]], Iterator[tuple[LabeledBatch, Tensor, Tensor]]]


@dataclass(frozen=True, kw_only=True)
class NextItem:
    """What is learned.

    Attributes:
        columns: The features.
        negatives: The items of the training examples, and which of them are candidates.
        each: Whether each item of a history is learned from those before it, not the target alone.
    """

    columns: NextItemColumns
    negatives: Negatives
    each: bool

    @property
    def items(self) -> ItemCounts:
        """The items of the training examples."""
        return self.negatives.items


class NextItemTask(StepTask):
    """Learns which items follow a history.

    Args:
        model: A VectorsOf, over the ranks.
        world_size: W.
        objective: What is learned.
        group: The ranks whose items are candidates; None for this rank's alone.
    """

    def __init__(
        self, model: nn.Module, world_size: int, objective: NextItem, group: dist.ProcessGroup | None = None
    ) -> None:
        super().__init__(model, world_size, objective.negatives.num_drawn)
        self._objective = objective
        self._group = group
        self._has_dropout = any(isinstance(part, nn.Dropout) and part.p > 0 for part in model.modules())

    def forward(self, batch: LabeledBatch) -> tuple[Tensor, Step]:
        """Return the loss, scaled for the global batch, and the step."""
        with self._seeded(batch):
            users, following = self._model(batch.dense, batch.kjt)
        num_rows = self.num_rows(batch)
        vectors = torch.stack((users.select(1, 0), following.select(1, 0)))[:, :num_rows]
        loss = vectors.new_zeros(())
        if self.training:
            places = self._places(batch, users.size(1), num_rows)
            losses = row_losses(users, following, places, self._objective.negatives, self._group)[:num_rows]
            loss = self.weighted_sum(losses, batch)
        return self.record(batch, loss, None, vectors)

    def _seeded(self, batch: LabeledBatch) -> AbstractContextManager[Any]:
        """Seed what is left out by the batch, so that a resumed training leaves out the same."""
        if not (self.training and self._has_dropout):
            return nullcontext()
        device = batch.dense.device
        seeded = torch.random.fork_rng(devices=[device] if device.type == "cuda" else [])
        return _Seeded(seeded, zlib.crc32(batch.kjt.values().numpy().data))

    def _places(self, batch: LabeledBatch, size: int, num_rows: int) -> Places:
        columns = self._objective.columns
        target, has_target = first_ids(bags_of(batch.kjt, columns.target))
        seen, was_seen = latest_ids(bags_of(batch.kjt, columns.history), size)
        ids = np.concatenate((target[:, None], seen), axis=1)[:, :size]
        there = np.concatenate((has_target[:, None], was_seen), axis=1)[:, :size]
        learned = there & was_seen
        learned[:, 0] = has_target
        if not self._objective.each:
            learned[:, 1:] = False
        learned[num_rows:] = False
        return Places(ids=ids, there=there, learned=learned, num_rows=num_rows)


class _Seeded:
    """A forked generator with a seed."""

    def __init__(self, forked: AbstractContextManager[None], seed: int) -> None:
        self._forked = forked
        self._seed = seed

    def __enter__(self) -> None:
        self._forked.__enter__()
        torch.manual_seed(self._seed)

    def __exit__(self, *error: Any) -> None:
        self._forked.__exit__(*error)


@dataclass(frozen=True, kw_only=True)
class Places:
    """The items of a batch: the target of each row, then its history from the latest item on; behind them drawn ones.

    Attributes:
        ids: int64 ``[B, H]``.
        there: bool ``[B, H]``: which places have an item.
        learned: bool ``[B, H]``: which items are learned from what came before them.
        num_rows: Rows that are not drawn items.
    """

    ids: Ints
    there: NDArray[np.bool_]
    learned: NDArray[np.bool_]
    num_rows: int


def row_losses(
    users: Tensor,
    following: Tensor,
    places: Places,
    negatives: Negatives,
    group: dist.ProcessGroup | None = None,
) -> Tensor:
    """Return the mean loss of each row's predictions, ``[B]``; 0 for a row without any.

    Args:
        users: The user's vector at each place, ``[B, H, D]``.
        following: The vector of the item that followed, ``[B, H, D]``.
        places: The items.
        negatives: How often each occurs, and which are candidates.
        group: The ranks whose items are candidates; None for this rank's alone.
    """
    device = users.device
    items = ItemPlaces(
        ids=places.ids[places.there], rows=np.nonzero(places.there)[0], num_rows=places.num_rows
    )
    candidates = find_candidates(
        items, following[on_device(places.there, device)], negatives, group, _MOST_CANDIDATES
    )
    row_of = np.nonzero(places.learned)[0]
    learned = on_device(places.learned, device)
    chosen = Chosen(
        ids=places.ids[places.learned], rows=row_of, users=users[learned], items=following[learned]
    )
    losses = losses_among(candidates, chosen, negatives)
    shares = 1 / np.maximum(places.learned.sum(axis=1), 1)
    return users.new_zeros(len(users)).index_add(
        0, on_device(row_of, device), losses * on_device(shares[row_of].astype(np.float32), device)
    )


def rank_shares(
    vectors: Vectors, dataset: Dataset, objective: NextItem, share: Share, group: dist.ProcessGroup
) -> RankMetrics:
    """Return the metrics of the held-out next items, each among all items of the training; every rank must call it.

    Args:
        vectors: Yields the vectors of batches.
        dataset: The examples.
        objective: What is learned.
        share: This rank's.
        group: The ranks.

    Raises:
        ValueError: No held-out row has a next item, or vectors are not finite.
    """
    every = objective.items.ids
    catalogue = _as_targets(every, dataset.schema, objective.columns)
    with prefetched(batches(iter([catalogue]), _BATCH_SIZE, share=share), _PREFETCH) as ahead:
        own = torch.cat([item for _, _, item in vectors(ahead)])
    items = own.new_empty(len(every), own.size(1))
    places = [_rows_of(share.world_size, rank, len(every)) for rank in range(share.world_size)]
    items[torch.from_numpy(np.concatenate(places)).to(own.device)] = torch.cat(gather_rows(own, group))
    found = [own.new_empty(0, 3, dtype=torch.float64)]
    with prefetched(batches(dataset.held_out(), _BATCH_SIZE, share=share), _PREFETCH) as held_out:
        for batch, users, targets in vectors(held_out):
            ids, has_one = first_ids(bags_of(batch.kjt, objective.columns.target))
            kept = torch.from_numpy(has_one).to(users.device)
            weights = torch.ones(len(ids)) if batch.weights is None else batch.weights
            ranked = _ranked(users[kept], targets[kept], ids[has_one], items, every)
            found.append(torch.cat((ranked, weights.to(kept.device)[kept].double().unsqueeze(1)), dim=1))
    ranks, losses, weights = torch.cat(gather_rows(torch.cat(found), group)).cpu().numpy().T
    return measure_ranks(ranks, losses, weights, num_items=len(every))


def _rows_of(world_size: int, rank: int, num_rows: int) -> Ints:
    """Return the rows that a rank gets of ``batches``."""
    share, size = Share(rank=rank, world_size=world_size), _BATCH_SIZE * world_size
    parts = [np.zeros(0, dtype=np.int64)]
    for start in range(0, num_rows, size):
        first, end = share.bounds(min(size, num_rows - start))
        parts.append(np.arange(start + first, start + end))
    return np.concatenate(parts)


def _ranked(users: Tensor, targets: Tensor, ids: Ints, items: Tensor, every: Ints) -> Tensor:
    """Return the number of items before each target and its loss, float64 ``[N, 2]``.

    Args:
        users: ``[N, D]``.
        targets: The targets' vectors ``[N, D]``.
        ids: The targets' IDs ``[N]``.
        items: The vectors of all items ``[R, D]``.
        every: Their IDs, ascending.
    """
    at = np.searchsorted(every, ids).clip(max=len(every) - 1)
    known = torch.from_numpy(every[at] == ids).to(users.device)
    places = torch.from_numpy(at).to(users.device)
    parts = [users.new_empty(0, 2, dtype=torch.float64)]
    size = max(1, _MOST_SCORES // len(every))
    for first in range(0, len(ids), size):
        part = slice(first, first + size)
        scores, is_known = users[part] @ items.T, known[part]
        # Items that no training row had rank behind all others.
        own = torch.where(
            is_known,
            scores.gather(1, places[part].unsqueeze(1)).squeeze(1),
            (users[part] * targets[part]).sum(dim=1),
        )
        ranks = (scores >= own.unsqueeze(1)).sum(dim=1) - is_known.long()
        ranks = torch.where(is_known, ranks, len(every))
        total = torch.logsumexp(scores, dim=1)
        losses = torch.where(is_known, total, torch.logaddexp(total, own)) - own
        parts.append(torch.stack((ranks.double(), losses.double()), dim=1))
    return torch.cat(parts)


def _as_targets(ids: Ints, schema: Schema, columns: NextItemColumns) -> Examples:
    """Return an example for each item, with no history and no other feature."""
    size = len(ids)
    nothing = Bags(np.zeros(0, dtype=np.int64), np.zeros(size + 1, dtype=np.int64))
    bags = {name: Bags.single(ids) if name == columns.target else nothing for name in schema.feature_names}
    return Examples(
        dense=np.zeros((size, len(schema.dense)), dtype=np.float32),
        bags=bags,
        labels=np.zeros((size, 0), dtype=np.float32),
    )
