"""Metrics of the order of rows within groups, such as the impressions of one user.

Rows count equally here. A row that scores as much as others stands behind them.

Shape letters: G number of groups, N number of rows.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def group_metrics(
    scores: Floats, labels: Floats, groups: Ints, top: int
) -> Mapping[str, tuple[Floats, Floats]]:
    """Return each metric of each group with what the group counts in the mean, ``[G]`` each; NaN where it has none.

    ``gauc`` is the AUC within a group, which counts by its rows (Zhou et al., Deep Interest Network, 2018). Of the
    first ``top`` rows by score: ``hit_rate`` is 1 where one of them is positive, ``recall`` the share of the group's
    positive rows, ``ndcg`` the sum of ``1 / log2(position + 2)`` of the positive ones divided by the largest possible,
    ``mrr`` the reciprocal of the first positive one's position, counted from 1. A group without both labels has no
    AUC, one without a positive row none of the others.

    Args:
        scores: ``[N]``.
        labels: ``[N]``, 0 or 1.
        groups: ``[N]``, the group of each row, 0 to G - 1; none is empty.
        top: How many rows count.
    """
    num_rows = np.bincount(groups).astype(np.float64)
    num_positive = np.bincount(groups, labels)
    equal = np.ones_like(num_rows)
    starts = np.concatenate(([0], np.cumsum(num_rows)[:-1])).astype(np.int64)
    # By group, the best first, of equal scores the negative ones.
    order = np.lexsort((labels, -scores, groups))
    of, positive = groups[order], labels[order]
    positions = np.arange(len(order)) - starts[of]
    is_hit = (positions < top) & (positive > 0)
    gains = np.where(is_hit, 1 / np.log2(positions + 2), 0.0)
    longest = min(top, int(num_rows.max()))
    best = np.concatenate(([0.0], np.cumsum(1 / np.log2(np.arange(longest) + 2))))
    hits = np.bincount(of, is_hit)
    first = np.full(len(num_rows), np.inf)
    np.minimum.at(first, of[is_hit], positions[is_hit] + 1.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        has_positive = np.where(num_positive > 0, 1.0, np.nan)
        return {
            "gauc": (_aucs(scores, labels, groups, starts), num_rows),
            "hit_rate": (np.minimum(hits, 1) * has_positive, equal),
            "recall": (hits / num_positive, equal),
            "ndcg": (np.bincount(of, gains) / best[np.minimum(num_positive, top).astype(np.int64)], equal),
            "mrr": (1 / first * has_positive, equal),
        }


def coverage(scores: Floats, groups: Ints, items: Ints, top: int) -> float:
    """Return the share of the items of all rows that are among the first ``top`` rows of any group.

    Args:
        scores: ``[N]``.
        groups: ``[N]``, the group of each row, 0 to G - 1; none is empty.
        items: ``[N]``, the item of each row.
        top: How many rows count.
    """
    order = np.lexsort((-scores, groups))
    starts = np.concatenate(([0], np.cumsum(np.bincount(groups))[:-1]))
    is_first = np.arange(len(order)) - starts[groups[order]] < top
    return len(np.unique(items[order][is_first])) / len(np.unique(items))


def _aucs(scores: Floats, labels: Floats, groups: Ints, starts: Ints) -> Floats:
    """Return the AUC of each group, ties counting half."""
    order = np.lexsort((scores, groups))
    of, sorted_scores = groups[order], scores[order]
    is_new = np.ones(len(order), dtype=bool)
    is_new[1:] = (of[1:] != of[:-1]) | (sorted_scores[1:] != sorted_scores[:-1])
    tie = np.cumsum(is_new) - 1
    sizes = np.bincount(tie)
    ends = np.cumsum(sizes)
    # The mean of the ranks, from 1, of the rows with one score in one group.
    ranks = (ends - (sizes - 1) / 2)[tie] - starts[of]
    positive = labels[order]
    num_positive = np.bincount(of, positive)
    num_pairs = num_positive * (np.bincount(of) - num_positive)
    ranks_of_positive = np.bincount(of, ranks * positive)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray((ranks_of_positive - num_positive * (num_positive + 1) / 2) / num_pairs)
