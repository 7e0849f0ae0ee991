"""From raw IDs to rows: the lookup, and who gets which row.

Shape letters: N number of IDs, Z ``zch_size``: rows of the table.

The mapping is two tensors of Z entries, sorted by raw ID. Behind the entries of IDs that own rows stand free ones,
with the largest int64 as raw ID and the last row of the table, Z - 1, as row. No ID ever owns that row: it is what
all IDs without a row of their own read. So free entries are right for every ID that finds them, the largest int64
included, and no number is lost as a mark. There is always one free entry, so a search never ends behind the last.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from recsys.managed.policies import MCHEvictionPolicy
from recsys.managed.uses import Uses

FREE = torch.iinfo(torch.int64).max


@dataclass(frozen=True, kw_only=True)
class MappingState:
    """Everything a mapping consists of: views of a module's buffers, which ``admit`` overwrites.

    Attributes:
        raw_ids: ``[Z]`` int64, ascending; ``FREE`` behind the IDs that own rows.
        rows: ``[Z]`` int64, the row of each of ``raw_ids``; Z - 1 for free entries.
        counts: ``[Z]`` int64, by row: how often its ID was used.
        last_steps: ``[Z]`` int64, by row: the step of its ID's latest use.
    """

    raw_ids: Tensor
    rows: Tensor
    counts: Tensor
    last_steps: Tensor


def rows_of(raw_ids: Tensor, rows: Tensor, ids: Tensor) -> Tensor:
    """Look raw IDs up. Reads nothing but shapes, so that FX can follow it.

    Args:
        raw_ids: ``[Z]`` int64, as ``MappingState``.
        rows: ``[Z]`` int64.
        ids: ``[N]`` int64, any numbers.

    Returns:
        ``[N]`` int64: each ID's row, or Z - 1.
    """
    place = torch.searchsorted(raw_ids, ids)
    is_known = torch.eq(raw_ids.index_select(0, place), ids)
    return torch.where(is_known, rows.index_select(0, place), rows.size(0) - 1)


def admit(state: MappingState, uses: Uses, policy: MCHEvictionPolicy, step: int) -> Tensor:
    """Count uses, and give rows to new IDs: free rows first, then those of IDs that score lower.

    An ID that owns a row keeps it against a new one of the same score. Among new IDs the higher score comes
    first, then the higher count, then the smaller ID; among owners of the same score the largest ID goes first.
    It reads tensors: on a device it waits.

    Args:
        state: changed in place.
        uses: since the last admission.
        policy: scores IDs.
        step: the present step.

    Returns:
        the rows that changed hands, int64, worst score first; their weights are still those of their former IDs.
    """
    fallback = state.rows.numel() - 1
    place = torch.searchsorted(state.raw_ids, uses.ids)
    row = state.rows[place]
    is_known = (state.raw_ids[place] == uses.ids) & (row != fallback)
    state.counts[row[is_known]] += uses.counts[is_known]
    state.last_steps[row[is_known]] = uses.last_steps[is_known]

    new = _best_first(_only(uses, ~is_known), policy, step)
    owned = state.rows[state.rows != fallback]
    is_free = torch.ones(fallback, dtype=torch.bool, device=owned.device)
    is_free[owned] = False
    free = is_free.nonzero().flatten()[: new.ids.numel()]
    rest = _only(new, torch.arange(new.ids.numel(), device=free.device) >= free.numel())
    evicted = _outscored(state, owned, rest, policy, step)

    taken = torch.cat([free, evicted])
    is_kept = (state.rows != fallback) & ~torch.isin(state.rows, evicted)
    raw_ids = torch.cat([state.raw_ids[is_kept], new.ids[: taken.numel()]])
    rows = torch.cat([state.rows[is_kept], taken])
    order = torch.argsort(raw_ids)
    state.raw_ids[: order.numel()] = raw_ids[order]
    state.rows[: order.numel()] = rows[order]
    state.counts[taken] = new.counts[: taken.numel()]
    state.last_steps[taken] = new.last_steps[: taken.numel()]
    return evicted


def _only(uses: Uses, mask: Tensor) -> Uses:
    return Uses(ids=uses.ids[mask], counts=uses.counts[mask], last_steps=uses.last_steps[mask])


def _best_first(uses: Uses, policy: MCHEvictionPolicy, step: int) -> Uses:
    by_count = torch.argsort(uses.counts, descending=True, stable=True)
    scores = policy.scores(uses.counts, uses.last_steps, step)[by_count]
    order = by_count[torch.argsort(scores, descending=True, stable=True)]
    return Uses(ids=uses.ids[order], counts=uses.counts[order], last_steps=uses.last_steps[order])


def _outscored(state: MappingState, owned: Tensor, new: Uses, policy: MCHEvictionPolicy, step: int) -> Tensor:
    """The rows that new IDs take from others: the i-th best new ID against the i-th worst owner, while it wins.

    ``owned`` is in the order of the owners' IDs.
    """
    owned = owned.flip(0)
    scores = policy.scores(state.counts[owned], state.last_steps[owned], step)
    worst_first = torch.argsort(scores, stable=True)
    num_pairs = min(new.ids.numel(), owned.numel())
    challenger = policy.scores(new.counts, new.last_steps, step)[:num_pairs]
    return owned[worst_first[:num_pairs]][challenger > scores[worst_first[:num_pairs]]]


def check_state(state: MappingState, at: str) -> None:
    """Whether tensors that come from a file are a mapping.

    Raises:
        ValueError: names the tensor and what is wrong with it.
    """
    fallback = state.rows.numel() - 1
    if bool((state.raw_ids[1:] < state.raw_ids[:-1]).any()):
        raise ValueError(f"{at}.raw_ids: got IDs out of order, expected them ascending")
    is_owned = state.rows != fallback
    num_owned = int(is_owned.sum())
    if num_owned > fallback or bool(is_owned[num_owned:].any()):
        raise ValueError(f"{at}.rows: got free entries before others, expected them at the end")
    if bool((state.raw_ids[num_owned:] != FREE).any()):
        raise ValueError(f"{at}.raw_ids: got an ID in a free entry, expected {FREE} there")
    ids, rows = state.raw_ids[:num_owned], state.rows[:num_owned]
    if bool((ids[1:] == ids[:-1]).any()):
        raise ValueError(f"{at}.raw_ids: got an ID more than once, expected each once")
    if num_owned and (int(rows.min()) < 0 or int(rows.max()) >= fallback):
        raise ValueError(
            f"{at}.rows: got rows {int(rows.min())} to {int(rows.max())}, expected 0 <= row < {fallback}"
        )
    if torch.unique(rows).numel() != num_owned:
        raise ValueError(f"{at}.rows: got a row more than once, expected each once")
