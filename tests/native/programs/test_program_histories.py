"""Programs over the items of histories, which the model's code pads, and layers over vectors and their sums.

Shape letters: B batch, H items of a history, D embedding dim.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from recsys import (
    EmbeddingBagCollection,
    EmbeddingCollection,
    EmbeddingConfig,
    JaggedTensor,
    KeyedJaggedTensor,
)
from recsys.kernels.operators import LINEAR_DTYPES
from tests.native.program_models import SIZES, assert_near, loaded, row_alone
from tests.support.helpers import bag
from tests.support.kernels import needs_kernels
from tests.support.models.export_models import batch_of

pytestmark = needs_kernels

DIM = 16
NUM_ITEMS = 6


class Interest(nn.Module):
    """Vectors of a history and of an item; ``score`` makes the output of them."""

    def __init__(self) -> None:
        super().__init__()
        table = EmbeddingConfig(
            name="goods", num_embeddings=50, embedding_dim=DIM, feature_names=["history", "item"]
        )
        self.goods = EmbeddingCollection([table], device=torch.device("cpu"))
        self.attention = nn.Sequential(nn.Linear(4 * DIM, 9), nn.ReLU(), nn.Linear(9, 1))
        self.over = nn.Sequential(nn.Linear(2 * DIM, 7), nn.ReLU(), nn.Linear(7, 1))

    def forward(self, features: KeyedJaggedTensor) -> Tensor:
        """Return ``[B, 1]``."""
        found: dict[str, JaggedTensor] = self.goods(features)
        history = found["history"].to_padded_dense(NUM_ITEMS)
        return self.score(history, found["item"].to_padded_dense(1).squeeze(1))

    def score(self, history: Tensor, item: Tensor) -> Tensor:
        """Attend over the history: ``[B, H, D]``, ``[B, D]``."""
        interest = (self.attention(self.pairs(history, item)) * history).sum(dim=1)
        return self.over(torch.cat((item, interest), dim=1))

    def pairs(self, history: Tensor, item: Tensor) -> Tensor:
        """Return ``[B, H, 4 * D]``."""
        items = item.unsqueeze(1).expand(-1, NUM_ITEMS, -1)
        return torch.cat((history, items, history - items, history * items), dim=-1)


class Normalized(Interest):
    """Weights that sum to one over a history: each depends on the others."""

    def score(self, history: Tensor, item: Tensor) -> Tensor:
        weights = torch.softmax(self.attention(self.pairs(history, item)), dim=1)
        return self.over(torch.cat((item, (weights * history).sum(dim=1)), dim=1))


class Reshaped(Interest):
    """Items as rows, by the model's own words."""

    def score(self, history: Tensor, item: Tensor) -> Tensor:
        rows = self.pairs(history, item).reshape(-1, 4 * DIM)
        weights = torch.sigmoid(self.attention(rows)).reshape(-1, NUM_ITEMS, 1)
        return self.over(torch.cat((item, (weights * history).sum(dim=1)), dim=1))


class Flattened(Interest):
    """The vectors of a history side by side."""

    def __init__(self) -> None:
        super().__init__()
        self.history = nn.Sequential(nn.Linear(NUM_ITEMS * DIM, 5), nn.ReLU(), nn.Linear(5, DIM))

    def score(self, history: Tensor, item: Tensor) -> Tensor:
        doubled = torch.relu(history * 2.0) * history
        return self.over(torch.cat((item, self.history(doubled.reshape(-1, NUM_ITEMS * DIM))), dim=1))


class Broadcast(Interest):
    """The item is broadcast over the history without being expanded."""

    def pairs(self, history: Tensor, item: Tensor) -> Tensor:
        item = item.unsqueeze(1)
        return torch.cat((history, history + item, history - item, history * item), dim=2)


class OverVectors(Interest):
    """Sums over the numbers of each vector."""

    def score(self, history: Tensor, item: Tensor) -> Tensor:
        sums = torch.sigmoid(torch.relu(history) * history).sum(dim=2)
        total = sums.sum(dim=1, keepdim=True)
        return self.over(torch.cat((item, item * total), dim=1))


MODELS = (Interest, Normalized, Reshaped, Flattened, Broadcast, OverVectors)


@pytest.mark.parametrize("kind", MODELS)
def test_a_program_predicts_what_the_graph_does(tmp_path: Path, kind: type[Interest]) -> None:
    plain, own = loaded(tmp_path / "a", kind())
    assert own.runs_program
    for num_rows in SIZES:
        batch = batch_of(plain.signature, num_rows, seed=num_rows)
        found = own.forward(*batch.inputs())
        for output, expected in plain.forward(*batch.inputs()).items():
            assert_near(found[output], expected, "float32")


@pytest.mark.parametrize("kind", [Interest, Reshaped])
def test_a_row_has_the_same_bits_in_every_batch(tmp_path: Path, kind: type[Interest]) -> None:
    _, own = loaded(tmp_path / "a", kind())
    lengths, values = batch_of(own.signature, 60, seed=0).inputs()
    expected = own.forward(lengths, values)["default"]
    for row in (0, 1, 7, 8, 59):
        found = own.forward(*row_alone(lengths, values, 60, row))["default"]
        assert torch.equal(found[0], expected[row])


class Folded(nn.Module):
    """A layer over vectors and their sums.

    Args:
        join: What the layer takes, of two vectors ``[B, D]``.
    """

    def __init__(self, join: Callable[[Tensor, Tensor], Sequence[Tensor]]) -> None:
        super().__init__()
        tables = [bag("t", 20, DIM, ["f"]), bag("u", 30, DIM, ["g"])]
        self.rows = EmbeddingBagCollection(tables=tables)
        self.join = join
        vector = torch.zeros(1, DIM)
        self.layer = nn.Linear(sum(part.size(1) for part in join(vector, vector)), 5)

    def forward(self, features: KeyedJaggedTensor) -> Tensor:
        pooled = self.rows(features)
        return torch.relu(self.layer(torch.cat(list(self.join(pooled["f"], pooled["g"])), dim=1)))


def _sum_of_sum(x: Tensor, y: Tensor) -> Sequence[Tensor]:
    both = x + y
    return (x, y, both, both - y)


#: What a layer takes.
FOLDED: dict[str, Callable[[Tensor, Tensor], Sequence[Tensor]]] = {
    "difference": lambda x, y: (x, y, x - y, x * y),
    "sum and difference": lambda x, y: (x + y, y, x - y, x),
    "of itself": lambda x, y: (y, x, x - x),
    "sum of sum": _sum_of_sum,
    "scaled": lambda x, y: (x, y, torch.sub(x, y, alpha=2)),
    "of others": lambda x, y: (x, x - y),
    "of parts": lambda x, y: (x, y, x[:, :4] + y[:, :4]),
    "broadcast": lambda x, y: (x, y, y[:, :1], x - y[:, :1]),
}


@pytest.mark.parametrize("dtype", LINEAR_DTYPES)
@pytest.mark.parametrize("name", FOLDED)
def test_layers_take_vectors_and_their_sums(tmp_path: Path, name: str, dtype: str) -> None:
    plain, own = loaded(tmp_path / "a", Folded(FOLDED[name]), linear_dtype=dtype)
    assert own.runs_program
    for num_rows in (1, 5, 50):
        batch = batch_of(own.signature, num_rows, seed=num_rows)
        (expected,) = plain.forward(*batch.inputs()).values()
        (found,) = own.forward(*batch.inputs()).values()
        assert_near(found, expected, dtype)
