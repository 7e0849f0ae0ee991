"""Sums over sliding windows of time, in memory that does not grow with what is added.

A window is cut into parts of a twelfth. A sum covers the twelve last whole parts and the one that has begun, so it goes
back by at least the window and at most a twelfth more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Generic, Protocol, Self, TypeVar

#: The windows, in seconds, by the name that metrics have for them.
WINDOWS: Mapping[str, float] = {"5m": 300.0, "1h": 3600.0, "1d": 86400.0}
#: Parts of a window.
NUM_PARTS = 12


class Mergeable(Protocol):
    """A sum that another one can be added to."""

    def merge(self, other: Self) -> None:
        """Add another sum."""
        ...


SumT = TypeVar("SumT", bound=Mergeable)


class _Window(Generic[SumT]):
    """The parts of one window, the oldest first, each with its number since the clock's zero."""

    def __init__(self, length_s: float) -> None:
        self._part_s = length_s / NUM_PARTS
        self._parts: list[tuple[int, SumT]] = []

    def present(self, now_s: float, make: Callable[[], SumT]) -> SumT:
        """Return the part that has begun."""
        number = self._forget(now_s)
        if not self._parts or self._parts[-1][0] < number:
            self._parts.append((number, make()))
        return self._parts[-1][1]

    def add_to(self, total: SumT, now_s: float) -> None:
        """Add all parts to a sum."""
        self._forget(now_s)
        for _, part in self._parts:
            total.merge(part)

    def _forget(self, now_s: float) -> int:
        number = int(now_s // self._part_s)
        while self._parts and self._parts[0][0] < number - NUM_PARTS:
            del self._parts[0]
        return number


class Windows(Generic[SumT]):
    """Sums over each of ``WINDOWS``. Not thread-safe.

    Args:
        make: returns an empty sum.
        now: returns the present time in seconds; it never goes back.
    """

    def __init__(self, make: Callable[[], SumT], now: Callable[[], float]) -> None:
        self._make, self._now = make, now
        self._windows: dict[str, _Window[SumT]] = {name: _Window(s) for name, s in WINDOWS.items()}

    def add(self, add: Callable[[SumT], None]) -> None:
        """Call ``add`` with a sum of each window that the present belongs to."""
        now_s = self._now()
        for window in self._windows.values():
            add(window.present(now_s, self._make))

    def totals(self) -> dict[str, SumT]:
        """Return the sum of each window, by its name."""
        now_s = self._now()
        totals = {}
        for name, window in self._windows.items():
            totals[name] = self._make()
            window.add_to(totals[name], now_s)
        return totals
