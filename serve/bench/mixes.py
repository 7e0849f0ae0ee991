"""Choices by weight, as options say them: ``8``, ``1:0.9,50:0.1``, ``0-20``, ``high:0.1,normal:0.9``."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

_MOST = 10**9


@dataclass(frozen=True)
class Part:
    """One choice: all whole numbers from ``least`` to ``most``, each as likely as the others."""

    least: int
    most: int
    weight: float

    @property
    def label(self) -> str:
        """As it stands in the option."""
        return str(self.least) if self.least == self.most else f"{self.least}-{self.most}"


@dataclass(frozen=True)
class Mix:
    """Whole numbers, drawn part by part.

    Attributes:
        parts: at least one, weights above 0.
    """

    parts: tuple[Part, ...]

    @property
    def most(self) -> int:
        """The largest number that can be drawn."""
        return max(part.most for part in self.parts)

    @property
    def mean(self) -> float:
        """Of what is drawn."""
        total = sum(part.weight for part in self.parts)
        return sum(part.weight * (part.least + part.most) / 2 for part in self.parts) / total

    def draw_parts(self, count: int, generator: np.random.Generator) -> npt.NDArray[np.int64]:
        """The number of the part for each draw, ``[count]``."""
        if len(self.parts) == 1:
            return np.zeros(count, np.int64)
        weights = np.array([part.weight for part in self.parts])
        return generator.choice(len(self.parts), count, p=weights / weights.sum()).astype(np.int64)

    def draw_from(
        self, parts: npt.NDArray[np.int64], generator: np.random.Generator
    ) -> npt.NDArray[np.int64]:
        """A number out of each of the given parts, ``[count]``."""
        least = np.array([part.least for part in self.parts], np.int64)
        most = np.array([part.most for part in self.parts], np.int64)
        return generator.integers(least[parts], most[parts] + 1)

    def draw(self, count: int, generator: np.random.Generator) -> npt.NDArray[np.int64]:
        """Numbers, ``[count]``."""
        return self.draw_from(self.draw_parts(count, generator), generator)

    def __str__(self) -> str:
        if len(self.parts) == 1:
            return self.parts[0].label
        return ",".join(f"{part.label}:{part.weight:g}" for part in self.parts)


def parse_mix(text: str, *, least: int = 0) -> Mix:
    """A mix of whole numbers.

    Args:
        text: parts with commas between; a part is ``N`` or ``N-M``, with ``:WEIGHT`` where there is more than one.
        least: the smallest number that is allowed.

    Raises:
        ValueError: it is no such text.
    """
    parts = []
    for choice, weight in _weighted(text):
        match = re.fullmatch(r"([0-9]{1,10})(?:-([0-9]{1,10}))?", choice)
        first = int(match[1]) if match else -1
        last = int(match[2]) if match and match[2] else first
        if not least <= first <= last <= _MOST:
            raise ValueError(
                f"got {choice[:40]!r}, expected a whole number from {least} to {_MOST}, or a range such as 1-20"
            )
        parts.append(Part(first, last, weight))
    return Mix(tuple(parts))


def parse_names(text: str, numbers: Mapping[str, int]) -> Mix:
    """A mix of names.

    Args:
        text: ``NAME`` or ``NAME:WEIGHT,NAME:WEIGHT``.
        numbers: what each name stands for.

    Raises:
        ValueError: it is no such text.
    """
    parts = []
    for choice, weight in _weighted(text):
        if choice not in numbers:
            raise ValueError(f"got {choice[:40]!r}, expected one of {', '.join(numbers)}")
        parts.append(Part(numbers[choice], numbers[choice], weight))
    return Mix(tuple(parts))


def _weighted(text: str) -> Sequence[tuple[str, float]]:
    """Each choice with its weight; one alone needs none."""
    pieces = [piece.strip() for piece in text.split(",")]
    found = []
    for piece in pieces:
        choice, colon, weight_text = piece.partition(":")
        if not colon and len(pieces) > 1:
            raise ValueError(f"got {piece[:40]!r}, expected CHOICE:WEIGHT where there are several choices")
        try:
            weight = float(weight_text) if colon else 1.0
        except ValueError:
            weight = math.nan
        if not 0 < weight < math.inf:
            raise ValueError(
                f"got the weight {weight_text[:40]!r} of {choice[:40]!r}, expected a number above 0"
            )
        found.append((choice, weight))
    return found
