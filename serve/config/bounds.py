"""Bounds of numbers in settings: declared with the field, checked in Python and in the native engine."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """The numbers that a field may hold.

    Attributes:
        least: the smallest.
        most: the largest; infinite for no bound, but the number itself must be finite.
        or_zero: whether it may also be 0, which means no limit.
    """

    least: float
    most: float = math.inf
    or_zero: bool = False

    def check(self, name: str, value: float) -> None:
        """Raise ValueError, with the field's name, if a value is out of bounds."""
        if (self.least <= value <= self.most and not math.isinf(value)) or (self.or_zero and value == 0):
            return
        if self.or_zero:
            more = "more" if math.isinf(self.most) else f"{self.least} to {self.most}"
            raise ValueError(f"{name}: got {value}, expected 0 (no bound) or {more}")
        if value > self.most:
            raise ValueError(f"{name}: got {value}, expected at most {self.most}")
        raise ValueError(f"{name}: got {value}, expected at least {self.least}")


def bounded(default: Any, least: float, most: float = math.inf, *, or_zero: bool = False) -> Any:
    """Return a dataclass's field with a default and bounds."""
    bounds = Bounds(least=least, most=most, or_zero=or_zero)
    return dataclasses.field(default=default, metadata={"bounds": bounds})


def bounds_of(field: dataclasses.Field[Any]) -> Bounds | None:
    """Return a field's bounds; None if it has none."""
    bounds: Bounds | None = field.metadata.get("bounds")
    return bounds


def check_bounds(settings: Any) -> None:
    """Raise ValueError if a field of a dataclass's instance is out of its bounds."""
    for field in dataclasses.fields(settings):
        bounds = bounds_of(field)
        if bounds is not None:
            bounds.check(field.name, getattr(settings, field.name))
