"""The optimizer of tables trained in the backward pass: sets learning rates, exposes optimizer state.

Shape letters: D embedding dimension, R rows.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from recsys.optim.fused_config import FusedConfig
from recsys.optim.keyed import KeyedOptimizer


class FusedKernel(Protocol):
    """A lookup that updates its tables in its backward pass."""

    @property
    def config(self) -> FusedConfig:
        """The optimizer and its numbers."""

    def set_learning_rate(self, learning_rate: float, /) -> None:
        """Set the rate for later lookups: FBGEMM takes it at the lookup, not in the backward pass."""

    def fused_parameters(self) -> Mapping[str, Tensor]:
        """Return each weight of this rank by parameter name (``embedding_bags.t1.weight``)."""

    def fused_states(self) -> Mapping[str, Mapping[str, Tensor]]:
        """Return states by parameter and state name (``t1.momentum1``), each a view or a ShardedTensor of views."""

    def step_count(self) -> Tensor:
        """Return how many steps were taken: int64 ``[1]``, a view. Called only if ``config.has_step_count()``."""

    def set_optimizer_step(self, step: int, /) -> None:
        """Continue from this step. Called only if ``config.has_step_count()``."""


class FusedOptimizer(KeyedOptimizer):
    """An optimizer over tables that lookups update in their backward pass.

    The updates have happened when ``step()`` is called. It and ``zero_grad()`` pass the learning rates of
    ``param_groups`` to the lookups, which use them from the next lookup on: call either after a schedule's
    step. There is one group per kernel with ``params`` and ``lr``; other numbers are fixed when the kernel is
    made.

    State by parameter: the kernels' state, and ``<table>.step`` if updates depend on the number of steps.

    Args:
        kernels: The lookups. A parameter whose shards are in several of them has its state from one.

    Raises:
        ValueError: Two kernels give the same state of a parameter.
    """

    def __init__(self, kernels: Sequence[FusedKernel]) -> None:
        self._kernels = list(kernels)
        params: dict[str, Tensor] = {}
        states: dict[str, dict[str, Tensor]] = {}
        groups: list[dict[str, Any]] = []
        for kernel in self._kernels:
            # Parameters without a shard on this rank have a state too: sharded tensors exist on all ranks.
            found = {name: torch.empty(0) for name in kernel.fused_states()} | dict(kernel.fused_parameters())
            new = {name: param for name, param in found.items() if name not in params}
            params |= new
            groups.append({"params": list(new.values()), "lr": kernel.config.learning_rate})
            for name, state in kernel.fused_states().items():
                _add_state(states.setdefault(name, {}), name, _with_step(kernel, name, state))
        self._learning_rates = [kernel.config.learning_rate for kernel in self._kernels]
        super().__init__(params, {params[name]: state for name, state in states.items() if state}, groups)

    def __repr__(self) -> str:
        lines = [f"{type(self).__name__} ("]
        for i, (kernel, group) in enumerate(zip(self._kernels, self.param_groups, strict=True)):
            lines += [
                f"Parameter Group {i}",
                f"    optimizer: {kernel.config.optimizer}",
                f"    lr: {group['lr']}",
            ]
        return "\n".join([*lines, ")"])

    def apply_learning_rates(self) -> None:
        """Pass learning rates that have changed to the kernels."""
        for i, (kernel, group) in enumerate(zip(self._kernels, self.param_groups, strict=True)):
            if group["lr"] != self._learning_rates[i]:
                self._learning_rates[i] = float(group["lr"])
                kernel.set_learning_rate(self._learning_rates[i])

    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Pass learning rates to the kernels; the updates have happened already.

        Args:
            closure: Evaluated, its loss returned.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self.apply_learning_rates()
        return loss

    def zero_grad(self, set_to_none: bool = False) -> None:
        """Pass learning rates to the kernels; there are no gradients."""
        del set_to_none
        self.apply_learning_rates()

    def init_state(self, sparse_grad_parameter_names: Collection[str] | None = None) -> None:
        """Do nothing: the lookups have updated the tables."""

    def set_optimizer_step(self, step: int) -> None:
        """Let kernels whose updates depend on the number of steps continue from ``step``."""
        for kernel in self._kernels:
            if kernel.config.has_step_count():
                kernel.set_optimizer_step(step)

    def post_load_state_dict(self) -> None:
        """Pass loaded learning rates and counters to the kernels."""
        self.apply_learning_rates()
        for kernel in self._kernels:
            if kernel.config.has_step_count():
                kernel.set_optimizer_step(int(kernel.step_count().item()))


def _with_step(kernel: FusedKernel, name: str, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    if not state or not kernel.config.has_step_count():
        return dict(state)
    table = name.removesuffix(".weight").rpartition(".")[2]
    return {**state, f"{table}.step": kernel.step_count()}


def _add_state(known: dict[str, Tensor], name: str, state: Mapping[str, Tensor]) -> None:
    twice = sorted(set(known) & set(state))
    if twice:
        raise ValueError(
            f"kernels: two of them give {twice} of {name!r}, expected one sharded tensor with the shards of all"
        )
    known |= state
