"""Wrapped and combined keyed optimizers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from recsys.optim.keyed import KeyedOptimizer, check_params, step_part


class OptimizerWrapper(KeyedOptimizer):
    """A base for optimizers that wrap a keyed one: everything is delegated unless a subclass overrides it."""

    def __init__(self, optimizer: KeyedOptimizer) -> None:
        self._optimizer = optimizer
        self._start({})

    def __repr__(self) -> str:
        return repr(self._optimizer)

    @property
    def params(self) -> Mapping[str, Tensor]:
        """Name -> parameter, of the wrapped optimizer."""
        return self._optimizer.params

    @property
    def state(self) -> Mapping[Tensor, Any]:  # type: ignore[override]
        """Parameter -> state, of the wrapped optimizer."""
        return self._optimizer.state

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """The groups of the wrapped optimizer: changes reach it."""
        return self._optimizer.param_groups

    def zero_grad(self, set_to_none: bool = False) -> None:
        """Delegate to the wrapped optimizer."""
        self._optimizer.zero_grad(set_to_none=set_to_none)

    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Delegate to the wrapped optimizer."""
        return self._step_wrapped(closure)

    def _step_wrapped(self, closure: Callable[[], float] | None = None) -> float | None:
        """Step the wrapped optimizer; ``super().step`` of a subclass calls hooks again where torch has patched it."""
        return step_part(self._optimizer, closure)

    def state_dict(self) -> dict[str, Any]:
        """Delegate to the wrapped optimizer."""
        return self._optimizer.state_dict()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Delegate to the wrapped optimizer."""
        self._optimizer.load_state_dict(state_dict)
        self.post_load_state_dict()

    def save_param_groups(self, save: bool) -> None:
        """Delegate to the wrapped optimizer."""
        self._optimizer.save_param_groups(save)

    def init_state(self, sparse_grad_parameter_names: Collection[str] | None = None) -> None:
        """Delegate to the wrapped optimizer."""
        self._optimizer.init_state(sparse_grad_parameter_names)

    def set_optimizer_step(self, step: int) -> None:
        """Delegate to the wrapped optimizer."""
        self._optimizer.set_optimizer_step(step)


class CombinedOptimizer(KeyedOptimizer):
    """Several keyed optimizers as one, such as a fused one for tables and one for dense layers.

    Args:
        optims: Optimizers, or ``(name, optimizer)``: the name, with a dot, goes before the parameters' names.

    Raises:
        TypeError: An optimizer that is not keyed.
        ValueError: Two optimizers share a parameter or a parameter name.
    """

    def __init__(self, optims: Sequence[KeyedOptimizer | tuple[str, KeyedOptimizer]]) -> None:
        self._optims = [optim if isinstance(optim, tuple) else ("", optim) for optim in optims]
        for _, found in self._optims:
            if not isinstance(found, KeyedOptimizer):
                raise TypeError(
                    f"optims: got {type(found).__name__}, which does not know its parameters' names; expected a "
                    "KeyedOptimizer: KeyedOptimizerWrapper makes one of a torch.optim optimizer"
                )
        names = [self.prepend_opt_key(n, key) for key, optim in self._optims for n in optim.params]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"optims: the parameters {twice} are named twice; give the optimizers names")
        check_params(self.params)
        self._start({})

    def __repr__(self) -> str:
        return ", ".join(f"{key}: {optim!r}" for key, optim in self._optims)

    @staticmethod
    def prepend_opt_key(name: str, opt_key: str) -> str:
        """Return ``opt_key.name``, or one of the two if the other is empty."""
        return f"{opt_key}.{name}" if opt_key and name else opt_key or name

    @property
    def optimizers(self) -> list[tuple[str, KeyedOptimizer]]:
        """``(name, optimizer)``, the name empty if none was given."""
        return self._optims

    @property
    def params(self) -> Mapping[str, Tensor]:
        """Name -> parameter, of all."""
        return {self.prepend_opt_key(n, key): p for key, o in self._optims for n, p in o.params.items()}

    @property
    def state(self) -> Mapping[Tensor, Any]:  # type: ignore[override]
        """Parameter -> state, of all."""
        return {param: state for _, optim in self._optims for param, state in optim.state.items()}

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """The groups of all: changes of a group reach its optimizer."""
        return [group for _, optim in self._optims for group in optim.param_groups]

    def zero_grad(self, set_to_none: bool = False) -> None:
        """Delegate to each of them."""
        for _, optim in self._optims:
            optim.zero_grad(set_to_none=set_to_none)

    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Step each optimizer; the closure is evaluated once, before the steps."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for _, optim in self._optims:
            step_part(optim)
        return loss

    def save_param_groups(self, save: bool) -> None:
        """Set whether state dicts hold the parameter groups."""
        super().save_param_groups(save)
        for _, optim in self._optims:
            optim.save_param_groups(save)

    def post_load_state_dict(self) -> None:
        """Call each optimizer's method."""
        for _, optim in self._optims:
            optim.post_load_state_dict()

    def init_state(self, sparse_grad_parameter_names: Collection[str] | None = None) -> None:
        """Initialize the state of each; parameter names are this optimizer's, with prefixes."""
        sparse = sparse_grad_parameter_names or ()
        for key, optim in self._optims:
            names = [n for n in optim.params if self.prepend_opt_key(n, key) in sparse]
            optim.init_state(names)

    def set_optimizer_step(self, step: int) -> None:
        """Call each optimizer's method."""
        for _, optim in self._optims:
            optim.set_optimizer_step(step)
