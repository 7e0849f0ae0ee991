"""The backward pass of row-wise Adagrad in host memory, for lookups whose rows have one width.

FBGEMM 1.8's takes several times as long. ``cpp_client/ops/row_wise.cpp`` does the same as the code here. Each
looked-up row is updated once, by the sum of its gradients ``g``:

    s' = s + mean(g²),    w' = w - learning_rate * g / (sqrt(s') + eps)

Shape letters: B bags of a slot, D embedding dim, N number of IDs, R rows of all shards, S slots, U looked-up rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from recsys.kernels.operators import rows_updater


@dataclass(frozen=True, kw_only=True)
class RowWiseStep:
    """One lookup to learn from.

    Attributes:
        weight: ``[R, D]`` float32, updated in place.
        state: ``[R]`` float32, updated in place.
        learning_rate: At the time of the lookup.
        eps: Added to the square root.
        values: ``[N]`` int64, slot-major.
        offsets: ``[S * B + 1]`` int64.
        first_rows: ``[S]`` int64, the first row of each slot's shard.
        weights: ``[N]`` float32, or None.
        is_mean: Whether bags are averaged.
        is_pooled: Whether there is a gradient for each bag, ``[B, S * D]``, and not for each ID, ``[N, D]``.
    """

    weight: Tensor
    state: Tensor
    learning_rate: float
    eps: float
    values: Tensor
    offsets: Tensor
    first_rows: Tensor
    weights: Tensor | None
    is_mean: bool
    is_pooled: bool

    @torch.no_grad()
    def update(self, gradient: Tensor) -> None:
        """Update the looked-up rows, natively where that is built."""
        if not self.values.numel():
            return
        updater = rows_updater()
        if updater is not None:
            updater(self, gradient)
        else:
            self.update_by_torch(gradient)

    @torch.no_grad()
    def update_by_torch(self, gradient: Tensor) -> None:
        """Update the looked-up rows with operators of torch; there is one at least."""
        num_slots, num_bags = self.first_rows.size(0), (self.offsets.size(0) - 1) // self.first_rows.size(0)
        ids_per_slot = self.offsets[::num_bags].diff()
        firsts = self.first_rows.repeat_interleave(ids_per_slot, output_size=self.values.size(0))
        rows, places = torch.unique(self.values + firsts, return_inverse=True)
        of_ids = self._of_ids(gradient, num_slots, num_bags)
        sums = of_ids.new_zeros(rows.size(0), of_ids.size(1)).index_add_(0, places, of_ids)
        state = self.state.index_select(0, rows) + sums.square().mean(dim=1)
        self.state.index_copy_(0, rows, state)
        rates = state.sqrt_().add_(self.eps).reciprocal_().mul_(-self.learning_rate)
        updated = torch.addcmul(self.weight.index_select(0, rows), sums, rates.unsqueeze(1))
        self.weight.index_copy_(0, rows, updated)

    def _of_ids(self, gradient: Tensor, num_slots: int, num_bags: int) -> Tensor:
        """Return the gradient of each ID's row, ``[N, D]``."""
        if not self.is_pooled:
            return gradient
        of_bags = gradient.view(num_bags, num_slots, -1).transpose(0, 1).reshape(num_slots * num_bags, -1)
        sizes = self.offsets.diff()
        if self.is_mean:
            of_bags = of_bags / sizes.clamp(min=1).unsqueeze(1)
        num_ids = self.values.size(0)
        if num_ids == of_bags.size(0) and bool((sizes == 1).all()):
            of_ids = of_bags
        else:
            bags = torch.arange(of_bags.size(0)).repeat_interleave(sizes, output_size=num_ids)
            of_ids = of_bags.index_select(0, bags)
        return of_ids if self.weights is None else of_ids * self.weights.unsqueeze(1)


class RowWiseLookup(torch.autograd.Function):
    """A lookup whose backward pass updates the rows."""

    @staticmethod
    def forward(
        ctx: Any, _needs_gradient: Tensor, look_up: Callable[[], Tensor], step: RowWiseStep
    ) -> Tensor:
        """Return what ``look_up`` returns."""
        ctx.step = step
        return look_up()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, None, None]:
        """Update the rows."""
        ctx.step.update(gradient.contiguous())
        return None, None, None
