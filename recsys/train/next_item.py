"""The objective next-item: a softmax over the items of a batch, and the place of held-out items among all items.

Items are in a batch as often as in the data, so that frequent ones would be held down; the logarithm of the chance of
being in the batch is subtracted from each score (Yi et al., "Sampling-Bias-Corrected Neural Modeling for Large Corpus
Item Recommendations", RecSys 2019). An item that is in a batch by a row's own history alone is no candidate of this
row.

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
from torch.nn import functional

from recsys.base.collectives import gather_rows
from recsys.data.batches import Share, batches
from recsys.data.examples import Bags, Dataset, Examples, Ints, LabeledBatch
from recsys.data.next_items import ItemCounts, NextItemColumns, first_ids, latest_ids
from recsys.data.prefetch import prefetched
from recsys.inputs.schema import Schema
from recsys.jagged.keyed_jagged import KeyedJaggedTensor
from recsys.metrics.ranked import RankMetrics, measure_ranks
from recsys.models.click import ClickModel
from recsys.models.sequential import StateModel
from recsys.train.steps import Step

#: M at most: more cost time, and change the loss little.
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
        items: The items of the training examples.
        each: Whether each item of a history is learned from those before it, not the target alone.
    """

    columns: NextItemColumns
    items: ItemCounts
    each: bool


class StatesOf(ClickModel):
    """A ClickModel, with the same names, that returns the vectors of users and of items, for training."""

    @classmethod
    def of(cls, model: nn.Module) -> StatesOf:
        """Return the model of a ClickModel over a StateModel."""
        assert isinstance(model, ClickModel)
        assert isinstance(model.model, StateModel)
        return cls(model.model, model.inputs)

    def forward(  # type: ignore[override]
        self, dense_features: Tensor, sparse_features: KeyedJaggedTensor
    ) -> tuple[Tensor, Tensor]:
        """Return ``StateModel.states``."""
        assert isinstance(self.model, StateModel)
        if self.transforms is not None:
            dense_features = self.transforms(dense_features)
        return self.model.states(dense_features, sparse_features)


class NextItemTask(nn.Module):
    """A module that returns the loss and the step's record of a batch, as the pipeline expects.

    Args:
        model: A StatesOf, over the ranks.
        world_size: W; losses are scaled as ``recsys.train.trainer`` does.
        objective: What is learned.
    """

    def __init__(self, model: nn.Module, world_size: int, objective: NextItem) -> None:
        super().__init__()
        self._model = model
        self._world_size = world_size
        self._objective = objective
        self._has_dropout = any(isinstance(part, nn.Dropout) and part.p > 0 for part in model.modules())

    def forward(self, batch: LabeledBatch) -> tuple[Tensor, Step]:
        """Return the loss, scaled for the global batch, and the step."""
        with self._seeded(batch):
            users, following = self._model(batch.dense, batch.kjt)
        vectors = torch.stack((users.select(1, 0), following.select(1, 0)))
        loss = vectors.new_zeros(())
        if self.training:
            losses = row_losses(users, following, self._places(batch, users.size(1)), self._objective.items)
            loss = (losses if batch.weights is None else losses * batch.weights).sum()
        step = Step(
            loss=loss.detach(),
            logits=batch.labels,
            labels=batch.labels,
            weights=batch.weights,
            num_global_rows=batch.num_global_rows,
            vectors=vectors.detach(),
        )
        return loss * (self._world_size / batch.num_global_rows), step

    def _seeded(self, batch: LabeledBatch) -> AbstractContextManager[Any]:
        """Seed what is left out by the batch, so that a resumed training leaves out the same."""
        if not (self.training and self._has_dropout):
            return nullcontext()
        device = batch.dense.device
        seeded = torch.random.fork_rng(devices=[device] if device.type == "cuda" else [])
        return _Seeded(seeded, zlib.crc32(batch.kjt.values().numpy().data))

    def _places(self, batch: LabeledBatch, size: int) -> Places:
        columns = self._objective.columns
        target, has_target = first_ids(_bags(batch.kjt, columns.target))
        seen, was_seen = latest_ids(_bags(batch.kjt, columns.history), size)
        ids = np.concatenate((target[:, None], seen), axis=1)[:, :size]
        there = np.concatenate((has_target[:, None], was_seen), axis=1)[:, :size]
        learned = there & was_seen
        learned[:, 0] = has_target
        if not self._objective.each:
            learned[:, 1:] = False
        return Places(ids=ids, there=there, learned=learned)


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
    """The items of a batch: the target of each row, then its history from the latest item on.

    Attributes:
        ids: int64 ``[B, H]``.
        there: bool ``[B, H]``: which places have an item.
        learned: bool ``[B, H]``: which items are learned from what came before them.
    """

    ids: Ints
    there: NDArray[np.bool_]
    learned: NDArray[np.bool_]


