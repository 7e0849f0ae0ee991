"""With a context, what descends from it alone is computed once for each context.

Shape letters: B rows, Q contexts, D embedding dim, S longest history.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import recsys
from benchmarks.models.sequences import Pointwise, SelfAttentive
from export.config import ExportConfig
from export.lower.kinds import StepKind
from export.lower.plan import Plan
from export.lower.scheduling import Lowered
from export.pipeline import export_model
from tests.export.lower.test_lowering import kinds_of, lowered
from tests.support.helpers import bag

_DIM = 8
_SIZE = 5


class Histories(nn.Module):
    """A history, which ``user_of`` makes ``[B, D]`` of, and an item."""

    def __init__(self, user_of: Callable[[Histories, recsys.JaggedTensor], Tensor]) -> None:
        super().__init__()
        table = recsys.EmbeddingConfig(
            name="items", embedding_dim=_DIM, num_embeddings=100, feature_names=["history", "item"]
        )
        self.items = recsys.EmbeddingCollection(tables=[table])
        self.user_of = user_of
        self.layer, self.mask = nn.Linear(_DIM, _DIM), nn.Parameter(torch.randn(_SIZE, 1))

    def forward(self, features: recsys.KeyedJaggedTensor) -> Tensor:
        found = self.items(features)
        user = self.user_of(self, found["history"])
        return (user * found["item"].to_padded_dense(1).squeeze(1)).sum(dim=1)


def _padded(model: Histories, history: recsys.JaggedTensor) -> Tensor:
    return torch.relu(model.layer(history.to_padded_dense(_SIZE))).mean(dim=1)


def _of_weights(model: Histories, history: recsys.JaggedTensor) -> Tensor:
    return (history.to_padded_dense(_SIZE) * torch.sigmoid(model.mask * 2)).sum(dim=1)


def _each_id(model: Histories, history: recsys.JaggedTensor) -> Tensor:
    made = recsys.JaggedTensor(torch.tanh(model.layer(history.values())), lengths=history.lengths())
    return made.to_padded_dense(_SIZE).sum(dim=1)


def _by_sizes(_: Histories, history: recsys.JaggedTensor) -> Tensor:
    x = history.to_padded_dense(_SIZE)
    num_rows = x.size(0)
    heads = x.view(num_rows, _SIZE, 2, _DIM // 2).transpose(1, 2).reshape(num_rows, -1)
    return heads[:, :_DIM] + torch.zeros(num_rows, _DIM)


def _last(_: Histories, history: recsys.JaggedTensor) -> Tensor:
    x = history.to_padded_dense(_SIZE)
    at = (history.lengths() - 1).clamp(0, _SIZE - 1)
    return x.gather(1, at.view(-1, 1, 1).expand(-1, 1, _DIM)).squeeze(1)


USERS = {"padded": _padded, "weights": _of_weights, "each ID": _each_id, "sizes": _by_sizes, "last": _last}


def kinds_by_plan(program: Lowered) -> list[list[str]]:
    found = []
    for plan in program.steps:
        if isinstance(plan, Plan):
            version, num_buffers, num_lookups, num_steps, *_ = plan.numbers.tolist()
            begin = (6 if version >= 4 else 4) + 3 * num_buffers + 7 * num_lookups
            steps = plan.numbers[begin : begin + 15 * num_steps].view(num_steps, 15)
            found.append([StepKind(kind).name.lower() for kind in steps[:, 0].tolist()])
    return found


@pytest.mark.parametrize("name", USERS)
def test_rows_compute_nothing_of_the_history(name: str) -> None:
    program = lowered(Histories(USERS[name]), is_ranking=True, context=("history",))
    assert kinds_of(program) == ["plan", "gather", "plan"]
    of_contexts, of_rows = kinds_by_plan(program)
    assert len(of_contexts) > 1
    assert set(of_rows) == {"sequence", "elementwise"}
    (gathered,) = [plan.outputs for plan in program.steps[:1] if isinstance(plan, Plan)]
    assert [value.dims for value in gathered] == [(_DIM,)]


@pytest.mark.parametrize("name", USERS)
def test_an_export_verifies_that_both_forms_predict_the_same(name: str, tmp_path: Path) -> None:
    report = export_model(
        Histories(USERS[name]).eval(), tmp_path / "model.artifact", ExportConfig(context=("history",))
    )
    assert report.ranking_differences
    assert not report.without_program


def test_the_report_says_what_is_computed_once_and_where_rows_meet_it() -> None:
    spaces = lowered(Histories(_padded), is_ranking=True, context=("history",)).spaces
    assert spaces is not None
    works = {layer.layer: (layer.once, layer.each_row) for layer in spaces.layers}
    assert works["layer"] == (_SIZE * _DIM * _DIM, 0)
    assert spaces.each_row == works[""][1] == _DIM + _DIM + 1
    (meeting,) = spaces.meetings
    assert meeting.startswith("mul (")
    assert "test_contexts.py" in meeting
    assert not spaces.kept


def test_the_report_says_what_is_kept_and_why() -> None:
    def user_of(_: Histories, history: recsys.JaggedTensor) -> Tensor:
        return torch.cumsum(history.to_padded_dense(_SIZE), dim=1).sum(dim=1)

    spaces = lowered(Histories(user_of), is_ranking=True, context=("history",)).spaces
    assert spaces is not None
    assert any(kept.startswith("cumsum (") and "no step computes cumsum" in kept for kept in spaces.kept)


def test_the_report_of_many_layers_shows_what_they_are_parts_of() -> None:
    spaces = lowered(
        SelfAttentive(recsys, 100), is_ranking=True, context=("history",), dense_widths={"dense": 1}
    ).spaces
    assert spaces is not None
    assert spaces.shortened(100) == spaces.layers
    short = spaces.shortened(2)
    assert [layer.layer for layer in short] == ["", "layers"]
    assert sum(layer.once for layer in short) == spaces.once


@pytest.mark.parametrize("make", [SelfAttentive, Pointwise])
def test_an_encoder_runs_once_for_each_context(make: type[nn.Module]) -> None:
    program = lowered(make(recsys, 100), is_ranking=True, context=("history",), dense_widths={"dense": 1})
    of_contexts, of_rows = kinds_by_plan(program)
    assert of_contexts.count("contract") == 4
    assert "contract" not in of_rows
    assert of_rows.count("sequence") == 1


class Pooled(nn.Module):
    """Tables of users and items in one collection, and a layer over some columns of both."""

    def __init__(self, first: int, end: int) -> None:
        super().__init__()
        tables = [bag("users", 20, _DIM, ["user", "friends"]), bag("items", 20, _DIM, ["item"])]
        self.tables = recsys.EmbeddingBagCollection(tables)
        self.first, self.end = first, end
        self.layer = nn.Linear(end - first, _DIM)

    def forward(self, features: recsys.KeyedJaggedTensor) -> Tensor:
        found = self.tables(features)
        user = self.layer(found.values()[:, self.first : self.end])
        return (user * found["item"]).sum(dim=1)


@pytest.mark.parametrize(
    ("first", "end", "is_of_contexts"),
    [
        pytest.param(0, 2 * _DIM, True, id="all"),
        pytest.param(_DIM, 2 * _DIM, True, id="a-feature"),
        pytest.param(3, _DIM + 3, True, id="of-two-features"),
        pytest.param(_DIM, 3 * _DIM, False, id="of-both"),
    ],
)
def test_columns_of_what_contexts_and_rows_look_up(
    first: int, end: int, is_of_contexts: bool, tmp_path: Path
) -> None:
    model, context = Pooled(first, end).eval(), ("user", "friends")
    of_contexts, of_rows = kinds_by_plan(lowered(model, is_ranking=True, context=context))
    assert ("linear" in of_contexts, "linear" in of_rows) == (is_of_contexts, not is_of_contexts)
    report = export_model(model, tmp_path / "model.artifact", ExportConfig(context=context))
    assert report.ranking_differences
    assert not report.without_program
