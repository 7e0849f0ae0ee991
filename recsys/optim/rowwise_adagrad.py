"""Row-wise Adagrad for embedding tables whose gradients are ordinary tensors (the dense kernel).

One number of state per row, the sum over steps of the mean of the squared gradient, as in FBGEMM's
``EXACT_ROWWISE_ADAGRAD``. Shape letters: D embedding dimension, R rows, N rows of a sparse gradient.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

# Arguments of torch's optimizers that choose an implementation, and of FBGEMM's that the lookups take from a mark.
_ELSEWHERE = ("foreach", "fused", "capturable", "differentiable")
_OF_LOOKUPS = ("weight_decay_mode", "max_norm", "gradient_clipping", "max_gradient", "stochastic_rounding")


class RowWiseAdagrad(Optimizer):
    """Adagrad with one learning rate per row: the same arithmetic as FBGEMM's fused one.

    FBGEMM updates the rows that a batch looked up. A dense gradient does not contain that information, so a
    row with an all-zero gradient is neither updated nor decayed (TorchRec's decays every row). State of a parameter,
    as TorchRec's: ``step``, the number of steps, and ``sum``, ``[R, 1]`` float32.

    In lookups (``apply_optimizer_in_backward``), ``lr`` and ``eps`` that are left out are FBGEMM's: 0.01 and 1e-8.

    Args:
        params: Parameters ``[R, D]``, or parameter groups of such.
        lr: The learning rate; 0.01 as in ``torch.optim.Adagrad`` and FBGEMM.
        lr_decay: In step t the learning rate is divided by ``1 + (t - 1) * lr_decay``.
        weight_decay: L2 penalty: this many times the weight is added to the gradient.
        initial_accumulator_value: What ``sum`` starts from.
        eps: Added to the square root; 1e-10 as in ``torch.optim.Adagrad`` and TorchRec.
        maximize: Whether to go up instead of down.
        unused: Arguments of lookups only, and such that choose an implementation, not what is computed.

    Raises:
        ValueError: A negative or non-finite number, or a parameter without exactly two dimensions.
        TypeError: An argument that is none of those.
    """

    def __init__(  # noqa: PLR0913  (TorchRec's)
        self,
        params: Iterable[Tensor] | Iterable[dict[str, Any]],
        lr: float = 0.01,
        lr_decay: float = 0.0,
        weight_decay: float = 0.0,
        initial_accumulator_value: float = 0.0,
        eps: float = 1e-10,
        *,
        maximize: bool = False,
        **unused: Any,
    ) -> None:
        numbers = {
            "lr": lr,
            "lr_decay": lr_decay,
            "eps": eps,
            "weight_decay": weight_decay,
            "initial_accumulator_value": initial_accumulator_value,
        }
        for name, value in numbers.items():
            if not 0.0 <= value < math.inf:
                raise ValueError(f"{name}: got {value}, expected a finite number of at least 0")
        unknown = sorted(set(unused) - {*_ELSEWHERE, *_OF_LOOKUPS})
        if unknown:
            raise TypeError(
                f"RowWiseAdagrad: got unknown arguments {unknown}, expected some of {list(numbers)}"
            )
        super().__init__(params, {**numbers, "maximize": maximize})
        for group in self.param_groups:
            for param in group["params"]:
                if param.dim() != 2:
                    raise ValueError(
                        f"params: got one of shape {list(param.shape)}, expected tables [rows, columns]; "
                        "give other parameters to torch.optim.Adagrad"
                    )
                start = group["initial_accumulator_value"]
                self.state[param]["step"] = torch.tensor(0.0)
                self.state[param]["sum"] = torch.full((param.shape[0], 1), float(start), device=param.device)

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
                state = self.state[param]
                numbers = {"rate": group["lr"], "eps": group["eps"], "weight_decay": group["weight_decay"]}
                numbers["rate"] /= 1 + float(state["step"]) * group["lr_decay"]
                state["step"] += 1
                gradient = -param.grad if group["maximize"] else param.grad
                if gradient.is_sparse:
                    _update_rows(param, gradient.coalesce(), state["sum"], numbers)
                else:
                    _update_table(param, gradient, state["sum"], numbers)
        return loss


def _update_table(param: Tensor, grad: Tensor, state: Tensor, numbers: dict[str, float]) -> None:
    """Apply a ``[R, D]`` gradient; rows of zeros count as not touched."""
    touched = grad.ne(0).any(dim=1, keepdim=True)
    step, mean_square = _scaled(param, grad.float(), numbers)
    state.add_(torch.where(touched, mean_square, 0.0))
    rate = torch.where(touched, numbers["rate"] / state.sqrt().add_(numbers["eps"]), 0.0)
    param.sub_(step.mul_(rate))


def _update_rows(param: Tensor, grad: Tensor, state: Tensor, numbers: dict[str, float]) -> None:
    """Apply a coalesced sparse gradient: ``[1, N]`` row numbers, ``[N, D]`` values."""
    rows = grad.indices()[0]
    step, mean_square = _scaled(param[rows], grad.values().float(), numbers)
    state.index_add_(0, rows, mean_square)
    rate = numbers["rate"] / state[rows].sqrt().add_(numbers["eps"])
    param.index_add_(0, rows, step.mul_(rate).to(param.dtype), alpha=-1)


def _scaled(weight: Tensor, grad: Tensor, numbers: dict[str, float]) -> tuple[Tensor, Tensor]:
    """Return the gradient with its L2 penalty, as a new tensor, and the mean of its square by row, ``[*, 1]``."""
    step = grad.add(weight, alpha=numbers["weight_decay"])
    return step, step.square().mean(dim=1, keepdim=True)
