"""Causal encoders of contexts go on where IDs are appended to a history.

Shape letters: B rows, D embedding dim, S longest history.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import recsys
from benchmarks.models.sequences import SelfAttentive
from export.lower.plan import GrowingPlan, Plan
from tests.export.lower.test_lowering import lowered

_DIM = 8
_SIZE = 6


class Attentive(nn.Module):
    """One layer of attention over a history ``[B, S, D]``, whose last states score an item.

    Args:
        mask: Which places ``[S, S]`` each place attends to, beside itself.
        pooled: Returns ``[B, D]`` of the states ``[B, S, D]`` and of which places hold an item ``[B, S]``.
    """

    def __init__(self, mask: Tensor, pooled: Any) -> None:
        super().__init__()
        table = recsys.EmbeddingConfig(
            name="items", embedding_dim=_DIM, num_embeddings=100, feature_names=["history", "item"]
        )
        self.items = recsys.EmbeddingCollection(tables=[table])
        self.qkv = nn.Linear(_DIM, 3 * _DIM)
        self.register_buffer("mask", mask)
        self.pooled = pooled

    def forward(self, features: recsys.KeyedJaggedTensor) -> Tensor:
        found = self.items(features)
        x = found["history"].to_padded_dense(_SIZE)
        there = torch.arange(_SIZE).unsqueeze(0) < found["history"].lengths().unsqueeze(1)
        q, k, v = self.qkv(x).split(_DIM, dim=2)
        mask = (self.mask & there.unsqueeze(1)) | torch.eye(_SIZE, dtype=torch.bool)
        scores = (q @ k.transpose(1, 2)).masked_fill(~mask, -torch.inf)
        state = self.pooled(torch.softmax(scores, dim=2) @ v, there)
        return (state * found["item"].to_padded_dense(1).squeeze(1)).sum(dim=1)


def mean_state(states: Tensor, there: Tensor) -> Tensor:
    """Return the sum of the states of what is there."""
    return (states * there.unsqueeze(2)).sum(dim=1)


CAUSAL = torch.ones(_SIZE, _SIZE, dtype=torch.bool).tril()


def growing(model: nn.Module, **options: Any) -> GrowingPlan | None:
    """Return how the context's plan of a model goes on."""
    program = lowered(model, is_ranking=True, context=("history",), **options)
    first, *others = [step for step in program.steps if isinstance(step, Plan)]
    assert all(plan.growing is None for plan in others)
    return first.growing


def test_a_causal_encoder_goes_on() -> None:
    found = growing(Attentive(CAUSAL, mean_state))
    assert found is not None
    assert (found.feature, found.size) == (0, _SIZE)
    # Keys and values of old places are read again, and their states.
    assert 3 * _DIM in [each for _, each in found.buffers]


@pytest.mark.parametrize(
    "mask",
    [torch.ones(_SIZE, _SIZE, dtype=torch.bool), CAUSAL.T, CAUSAL | CAUSAL.roll(1, 1)],
    ids=["in both directions", "of what follows", "of the next one"],
)
def test_an_encoder_that_looks_ahead_keeps_no_layer_behind_attention(mask: Tensor) -> None:
    found = growing(Attentive(mask, mean_state))
    causal = growing(Attentive(CAUSAL, mean_state))
    assert causal is not None
    assert found is None or len(found.steps) < len(causal.steps)


def test_all_steps_of_sasrec_but_the_last_sum_go_on() -> None:
    found = growing(SelfAttentive(recsys, 100), dense_widths={"dense": 1})
    assert found is not None
    assert len(found.steps) == 34
    # The states of two layers' keys and values, and the last states.
    assert sorted(each for _, each in found.buffers)[-3:] == [64, 192, 192]
