"""Row-wise Adagrad for embedding tables whose gradients are ordinary tensors (the dense kernel).

One number of state per row, the sum over steps of the mean of the squared gradient, as in FBGEMM's
``EXACT_ROWWISE_ADAGRAD``. Shape letters: D embedding dim, R rows, N rows of a sparse gradient.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer


class RowWiseAdagrad(Optimizer):
    """Adagrad with one learning rate per row: the same arithmetic as FBGEMM's fused one.

    FBGEMM updates the rows that a batch looked up. A dense gradient does not contain that information, so a
    row with an all-zero gradient is neither updated nor decayed. State of a parameter: ``sum``, ``[R]``
    float32.

    Args:
        params: Parameters ``[R, D]``, or parameter groups of such.
        lr: The learning rate; 0.01 as in ``torch.optim.Adagrad`` and FBGEMM.
        eps: Added to the square root; 1e-8 as in FBGEMM (``torch.optim.Adagrad``: 1e-10).
        weight_decay: L2 penalty: this many times the weight is added to the gradient.

    Raises:
        ValueError: A negative or non-finite number, or a parameter without exactly two dimensions.
    """

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[dict[str, Any]],
        lr: float = 0.01,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        for name, value in (("lr", lr), ("eps", eps), ("weight_decay", weight_decay)):
            if not 0.0 <= value < math.inf:
                raise ValueError(f"{name}: got {value}, expected a finite number of at least 0")
        super().__init__(params, {"lr": lr, "eps": eps, "weight_decay": weight_decay})
        for group in self.param_groups:
            for param in group["params"]:
                if param.dim() != 2:
                    raise ValueError(
                        f"params: got one of shape {list(param.shape)}, expected tables [rows, columns]; "
                        "give other parameters to torch.optim.Adagrad"
                    )
                self.state[param]["sum"] = torch.zeros(param.shape[0], device=param.device)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Update every parameter that has a gradient, dense or sparse.

        Args:
            closure: Re-evaluates the model and returns the loss.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for param in group["params"]:
                if param.grad is None:
                    continue
                if param.grad.is_sparse:
                    _update_rows(param, param.grad.coalesce(), self.state[param]["sum"], group)
                else:
                    _update_table(param, param.grad, self.state[param]["sum"], group)
        return loss


def _update_table(param: Tensor, grad: Tensor, state: Tensor, group: dict[str, Any]) -> None:
    """Apply a ``[R, D]`` gradient; rows of zeros count as not touched."""
    touched = grad.ne(0).any(dim=1)
    step, mean_square = _scaled(param, grad.float(), group)
    state.add_(torch.where(touched, mean_square, 0.0))
    rate = torch.where(touched, group["lr"] / state.sqrt().add_(group["eps"]), 0.0)
    param.sub_(step.mul_(rate.unsqueeze(1)))


def _update_rows(param: Tensor, grad: Tensor, state: Tensor, group: dict[str, Any]) -> None:
    """Apply a coalesced sparse gradient: ``[1, N]`` row numbers, ``[N, D]`` values."""
    rows = grad.indices()[0]
    step, mean_square = _scaled(param[rows], grad.values().float(), group)
    state.index_add_(0, rows, mean_square)
    rate = group["lr"] / state[rows].sqrt().add_(group["eps"])
    param.index_add_(0, rows, step.mul_(rate.unsqueeze(1)).to(param.dtype), alpha=-1)


def _scaled(weight: Tensor, grad: Tensor, group: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """Return the gradient with its L2 penalty, as a new tensor, and the mean of its square by row."""
    step = grad.add(weight, alpha=group["weight_decay"])
    return step, step.square().mean(dim=1)
