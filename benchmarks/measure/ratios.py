"""Ratios of neighbouring turns, and how sure their median is."""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence
from typing import NamedTuple, Self


class Ratio(NamedTuple):
    """The median of ratios, and its 90 % bootstrap interval."""

    median: float
    least: float
    most: float

    @classmethod
    def of(cls, measured: Sequence[float], others: Sequence[float]) -> Self:
        """Compare what was measured turn by turn with what was measured beside it."""
        ratios = [a / b for a, b in zip(measured, others, strict=True)]
        source = random.Random(0)
        medians = sorted(statistics.median(source.choices(ratios, k=len(ratios))) for _ in range(1_000))
        return cls(statistics.median(ratios), medians[50], medians[-51])

    def __str__(self) -> str:
        return f"{self.median:.3f} (90 %: {self.least:.3f} to {self.most:.3f})"
