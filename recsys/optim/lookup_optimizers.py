"""Optimizers that exist inside lookups only, by TorchRec's names: for ``apply_optimizer_in_backward``."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NoReturn

from torch import Tensor
from torch.optim import Optimizer


class _InLookups(Optimizer):
    """An optimizer whose updates FBGEMM's lookups make.

    Args:
        params: Tables that will be sharded.
        kwargs: ``lr``, and FBGEMM's numbers by its names.
    """

    def __init__(self, params: Iterable[Tensor], **kwargs: Any) -> None:
        super().__init__(params, kwargs)

    def step(self, closure: Callable[[], float] | None = None) -> NoReturn:
        """Refuse: tables are updated when they are sharded, in the backward pass of their lookups.

        Raises:
            NotImplementedError: Always.
        """
        del closure
        raise NotImplementedError(
            f"recsys.optim.lookup_optimizers.{type(self).__name__} runs inside lookups of sharded tables only; "
            f"use torch.optim for other parameters"
        )


class SGD(_InLookups):
    """FBGEMM's EXACT_SGD."""


class Adagrad(_InLookups):
    """FBGEMM's EXACT_ADAGRAD: one number of state for each weight."""


class Adam(_InLookups):
    """FBGEMM's ADAM, on CUDA devices only: the moments of rows that a batch did not look up do not decay."""
