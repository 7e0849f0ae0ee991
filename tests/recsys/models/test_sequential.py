"""SASRec and HSTU: what scores depend on, their formulas place by place, and their exports with the user computed once.

Shape letters: B batch, D embedding dimension, H longest history.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from export.config import ExportConfig
from export.lower.plan import Plan
from export.pipeline import export_model
from recsys.artifact.batches.ranking import expand
from recsys.artifact.load import load_artifact
from recsys.checkpoint.single_file import Checkpoint, build_model
from recsys.configs import DataType
from recsys.errors import CheckpointError
from recsys.inputs.schema import DenseColumn, LabelColumn, Schema, TableSpec
from recsys.models.click import ClickModel
from recsys.models.hstu import HSTUEncoder
from recsys.models.sasrec import SASRecEncoder
from recsys.models.sequential import build_sequential
from tests.export.lower.test_lowering import kinds_of, lowered, steps_of
from tests.support.helpers import kjt_of
from tests.support.models.export_ranking import batch_of

_DIM, _MOST, _ITEMS = 8, 5, 40
_ENCODERS = {"sasrec": SASRecEncoder, "hstu": HSTUEncoder}
_MODELS = [(encoder, objective) for encoder in _ENCODERS for objective in ("click", "next-item")]
_HISTORIES = [[3, 4, 5], [], [1, 2, 3, 4, 5, 6, 7], [9], [8, 8]]
_CANDIDATES = [[1], [2], [], [9], [30]]


def _arguments(encoder: str, objective: str, *, others: bool = False, num_labels: int = 1) -> dict[str, Any]:
    is_click = objective == "click"
    features = {"items": ["seen", "item"]}
    if others:
        features |= {"country": ["country"], **({"category": ["category"]} if is_click else {})}
    schema = Schema(
        labels=tuple(LabelColumn(name=f"label_{i}") for i in range(num_labels)) if is_click else (),
        dense=(DenseColumn(name="age", missing=30, std=20),) if others else (),
        tables=tuple(
            TableSpec(name=name, num_embeddings=_ITEMS, feature_names=tuple(names))
            for name, names in features.items()
        ),
    )
    return {
        "tables": [
            {"name": name, "num_embeddings": _ITEMS, "embedding_dim": _DIM, "feature_names": names}
            for name, names in features.items()
        ],
        "dense_in_features": len(schema.dense),
        "sequence": {
            "encoder": encoder,
            "history": "seen",
            "target": "item",
            "max_history": _MOST,
            "num_layers": 2,
            "num_heads": 2,
            "dropout": 0.3,
            "objective": objective,
            "item_features": ["category"] if others and is_click else [],
        },
        "over_layer_sizes": [6],
        "inputs": schema.to_json(),
    }


def sequential_model(encoder: str, objective: str, **options: Any) -> ClickModel:
    """Return a model whose weights are all of about one size."""
    torch.manual_seed(0)
    model = build_sequential(**_arguments(encoder, objective, **options)).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "embedding" not in name:
                weight.add_(torch.randn_like(weight) * 0.2)
            else:
                weight.copy_(torch.randn_like(weight))
    return model


@torch.no_grad()
def _logits(model: ClickModel, histories: list[list[int]], candidates: list[list[int]]) -> Tensor:
    return model.logits(None, kjt_of({"seen": histories, "item": candidates}))


@pytest.mark.parametrize(("encoder", "objective"), _MODELS)
def test_neither_padding_nor_neighbours_move_a_score(encoder: str, objective: str) -> None:
    model = sequential_model(encoder, objective)
    together = _logits(model, _HISTORIES, _CANDIDATES)
    assert together.isfinite().all()
    for i, (history, candidate) in enumerate(zip(_HISTORIES, _CANDIDATES, strict=True)):
        torch.testing.assert_close(_logits(model, [history], [candidate])[0], together[i])


@pytest.mark.parametrize(("encoder", "objective"), _MODELS)
def test_the_last_items_count_in_their_order(encoder: str, objective: str) -> None:
    model = sequential_model(encoder, objective)
    same = _logits(model, [[1, 2, 3, 4, 5, 6, 7], [9, 3, 4, 5, 6, 7], [3, 4, 5, 6, 7]], [[2]] * 3)
    torch.testing.assert_close(same, same[:1].expand(3, 1))
    changed = _logits(model, [[3, 4, 5, 6, 7], [4, 3, 5, 6, 7], [4, 5, 6, 7], []], [[2]] * 4)
    assert len(changed.flatten().unique()) == 4


@pytest.mark.parametrize("encoder", _ENCODERS)
@torch.no_grad()
def test_states_depend_on_older_items_alone(encoder: str) -> None:
    torch.manual_seed(0)
    states_of = _ENCODERS[encoder](_DIM, _MOST, 2, 2, 0.0).eval()
    history, lengths = torch.randn(2, _MOST, _DIM), torch.tensor([_MOST, 3])
    history[1, 3:] = 0
    before = states_of(history, lengths)
    later = history.clone()
    later[0, -1] += torch.randn(_DIM)  # the latest item
    later[1, 3] += torch.randn(_DIM)  # padding
    after = states_of(later, lengths)
    torch.testing.assert_close(after[0, :-1], before[0, :-1])
    assert not torch.allclose(after[0, -1], before[0, -1])
    torch.testing.assert_close(after[1, :3], before[1, :3])
    older = history.clone()
    older[0, 0] += torch.randn(_DIM)
    assert not torch.allclose(states_of(older, lengths)[0, -1], before[0, -1])


@torch.no_grad()
def test_an_hstu_candidate_is_one_more_item() -> None:
    """The candidate's vector is the latest state of a history with it, but that the history is not cut for it."""
    torch.manual_seed(0)
    encoder = HSTUEncoder(_DIM, _MOST, 2, 2, 0.0).eval()
    for layer in encoder.layers:
        layer.bias.normal_()
    candidate, history = torch.randn(1, _DIM), torch.randn(1, _MOST, _DIM)
    history[:, 3:] = 0
    found = encoder.attend(candidate, history, torch.tensor([3]))
    longer = torch.cat((history[:, :3], candidate.unsqueeze(1), history[:, 4:]), dim=1)
    torch.testing.assert_close(found, encoder(longer, torch.tensor([4]))[:, 3])


