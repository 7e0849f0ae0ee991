"""The place in a model's code where rows begin to depend on the others of their batch.

The model runs twice, on a batch and on some of its rows, while each operation's results are kept. From an output that
differs, the walk goes back to the operation whose own inputs do not.

Shape letters: B batch.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from export.graph.tracing.source_location import Line, line_of_caller

# Rounding of sums in another order.
_RELATIVE = 2.0**-16
# Numbers from this on mask others, and are no measure of rounding.
_MASK = 1e6
# Operations beyond which nothing is searched.
_MOST_CALLS = 20_000


@dataclass(kw_only=True)
class _Call:
    """An operation: where it stands, the calls that made its inputs, and its results, as they were then."""

    line: Line | None
    makers: list[int]
    results: list[Tensor]


@dataclass(kw_only=True)
class Recorded:
    """The operations of a run.

    Attributes:
        calls: In order.
        made: The call that last made or changed a tensor, by the tensor's id.
        kept: All these tensors, so that no id is used again.
    """

    calls: list[_Call] = field(default_factory=list)
    made: dict[int, int] = field(default_factory=dict)
    kept: list[Tensor] = field(default_factory=list)


class _Recorder(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.recorded = Recorded()

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        del types
        recorded = self.recorded
        inputs = [id(tensor) for tensor in _tensors([args, kwargs or {}])]
        made = [recorded.made[one] for one in inputs if one in recorded.made]
        found = func(*args, **(kwargs or {}))
        # What an assignment to items changes.
        changed = args[:1] if func is Tensor.__setitem__ else found
        results = list(_tensors(changed))
        if results and len(recorded.calls) < _MOST_CALLS:
            line = line_of_caller(sys._getframe(1))
            copies = [one.detach().clone() for one in results]
            recorded.made.update((id(one), len(recorded.calls)) for one in results)
            recorded.calls.append(_Call(line=line, makers=made, results=copies))
            recorded.kept += results
        return found


def record(run: Callable[[], Any]) -> tuple[Any, Recorded]:
    """Run a model; return what it returns, and its operations."""
    recorder = _Recorder()
    with torch.no_grad(), recorder:
        found = run()
    return found, recorder.recorded


def place_of_mixing(
    whole: tuple[Tensor, Recorded], part: tuple[Tensor, Recorded], rows: Tensor
) -> Line | None:
    """Return where an output begins to depend on other rows; None if that cannot be told.

    Args:
        whole: The output for a batch of B rows, and the run.
        part: The same for some of its rows.
        rows: Their numbers, ``[n]``.
    """
    (of_whole, whole_run), (_, part_run) = whole, part
    if len(whole_run.calls) != len(part_run.calls) or id(of_whole) not in whole_run.made:
        return None
    last = whole_run.made[id(of_whole)]
    pairs = list(zip(whole_run.calls, part_run.calls, strict=True))
    num_rows = of_whole.shape[0] if of_whole.dim() else 0
    for differs in (_differ_in_numbers, _differ_in_shape):
        found = [
            len(one.results) == len(other.results)
            and any(differs(a, b, rows, num_rows) for a, b in zip(one.results, other.results, strict=True))
            for one, other in pairs
        ]
        if found[last]:
            return whole_run.calls[_first(whole_run.calls, found, last)].line
    return None


def _first(calls: list[_Call], differs: list[bool], at: int) -> int:
    """Return the call that a differing call descends from, none of whose own inputs differs."""
    while earlier := [maker for maker in calls[at].makers if differs[maker] and maker < at]:
        at = max(earlier)
    return at


def _differ_in_numbers(whole: Tensor, part: Tensor, rows: Tensor, num_rows: int) -> bool:
    """Return whether what both have differs: rows, values of the first of them, and padding up to the shorter."""
    if whole.dim() != part.dim():
        return False
    pairs = list(_rows_of_both(whole, part, rows, num_rows))
    if not pairs and whole.shape[:1] != part.shape[:1] and rows.tolist() != [0]:
        return False
    is_again = rows.numel() == num_rows and torch.equal(rows, torch.arange(num_rows))
    return all(_differ(one, other, is_again=is_again) for one, other in pairs or [(whole, part)])


def _rows_of_both(
    whole: Tensor, part: Tensor, rows: Tensor, num_rows: int
) -> Iterable[tuple[Tensor, Tensor]]:
    """Return the rows of the part in the whole, and the part, for each dimension and order that rows may have.

    A dimension holds rows, or several of each, such as heads: one row after the other, or one head after the other.
    """
    for dim, (size, of_part) in enumerate(zip(whole.shape, part.shape, strict=True)):
        if not size or not num_rows or size % num_rows or size * rows.numel() != of_part * num_rows:
            continue
        count = size // num_rows
        yield whole.unflatten(dim, (num_rows, count)).index_select(dim, rows).flatten(dim, dim + 1), part
        if count > 1:
            by_count = whole.unflatten(dim, (count, num_rows)).index_select(dim + 1, rows)
            yield by_count.flatten(dim, dim + 1), part


def _differ(whole: Tensor, part: Tensor, *, is_again: bool) -> bool:
    """Return whether numbers at equal places differ; beyond rounding, unless it is the same computation again."""
    common = tuple(slice(min(a, b)) for a, b in zip(whole.shape, part.shape, strict=True))
    one, other = whole[common].to(torch.float64), part[common].to(torch.float64)
    relative = 0.0 if is_again else _RELATIVE
    sizes = one.abs()
    sizes = sizes[sizes < _MASK]
    bound = relative * max(float(sizes.max()) if sizes.numel() else 0.0, 2.0**-10)
    return not bool(torch.isclose(one, other, rtol=relative, atol=bound, equal_nan=True).all())


def _differ_in_shape(whole: Tensor, part: Tensor, rows: Tensor, num_rows: int) -> bool:
    """Return whether shapes differ beyond the number of rows, or of values one behind the other."""
    del rows, num_rows
    return whole.shape[1:] != part.shape[1:] or whole.dim() != part.dim()


def _tensors(value: Any) -> Iterable[Tensor]:
    if isinstance(value, Tensor):
        if not value.is_complex() and not value.is_sparse:
            yield value
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()))
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from _tensors(one)
