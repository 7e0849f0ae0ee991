"""In the ranking form's graph, what descends from a context alone is computed once for each context.

Shape letters: B rows, Q contexts, D embedding dim, S longest history.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn

import recsys
from benchmarks.models.sequences import Behavior, Pointwise, SelfAttentive
from export.artifact.writing import make_graphs
from export.config import ExportConfig
from export.pipeline import export_model
from export.prepare import prepare
from tests.export.lower.test_contexts import USERS, Histories
from tests.models.archetypes import ARCHETYPES

_DIM, _SIZE = 8, 5


def _graph(model: nn.Module, context: tuple[str, ...] = ("history",), **options: Any) -> fx.Graph:
    torch.manual_seed(0)
    prepared = prepare(model.eval(), ExportConfig(context=context, **options), lambda *_: None)
    (target,) = prepared.stored.envs
    return make_graphs(prepared, target, is_scripted=False)[1].module.graph


def _name(node: fx.Node) -> str:
    return node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")


def _of_rows(graph: fx.Graph) -> Counter[str]:
    """Return how often each operator reads what descends from rows."""
    below = {node for node in graph.nodes if node.target in ("lengths", "values", "row_context")}
    found: Counter[str] = Counter()
    for node in graph.nodes:
        if not below.isdisjoint(node.all_input_nodes):
            below.add(node)
            found[_name(node)] += 1
    return found


def _all(graph: fx.Graph) -> Counter[str]:
    return Counter(map(_name, graph.nodes))


@pytest.mark.parametrize("make", [SelfAttentive, Pointwise, Behavior])
@pytest.mark.parametrize("dense_dtype", ["float32", "bfloat16"])
def test_an_encoder_runs_on_contexts(make: type[nn.Module], dense_dtype: str) -> None:
    graph = _graph(make(recsys, 100), dense_widths={"dense": 1}, dense_dtype=dense_dtype)
    of_rows, everything = _of_rows(graph), _all(graph)
    assert (
        everything["model.layers.0.qkv"] + everything["model.layer.qkv"] + everything["model.layers.0.uvqk"]
        == 1
    )
    assert of_rows["index_select"] == 1
    assert not {
        name for name in of_rows if ".layer" in name or "attention" in name or name == "repeat_interleave"
    }


@pytest.mark.parametrize("name", USERS)
def test_nothing_is_gathered_by_id(name: str) -> None:
    of_rows = _of_rows(_graph(Histories(USERS[name])))
    assert of_rows["index_select"] == 1
    assert of_rows["repeat_interleave"] == 0
    assert of_rows["jagged_to_padded_dense"] == 1


def _centred(model: Histories, history: recsys.JaggedTensor) -> Tensor:
    x = model.layer(history.to_padded_dense(_SIZE)).sum(dim=1)
    return torch.relu(x - x.mean(dim=0))


def _unknown(model: Histories, history: recsys.JaggedTensor) -> Tensor:
    return torch.relu(torch.special.i0(model.layer(history.to_padded_dense(_SIZE)).sum(dim=1)))


@pytest.mark.parametrize("user_of", [_centred, _unknown])
def test_rows_compute_what_may_read_other_rows(
    user_of: Callable[[Histories, recsys.JaggedTensor], Tensor],
) -> None:
    graph = _graph(Histories(user_of))
    of_rows = _of_rows(graph)
    assert of_rows["model.layer"] == 0
    assert of_rows["relu"] == _all(graph)["relu"] == 1


def test_a_graph_that_writes_to_what_is_expanded_stays_as_it_is() -> None:
    def writing(model: Histories, history: recsys.JaggedTensor) -> Tensor:
        x = model.layer(history.to_padded_dense(_SIZE))
        x.mul_(2.0)
        return x.sum(dim=1)

    assert _of_rows(_graph(Histories(writing)))["model.layer"] == 1


class _Wide(nn.Module):
    """Pooled features of a user, of which one tensor is made or each is taken apart."""

    def __init__(self) -> None:
        super().__init__()
        tables = [
            recsys.EmbeddingBagConfig(
                name=f"t{i}", embedding_dim=_DIM, num_embeddings=50, feature_names=[f"u{i}"]
            )
            for i in range(4)
        ]
        self.bags = recsys.EmbeddingBagCollection(tables=tables)
        self.over = nn.Linear(5 * _DIM, 1)

    def forward(self, item: Tensor, features: recsys.KeyedJaggedTensor) -> Tensor:
        parts = self.bags(features).values().split(_DIM, dim=1)
        return self.over(torch.cat([item, *parts], dim=1))


def test_what_rows_only_take_apart_is_expanded_whole() -> None:
    graph = _graph(_Wide(), tuple(f"u{i}" for i in range(4)), dense_widths={"item": _DIM})
    assert _of_rows(graph)["index_select"] == 1


@pytest.mark.parametrize("name", [name for name, case in ARCHETYPES.items() if case.context])
def test_archetypes_verify(name: str, tmp_path: Path) -> None:
    case = ARCHETYPES[name]
    torch.manual_seed(0)

    report = export_model(
        case.served(case.make().eval()),
        tmp_path / "a",
        ExportConfig(
            context=case.context,
            targets=(("cpu", "cpu"),),  # tests/models has both targets
            dense_dtype="bfloat16",
            **case.options,
        ),
    )
    assert report.without_program
    assert set(report.ranking_differences) == {"cpu,cpu"}


@pytest.mark.parametrize(("make", "format_"), [(SelfAttentive, "pt2"), (Pointwise, "torchscript")])
def test_encoders_verify(make: type[nn.Module], format_: str, tmp_path: Path) -> None:
    config = ExportConfig(context=("history",), dense_widths={"dense": 1}, graph_format=format_)
    assert export_model(make(recsys, 100).eval(), tmp_path / "a", config).ranking_differences
