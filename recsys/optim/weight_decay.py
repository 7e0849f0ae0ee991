"""L2 weight decay of the rows touched by a batch, for tables that FBGEMM trains in host memory.

FBGEMM's row-wise Adagrad has weight decay on CUDA only. Here the step of a lookup's backward pass is repeated
with the penalty. FBGEMM 1.8 does, for a row ``w`` with gradient ``g`` and state ``s``,

    s' = s + mean(g²),    w' = w - learning_rate * g / (sqrt(s') + eps)

so ``g`` follows from ``w``, ``w'`` and ``s'``; the same formulas with ``g + weight_decay * w`` in place of ``g`` give
the row as FBGEMM's L2 mode would.

Shape letters: D embedding dimension, U touched rows of a shard.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from recsys.kernels.training import FusedLookup

_STATE = "momentum1"


@dataclass(frozen=True)
class _Touched:
    """Rows of a shard before a step: numbers ``[U]``, weights ``[U, D]``, states ``[U]``."""

    shard: int
    rows: Tensor
    weight: Tensor
    state: Tensor


class RowWeightDecay:
    """Records lookups, and adds the penalty to their steps. A lookup may be called once per step.

    Args:
        lookups: Lookups with EXACT_ROWWISE_ADAGRAD, in host memory.
        weight_decay: The penalty's gradient of a row is this many times the row; 0 disables it.
    """

    def __init__(self, lookups: Iterable[FusedLookup], weight_decay: float) -> None:
        self._weight_decay = weight_decay
        self._touched: dict[FusedLookup, list[_Touched]] = {}
        for lookup in lookups if weight_decay else ():
            lookup.register_forward_pre_hook(self._look, with_kwargs=True)

    @torch.no_grad()
    def _look(self, lookup: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        assert isinstance(lookup, FusedLookup)
        if not lookup.training:
            return
        by_shard: dict[int, list[Tensor]] = {}
        slots = lookup.tbe.feature_table_map
        for shard, ids in zip(slots, torch.split(args[0], kwargs["ids_per_slot"]), strict=True):
            by_shard.setdefault(shard, []).append(ids)
        states = lookup.states()
        self._touched[lookup] = []
        for shard, parts in by_shard.items():
            rows = torch.unique(torch.cat(parts))
            weight, state = lookup.weights[shard].detach()[rows], states[shard][_STATE][rows]
            self._touched[lookup].append(_Touched(shard, rows, weight, state))

    @torch.no_grad()
    def step(self) -> None:
        """Decay the touched rows; call it after the backward pass of the lookups."""
        for lookup, touched in self._touched.items():
            states = lookup.states()
            learning_rate, eps = float(lookup.tbe.get_learning_rate()), lookup.config.eps
            for before in touched:
                weight, state = lookup.weights[before.shard].detach(), states[before.shard][_STATE]
                scale = (state[before.rows].sqrt() + eps) / learning_rate
                gradient = (before.weight - weight[before.rows]) * scale.unsqueeze(1)
                gradient += self._weight_decay * before.weight
                of_rows = before.state + gradient.square().mean(dim=1)
                rate = learning_rate / (of_rows.sqrt() + eps)
                state[before.rows] = of_rows
                weight[before.rows] = before.weight - gradient * rate.unsqueeze(1)
        self._touched.clear()
