"""What is known of values for each number of IDs of a bag: the truth values of masks, and what they make zero.

Shape letters: L numbers of IDs, 0 to S - 1; W numbers of a row of a value.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Several
from math import inf, nan

import torch
from torch import Tensor

from export.lower.bags import Length, Sequence
from export.lower.formed import Broadcast, Interleave
from export.lower.kinds import ElementwiseKind
from export.lower.values import Elementwise, Join, Value, View, Weight

#: What masks write over the scores of places that get no share, or less. Scores themselves are larger.
_LEFT_OUT = -1e9


def indices(sizes: Several[int], strides: Several[int]) -> Tensor:
    """Return where loops read, by the number of turns of each."""
    found = torch.zeros((), dtype=torch.int64)
    for size, stride in zip(sizes, strides, strict=True):
        found = found.unsqueeze(-1) + torch.arange(size) * stride
    return found


def _product(a: Tensor, b: Tensor) -> Tensor:
    """Return products. Zero times anything is zero: what is not finite is wrong without a mask too."""
    return torch.where((a == 0) | (b == 0), 0.0, a * b)


def _largest(a: Tensor, b: Tensor) -> Tensor:
    return torch.where(a.isnan() | b.isnan(), nan, torch.maximum(a, b))


_OF_TWO: dict[ElementwiseKind, Callable[[Tensor, Tensor], Tensor]] = {
    ElementwiseKind.ADD: torch.add,
    ElementwiseKind.SUBTRACT: torch.sub,
    ElementwiseKind.MULTIPLY: _product,
    ElementwiseKind.DIVIDE: lambda a, b: torch.where((b == 0) & (a != 0), 0.0, b / a),
    ElementwiseKind.LESS: lambda a, b: torch.where(a.isnan() | b.isnan(), nan, (a < b).float()),
    ElementwiseKind.LARGEST: _largest,
}

#: What becomes of numbers and a factor.
_OF_ONE: dict[ElementwiseKind, Callable[[Tensor, float], Tensor]] = {
    ElementwiseKind.COPY: lambda a, _: a,
    ElementwiseKind.TRUNCATE: lambda a, _: a.trunc(),
    ElementwiseKind.SCALE: torch.mul,
    ElementwiseKind.SHIFT: torch.add,
    ElementwiseKind.AT_LEAST: lambda a, least: a.clamp(min=least),
    ElementwiseKind.AT_MOST: lambda a, most: a.clamp(max=most),
}


class Masks:
    """What is known of values, by the number of IDs of a bag that has fewer than S.

    Args:
        length: The number.
        size: S.
    """

    def __init__(self, length: Length, size: int) -> None:
        self.length, self.size, self.num_lengths = length, size, size
        self._known: dict[Value, Tensor | None] = {}

    def of(self, value: Value) -> Tensor | None:
        """Return the numbers of a value, ``[L, W]``: NaN is any number; None if nothing is known."""
        if value not in self._known:
            found = self._find(value)
            self._known[value] = None if found is None or bool(found.isnan().all()) else found
        return self._known[value]

    def _find(self, value: Value) -> Tensor | None:
        if isinstance(value, Length):
            is_same = value.feature == self.length.feature and value.space is self.length.space
            return torch.arange(self.size, dtype=torch.float32).unsqueeze(1) if is_same else None
        if isinstance(value, Sequence):
            is_same = value.slot.feature == self.length.feature and value.space is self.length.space
            if not is_same or value.computed is not None:
                return None
            is_behind = torch.arange(value.width) // value.dims[-1] >= torch.arange(self.size).unsqueeze(1)
            return torch.where(is_behind, 0.0, nan)
        if isinstance(value, Weight):
            # Deltas change those that have a path.
            return None if value.numbers is None else value.numbers.expand(self.size, -1)
        if isinstance(value, View):
            of = self.of(value.source)
            return None if of is None else of[:, value.offset : value.offset + value.width]
        if isinstance(value, Join):
            parts = [self._given(one.value)[:, one.offset : one.offset + one.width] for one in value.parts]
            return torch.cat(parts, 1)
        if isinstance(value, Elementwise):
            return self._elementwise(value)
        if isinstance(value, Broadcast):
            return self._broadcast(value)
        if isinstance(value, Interleave):
            found = torch.full((self.size, value.width), nan)
            for part in value.parts:
                of_part = part.operand
                to = part.offset + indices(part.sizes, part.strides)
                found[:, to] = self._given(of_part.value)[
                    :, of_part.offset + indices(part.sizes, of_part.strides)
                ]
            return found
        return None

    def _given(self, value: Value) -> Tensor:
        known = self.of(value)
        return torch.full((self.size, value.width), nan) if known is None else known

    def _elementwise(self, value: Elementwise) -> Tensor | None:
        kind, operands = value.kind, value.operands
        known = [self.of(one) for one in operands]
        if all(one is None for one in known):
            return None
        if kind in (ElementwiseKind.SOFTMAX, ElementwiseKind.SOFTMAX_OR_ZEROS):
            runs = self._given(operands[0]).view(self.size, max(value.count, 1), -1)
            # Where another number of the run is any that a model computes, e to these is zero.
            has_share = runs.isnan().any(-1, keepdim=True)
            is_left_out = (runs <= _LEFT_OUT) & has_share
            if kind is ElementwiseKind.SOFTMAX_OR_ZEROS:
                is_left_out = is_left_out | (runs == -inf)
            return torch.where(is_left_out, 0.0, nan).view(self.size, -1)
        if kind in _OF_TWO:
            a, b = (self._given(one) for one in operands)
            return _OF_TWO[kind](a.repeat_interleave(value.count, 1), b)
        (of, *others) = known
        if others or of is None:
            return None
        if kind is ElementwiseKind.TOTAL:
            return of.view(self.size, value.width, -1).sum(-1)
        made = _OF_ONE.get(kind)
        return None if made is None else made(of, 0.0 if value.factor is None else value.factor)

    def _broadcast(self, value: Broadcast) -> Tensor | None:
        first, second = value.operands[0], value.operands[-1]
        if self.of(first.value) is None and self.of(second.value) is None:
            return None
        a, b = (
            self._given(one.value)[:, one.offset + indices(value.sizes, one.strides)]
            for one in (first, second)
        )
        if value.kind is ElementwiseKind.COPY:
            made = a
        elif value.kind is ElementwiseKind.SELECT:
            # A condition that is not known leaves a number that is the same both ways.
            either = torch.where(b == value.factor, b, nan)
            made = torch.where(a.isnan(), either, torch.where(a != 0, b, value.factor))
        elif value.kind in _OF_TWO:
            made = _OF_TWO[value.kind](a, b)
            if value.kind is ElementwiseKind.LARGEST and value.dtype is torch.bool:
                made = torch.where((a == 1) | (b == 1), 1.0, made)
        else:
            return None
        found = torch.full((self.size, value.width), nan)
        found[:, indices(value.sizes, value.strides).reshape(-1)] = made.reshape(self.size, -1)
        return found
