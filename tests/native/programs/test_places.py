"""Steps that compute the places of a history that hold items: what they leave out is never read.

Shape letters: B batch, H heads, S places of a history, D embedding dim.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from export.lower import planning
from export.lower.padding.places import FirstPlaces, first_places
from export.lower.values import Linear, Value
from recsys import EmbeddingCollection, EmbeddingConfig, KeyedJaggedTensor
from recsys.artifact.load import LoadedArtifact
from tests.native.program_models import assert_near, loaded, row_alone
from tests.native.programs.test_program_histories import Interest
from tests.support.kernels import needs_kernels

pytestmark = needs_kernels

DIM = 16
SIZE = 6
HEADS = 2

Score = Callable[["History", Tensor, Tensor, Tensor], Tensor]


class History(nn.Module):
    """A history of at most S items, and an item.

    Args:
        score: What makes numbers ``[B, n]`` of the model, the vectors ``[B, S, D]``, which places hold items
            ``[B, S]``, and the vector of the item ``[B, D]``.
    """

    ahead: Tensor

    def __init__(self, score: Score) -> None:
        super().__init__()
        table = EmbeddingConfig(
            name="goods", num_embeddings=50, embedding_dim=DIM, feature_names=["history", "item"]
        )
        self.goods = EmbeddingCollection([table], device=torch.device("cpu"))
        self.positions = nn.Parameter(torch.randn(SIZE, DIM))
        self.layer, self.qkv = nn.Linear(DIM, DIM), nn.Linear(DIM, 3 * DIM)
        self.norm = nn.LayerNorm(DIM)
        self.wide = nn.Linear(SIZE * DIM, DIM)
        self.register_buffer("ahead", torch.ones(SIZE, SIZE, dtype=torch.bool).tril())
        self.score = score

    def forward(self, dense: Tensor, features: KeyedJaggedTensor) -> dict[str, Tensor]:
        """Return scores ``[B]``; ``dense``, ``[B, D]``, is added to all places."""
        found = self.goods(features)
        lengths = found["history"].lengths()
        there = torch.arange(SIZE).unsqueeze(0) < lengths.unsqueeze(1)
        x = found["history"].to_padded_dense(SIZE) + self.positions + dense.unsqueeze(1)
        numbers = self.score(self, x, there, found["item"].to_padded_dense(1).squeeze(1))
        return {"score": numbers.flatten(1).mean(dim=1)}


def parts_of(model: History, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return queries, keys and values, ``[B, H, S, D / H]``."""
    parts = model.qkv(model.norm(x)).view(-1, SIZE, 3, HEADS, DIM // HEADS)
    return parts[:, :, 0].transpose(1, 2), parts[:, :, 1].transpose(1, 2), parts[:, :, 2].transpose(1, 2)


def attended(model: History, x: Tensor, mask: Tensor) -> Tensor:
    """Return what attention makes of the vectors, ``[B, S, D]``."""
    q, k, v = parts_of(model, x)
    seen = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    found: Tensor = x + model.layer(seen.transpose(1, 2).reshape(-1, SIZE, DIM))
    return found


def summed(model: History, x: Tensor, there: Tensor, item: Tensor) -> Tensor:
    """Sum up what layers make of items."""
    return (functional.gelu(model.layer(model.norm(x))) * there.unsqueeze(2)).sum(dim=1) * item


def filled(model: History, x: Tensor, there: Tensor, item: Tensor) -> Tensor:
    """Fill what is behind the items with zeros, and read all places side by side."""
    kept = model.layer(x).masked_fill(~there.unsqueeze(2), 0.0)
    found: Tensor = model.wide(kept.reshape(-1, SIZE * DIM)) + item
    return found


def padded_keys(model: History, x: Tensor, there: Tensor, item: Tensor) -> Tensor:
    """Attend to items."""
    return attended(model, x, there.unsqueeze(1).unsqueeze(1)) * there.unsqueeze(2) + item.unsqueeze(1)


def causal(model: History, x: Tensor, there: Tensor, item: Tensor) -> Tensor:
    """Attend to items before each, twice; places behind the items attend to themselves."""
    mask = ((model.ahead & there.unsqueeze(1)) | torch.eye(SIZE, dtype=torch.bool)).unsqueeze(1)
    x = attended(model, attended(model, x, mask), mask)
    return (x * there.unsqueeze(2)).sum(dim=1) * item


def pointwise(model: History, x: Tensor, there: Tensor, item: Tensor) -> Tensor:
    """Weigh items by what has no sum of one."""
    q, k, v = parts_of(model, x)
    weights = functional.silu(q @ k.transpose(-1, -2)) / SIZE * there.unsqueeze(1).unsqueeze(1)
    seen = (weights @ v).transpose(1, 2).reshape(-1, SIZE, DIM)
    return (seen * there.unsqueeze(2)).sum(dim=1) + item


def last_item(model: History, x: Tensor, there: Tensor, item: Tensor) -> Tensor:
    """Take the state of the last item; without items, of the first place."""
    mask = (model.ahead & there.unsqueeze(1)) | torch.eye(SIZE, dtype=torch.bool)
    last = (there.sum(dim=1).clamp(min=1) - 1).view(-1, 1, 1).expand(-1, 1, DIM)
    return attended(model, x, mask.unsqueeze(1)).gather(1, last).squeeze(1) * item


def weighed(model: History, x: Tensor, there: Tensor, item: Tensor) -> Tensor:
    """Take shares of items, and a mean over all items of the row."""
    scores = (model.layer(x) * item.unsqueeze(1)).sum(dim=2).masked_fill(~there, -1e9)
    shares = torch.softmax(scores, dim=1)
    return torch.einsum("bs,bsd->bd", shares * there, model.layer(x))


def pooled(model: History, x: Tensor, there: Tensor, item: Tensor) -> Tensor:
    """Take the shares of items that are left; of none, all places have the same."""
    scores = model.layer(x).sum(dim=2).masked_fill(~there, torch.finfo(torch.float32).min)
    found: Tensor = (torch.softmax(scores, dim=1).unsqueeze(2) * model.norm(x)).sum(dim=1) + item
    return found


def faint(model: History, x: Tensor, there: Tensor, item: Tensor) -> Tensor:
    """Write a number over scores that leaves a share."""
    scores = (model.layer(x) * item.unsqueeze(1)).sum(dim=2).masked_fill(~there, -1.0)
    return torch.einsum("bs,bsd->bd", torch.softmax(scores, dim=1), model.layer(x))


def all_places(model: History, x: Tensor, there: Tensor, item: Tensor) -> Tensor:
    """Read all places."""
    found: Tensor = model.layer(x).sum(dim=1) + item * there.sum(dim=1, keepdim=True)
    return found


def last_place(model: History, x: Tensor, there: Tensor, item: Tensor) -> Tensor:
    """Read the last place, whatever it holds."""
    found: Tensor = model.norm(model.layer(x))[:, -1] * item + (x * there.unsqueeze(2)).sum(dim=1)
    return found


def open_queries(model: History, x: Tensor, there: Tensor, item: Tensor) -> Tensor:
    """Let places behind the items ask, and read what they get."""
    return attended(model, x, there.unsqueeze(1).unsqueeze(1)).sum(dim=1) + item


def open_keys(model: History, x: Tensor, there: Tensor, item: Tensor) -> Tensor:
    """Attend to all places."""
    return attended(model, x, model.ahead) * there.unsqueeze(2) + item.unsqueeze(1)


def one_more(model: History, x: Tensor, there: Tensor, item: Tensor) -> Tensor:
    """Read one place behind the items too."""
    more = torch.cat((torch.ones_like(there[:, :1]), there[:, :-1]), dim=1)
    found: Tensor = (model.layer(x) * more.unsqueeze(2)).sum(dim=1) + item
    return found


def soft(model: History, x: Tensor, there: Tensor, item: Tensor) -> Tensor:
    """Weigh what is behind the items less, but not with zero."""
    found: Tensor = (model.layer(x) * (there.unsqueeze(2) + 0.25)).sum(dim=1) + item
    return found


def neighbours(model: History, x: Tensor, there: Tensor, item: Tensor) -> Tensor:
    """Add the next place to each."""
    y = model.layer(x)
    next_ones = torch.cat((y[:, 1:], y[:, :1]), dim=1)
    found: Tensor = ((y + next_ones) * there.unsqueeze(2)).sum(dim=1) + item
    return found


def outside(model: History, x: Tensor, there: Tensor, item: Tensor) -> Tensor:
    """Read what is behind the items alone."""
    found: Tensor = (model.layer(x) * (~there).unsqueeze(2)).sum(dim=1) + item
    return found


BOUNDED = (summed, filled, padded_keys, causal, pointwise, last_item, weighed)
OPEN = (pooled, faint, all_places, last_place, open_queries, open_keys, one_more, soft, neighbours, outside)


def histories(seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return rows with histories of all lengths up to some more than S: dense numbers, lengths and IDs."""
    generator = torch.Generator().manual_seed(seed)
    of_history = torch.arange(SIZE + 3).repeat(3)[torch.randperm(3 * (SIZE + 3), generator=generator)]
    lengths = torch.cat((of_history, torch.ones_like(of_history)))
    dense = torch.randn(len(of_history), DIM, generator=generator)
    return dense, lengths, torch.randint(0, 50, (int(lengths.sum()),), generator=generator)


def without_places(folder: Path, score: Score, monkeypatch: pytest.MonkeyPatch) -> LoadedArtifact:
    """Return a model whose steps compute all places."""
    torch.manual_seed(0)
    with monkeypatch.context() as patched:
        patched.setattr(planning, "first_places", lambda *_: {})
        return loaded(folder, History(score), dense_widths={"dense": DIM})[1]


@pytest.mark.parametrize("score", [*BOUNDED, *OPEN], ids=lambda score: cast(str, score.__name__))
def test_what_is_behind_the_items_is_computed_where_it_is_read(
    tmp_path: Path, score: Score, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    plain, own = loaded(tmp_path / "a", History(score), dense_widths={"dense": DIM})
    whole = without_places(tmp_path / "b", score, monkeypatch)
    assert own.runs_program
    dense, lengths, values = batch = histories(seed=1)
    # Whatever scratch memory holds from rows before.
    own.forward(torch.full_like(dense, math.nan), lengths, values)
    found = own.forward(*batch)["score"]
    assert_near(found, plain.forward(*batch)["score"], "float32")
    assert torch.equal(found, whole.forward(*batch)["score"])
    for row in range(0, len(dense), 5):
        alone = own.forward(dense[row : row + 1], *row_alone(lengths, values, len(dense), row))["score"]
        assert torch.equal(alone[0], found[row])


@pytest.mark.parametrize("score", BOUNDED, ids=lambda score: cast(str, score.__name__))
def test_padding_is_left_out(tmp_path: Path, score: Score, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    layers = [
        value
        for value in bounded(tmp_path, History(score), monkeypatch, dense_widths={"dense": DIM})
        if isinstance(value, Linear)
    ]
    assert layers
    assert all(value.dims[0] == SIZE for value in layers)


def test_rows_of_tables_are_zeros_behind_the_ids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = bounded(tmp_path, Interest(), monkeypatch)
    assert len([value for value in found if isinstance(value, Linear)]) == 2


class TwoMasks(History):
    """A history whose places count where it and another one have items."""

    def __init__(self) -> None:
        super().__init__(summed)
        table = EmbeddingConfig(name="marks", num_embeddings=50, embedding_dim=DIM, feature_names=["marks"])
        self.marks = EmbeddingCollection([table], device=torch.device("cpu"))

    def forward(self, dense: Tensor, features: KeyedJaggedTensor) -> dict[str, Tensor]:
        history, marks = self.goods(features)["history"], self.marks(features)["marks"]
        x = self.norm(history.to_padded_dense(SIZE) + dense.unsqueeze(1)) + marks.to_padded_dense(SIZE)
        places = torch.arange(SIZE).unsqueeze(0)
        first, second = (places < one.lengths().unsqueeze(1) for one in (history, marks))
        # What the product leaves out of the layer by the first one, the layer may not have computed by the second.
        y = self.layer(x)
        kept = self.layer(y * second.unsqueeze(2)) * first.unsqueeze(2)
        return {"score": kept.sum(dim=(1, 2)) + ((y * 2.0) * second.unsqueeze(2)).sum(dim=(1, 2))}


def test_two_histories_bound_no_step_of_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = bounded(tmp_path, TwoMasks(), monkeypatch, dense_widths={"dense": DIM})
    assert found
    for value, places in found.items():
        lengths = {found[source].length for source in value.sources if source in found}
        assert lengths <= {places.length}


def bounded(
    folder: Path, model: nn.Module, monkeypatch: pytest.MonkeyPatch, **options: Any
) -> dict[Value, FirstPlaces]:
    """Return what steps of a model compute for the first places alone."""
    found: dict[Value, FirstPlaces] = {}

    def recorded(values: Sequence[Value], outputs: Sequence[Value]) -> dict[Value, FirstPlaces]:
        places = first_places(values, outputs)
        found.update(places)
        return places

    monkeypatch.setattr(planning, "first_places", recorded)
    loaded(folder / "a", model, **options)
    return found
