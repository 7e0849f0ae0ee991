"""An L2 penalty on the rows that a batch touched, for tables that FBGEMM trains in host memory.

FBGEMM's row-wise Adagrad has weight decay on CUDA only. Here the penalty gets a row-wise Adagrad step of its own after
the lookup's backward pass, with the same state and rate: for a touched row ``w``, the gradient ``p = decay * w`` adds
``mean(p²)`` to the row's state, and the row moves by ``-learning_rate * p / (sqrt(state) + eps)``. It differs from L2
inside FBGEMM's step by the mixed term of ``(gradient + p)²``.

Shape letters: S slots, U touched rows of a shard.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from recsys.training_lookup import FusedLookup

_STATE = "momentum1"


class RowPenalty:
    """Watches lookups, and moves the rows that they read in a training step.

    Args:
        lookups: with EXACT_ROWWISE_ADAGRAD, in host memory.
        weight_decay: the penalty's gradient of a row is this many times the row.
    """

    def __init__(self, lookups: Iterable[FusedLookup], weight_decay: float) -> None:
        self._lookups = list(lookups)
        self._weight_decay = weight_decay
        self._read: dict[FusedLookup, tuple[Tensor, list[int]]] = {}
        for lookup in self._lookups:
            lookup.register_forward_pre_hook(self._look, with_kwargs=True)

    def _look(self, lookup: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if torch.is_grad_enabled():
            assert isinstance(lookup, FusedLookup)
            self._read[lookup] = (args[0], kwargs["ids_per_slot"])

    @torch.no_grad()
    def step(self) -> None:
        """After the backward pass of the lookups."""
        for lookup, (values, ids_per_slot) in self._read.items():
            states = lookup.states()
            by_shard: dict[int, list[Tensor]] = {}
            for shard, ids in zip(
                lookup.tbe.feature_table_map, torch.split(values, ids_per_slot), strict=True
            ):
                by_shard.setdefault(shard, []).append(ids)
            for shard, parts in by_shard.items():
                rows = torch.unique(torch.cat(parts))
                self._move(lookup, lookup.weights[shard].detach(), states[shard][_STATE], rows)
        self._read.clear()

    def _move(self, lookup: FusedLookup, weight: Tensor, state: Tensor, rows: Tensor) -> None:
        penalty = weight[rows] * self._weight_decay
        of_rows = state[rows] + penalty.square().mean(dim=1)
        state[rows] = of_rows
        rate = lookup.config.learning_rate / (of_rows.sqrt() + lookup.config.eps)
        weight.index_add_(0, rows, penalty.mul_(rate.unsqueeze(1)), alpha=-1)