def row_losses(users: Tensor, following: Tensor, places: Places, items: ItemCounts) -> Tensor:
    """Return the mean cross entropy of each row's predictions, ``[B]``; 0 for a row without any.

    Args:
        users: The user's vector at each place, ``[B, H, D]``.
        following: The vector of the item that followed, ``[B, H, D]``.
        places: The items.
        items: How often each occurs.
    """
    device, there = users.device, places.there
    flat = places.ids[there]
    rows = np.nonzero(there)[0]
    unique, first = np.unique(flat, return_index=True)
    last = len(flat) - 1 - np.unique(flat[::-1], return_index=True)[1]
    owners = np.where(rows[first] == rows[last], rows[first], -1)
    chosen = _chosen(len(unique), flat)
    candidates = following[torch.from_numpy(there).to(device)][torch.from_numpy(first[chosen]).to(device)]
    bias = _log_chances(items, len(flat))
    row_of = np.nonzero(places.learned)[0]
    targets = places.ids[places.learned]
    is_left_out = (unique[chosen][None, :] == targets[:, None]) | (owners[chosen][None, :] == row_of[:, None])

    def on_device(numbers: NDArray[Any]) -> Tensor:
        return torch.from_numpy(numbers).to(device)

    learned = on_device(places.learned)
    of_users, of_targets = users[learned], following[learned]
    scores = of_users @ candidates.T - on_device(bias(unique[chosen]))
    scores = scores.masked_fill(on_device(is_left_out), -torch.inf)
    own = (of_users * of_targets).sum(dim=1) - on_device(bias(targets))
    logits = torch.cat((own.unsqueeze(1), scores), dim=1)
    losses = functional.cross_entropy(
        logits, logits.new_zeros(len(logits), dtype=torch.int64), reduction="none"
    )
    shares = 1 / np.maximum(places.learned.sum(axis=1), 1)
    return users.new_zeros(len(users)).index_add(
        0, on_device(row_of), losses * on_device(shares[row_of].astype(np.float32))
    )


def _chosen(number: int, flat: Ints) -> Ints:
    """Return which of so many candidates are taken, the same for the same batch."""
    if number <= _MOST_CANDIDATES:
        return np.arange(number)
    generator = np.random.default_rng(zlib.crc32(flat.data))
    return np.sort(generator.choice(number, _MOST_CANDIDATES, replace=False))


def _log_chances(items: ItemCounts, num_drawn: int) -> Callable[[Ints], NDArray[np.float32]]:
    """Return the logarithm of the chance that an item is among so many drawn ones."""
    total = max(int(items.counts.sum()), 1)

    def of(ids: Ints) -> NDArray[np.float32]:
        # At most a half, which stands for an item that nearly all draws give.
        share = np.minimum(np.maximum(items.of(ids), 1) / total, 0.5)
        chances = -np.expm1(max(num_drawn, 1) * np.log1p(-share))
        return np.asarray(np.log(chances), dtype=np.float32)

    return of


def _bags(features: KeyedJaggedTensor, name: str) -> Bags:
    lengths = features[name].lengths().numpy()
    return Bags(features[name].values().numpy(), np.concatenate(([0], np.cumsum(lengths))))


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
            ids, has_one = first_ids(_bags(batch.kjt, objective.columns.target))
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
        # Items that no training row had are behind all others.
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
