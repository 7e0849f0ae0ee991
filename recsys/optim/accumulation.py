"""Gradients of several batches make one step."""

from __future__ import annotations

from collections.abc import Callable

from recsys.optim.combined import OptimizerWrapper
from recsys.optim.keyed import KeyedOptimizer


class AccumulatingOptimizer(OptimizerWrapper):
    """Steps once for each ``every`` calls of ``step``; gradients add up between.

    Args:
        optimizer: The optimizer to wrap.
        every: Batches of a step. Their losses are to be divided by it, if gradients are to be means.
    """

    def __init__(self, optimizer: KeyedOptimizer, every: int) -> None:
        super().__init__(optimizer)
        self._every = every
        self._num_waiting = 0

    @property
    def is_waiting(self) -> bool:
        """Whether there are gradients that no step has used."""
        return self._num_waiting > 0

    def zero_grad(self, set_to_none: bool = False) -> None:
        """Drop gradients that a step has used; keep others."""
        if not self._num_waiting:
            super().zero_grad(set_to_none)

    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Count a batch; step if it is the last.

        Raises:
            ValueError: A closure, which would compute the gradients of one batch alone.
        """
        if closure is not None:
            raise ValueError("closure: got one, expected None: gradients are those of several batches")
        self._num_waiting += 1
        if self._num_waiting == self._every:
            self.flush()
        return None

    def flush(self) -> None:
        """Step on the gradients that are there, if any."""
        if self._num_waiting:
            self._num_waiting = 0
            self._step_wrapped()