@torch.no_grad()
def test_hstu_attention_is_the_papers_formula() -> None:
    torch.manual_seed(0)
    encoder = HSTUEncoder(_DIM, _MOST, 1, 1, 0.0).eval()
    (layer,) = encoder.layers
    layer.bias.normal_()
    history = torch.randn(1, _MOST, _DIM)
    x = history[0] * _DIM**0.5
    u, v, q, k = functional.silu(layer.gates_values_queries_keys(layer.norm(x))).chunk(4, dim=1)
    expected = []
    for place in range(4):
        seen = torch.zeros(_DIM)
        for other in range(place + 1):
            seen += functional.silu(q[place] @ k[other] + layer.bias[place - other, 0]) * v[other] / _MOST
        expected.append(x[place] + layer.out(u[place] * layer.seen_norm(seen)))
    found = encoder(history, torch.tensor([4]))[0, :4]
    torch.testing.assert_close(found, encoder.norm(torch.stack(expected)))


@torch.no_grad()
def test_sasrec_is_torchs_transformer() -> None:
    torch.manual_seed(0)
    encoder = SASRecEncoder(_DIM, _MOST, 2, 2, 0.0).eval()
    history = torch.randn(3, _MOST, _DIM)
    x = history * _DIM**0.5 + encoder.positions
    mask = torch.ones(_MOST, _MOST, dtype=torch.bool).triu(1)  # what a place does not see: later items
    for block in encoder.blocks:
        other = torch.nn.TransformerEncoderLayer(
            _DIM, 2, _DIM, dropout=0.0, batch_first=True, norm_first=True
        ).eval()
        mine = (
            block.queries_keys_values,
            block.out,
            block.feed_in,
            block.feed_out,
            block.norm,
            block.feed_norm,
        )
        weights = [weight for part in mine for weight in part.parameters()]
        for theirs, weight in zip(other.parameters(), weights, strict=True):
            theirs.copy_(weight)
        x = other(x, src_mask=mask)
    torch.testing.assert_close(encoder(history, torch.tensor([_MOST, 9, _MOST])), encoder.norm(x))


