"""Programs of ranking forms, whose rows read those of contexts in place: equal bits in every batch of contexts.

Shape letters: B rows, Q contexts, L places of a history, H heads, D embedding dim.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from recsys import EmbeddingCollection, EmbeddingConfig, KeyedJaggedTensor
from recsys.artifact.batches.ranking import ranking_batch
from recsys.artifact.batches.samples import Batch
from recsys.artifact.load import LoadedArtifact
from recsys.artifact.programs import ProgramGraphs
from tests.native.program_models import assert_near, dlrm, loaded, ranking_inputs
from tests.support.kernels import needs_kernels
from tests.support.models.export_models import batch_of

pytestmark = needs_kernels

NUM_CONTEXTS = 5
#: Which context each row has: one for all, one a row, some rows of each, and in turns.
BATCHES = {
    "one for all": [3] * 130,
    "one a row": [4, 0, 1, 3, 2],
    "runs": [1] * 47 + [0] + [2] * 100 + [3, 4, 3] + [1] * 13,
    "in turns": [0, 1] * 50,
    "all in turns": list(range(NUM_CONTEXTS)) * 20,
    "one row": [2],
    "none": [],
}


class TargetAttention(nn.Module):
    """An item attends to the items of a history.

    Args:
        num_places: L.
        num_heads: H.
    """

    def __init__(self, num_places: int = 12, num_heads: int = 1, dim: int = 16) -> None:
        super().__init__()
        self.num_places, self.num_heads, self.dim = num_places, num_heads, dim
        table = EmbeddingConfig(
            name="goods", num_embeddings=50, embedding_dim=dim, feature_names=["history", "item"]
        )
        self.goods = EmbeddingCollection([table], device=torch.device("cpu"))
        self.query, self.over = nn.Linear(dim, dim), nn.Sequential(nn.Linear(2 * dim, 7), nn.ReLU())

    def forward(self, features: KeyedJaggedTensor) -> Tensor:
        """Return ``[B, 7]``."""
        found = self.goods(features)
        history = found["history"].to_padded_dense(self.num_places)
        history = history.view(-1, self.num_places, self.num_heads, self.dim // self.num_heads)
        item = found["item"].to_padded_dense(1).squeeze(1)
        query = self.query(item).view(-1, self.num_heads, self.dim // self.num_heads)
        weights = torch.softmax(torch.einsum("bhd,blhd->bhl", query, history), dim=-1)
        interest = torch.einsum("bhl,blhd->bhd", weights, history).reshape(-1, self.dim)
        scores: Tensor = self.over(torch.cat((item, interest), dim=1))
        return scores


class TorchAttention(TargetAttention):
    """The same by a layer of torch's, of places that hold items; the values may be others than the keys."""

    def __init__(self, are_others: bool) -> None:
        super().__init__()
        self.are_others = are_others
        self.attention = nn.MultiheadAttention(self.dim, 4, batch_first=True)

    def forward(self, features: KeyedJaggedTensor) -> Tensor:
        """Return ``[B, 7]``."""
        found = self.goods(features)
        history = found["history"].to_padded_dense(self.num_places)
        item = found["item"].to_padded_dense(1)
        there = torch.arange(self.num_places) < found["history"].lengths().clamp(min=1).unsqueeze(1)
        values = torch.relu(history) if self.are_others else history
        interest, _ = self.attention(item, history, values, key_padding_mask=~there, need_weights=False)
        scores: Tensor = self.over(torch.cat((item, interest), dim=2).squeeze(1))
        return scores


def inputs_of(artifact: LoadedArtifact, contexts: Sequence[int]) -> list[Tensor]:
    """Return a batch of Q contexts and of rows with these."""
    row_context = torch.tensor(contexts, dtype=torch.int64)
    of_contexts, of_rows = (
        batch_of(artifact.signature, num, seed=seed) for seed, num in enumerate((NUM_CONTEXTS, len(contexts)))
    )
    return list(ranking_batch(artifact.signature, of_contexts, of_rows, row_context).inputs())


def rows_of(batch: Batch, rows: Tensor) -> Batch:
    """Return some rows of a batch."""
    num_features = batch.lengths.numel() // batch.num_rows
    bags = batch.values.split(batch.lengths.tolist())
    taken = [feature * batch.num_rows + int(row) for feature in range(num_features) for row in rows]
    return Batch(
        dense=tuple(dense[rows] for dense in batch.dense),
        lengths=batch.lengths[taken],
        values=torch.cat([batch.values[:0], *(bags[at] for at in taken)]),
        weights=None,
        num_rows=len(rows),
    )


