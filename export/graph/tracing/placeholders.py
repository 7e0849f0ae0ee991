"""The placeholders of traced values: where Python wants a number, they are the one that every batch has."""

from __future__ import annotations

from typing import Any

from torch.fx.proxy import Attribute, Proxy

OPEN_LENGTH = "the number of its parts differs between batches, so that Python cannot take it"


class _Number:
    """A part of a placeholder: the number that it stands for where Python wants one, if batches agree on it."""

    #: NumPy leaves operators to the placeholder.
    __array_ufunc__ = None

    def __index__(self) -> int:
        found = self._constant()
        if not isinstance(found, int):
            raise TypeError("a number that differs between batches cannot be interpreted as an integer")
        return found

    def __int__(self) -> int:
        return int(float(self))

    def __float__(self) -> float:
        found = self._constant()
        if not isinstance(found, (int, float)):
            raise TypeError("must be real number, not one that differs between batches")
        return float(found)

    def __len__(self) -> int:
        count: int | None = self.tracer.sizes.num_parts(self.node)  # type: ignore[attr-defined]
        if count is None:
            raise TypeError(OPEN_LENGTH)
        return count

    def _constant(self) -> Any:
        return self.tracer.sizes.constant(self.node)  # type: ignore[attr-defined]


class Placeholder(_Number, Proxy):
    """Stands for a traced value."""

    def __getattr__(self, k: str) -> Attribute:
        return PlaceholderAttribute(self, k)

    def __setitem__(self, key: object, value: object) -> None:
        raise TypeError("'Proxy' object does not support item assignment")


class PlaceholderAttribute(_Number, Attribute):
    """Stands for an attribute of a traced value."""


def known(value: Any) -> Any:
    """Return a value with the numbers that all batches have in the places of traced ones.

    Raises:
        TypeError: They differ between batches.
    """
    if isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):
        return type(value)(map(known, value))
    return value.tracer.known(value) if isinstance(value, Proxy) else value  # type: ignore[attr-defined]
