"""Metrics of an order of all items: where the item that followed stands in it.

Shape letters: N number of examples, R number of items.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

#: Hits are items among so many.
TOP = 10


@dataclass(frozen=True, kw_only=True)
class RankMetrics:
    """Metrics of the next items of one set of examples, each ranked among all R items.

    An item that scores as much as others stands behind them. Examples with weights count by them.

    Attributes:
        num_rows: N.
        num_items: R.
        loss: Mean cross entropy of the softmax over all items, in nats.
        hit_rate: The share of next items among the first ten, which is the recall, as there is one of each.
        ndcg: Mean of ``1 / log2(rank + 2)`` of these, counted from 0; an item behind the first ten gives 0.
    """

    num_rows: int
    num_items: int
    loss: float
    hit_rate: float
    ndcg: float

    def to_json(self) -> dict[str, float | int]:
        """Return plain data."""
        return asdict(self)


def measure_ranks(
    ranks: NDArray[np.float64], losses: NDArray[np.float64], weights: NDArray[np.float64], *, num_items: int
) -> RankMetrics:
    """Return all metrics.

    Args:
        ranks: Number of items before each next item, ``[N]``.
        losses: ``[N]``.
        weights: ``[N]``, at least 0.
        num_items: R.

    Raises:
        ValueError: No examples, weights that are all 0, or losses that are not finite.
    """
    if not len(ranks):
        raise ValueError("next items: got none in the held-out rows, expected one at least")
    if not np.isfinite(losses).all():
        raise ValueError("scores: got a number that is not finite")
    if not weights.any():
        raise ValueError("weights: got 0 for all held-out rows, expected one above 0")
    gains = np.where(ranks < TOP, 1 / np.log2(ranks + 2), 0)
    return RankMetrics(
        num_rows=len(ranks),
        num_items=num_items,
        loss=float(np.average(losses, weights=weights)),
        hit_rate=float(np.average(ranks < TOP, weights=weights)),
        ndcg=float(np.average(gains, weights=weights)),
    )