MODELS = {
    "attention": lambda: (TargetAttention(), ("history",)),
    "heads": lambda: (TargetAttention(num_heads=4), ("history",)),
    # Wide enough that tiles are cut where the context changes.
    "wide": lambda: (TargetAttention(num_places=400, num_heads=2), ("history",)),
    "torch": lambda: (TorchAttention(are_others=False), ("history",)),
    "other values": lambda: (TorchAttention(are_others=True), ("history",)),
    "dlrm": lambda: (dlrm(), ("dense_features", "f0", "f2")),
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.usefixtures("isa")
def test_the_scores_are_those_of_the_graph(tmp_path: Path, name: str) -> None:
    model, context = MODELS[name]()
    plain, own = loaded(tmp_path / "a", model, context=context)
    for contexts in BATCHES.values():
        inputs = inputs_of(own, contexts)
        found, expected = own.forward_ranking(*inputs), plain.forward_ranking(*inputs)
        for output in expected:
            assert_near(found[output], expected[output], "float32")


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.usefixtures("isa")
def test_a_row_has_the_same_bits_beside_any_others(tmp_path: Path, name: str) -> None:
    model, context = MODELS[name]()
    _, own = loaded(tmp_path / "a", model, context=context)
    of_contexts = batch_of(own.signature, NUM_CONTEXTS, seed=1)
    row_context = torch.tensor(BATCHES["runs"])
    of_rows = batch_of(own.signature, len(row_context), seed=2)

    def scores(order: Tensor) -> Tensor:
        rows = rows_of(of_rows, order)
        inputs = ranking_batch(own.signature, of_contexts, rows, row_context[order]).inputs()
        (found,) = own.forward_ranking(*inputs).values()
        return found

    every = torch.arange(len(row_context))
    expected = scores(every)
    shuffled = torch.randperm(len(every), generator=torch.Generator().manual_seed(3))
    for order in (shuffled, every.flip(0), every[50:], every[46:49], every[-1:]):
        assert torch.equal(scores(order), expected[order])


@pytest.mark.parametrize("name", ["wide", "dlrm"])
def test_threads_share_a_batch_with_the_same_bits(tmp_path: Path, name: str) -> None:
    model, context = MODELS[name]()
    _, own = loaded(tmp_path / "a", model, context=context)
    for contexts in (BATCHES["one for all"] * 3, BATCHES["runs"] * 3, BATCHES["in turns"] * 3):
        inputs = inputs_of(own, contexts)
        before = torch.get_num_threads()
        (expected,) = own.forward_ranking(*inputs).values()
        try:
            torch.set_num_threads(2 if before == 1 else 1)
            (found,) = own.forward_ranking(*inputs).values()
        finally:
            torch.set_num_threads(before)
        assert torch.equal(found, expected)


@pytest.mark.parametrize("name", ["attention", "wide"])
def test_contexts_out_of_range_are_refused(tmp_path: Path, name: str) -> None:
    model, context = MODELS[name]()
    _, own = loaded(tmp_path / "a", model, context=context)
    inputs = inputs_of(own, BATCHES["runs"])
    for wrong in (-1, NUM_CONTEXTS, 2**62, -(2**63)):
        for at in (0, 48, -1):
            changed = inputs[-1].clone()
            changed[at] = wrong
            with pytest.raises(RuntimeError, match=f"index out of range: got {wrong} at position"):
                own.forward_ranking(*inputs[:-1], changed)
    with pytest.raises(RuntimeError, match="expected int64"):
        own.forward_ranking(*inputs[:-1], inputs[-1].float())
    with pytest.raises(RuntimeError, match=r"inputs: got an index \[\d+, 1\], expected \[B\]"):
        own.forward_ranking(*inputs[:-1], inputs[-1].unsqueeze(1))
    with pytest.raises(RuntimeError, match="index out of range"):
        own.forward_ranking(*ranking_inputs(own, ())[:-3], *inputs[-3:])
    own.forward_ranking(*inputs)


@pytest.mark.parametrize("name", ["torch", "other values"])
def test_keys_of_attention_are_computed_once(tmp_path: Path, name: str) -> None:
    model, context = MODELS[name]()
    _, own = loaded(tmp_path / "a", model, context=context)
    assert isinstance(own.graphs, ProgramGraphs)
    steps = own.graphs.profile(1, inputs_of(own, BATCHES["one for all"]))
    assert not [step for step in steps if step.kind == "region"]
    num_rows = [step.num_rows for step in steps if step.kind == "linear" and step.out_width == 3 * model.dim]
    # Keys and values for all contexts, and queries for all rows.
    assert sorted(set(num_rows)) == [NUM_CONTEXTS, len(BATCHES["one for all"])]


def test_a_profile_tells_the_rows_that_are_copied(tmp_path: Path) -> None:
    model, context = MODELS["dlrm"]()
    _, own = loaded(tmp_path / "a", model, context=context)
    assert isinstance(own.graphs, ProgramGraphs)
    for batch, num_copied in (("one for all", 0), ("in turns", 100)):
        inputs = inputs_of(own, BATCHES[batch])
        steps = own.graphs.profile(1, inputs)
        assert sum(step.num_rows for step in steps if step.kind == "gather") == num_copied
