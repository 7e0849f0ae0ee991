"""The metrics of ``recsys.metrics.exact`` in bounded memory: sums, and a histogram of scores for the AUC.

Loss, NE, calibration and the mean label are those of the exact sums. AUC takes the order of two scores in one bin as
a tie, so its error is at most half the share of pairs whose scores are in one bin, which is known too.

Shape letters: N number of examples.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from recsys.metrics.exact import Floats, Metrics, entropy

#: Bins of equal width in logits from -16 to 16, the first and the last open: near a probability of 0.02 a bin spans
#: 0.0006, near 0.5 it spans 0.008.
NUM_BINS = 1024
_LARGEST_LOGIT = 16.0
# Nearer to 0 and 1 a probability has no finite logit, or one that rounding of float32 decides.
_LEAST_PROBABILITY = 1e-9


def logits_of(probabilities: Floats) -> NDArray[np.float64]:
    """Return the logits of ``[N]`` probabilities, as those of 1e-9 and 1 - 1e-9 beyond."""
    p = np.clip(np.asarray(probabilities, dtype=np.float64), _LEAST_PROBABILITY, 1 - _LEAST_PROBABILITY)
    logits: NDArray[np.float64] = np.log(p) - np.log1p(-p)
    return logits


@dataclass(frozen=True, kw_only=True)
class BinnedMetrics(Metrics):
    """``Metrics`` of binned scores.

    Attributes:
        mean_label: The share of clicks (CTR).
        auc_error: By how much ``auc`` may differ from the exact one, at most; None without AUC.
    """

    mean_label: float
    auc_error: float | None


class BinnedScores:
    """Scores and labels, as sums and two histograms; 16 KB. Not thread-safe."""

    __slots__ = ("_counts", "_sums")

    def __init__(self) -> None:
        # By label, then by bin.
        self._counts = np.zeros((2, NUM_BINS), dtype=np.int64)
        # Examples, clicks, losses, predictions.
        self._sums = np.zeros(4, dtype=np.float64)

    @property
    def num_rows(self) -> int:
        """The number of examples."""
        return int(self._sums[0])

    def add(self, logits: Floats, labels: Floats) -> None:
        """Add ``[N]`` finite logits and their labels of 0 or 1."""
        x, y = np.asarray(logits, dtype=np.float64), np.asarray(labels, dtype=np.float64)
        places = np.floor((x + _LARGEST_LOGIT) * (NUM_BINS / (2 * _LARGEST_LOGIT)))
        bins = np.clip(places, 0, NUM_BINS - 1).astype(np.int64)
        np.add.at(self._counts, (y.astype(np.int64), bins), 1)
        losses = np.logaddexp(0.0, x) - x * y
        predictions = 0.5 * (1 + np.tanh(0.5 * x))
        self._sums += (len(y), y.sum(), losses.sum(), predictions.sum())

    def merge(self, other: BinnedScores) -> None:
        """Add all examples of another one."""
        self._counts += other._counts
        self._sums += other._sums

    def metrics(self) -> BinnedMetrics | None:
        """Return the metrics; None without an example."""
        num_rows, num_clicks, loss, predicted = self._sums.tolist()
        if not num_rows:
            return None
        mean = num_clicks / num_rows
        base = entropy(mean)
        others, clicks = self._counts.astype(np.float64)
        num_pairs = float(clicks.sum() * others.sum())
        auc = float(np.dot(clicks, np.cumsum(others) - others / 2)) / num_pairs if num_pairs else None
        return BinnedMetrics(
            num_rows=int(num_rows),
            loss=loss / num_rows,
            auc=auc,
            ne=loss / num_rows / base if base > 0 else None,
            calibration=predicted / num_clicks if num_clicks else None,
            mean_label=mean,
            auc_error=float(np.dot(clicks, others)) / (2 * num_pairs) if num_pairs else None,
        )
