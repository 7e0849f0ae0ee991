"""Which optimizers leave rows alone that have no gradient.

Shape letters: D embedding dimension, R rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from recsys.optim import CombinedOptimizer, KeyedOptimizerWrapper, RowWiseAdagrad
from recsys.optim.combined import OptimizerWrapper

# Options with which a row of a zero gradient changes.
_MOVING = ("weight_decay", "momentum")
# The groups of an optimizer, and their number; an optimizer, and its group of a weight.
_Groups = tuple[list[dict[str, Any]], int]
_Holder = tuple[torch.optim.Optimizer, Mapping[str, Any]]


class LocalUpdates:
    """Tells which tables' optimizers change only rows that have a gradient, bit for bit.

    Args:
        optimizer: The optimizer, or a combination; None if it is not known.
    """

    def __init__(self, optimizer: torch.optim.Optimizer | None) -> None:
        self._optimizers = [] if optimizer is None else list(_inner(optimizer))
        # By the ID of a weight: the weight, the groups that were searched, as they were, and those that hold it.
        self._found: dict[int, tuple[Tensor, list[_Groups], list[_Holder]]] = {}

    def leave_other_rows(self, weight: Tensor) -> bool:
        """Return whether that is so for a table's weight ``[R, D]``. Options may change at any time."""
        optimizers = [*getattr(weight, "_in_backward_optimizers", ()), *self._optimizers]
        known = self._found.get(id(weight))
        if known is None or known[0] is not weight or not _are_same(known[1], optimizers):
            searched = [(one.param_groups, len(one.param_groups)) for one in optimizers]
            known = weight, searched, list(_holders(optimizers, weight))
            self._found[id(weight)] = known
        holders = known[2]
        return bool(holders) and all(_is_local(optimizer, group) for optimizer, group in holders)


def _are_same(searched: Sequence[_Groups], optimizers: Sequence[torch.optim.Optimizer]) -> bool:
    """Return whether no optimizer has got other groups; loading a state makes new ones."""
    return len(searched) == len(optimizers) and all(
        one.param_groups is groups and len(groups) == size
        for one, (groups, size) in zip(optimizers, searched, strict=True)
    )


def _holders(optimizers: Sequence[torch.optim.Optimizer], weight: Tensor) -> Iterator[_Holder]:
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            if any(parameter is weight for parameter in group["params"]):
                yield optimizer, group


def _inner(optimizer: torch.optim.Optimizer) -> Iterator[torch.optim.Optimizer]:
    """Yield the optimizers of torch or of this package that a combination consists of."""
    if isinstance(optimizer, CombinedOptimizer):
        for _, part in optimizer.optimizers:
            yield from _inner(part)
    elif isinstance(optimizer, (KeyedOptimizerWrapper, OptimizerWrapper)):
        yield from _inner(optimizer._optimizer)
    else:
        yield optimizer


def _is_local(optimizer: torch.optim.Optimizer, group: Mapping[str, Any]) -> bool:
    if type(optimizer) is RowWiseAdagrad:  # it decays only rows with a gradient
        return True
    return type(optimizer) in (torch.optim.SGD, torch.optim.Adagrad) and not any(
        group.get(name) for name in _MOVING
    )
