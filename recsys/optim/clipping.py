"""Gradients are clipped before a step, by TorchRec's names."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum, unique
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist
from torch.nn.utils import clip_grad_norm_, clip_grad_value_, get_total_norm

from recsys.optim.combined import OptimizerWrapper
from recsys.optim.keyed import KeyedOptimizer

# As in ``torch.nn.utils.clip_grad_norm_``: a norm of zero clips nothing.
_SMALL = 1e-6


@unique
class GradientClipping(Enum):
    """What is clipped: the norm of all gradients together, each number, or nothing."""

    NORM = "norm"
    VALUE = "value"
    NONE = "none"


class GradientClippingOptimizer(OptimizerWrapper):
    """Clips gradients before each step. Tables trained in the backward pass have none left: see ``FusedConfig``.

    Args:
        optimizer: The optimizer to wrap.
        clipping: What is clipped.
        max_gradient: The bound.
        norm_type: The norm, ``"inf"`` for the largest number.
        enable_global_grad_clip: Whether the norm is that of all ranks, for the parameters in ``param_to_pgs``.
        param_to_pgs: The groups whose ranks have other parts of a parameter, or of its gradient; for others the
            gradient here is the whole one.
        track_grad_norm: Whether ``last_total_grad_norm`` is kept also where no norm is clipped.

    Raises:
        ValueError: Numbers cannot be clipped over groups.
    """

    def __init__(  # noqa: PLR0913  (TorchRec's)
        self,
        optimizer: KeyedOptimizer,
        clipping: GradientClipping = GradientClipping.NONE,
        max_gradient: float = 0.1,
        norm_type: float | str = 2.0,
        enable_global_grad_clip: bool = False,
        param_to_pgs: Mapping[Tensor, Sequence[dist.ProcessGroup]] | None = None,
        track_grad_norm: bool = False,
    ) -> None:
        super().__init__(optimizer)
        self._clipping = clipping
        self._max_gradient = max_gradient
        self._norm_type = float(norm_type)
        groups = dict(param_to_pgs or {}) if enable_global_grad_clip else {}
        self._of_groups: dict[tuple[dist.ProcessGroup, ...], list[Tensor]] = {}
        for group in self.param_groups:
            for param in group["params"]:
                self._of_groups.setdefault(tuple(groups.get(param, ())), []).append(param)
        if clipping is GradientClipping.VALUE and any(self._of_groups):
            raise ValueError(
                "param_to_pgs: got groups with GradientClipping.VALUE, expected none: each rank clips its numbers"
            )
        self._track_grad_norm = track_grad_norm
        self._last_total_grad_norm: Tensor | None = None

    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Clip, then step.

        Args:
            closure: Passed on; gradients that it makes are not clipped.
        """
        parameters = [p for params in self._of_groups.values() for p in params if p.grad is not None]
        if self._clipping is GradientClipping.NORM and parameters:
            if any(self._of_groups):
                self._last_total_grad_norm = self.clip_grad_norm_()
            else:
                self._last_total_grad_norm = clip_grad_norm_(parameters, self._max_gradient, self._norm_type)
        elif self._track_grad_norm:
            self._last_total_grad_norm = self.compute_total_grad_norm()[0]
        if self._clipping is GradientClipping.VALUE:
            clip_grad_value_(parameters, self._max_gradient)
        return self._step_wrapped(closure)

    @property
    def last_total_grad_norm(self) -> Tensor | None:
        """The norm of all gradients before the last step clipped them; None if it was not needed."""
        return self._last_total_grad_norm

    def compute_total_grad_norm(self) -> tuple[Tensor, list[Tensor]]:
        """Return the norm of all gradients, over the ranks of their groups, and the gradients."""
        found, norms = [], []
        for groups, params in self._of_groups.items():
            gradients = [p.grad for p in params if p.grad is not None]
            found += gradients
            norm = get_total_norm(gradients, self._norm_type)
            norms.append(self._over(norm, groups))
        return get_total_norm(norms, self._norm_type), found

    def clip_grad_norm_(self) -> Tensor:
        """Scale all gradients so that their norm is at most the bound; return the norm before."""
        total, gradients = self.compute_total_grad_norm()
        scale = torch.clamp(self._max_gradient / (total + _SMALL), max=1.0)
        for gradient in gradients:
            gradient.mul_(scale.to(gradient.device))
        return total

    def _over(self, norm: Tensor, groups: Sequence[dist.ProcessGroup]) -> Tensor:
        largest = self._norm_type == torch.inf
        part = norm.clone() if largest else norm**self._norm_type
        for group in groups:
            op: Any = dist.ReduceOp.MAX if largest else dist.ReduceOp.SUM
            dist.all_reduce(part, op=op, group=group)
        return part if largest else part ** (1 / self._norm_type)
