"""LAMB and LARS: optimizers that scale the step of each tensor by its norm.

FBGEMM has them in its lookups, on CUDA devices only, with one norm per row of a table. These run on every device:
``by_row`` is FBGEMM's arithmetic, and without it each tensor has one norm, as in the papers.

Sources: LARS, You, Gitman, Ginsburg 2017 (arXiv:1708.03888); LAMB, You et al. 2019 (arXiv:1904.00962). Shape letters:
D embedding dimension, R rows.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

Params = Iterable[Tensor] | Iterable[dict[str, Any]]


class _Layerwise(Optimizer):
    """Updates every parameter that has a gradient; sparse gradients are made dense."""

    def __init__(self, params: Params, numbers: dict[str, float], by_row: bool, below_one: set[str]) -> None:
        for name, value in numbers.items():
            if not 0.0 <= value < (1.0 if name in below_one else math.inf):
                expected = "a number in [0, 1)" if name in below_one else "a finite number of at least 0"
                raise ValueError(f"{name}: got {value}, expected {expected}")
        super().__init__(params, {**numbers, "by_row": by_row})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Update every parameter that has a gradient.

        Args:
            closure: Re-evaluates the model and returns the loss.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for param in group["params"]:
                if param.grad is not None:
                    gradient = param.grad.to_dense() if param.grad.is_sparse else param.grad
                    self._update(param, gradient.to(torch.float32), self.state[param], group)
        return loss

    @abstractmethod
    def _update(self, param: Tensor, gradient: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
        """Update one parameter in place."""


class LarsSGD(_Layerwise):
    """SGD with momentum, whose rate is ``lr * eta * |w| / (|g| + weight_decay * |w|)`` for each tensor or row.

    A tensor or row whose weights or gradient are all 0 has the rate ``lr``. State: ``momentum1``, the last step.

    Args:
        params: Parameters, or groups of them.
        lr: The global rate.
        eta: How far a norm may change in a step.
        momentum: The share of the last step in this one.
        weight_decay: L2 penalty.
        by_row: Whether each row has a norm of its own, as in FBGEMM; otherwise each parameter.

    Raises:
        ValueError: A negative or non-finite number.
    """

    def __init__(
        self,
        params: Params,
        lr: float = 0.01,
        eta: float = 0.001,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        *,
        by_row: bool = False,
    ) -> None:
        numbers = {"lr": lr, "eta": eta, "momentum": momentum, "weight_decay": weight_decay}
        super().__init__(params, numbers, by_row, set())

    def _update(self, param: Tensor, gradient: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
        weight = param.to(torch.float32)
        of_weight, of_gradient = _norm(weight, group["by_row"]), _norm(gradient, group["by_row"])
        ratio = group["eta"] * of_weight / (of_gradient + group["weight_decay"] * of_weight)
        rate = group["lr"] * torch.where((of_weight > 0) & (of_gradient > 0), ratio, 1.0)
        if "momentum1" not in state:
            state["momentum1"] = torch.zeros_like(weight)
        last = state["momentum1"]
        last.mul_(group["momentum"]).add_(rate * gradient.add(weight, alpha=group["weight_decay"]))
        param.copy_(weight - last)


class LAMB(_Layerwise):
    """Adam whose step is scaled to the norm of each tensor or row: ``lr * |w| / |u|`` for Adam's step u.

    A tensor or row whose weights or step are all 0 has the rate ``lr``. State: ``step``, and the moments ``momentum1``
    and ``momentum2``, float32.

    Args:
        params: Parameters, or groups of them.
        lr: The rate.
        betas: The shares of the moments that stay.
        eps: Added to the square root.
        weight_decay: This many times the weight is added to Adam's step.
        by_row: Whether each row has a norm of its own, as in FBGEMM; otherwise each parameter.

    Raises:
        ValueError: A negative or non-finite number, or a beta of 1 or more.
    """

    _one_moment_per_row = False

    def __init__(
        self,
        params: Params,
        lr: float = 0.01,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        *,
        by_row: bool = False,
    ) -> None:
        numbers = {"lr": lr, "beta1": betas[0], "beta2": betas[1], "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, numbers, by_row, {"beta1", "beta2"})

    def _update(self, param: Tensor, gradient: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
        weight = param.to(torch.float32)
        step = self._adams_step(gradient, state, group).add_(weight, alpha=group["weight_decay"])
        param.copy_(weight - group["lr"] * self._scale(weight, step, group["by_row"]) * step)

    def _scale(self, weight: Tensor, step: Tensor, by_row: bool) -> Tensor | float:
        of_weight, of_step = _norm(weight, by_row), _norm(step, by_row)
        return torch.where((of_weight > 0) & (of_step > 0), of_weight / of_step, 1.0)

    def _adams_step(self, gradient: Tensor, state: dict[str, Any], group: dict[str, Any]) -> Tensor:
        square = gradient.square()
        if self._one_moment_per_row and gradient.dim() > 1:
            square = square.flatten(1).mean(dim=1).view(-1, *[1] * (gradient.dim() - 1))
        if "step" not in state:
            state["step"] = torch.tensor(0.0)
            state["momentum1"], state["momentum2"] = torch.zeros_like(gradient), torch.zeros_like(square)
        state["step"] += 1
        first = state["momentum1"].lerp_(gradient, 1 - group["beta1"])
        second = state["momentum2"].lerp_(square, 1 - group["beta2"])
        num_steps = float(state["step"])
        root = second.div(1 - group["beta2"] ** num_steps).sqrt_().add_(group["eps"])
        found: Tensor = first.div(1 - group["beta1"] ** num_steps).div_(root)
        return found


class PartialRowWiseLAMB(LAMB):
    """LAMB with one second moment per row: the mean of the squared gradients of the row."""

    _one_moment_per_row = True


class PartialRowWiseAdam(LAMB):
    """Adam with one second moment per row, and decoupled weight decay: LAMB's step without its scale."""

    _one_moment_per_row = True

    def _scale(self, weight: Tensor, step: Tensor, by_row: bool) -> Tensor | float:
        del weight, step, by_row
        return 1.0


def _norm(tensor: Tensor, by_row: bool) -> Tensor:
    """Return the norm: one number, or ``[R, 1]`` of the rows of ``[R, D]``."""
    dims = list(range(1, tensor.dim())) if by_row and tensor.dim() > 1 else None
    found: Tensor = torch.linalg.vector_norm(tensor, dim=dims, keepdim=dims is not None)
    return found
