"""Lookups that learn by row-wise Adagrad in host memory, of rows of one width.

FBGEMM 1.8's take several times as long, and pool all slots alike. ``cpp_client/ops/row_wise.cpp`` does the same as the
code here. In the backward pass each looked-up row is updated once, by the sum of its gradients ``g``:

    s' = s + mean(g²),    w' = w - learning_rate * g / (sqrt(s') + eps)

Shape letters: B bags of a slot, D embedding dim, N number of IDs, R rows of all shards, S slots, U looked-up rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from recsys.kernels.operators import rows_looker, rows_updater


def shares_of_bags(offsets: Tensor, are_means: Tensor) -> Tensor:
    """Return by what the sum of each bag is multiplied, float32 ``[S * B]``.

    Args:
        offsets: ``[S * B + 1]`` int64.
        are_means: bool, which bags are averaged, ``[S * B]``, or ``[1]`` for all.
    """
    return torch.where(are_means, offsets.diff().clamp_(min=1).float().reciprocal(), 1.0)


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
        means: bool ``[S]``, the slots whose bags are averaged; those of others are summed.
        is_pooled: Whether there is a vector for each bag, ``[B, S * D]``, and not for each ID, ``[N, D]``.
    """

    weight: Tensor
    state: Tensor
    learning_rate: float
    eps: float
    values: Tensor
    offsets: Tensor
    first_rows: Tensor
    weights: Tensor | None
    means: Tensor
    is_pooled: bool

    @torch.no_grad()
    def look_up(self) -> Tensor:
        """Return the vectors, float32, natively where that is built."""
        looker = rows_looker()
        found: Tensor = self.look_up_by_torch() if looker is None else looker(self)
        return found

    def look_up_by_torch(self) -> Tensor:
        """Return the vectors by operators of torch."""
        num_slots, dim = self.first_rows.size(0), self.weight.size(1)
        if not self.values.numel():
            num_vectors, width = (self._num_bags, num_slots * dim) if self.is_pooled else (0, dim)
            return self.weight.new_zeros(num_vectors, width)
        rows = self._rows()
        if not self.is_pooled:
            return self.weight.index_select(0, rows)
        bags = functional.embedding_bag(
            rows,
            self.weight,
            self.offsets,
            mode="sum",
            per_sample_weights=self.weights,
            include_last_offset=True,
        )
        by_slot = (bags * self._shares().unsqueeze(1)).view(num_slots, -1, dim)
        return by_slot.transpose(0, 1).reshape(-1, num_slots * dim)

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
        rows, places = torch.unique(self._rows(), return_inverse=True)
        of_ids = self._of_ids(gradient)
        sums = of_ids.new_zeros(rows.size(0), of_ids.size(1)).index_add_(0, places, of_ids)
        state = self.state.index_select(0, rows) + sums.square().mean(dim=1)
        self.state.index_copy_(0, rows, state)
        rates = state.sqrt_().add_(self.eps).reciprocal_().mul_(-self.learning_rate)
        updated = torch.addcmul(self.weight.index_select(0, rows), sums, rates.unsqueeze(1))
        self.weight.index_copy_(0, rows, updated)

    @property
    def _num_bags(self) -> int:
        return (self.offsets.size(0) - 1) // self.first_rows.size(0)

    def _rows(self) -> Tensor:
        """Return the row of each ID among those of all shards, ``[N]``."""
        ids_per_slot = self.offsets[:: self._num_bags].diff()
        return self.values + self.first_rows.repeat_interleave(ids_per_slot, output_size=self.values.size(0))

    def _shares(self) -> Tensor:
        return shares_of_bags(self.offsets, self.means.repeat_interleave(self._num_bags))

    def _of_ids(self, gradient: Tensor) -> Tensor:
        """Return the gradient of each ID's row, ``[N, D]``."""
        if not self.is_pooled:
            return gradient
        num_slots, num_bags = self.first_rows.size(0), self._num_bags
        of_bags = gradient.view(num_bags, num_slots, -1).transpose(0, 1).reshape(num_slots * num_bags, -1)
        of_bags = of_bags * self._shares().unsqueeze(1)
        sizes = self.offsets.diff()
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
    def forward(ctx: Any, _needs_gradient: Tensor, step: RowWiseStep) -> Tensor:
        """Return the vectors."""
        ctx.step = step
        return step.look_up()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, None]:
        """Update the rows."""
        ctx.step.update(gradient.contiguous())
        return None, None
