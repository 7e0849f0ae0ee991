"""The mapping from raw IDs to rows: lookup, usage counts, eviction policies and admission.

Shape letters: K buckets, N number of IDs, S = Z / K rows of a bucket, Z ``zch_size``: rows of the table.

An ID's hash selects its bucket, and each bucket owns S rows, for which its IDs alone compete. So a bucket's mapping
depends on its own IDs alone, and ranks can hold some buckets each.

The mapping of a bucket is two tensors of S entries, sorted by raw ID. The entries of IDs that own rows are followed by
free ones, with the largest int64 as raw ID and the last row of the table, Z - 1, as row. No ID ever owns that
row: all IDs without a row of their own read it. So free entries are correct for every ID that finds them,
including the largest int64, and no number is reserved as a mark.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, distributed

from recsys.base.collectives import gather_rows

ThresholdFilter = Callable[[Tensor], tuple[Tensor, float | Tensor]]


class MCHEvictionPolicy(ABC):
    """Scores IDs; those with the lowest scores lose their rows first.

    Each rank computes the scores itself, so they must depend only on the arguments.

    Args:
        threshold_filtering_func: Is given the uses of each distinct ID since the last admission, ``[N]`` int64, and
            returns which of the IDs are counted, a mask or ascending positions, and the limit, which is not used.
    """

    def __init__(self, threshold_filtering_func: ThresholdFilter | None = None) -> None:
        self._threshold_filtering_func = threshold_filtering_func

    def filtered(self, uses: Uses) -> Uses:
        """Return the uses that count."""
        if self._threshold_filtering_func is None:
            return uses
        return _only(uses, self._threshold_filtering_func(uses.counts)[0])

    @abstractmethod
    def scores(self, counts: Tensor, last_steps: Tensor, step: int) -> Tensor:
        """Return a score for each ID.

        Args:
            counts: ``[N]`` int64, uses of each ID since it got its row; for an ID without a row, since the
                last admission.
            last_steps: ``[N]`` int64, the step of its latest use.
            step: The present step, not below any of ``last_steps``.

        Returns:
            ``[N]``, of any comparable dtype.
        """


class LFU_EvictionPolicy(MCHEvictionPolicy):
    """The least frequently used ID goes first."""

    def scores(self, counts: Tensor, last_steps: Tensor, step: int) -> Tensor:
        """Return the counts."""
        del last_steps, step
        return counts


class LRU_EvictionPolicy(MCHEvictionPolicy):
    """The least recently used ID goes first.

    Args:
        decay_exponent: Has no effect: any decay keeps the order of the steps.
        threshold_filtering_func: As ``MCHEvictionPolicy``.

    Raises:
        ValueError: The exponent is not positive.
    """

    def __init__(
        self, decay_exponent: float = 1.0, threshold_filtering_func: ThresholdFilter | None = None
    ) -> None:
        super().__init__(threshold_filtering_func)
        if not decay_exponent > 0:
            raise ValueError(f"decay_exponent: got {decay_exponent}, expected a positive number")

    def scores(self, counts: Tensor, last_steps: Tensor, step: int) -> Tensor:
        """Return the steps of the latest uses."""
        del counts, step
        return last_steps


class DistanceLFU_EvictionPolicy(MCHEvictionPolicy):
    """Frequency that decays with the steps since the latest use: ``count / (steps + 1) ** decay_exponent``.

    Args:
        decay_exponent: 0 is LFU; larger values approach LRU. With exponents other than 1.0, ranks on
            different kinds of machines may round powers differently and get different mappings.
        threshold_filtering_func: As ``MCHEvictionPolicy``.

    Raises:
        ValueError: The exponent is negative.
    """

    def __init__(
        self, decay_exponent: float = 1.0, threshold_filtering_func: ThresholdFilter | None = None
    ) -> None:
        super().__init__(threshold_filtering_func)
        if not decay_exponent >= 0:
            raise ValueError(f"decay_exponent: got {decay_exponent}, expected 0 or more")
        self._decay_exponent = decay_exponent

    def scores(self, counts: Tensor, last_steps: Tensor, step: int) -> Tensor:
        """Return the decayed counts, float64."""
        distance = (step - last_steps + 1).to(torch.float64)
        return counts.to(torch.float64) / distance.pow(self._decay_exponent)


@dataclass(frozen=True, kw_only=True)
class Uses:
    """Distinct IDs and their uses.

    Attributes:
        ids: ``[N]`` int64, ascending, each once.
        counts: ``[N]`` int64, number of uses of each, at least 1.
        last_steps: ``[N]`` int64, the step of the latest use.
    """

    ids: Tensor
    counts: Tensor
    last_steps: Tensor


def by_bucket(uses: Uses, buckets: Tensor, num_buckets: int) -> list[Uses]:
    """Return the uses of each bucket. Reads how many there are.

    Args:
        uses: N distinct IDs.
        buckets: ``[N]`` int64, the bucket of each, from 0.
        num_buckets: The number of buckets.
    """
    if num_buckets == 1:
        return [uses]
    order = torch.argsort(buckets, stable=True)
    sizes: list[int] = torch.bincount(buckets, minlength=num_buckets).tolist()
    return [_only(uses, places) for places in order.split(sizes)]


def merged(parts: Sequence[Uses]) -> Uses:
    """Return the uses of several batches together; their order does not matter.

    Args:
        parts: At least one.
    """
    if len(parts) == 1:
        return parts[0]
    ids, place = torch.unique(torch.cat([part.ids for part in parts]), return_inverse=True)
    counts = torch.zeros_like(ids).index_add_(0, place, torch.cat([part.counts for part in parts]))
    # Steps are counted from 1.
    last_steps = torch.zeros_like(ids).scatter_reduce_(
        0, place, torch.cat([part.last_steps for part in parts]), reduce="amax"
    )
    return Uses(ids=ids, counts=counts, last_steps=last_steps)


def of_all_ranks(uses: Uses, group: distributed.ProcessGroup) -> Uses:
    """Return the uses of all ranks' batches, the same on every rank. Every rank of the group must call it.

    Reads the numbers of IDs: a synchronization with the device, once in an eviction interval.

    Args:
        uses: The uses of this rank, on a device that the group's backend can send from.
        group: The ranks.
    """
    packed = torch.stack([uses.ids, uses.counts, uses.last_steps], dim=1)
    parts = [part.T.contiguous() for part in gather_rows(packed, group)]
    return merged([Uses(ids=ids, counts=counts, last_steps=last_steps) for ids, counts, last_steps in parts])


FREE = torch.iinfo(torch.int64).max


@dataclass(frozen=True, kw_only=True)
class MappingState:
    """The state of a bucket: views of a module's buffers, which ``admit`` overwrites.

    Attributes:
        raw_ids: ``[S]`` int64, ascending; ``FREE`` after the IDs that own rows.
        rows: ``[S]`` int64, the row of each of ``raw_ids``; ``fallback`` for free entries.
        counts: ``[S]`` int64, by row from ``first_row`` on: number of uses of its ID.
        last_steps: ``[S]`` int64, likewise: the step of its ID's latest use.
        first_row: The bucket's first row.
        fallback: Z - 1.
    """

    raw_ids: Tensor
    rows: Tensor
    counts: Tensor
    last_steps: Tensor
    first_row: int
    fallback: int

    @property
    def num_rows(self) -> int:
        """The rows that IDs may own: S, and one less in the last bucket."""
        return min(self.rows.numel(), self.fallback - self.first_row)


def rows_of(raw_ids: Tensor, rows: Tensor, ids: Tensor, fallback: int) -> Tensor:
    """Look up raw IDs in one bucket. Reads only shapes, and is traceable by FX.

    Args:
        raw_ids: ``[S]`` int64, as ``MappingState``.
        rows: ``[S]`` int64.
        ids: ``[N]`` int64, any numbers.
        fallback: Z - 1.

    Returns:
        ``[N]`` int64: each ID's row, or ``fallback``.
    """
    # In a bucket without free entries a search may end after the last.
    place = torch.clamp(torch.searchsorted(raw_ids, ids), max=raw_ids.size(0) - 1)
    is_known = torch.eq(raw_ids.index_select(0, place), ids)
    return torch.where(is_known, rows.index_select(0, place), fallback)


def rows_in_buckets(
    raw_ids: Tensor, rows: Tensor, ids: Tensor, starts: Tensor, size: int, fallback: int
) -> Tensor:
    """Look up raw IDs, each in its bucket: a binary search of all of them at once.

    Reads only shapes, and is traceable by FX.

    Args:
        raw_ids: int64, buckets of ``size`` entries, one after another.
        rows: The same for rows.
        ids: ``[N]`` int64, any numbers.
        starts: ``[N]`` int64, the first entry of each ID's bucket.
        size: S.
        fallback: Z - 1.

    Returns:
        ``[N]`` int64: each ID's row, or ``fallback``.
    """
    num_below = torch.zeros_like(ids)
    step = 1 << (size.bit_length() - 1)
    while step:
        probe = num_below + step
        entry = starts + torch.clamp(probe, max=size) - 1
        is_below = torch.logical_and(torch.le(probe, size), torch.lt(raw_ids.index_select(0, entry), ids))
        num_below = torch.where(is_below, probe, num_below)
        step //= 2
    place = starts + torch.clamp(num_below, max=size - 1)
    is_known = torch.eq(raw_ids.index_select(0, place), ids)
    return torch.where(is_known, rows.index_select(0, place), fallback)


def admit(state: MappingState, uses: Uses, policy: MCHEvictionPolicy, step: int) -> tuple[Tensor, Tensor]:
    """Count uses in a bucket, and give rows to new IDs: free rows first, then those of IDs that score lower.

    An ID that owns a row keeps it against a new one of the same score. Among new IDs the higher score comes
    first, then the higher count, then the smaller ID; among owners of the same score the largest ID goes first.
    Reads tensors, so it synchronizes with a device.

    Args:
        state: Changed in place.
        uses: The uses of the bucket's IDs since the last admission.
        policy: Scores IDs.
        step: The present step.

    Returns:
        The rows with a new owner, int64, worst score first; their weights are still those of their former
        IDs. And the IDs that have got or lost a row, int64, each once.
    """
    fallback, first = state.fallback, state.first_row
    row = rows_of(state.raw_ids, state.rows, uses.ids, fallback)
    is_known = row != fallback
    state.counts[row[is_known] - first] += uses.counts[is_known]
    state.last_steps[row[is_known] - first] = uses.last_steps[is_known]

    new = _best_first(_only(uses, ~is_known), policy, step)
    owned = state.rows[state.rows != fallback]
    is_free = torch.ones(state.num_rows, dtype=torch.bool, device=owned.device)
    is_free[owned - first] = False
    free = is_free.nonzero().flatten()[: new.ids.numel()] + first
    rest = _only(new, torch.arange(new.ids.numel(), device=free.device) >= free.numel())
    evicted = _outscored(state, owned, rest, policy, step)

    taken = torch.cat([free, evicted])
    admitted = new.ids[: taken.numel()]
    former = _insert(state, evicted, admitted, taken)
    state.counts[taken - first] = new.counts[: taken.numel()]
    state.last_steps[taken - first] = new.last_steps[: taken.numel()]
    return evicted, torch.cat([admitted, former])


def _insert(state: MappingState, evicted: Tensor, ids: Tensor, rows: Tensor) -> Tensor:
    """Remove the owners of some rows, and insert new IDs with theirs: one pass over the entries, without a sort.

    Returns the owners that were removed.
    """
    num_owned = int((state.rows != state.fallback).sum())
    is_kept = torch.ones(num_owned, dtype=torch.bool, device=ids.device)
    former = ids[:0]
    if evicted.numel():
        is_evicted = torch.zeros(state.rows.numel(), dtype=torch.bool, device=ids.device)
        is_evicted[evicted - state.first_row] = True
        is_kept = ~is_evicted[state.rows[:num_owned] - state.first_row]
        former = state.raw_ids[:num_owned][~is_kept]
    kept_ids, kept_rows = state.raw_ids[:num_owned][is_kept], state.rows[:num_owned][is_kept]
    ids, order = ids.sort()
    places = torch.searchsorted(kept_ids, ids) + torch.arange(ids.numel(), device=ids.device)
    is_old = torch.ones(kept_ids.numel() + ids.numel(), dtype=torch.bool, device=ids.device)
    is_old[places] = False
    for entries, kept, added in (
        (state.raw_ids, kept_ids, ids),
        (state.rows, kept_rows, rows[order]),
    ):
        entries[: is_old.numel()][is_old] = kept
        entries[places] = added
    return former


def _only(uses: Uses, mask: Tensor) -> Uses:
    return Uses(ids=uses.ids[mask], counts=uses.counts[mask], last_steps=uses.last_steps[mask])


def _best_first(uses: Uses, policy: MCHEvictionPolicy, step: int) -> Uses:
    by_count = torch.argsort(uses.counts, descending=True, stable=True)
    scores = policy.scores(uses.counts, uses.last_steps, step)[by_count]
    order = by_count[torch.argsort(scores, descending=True, stable=True)]
    return Uses(ids=uses.ids[order], counts=uses.counts[order], last_steps=uses.last_steps[order])


def _outscored(state: MappingState, owned: Tensor, new: Uses, policy: MCHEvictionPolicy, step: int) -> Tensor:
    """Return the rows that new IDs take: the i-th best new ID against the i-th worst owner, while it wins.

    ``owned`` is in the order of the owners' IDs.
    """
    owned = owned.flip(0)
    scores = policy.scores(
        state.counts[owned - state.first_row], state.last_steps[owned - state.first_row], step
    )
    num_pairs = min(new.ids.numel(), owned.numel())
    if num_pairs == 0:
        return owned[:0]
    # Only owners that can be among the worst are sorted.
    bad = (scores <= torch.kthvalue(scores, num_pairs).values).nonzero().flatten()
    worst_first = bad[torch.argsort(scores[bad], stable=True)[:num_pairs]]
    challenger = policy.scores(new.counts, new.last_steps, step)[:num_pairs]
    return owned[worst_first][challenger > scores[worst_first]]


def check_state(state: MappingState, at: str) -> None:
    """Check that tensors from a file are the mapping of a bucket.

    Raises:
        ValueError: A tensor is wrong; the message names it.
    """
    first, end = state.first_row, state.first_row + state.num_rows
    if bool((state.raw_ids[1:] < state.raw_ids[:-1]).any()):
        raise ValueError(f"{at}.raw_ids: got IDs out of order, expected them ascending")
    is_owned = state.rows != state.fallback
    num_owned = int(is_owned.sum())
    if num_owned > state.num_rows or bool(is_owned[num_owned:].any()):
        raise ValueError(f"{at}.rows: got free entries before others, expected them at the end")
    if bool((state.raw_ids[num_owned:] != FREE).any()):
        raise ValueError(f"{at}.raw_ids: got an ID in a free entry, expected {FREE} there")
    ids, rows = state.raw_ids[:num_owned], state.rows[:num_owned]
    if bool((ids[1:] == ids[:-1]).any()):
        raise ValueError(f"{at}.raw_ids: got an ID more than once, expected each once")
    if num_owned and (int(rows.min()) < first or int(rows.max()) >= end):
        raise ValueError(
            f"{at}.rows: got rows {int(rows.min())} to {int(rows.max())}, expected {first} <= row < {end}"
        )
    if torch.unique(rows).numel() != num_owned:
        raise ValueError(f"{at}.rows: got a row more than once, expected each once")