@pytest.mark.parametrize("others", [False, True], ids=["alone", "others"])
@pytest.mark.parametrize(("encoder", "objective"), _MODELS)
def test_the_user_is_computed_once(encoder: str, objective: str, others: bool) -> None:
    model = sequential_model(encoder, objective, others=others)
    context = ("seen", "country", "dense_features") if others else ("seen",)
    program = lowered(model, is_ranking=True, context=context)
    assert "region" not in kinds_of(program)
    plans = [step for step in program.steps if isinstance(step, Plan)]
    of_contexts, of_rows = (steps_of(replace(program, steps=[plan])) for plan in (plans[0], plans[-1]))
    assert len(plans) == 2
    # SASRec has four linear layers a block, and HSTU two a layer, of which a candidate needs one of the last layer.
    attends = encoder == "hstu" and objective == "click"
    num_layers = 8 if encoder == "sasrec" else 3 if attends else 4
    assert of_contexts["linear"] >= num_layers
    assert of_contexts["contract"] == (2 if attends else 4)
    if not attends:
        assert "contract" not in of_rows
        # Of the other features' layers, that of the user's is the context's.
        assert of_rows.get("linear", 0) == int(others and objective == "click")


@pytest.mark.parametrize("others", [False, True], ids=["alone", "others"])
@pytest.mark.parametrize(("encoder", "objective"), _MODELS)
def test_exports_answer_as_the_model_does(tmp_path: Path, encoder: str, objective: str, others: bool) -> None:
    model = sequential_model(encoder, objective, others=others)
    context = ("seen", "country", "dense_features") if others else ("seen",)
    config = ExportConfig(data_type=DataType.FP32, context=context)
    export_model(model, tmp_path / "m.artifact", config)  # verifies both forms against the model
    artifact = load_artifact(tmp_path / "m.artifact")
    for rows_per_context in ([3, 0, 2], [1], [0, 5]):
        batch = batch_of(artifact, rows_per_context)
        found = artifact.forward_ranking(*batch.inputs())
        expected = artifact.forward(*expand(artifact.signature, batch).inputs())
        torch.testing.assert_close(found["score"], expected["score"], atol=1e-6, rtol=1e-5)


def test_hstu_has_a_score_for_each_label() -> None:
    model = sequential_model("hstu", "click", num_labels=2)
    found = model(kjt_of({"seen": _HISTORIES, "item": _CANDIDATES}))
    assert {name: score.shape for name, score in found.items()} == {"label_0": (5,), "label_1": (5,)}


def test_next_item_scores_are_logits() -> None:
    model = sequential_model("sasrec", "next-item")
    batch = kjt_of({"seen": _HISTORIES, "item": _CANDIDATES})
    assert torch.equal(model(batch)["score"], model.logits(None, batch)[:, 0])


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"encoder": "gru"}, "sequence.encoder: got 'gru', expected one of sasrec, hstu"),
        ({"objective": "rank"}, "sequence.objective: got 'rank', expected one of click, next-item"),
        ({"num_heads": 3}, "sequence.num_heads: got 3, expected a divisor of 8"),
        ({"num_layers": 0}, r"sequence.num_layers: got \[0\]"),
        ({"dropout": 1.0}, "sequence.dropout: got 1.0, expected a share"),
        ({"history": 3}, "sequence.history: got 3"),
        ({"target": "seen"}, "expected two features of one table"),
        ({"item_features": "abc"}, "sequence.item_features: got abc, expected a list of texts"),
        ({"item_features": ["color"]}, r"item_features: got \['color'\], expected some of"),
        ({"more": 1}, "sequence: got .*'more': 1}, expected an object with"),
        ({"objective": "next-item"}, r"inputs.labels: got \['label_0'\], expected none for next-item"),
    ],
)
def test_checkpoints_that_do_not_fit(changes: dict[str, Any], text: str) -> None:
    arguments = _arguments("sasrec", "click")
    arguments["sequence"] |= changes
    factory = "recsys.models.sequential:build_sequential"
    with pytest.raises(CheckpointError, match=text):
        build_model(Checkpoint(factory=factory, arguments=arguments, state_dict={}))


def test_sasrec_has_one_label() -> None:
    with pytest.raises(ValueError, match=r"inputs.labels: got 2, expected one"):
        build_sequential(**_arguments("sasrec", "click", num_labels=2))


def test_clicks_need_a_label() -> None:
    arguments = _arguments("hstu", "next-item")
    arguments["sequence"]["objective"] = "click"
    with pytest.raises(ValueError, match=r"inputs.labels: got none, expected at least one"):
        build_sequential(**arguments)
