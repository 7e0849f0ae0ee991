"""Which epoch of a training is kept, and when to stop early."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # options need no torch
    from recsys.train.progress import Epoch

#: "last" keeps the last epoch, whatever its metrics.
BEST_METRICS = ("loss", "auc", "ne", "rmse", "mae", "hit_rate", "ndcg", "last")
#: Those of labels that are 0 or 1, of labels that are numbers, and of next items.
OF_CLICKS, OF_NUMBERS, OF_NEXT_ITEMS = ("auc", "ne"), ("rmse", "mae"), ("hit_rate", "ndcg")
HIGHER_IS_BETTER = ("auc", "hit_rate", "ndcg")
_NAMES = {
    **{"loss": "loss", "auc": "AUC", "ne": "NE", "rmse": "RMSE", "mae": "MAE"},
    **{"hit_rate": "hit rate", "ndcg": "NDCG"},
}


def is_better(epoch: Epoch, best: Epoch | None, metric: str) -> bool:
    """Return whether an epoch is better than the best one before it.

    An epoch with a defined metric is better than one without; of two without, the later one is better. All ranks
    have the same metrics, so they decide alike.

    Args:
        epoch: The later one.
        best: The best so far; None if there is none.
        metric: One of ``BEST_METRICS``.
    """
    if best is None or metric == "last":
        return True
    found, known = held_out(epoch, metric), held_out(best, metric)
    if found is None or known is None:
        return known is None
    return found > known if metric in HIGHER_IS_BETTER else found < known


def held_out(epoch: Epoch, metric: str) -> float | None:
    """Return a held-out metric of an epoch, the mean over the labels that have it; None if undefined for one."""
    measured = epoch.labels.values() or [epoch.held_out]
    values = [getattr(metrics, metric) for metrics in measured if hasattr(metrics, metric)]
    return None if None in values or not values else statistics.fmean(values)


def has_ended(epochs: Sequence[Epoch], best: int, patience: int | None) -> bool:
    """Return whether ``patience`` epochs in a row were not better than the best.

    Args:
        epochs: The finished epochs.
        best: The number of the best; 0 for none.
        patience: How many; None for any number.
    """
    return patience is not None and bool(epochs) and best > 0 and len(epochs) - best >= patience


def kept_text(epochs: Sequence[Epoch], kept: Epoch, metric: str) -> str:
    """Return in words which epoch was kept, and why."""
    text = f"kept epoch {kept.number} of {len(epochs)}"
    if metric == "last":
        return f"{text}, the last (--best-metric last)"
    name, value = _NAMES[metric], held_out(kept, metric)
    if value is None:
        return f"{text}: the held-out {name} is undefined (--best-metric)"
    most = "highest" if metric in HIGHER_IS_BETTER else "lowest"
    return f"{text}: its held-out {name} is the {most}, {value:.4f} (--best-metric)"
