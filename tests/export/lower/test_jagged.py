"""What is computed for each ID of a bag: its steps, and what has none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from recsys import EmbeddingCollection, JaggedTensor, KeyedJaggedTensor
from tests.export.lower.test_lowering import lowered, steps_of
from tests.support.helpers import sequence

Score = Callable[[Any, JaggedTensor, JaggedTensor], Tensor]


class Histories(nn.Module):
    """Two histories of items."""

    def __init__(self, score: Score) -> None:
        super().__init__()
        self.items = EmbeddingCollection([sequence("items", 20, 8, ["seen", "bought"])])
        self.layer = nn.Linear(8, 3)
        self._score = score

    def forward(self, features: KeyedJaggedTensor) -> Tensor:
        found = self.items(features)
        return self._score(self, found["seen"], found["bought"])


def _padded(history: JaggedTensor, values: Tensor) -> Tensor:
    return JaggedTensor(values, lengths=history.lengths()).to_padded_dense(4).flatten(1)


def _reduced(values: Tensor, lengths: Tensor, how: str = "sum", **options: Any) -> Tensor:
    return torch.segment_reduce(values, how, lengths=lengths, **options)


STEPS: dict[str, tuple[Score, dict[str, int]]] = {
    "padded": (
        lambda m, seen, _: _padded(seen, m.layer(seen.values())),
        {"sequence": 1, "length": 1, "broadcast": 1, "each_id": 1, "to_ids": 1, "linear": 1, "from_ids": 1},
    ),
    "summed up": (
        lambda m, seen, _: _reduced(m.layer(seen.values()), seen.lengths()),
        {"broadcast": 1, "each_id": 1, "read_ids": 1, "linear": 1, "sum_ids": 1},
    ),
}


@pytest.mark.parametrize("name", STEPS)
def test_steps_for_each_id(name: str) -> None:
    score, expected = STEPS[name]
    assert steps_of(lowered(Histories(score))) == expected


#: What no step does for each ID.
REGIONS: dict[str, Score] = {
    "means": lambda _, seen, __: _reduced(seen.values(), seen.lengths(), "mean").nan_to_num(),
    "maxima": lambda _, seen, __: _reduced(seen.values(), seen.lengths(), "max", initial=0),
    "sums that begin with a number": lambda _, seen, __: _reduced(seen.values(), seen.lengths(), initial=2),
}


def summed_for_rows(_: Any, seen: JaggedTensor, bought: JaggedTensor) -> Tensor:
    """Return sums of bags that may be those of contexts, beside others."""
    summed = _reduced(seen.values(), seen.lengths())
    return torch.cat([summed, _padded(bought, bought.values()[:, :2])], dim=1)


def summed_layers_for_rows(m: Any, seen: JaggedTensor, bought: JaggedTensor) -> Tensor:
    """Return sums of what a layer makes of each ID of bags that may be those of contexts."""
    rows = torch.sigmoid(m.layer(seen.values() * 2)) + 1
    return torch.cat([_reduced(rows, seen.lengths()), _padded(bought, bought.values())], dim=1)


def summed_with_rows(_: Any, seen: JaggedTensor, bought: JaggedTensor) -> Tensor:
    """Return sums of products with what each row has for itself."""
    first = _padded(bought, bought.values())[:, :8]
    repeated = torch.repeat_interleave(first, seen.lengths(), dim=0, output_size=seen.values().size(0))
    return _reduced(seen.values() * repeated, seen.lengths())
