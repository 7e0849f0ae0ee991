"""Rows of single IDs that the model computes: they are read as those of a request.

Shape letters: B rows, N number of IDs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from recsys import EmbeddingCollection, JaggedTensor, KeyedJaggedTensor
from tests.export.graph.test_managed import Sequences
from tests.export.lower.test_lowering import kinds_of, lowered, steps_of
from tests.export.lower.test_single_ids import Case
from tests.support.helpers import sequence

Ids = Callable[[KeyedJaggedTensor], KeyedJaggedTensor]
Score = Callable[[Any, JaggedTensor], Tensor]


class Computed(nn.Module):
    """A history of IDs that the model computes, and one of the request's."""

    def __init__(self, ids: Ids, score: Score) -> None:
        super().__init__()
        self.seen = EmbeddingCollection([sequence("seen", 20, 8, ["seen", "bought"])])
        self.items = EmbeddingCollection([sequence("items", 30, 8, ["a"]), sequence("others", 90, 8, ["b"])])
        self.layer = nn.Linear(8, 3)
        self._ids, self._score = ids, score

    def forward(self, features: KeyedJaggedTensor) -> Tensor:
        found = self.items(self._ids(features))
        seen = self.seen(features)["seen"].to_padded_dense(3).flatten(1)
        return torch.cat([seen, self._score(self, found["a"]), _padded(found["b"])], dim=1)


def _padded(rows: JaggedTensor) -> Tensor:
    return rows.to_padded_dense(4).flatten(1)


def _shifted(features: KeyedJaggedTensor) -> KeyedJaggedTensor:
    """Return IDs in the bags of the request."""
    ids = torch.cat([(features["seen"].values() + 7) % 30, features["bought"].values() * 3])
    lengths = torch.cat([features["seen"].lengths(), features["bought"].lengths()])
    return KeyedJaggedTensor(["a", "b"], ids, lengths=lengths)


def _twice(features: KeyedJaggedTensor) -> KeyedJaggedTensor:
    """Return IDs in bags of other lengths."""
    ids = features["bought"].values()
    several = torch.stack([ids, ids + 1], dim=1).flatten()
    lengths = features["bought"].lengths() * 2
    return KeyedJaggedTensor(["a", "b"], torch.cat([several, several]), lengths=torch.cat([lengths, lengths]))


def _summed(m: Any, rows: JaggedTensor) -> Tensor:
    return torch.segment_reduce(m.layer(rows.values()), "sum", lengths=rows.lengths())


MODELS: dict[str, tuple[Ids, Score]] = {
    "bags of the request": (_shifted, lambda _, rows: _padded(rows)),
    "a layer for each ID": (
        _shifted,
        lambda m, rows: _padded(JaggedTensor(m.layer(rows.values()), lengths=rows.lengths())),
    ),
    "sums of bags": (_shifted, _summed),
    "bags of other lengths": (_twice, lambda _, rows: _padded(rows)),
    "sums of bags of other lengths": (_twice, _summed),
}
CASES = {
    name: Case(make=lambda ids=ids, score=score: Computed(ids, score), context=())
    for name, (ids, score) in MODELS.items()
}
CASES["mapped IDs"] = Case(make=Sequences, context=("day",))


@pytest.mark.parametrize(
    ("name", "num_regions", "num_sequences"),
    [
        ("bags of the request", 1, 3),
        ("a layer for each ID", 1, 3),
        ("sums of bags", 2, 2),
        ("bags of other lengths", 2, 1),
        ("sums of bags of other lengths", 2, 1),
    ],
)
def test_steps_read_what_a_region_computes(name: str, num_regions: int, num_sequences: int) -> None:
    program = lowered(CASES[name].make())
    assert kinds_of(program).count("region") == num_regions
    assert steps_of(program)["sequence"] == num_sequences


@pytest.mark.parametrize("context", [(), ("day",)], ids=["rows", "contexts"])
def test_mapped_ids_are_read_by_steps(context: tuple[str, ...]) -> None:
    program = lowered(Sequences(), is_ranking=bool(context), context=context)
    assert steps_of(program)["sequence"] == 2
