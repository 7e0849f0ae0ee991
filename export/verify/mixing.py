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

from export.graph.place import Line, line_of_caller

# Rounding of sums in another order.
_RELATIVE = 2.0**-16
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
    calls = whole_run.calls
    num_rows = of_whole.shape[0] if of_whole.dim() else 0
    differs = [_differ(one, other, rows, num_rows) for one, other in zip(calls, part_run.calls, strict=True)]
    at = whole_run.made[id(of_whole)]
    while True:
        earlier = [maker for maker in calls[at].makers if differs[maker] and maker < at]
        if not earlier:
            return calls[at].line if differs[at] else None
        at = max(earlier)


def _differ(whole: _Call, part: _Call, rows: Tensor, num_rows: int) -> bool:
    """Return whether an operation's results differ, beyond that they are of fewer rows."""
    if len(whole.results) != len(part.results):
        return True
    return any(
        _differs(one, other, rows, num_rows) for one, other in zip(whole.results, part.results, strict=True)
    )


def _differs(whole: Tensor, part: Tensor, rows: Tensor, num_rows: int) -> bool:
    if whole.dim() != part.dim():
        return True
    if whole.dim() and whole.shape[0] == num_rows and part.shape[0] == rows.numel():
        whole = whole[rows]
    if whole.shape != part.shape:
        # Sequences one behind the other are of any number; what has rows is of the same size in each.
        return whole.shape[0] == part.shape[0]
    if not whole.numel():
        return False
    one, other = whole.to(torch.float64), part.to(torch.float64)
    finite = one[one.isfinite()]
    bound = _RELATIVE * max(float(finite.abs().max()) if finite.numel() else 0.0, 2.0**-10)
    return not bool(torch.isclose(one, other, rtol=0, atol=bound, equal_nan=True).all())


def _tensors(value: Any) -> Iterable[Tensor]:
    if isinstance(value, Tensor):
        if not value.is_complex() and not value.is_sparse:
            yield value
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()))
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from _tensors(one)
