"""The items that the rows of a batch are learned against: those of this rank, or of all ranks.

Over ranks, each sends the vectors of its items to all, and gets back their gradients from all: its rows are learned
against what one rank with the whole global batch would learn them against.

Shape letters: D width of the vectors, M candidates, N number of places, P predictions.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch import distributed as dist

from recsys.base.collectives import gather_rows, group_device, send_rows
from recsys.data.examples import Ints
from recsys.train.losses.negatives import Negatives, candidate_losses, on_device

# In the number of a row over all ranks, the rank lies above this many bits.
_RANK_BITS = 40


@dataclass(frozen=True, kw_only=True)
class ItemPlaces:
    """The items of a batch of this rank, one a place.

    Attributes:
        ids: int64 ``[N]``.
        rows: The row of each, int64 ``[N]``.
        num_rows: Rows that are not drawn items.
    """

    ids: Ints
    rows: Ints
    num_rows: int


@dataclass(frozen=True, kw_only=True)
class Candidates:
    """Different items.

    Attributes:
        ids: int64 ``[M]``, ascending.
        owners: int64 ``[M]``: the row of this rank's batch that alone has the item; -1 for none.
        vectors: ``[M, D]``.
        num_in_batch: Items of the batch that are no drawn ones, each occurrence counted.
        num_ranks: Ranks whose items these are.
    """

    ids: Ints
    owners: Ints
    vectors: Tensor
    num_in_batch: int
    num_ranks: int


def find_candidates(
    places: ItemPlaces,
    vectors: Tensor,
    negatives: Negatives,
    group: dist.ProcessGroup | None = None,
    most: int | None = None,
) -> Candidates:
    """Return the candidates of a batch; an item has the vector of its first place.

    Args:
        places: The items of this rank's batch.
        vectors: Theirs, ``[N, D]``.
        negatives: Says which items are candidates.
        group: The ranks, each of which must call it and run its backward pass; None for this rank's items alone.
        most: How many candidates are taken at most, the same for the same items; None for all.
    """
    kept = np.ones(len(places.ids), dtype=bool) if negatives.has_batch else places.rows >= places.num_rows
    found = np.stack((places.ids, places.rows, places.rows < places.num_rows), axis=1)[kept]
    parts, rank = [found], 0
    if group is not None:
        rank = dist.get_rank(group)
        gathered = gather_rows(torch.from_numpy(found).to(group_device(group)), group)
        parts = [part.cpu().numpy() for part in gathered]
    ranks = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    ids, rows, is_in_batch = np.concatenate(parts).T
    rows = rows + (ranks << _RANK_BITS)
    unique, first = np.unique(ids, return_index=True)
    last = len(ids) - 1 - np.unique(ids[::-1], return_index=True)[1]
    owners = np.where((rows[first] == rows[last]) & (ranks[first] == rank), rows[first], -1)
    chosen = _chosen(len(unique), ids, most)
    at = first[chosen]
    start = int((ranks < rank).sum())
    mine = np.flatnonzero(kept)[at[ranks[at] == rank] - start]
    own = vectors[on_device(mine, vectors.device)]
    if group is not None:
        sizes = np.bincount(ranks[at], minlength=len(parts)).tolist()
        by_rank = np.argsort(ranks[at], kind="stable")
        own = gathered_rows(own, sizes, group)[on_device(np.argsort(by_rank), vectors.device)]
    return Candidates(
        ids=unique[chosen],
        owners=np.where(owners >= 0, owners & ((1 << _RANK_BITS) - 1), -1)[chosen],
        vectors=own,
        num_in_batch=int(is_in_batch.sum()),
        num_ranks=len(parts),
    )


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """The items that rows are learned from, one a prediction.

    Attributes:
        ids: int64 ``[P]``.
        rows: The row of each, int64 ``[P]``.
        users: The vector of the user before each, ``[P, D]``.
        items: The vector of each, ``[P, D]``.
    """

    ids: Ints
    rows: Ints
    users: Tensor
    items: Tensor


def losses_among(candidates: Candidates, chosen: Chosen, negatives: Negatives) -> Tensor:
    """Return the loss of each prediction, ``[P]``; an item, and what only its row has, is no candidate for it."""
    device = chosen.users.device
    is_left_out = (candidates.ids[None, :] == chosen.ids[:, None]) | (
        candidates.owners[None, :] == chosen.rows[:, None]
    )
    scores = chosen.users @ candidates.vectors.T
    own = (chosen.users * chosen.items).sum(dim=1)
    if negatives.loss == "softmax":
        bias = negatives.log_chances(candidates.num_in_batch, candidates.num_ranks)
        scores = scores - on_device(bias(candidates.ids), device)
        own = own - on_device(bias(chosen.ids), device)
    return candidate_losses(own, scores, on_device(is_left_out, device), negatives.loss)


def _chosen(number: int, ids: Ints, most: int | None) -> Ints:
    """Return which of ``number`` candidates are taken, the same for the same items."""
    if most is None or number <= most:
        return np.arange(number)
    generator = np.random.default_rng(zlib.crc32(np.ascontiguousarray(ids).data))
    return np.sort(generator.choice(number, most, replace=False))


def gathered_rows(own: Tensor, sizes: Sequence[int], group: dist.ProcessGroup) -> Tensor:
    """Return the rows of all ranks, in their order; every rank must call it, and run its backward pass.

    The gradient of a rank's rows is the sum of those of all ranks' losses.

    Args:
        own: ``[N, ...]`` of this rank.
        sizes: N of each rank.
        group: The ranks.
    """
    rows: Tensor = _Gathered.apply(own, sizes, group)  # type: ignore[no-untyped-call]
    return rows


class _Gathered(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, own: Tensor, sizes: Sequence[int], group: dist.ProcessGroup) -> Tensor:
        ctx.sizes, ctx.group = sizes, group
        padded = own.new_zeros(max(sizes), *own.shape[1:])
        padded[: len(own)] = own
        parts = [torch.empty_like(padded) for _ in sizes]
        dist.all_gather(parts, padded, group=group)
        return torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)])

    @staticmethod
    def backward(ctx: Any, grads: Tensor) -> tuple[Tensor, None, None]:
        size = ctx.sizes[dist.get_rank(ctx.group)]
        world_size = len(ctx.sizes)
        received = send_rows(grads.contiguous(), ctx.sizes, [size] * world_size, ctx.group)
        return received.view(world_size, size, *grads.shape[1:]).sum(dim=0), None, None
