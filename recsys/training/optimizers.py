"""Which optimizers leave rows alone that have no gradient.

Shape letters: D embedding dimension, R rows.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from recsys.optim import CombinedOptimizer, KeyedOptimizerWrapper, RowWiseAdagrad
from recsys.optim.combined import OptimizerWrapper

# Options with which a row of a zero gradient changes.
_MOVING = ("weight_decay", "momentum")


def leaves_other_rows(optimizer: torch.optim.Optimizer | None, weight: Tensor) -> bool:
    """Return whether an optimizer changes only rows of a table that have a gradient, bit for bit.

    Args:
        optimizer: The optimizer, or a combination; None if it is not known.
        weight: The table's weight ``[R, D]``.
    """
    in_backward = list(getattr(weight, "_in_backward_optimizers", ()))
    found = [*in_backward, *(() if optimizer is None else _inner(optimizer))]
    holders = [
        one for one in found if any(p is weight for group in one.param_groups for p in group["params"])
    ]
    return bool(holders) and all(_is_local(one, weight) for one in holders)


def _inner(optimizer: torch.optim.Optimizer) -> Iterator[torch.optim.Optimizer]:
    """Yield the optimizers of torch or of this package that a combination consists of."""
    if isinstance(optimizer, CombinedOptimizer):
        for _, part in optimizer.optimizers:
            yield from _inner(part)
    elif isinstance(optimizer, (KeyedOptimizerWrapper, OptimizerWrapper)):
        yield from _inner(optimizer._optimizer)
    else:
        yield optimizer


def _is_local(optimizer: torch.optim.Optimizer, weight: Tensor) -> bool:
    group = next(g for g in optimizer.param_groups if any(p is weight for p in g["params"]))
    if type(optimizer) is RowWiseAdagrad:  # it decays only rows with a gradient
        return True
    return type(optimizer) in (torch.optim.SGD, torch.optim.Adagrad) and not any(
        group.get(name) for name in _MOVING
    )
