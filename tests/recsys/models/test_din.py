"""DIN: the attention held against a loop over examples and items, and exported models against the float one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch import Tensor

from export.config import ExportConfig
from export.pipeline import export_model
from recsys import JaggedTensor
from recsys.artifact.batches.ranking import expand
from recsys.artifact.load import load_artifact
from recsys.checkpoint.single_file import Checkpoint, build_model
from recsys.configs import DataType
from recsys.data.examples import Dataset
from recsys.data.scoring import scores
from recsys.data.tables.dataset import table_dataset
from recsys.errors import CheckpointError
from recsys.inputs.schema import DenseColumn, LabelColumn, Schema, TableSpec
from recsys.models.click import ClickModel
from recsys.models.din import AttentionConfig, TargetAttention, latest
from recsys.models.zoo import build_din
from recsys.train.config import ModelConfig
from tests.support.models.export_ranking import batch_of
from tests.support.reads import CountReads

_DIM = 4
_MOST = 3
_LENGTHS = [2, 0, 5, 1, 3, 0]


def _attention(*, softmax: bool) -> TargetAttention:
    torch.manual_seed(0)
    config = AttentionConfig(
        history="seen", target="item", max_history=_MOST, layer_sizes=[5], softmax=softmax
    )
    return TargetAttention(_DIM, config)


def _histories(lengths: list[int]) -> JaggedTensor:
    return JaggedTensor(torch.randn(sum(lengths), _DIM), lengths=torch.tensor(lengths))


def _looped(attention: TargetAttention, history: list[Tensor], target: Tensor) -> Tensor:
    """The paper's formula, example by example and item by item."""
    first, last = attention.score.model[0]._mlp[0]._linear, attention.score.model[1]
    found = torch.zeros(len(history), _DIM)
    for b, vectors in enumerate(history):
        kept = vectors[-_MOST:]
        of_items = []
        for h in kept:
            pair = torch.cat((h, target[b], h - target[b], h * target[b]))
            hidden = (first.weight @ pair + first.bias).clamp(min=0)
            of_items.append(last.weight[0] @ hidden + last.bias[0])
        if attention._softmax and of_items:
            of_items = list(torch.stack(of_items).exp() / torch.stack(of_items).exp().sum())
        for h, score in zip(kept, of_items, strict=True):
            found[b] += score * h
    return found


@pytest.mark.parametrize("softmax", [False, True])
@pytest.mark.parametrize("lengths", [_LENGTHS, [0, 0], [1]], ids=["mixed", "empty", "one"])
@torch.no_grad()
def test_attention_is_the_papers_formula(lengths: list[int], softmax: bool) -> None:
    attention = _attention(softmax=softmax)
    history, target = _histories(lengths), torch.randn(len(lengths), _DIM)
    found = attention(history, target)
    torch.testing.assert_close(found, _looped(attention, history.to_dense(), target))
    assert not found[torch.tensor(lengths) == 0].any()


def test_no_rows_have_no_interest() -> None:
    empty = JaggedTensor(torch.zeros(0, _DIM), lengths=torch.zeros(0, dtype=torch.int64))
    assert _attention(softmax=True)(empty, torch.zeros(0, _DIM)).shape == (0, _DIM)


def test_attention_reads_no_tensor() -> None:
    attention, history, target = _attention(softmax=True), _histories(_LENGTHS), torch.randn(6, _DIM)
    with CountReads() as reads:
        attention(history, target)
    assert reads.found == []


def test_the_latest_of_a_history_count() -> None:
    history = _histories(_LENGTHS)
    history.values().requires_grad_()
    vectors = latest(history, _MOST)
    for b, rows in enumerate(history.to_dense()):
        kept = rows[-_MOST:].flip(0)
        assert torch.equal(vectors[b, : len(kept)], kept)
        assert not vectors[b, len(kept) :].any()
    vectors.sum().backward()
    gradient = history.values().grad
    assert gradient is not None
    counted = [position >= length - _MOST for length in _LENGTHS for position in range(length)]
    assert gradient.any(dim=1).tolist() == counted


def _dataset(*, dense: bool, others: bool, labels: int = 1) -> Dataset:
    """40 rows whose histories have 0 to 7 items, and some have no target."""
    generator = np.random.default_rng(0)
    frame: dict[str, Any] = {f"label_{i}": [0, 1] * 20 for i in range(labels)}
    frame["item"] = [f"item {i}" if i % 7 else "" for i in range(40)]
    frame["seen"] = ["|".join(f"item {i}" for i in generator.integers(0, 40, i % 8)) for i in range(40)]
    tables = [
        TableSpec(
            name="items",
            num_embeddings=30,
            feature_names=("seen", "item"),
            ids="hash",
            strings="xxh64",
            separator="|",
        )
    ]
    if dense:
        frame["price"] = generator.normal(size=40)
    if others:
        frame["country"] = [f"country {i % 5}" for i in range(40)]
        tables.append(
            TableSpec(
                name="country", num_embeddings=9, feature_names=("country",), ids="hash", strings="xxh64"
            )
        )
    schema = Schema(
        labels=tuple(LabelColumn(name=f"label_{i}") for i in range(labels)),
        dense=(DenseColumn(name="price", buckets=(0.5,)),) if dense else (),
        tables=tuple(tables),
    )
    return table_dataset(pa.table(frame), schema)


def _config(**sizes: Any) -> ModelConfig:
    given = {"history": "seen", "target": "item", **sizes}
    return ModelConfig(
        model="din",
        embedding_dim=_DIM,
        over_layers=(8, 6),
        attention_layers=(6,),
        max_history=_MOST,
        **given,
    )


def _built(config: ModelConfig, dataset: Dataset) -> ClickModel:
    arguments = json.loads(json.dumps(config.arguments(dataset)))
    torch.manual_seed(0)
    state = build_din(**arguments).state_dict()
    # Large vectors, so that the attention decides.
    state = {name: tensor * 20 if "embedding" in name else tensor for name, tensor in state.items()}
    model = build_model(Checkpoint(factory=config.factory, arguments=arguments, state_dict=state))
    assert isinstance(model, ClickModel)
    return model.eval()


@pytest.mark.parametrize(
    ("dense", "others", "labels", "softmax", "devices"),
    [
        pytest.param(True, True, 2, False, ("cpu",), id="two-labels"),
        pytest.param(False, True, 1, False, ("cpu", "cpu"), id="no-dense"),
        pytest.param(True, False, 1, True, ("cpu", "cpu"), id="no-others"),
        pytest.param(False, False, 1, True, ("cpu",), id="items-alone"),
    ],
)
@torch.no_grad()
def test_exported_models_predict_what_the_float_ones_do(
    tmp_path: Path, dense: bool, others: bool, labels: int, softmax: bool, devices: tuple[str, ...]
) -> None:
    dataset = _dataset(dense=dense, others=others, labels=labels)
    model = _built(_config(attention_softmax=softmax), dataset)
    export_model(model, tmp_path / "a", ExportConfig(data_type=DataType.FP32, targets=(devices,)))
    artifact = load_artifact(tmp_path / "a")
    (block,) = dataset.train()
    examples = block.take(np.arange(len(block)))
    batch = examples.batch(np.arange(len(examples)))
    expected = model.logits(batch.dense if dense else None, batch.kjt).sigmoid()
    found = np.stack(list(scores(artifact, examples).values()), axis=1)
    np.testing.assert_allclose(found, expected.numpy(), atol=1e-5)
    assert expected.std() > 0.01


@pytest.mark.parametrize("context", [("seen",), ("seen", "country")], ids=["history", "history-and-more"])
def test_a_history_is_sent_once_for_all_targets(tmp_path: Path, context: tuple[str, ...]) -> None:
    model = _built(_config(), _dataset(dense=True, others=True))
    export_model(model, tmp_path / "a", ExportConfig(data_type=DataType.FP32, context=context))
    artifact = load_artifact(tmp_path / "a")
    for rows_per_context in ([9], [3, 0, 5], [0]):
        batch = batch_of(artifact, rows_per_context)
        found = artifact.forward_ranking(*batch.inputs())
        expected = artifact.forward(*expand(artifact.signature, batch).inputs())
        torch.testing.assert_close(found["score"], expected["score"], atol=1e-6, rtol=1e-5)


def _shared_with(name: str) -> Dataset:
    """A data set whose table of items has one more feature."""
    dataset = _dataset(dense=False, others=False)
    (table,) = dataset.tables
    more = TableSpec(name="items", num_embeddings=30, feature_names=(*table.feature_names, name))
    return Dataset(
        **{**vars(dataset), "schema": Schema(labels=dataset.schema.labels, dense=(), tables=(more,))}
    )


@pytest.mark.parametrize(
    ("config", "dataset", "text"),
    [
        pytest.param(
            _config(history="old"), _dataset(dense=False, others=True), "history: got 'old'", id="no"
        ),
        pytest.param(
            _config(target="country"),
            _dataset(dense=False, others=True),
            "got 'seen' of table 'items' and 'country' of table 'country', expected two features of one table",
            id="two-tables",
        ),
        pytest.param(_config(target="seen"), _dataset(dense=False, others=True), "expected two", id="same"),
        pytest.param(
            _config(), _shared_with("last"), r"table 'items': got the features \['last'\] beside", id="three"
        ),
    ],
)
def test_what_does_not_fit(config: ModelConfig, dataset: Dataset, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        build_din(**config.arguments(dataset))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("attention", "text"),
    [
        ({"heads": 2}, "attention: got .*'heads': 2}, expected an object with"),
        ({"history": 3}, "attention.history: got 3, expected the name of a feature"),
        ({"max_history": 0}, r"attention.max_history: got \[0\]"),
        ({"layer_sizes": [0]}, r"attention.layer_sizes: got \[0\]"),
        ({"softmax": 1}, "attention.softmax: got 1, expected true or false"),
    ],
)
def test_checkpoints_that_do_not_fit(attention: dict[str, Any], text: str) -> None:
    config, dataset = _config(), _dataset(dense=False, others=False)
    arguments: dict[str, Any] = config.arguments(dataset)
    arguments["attention"] = {**arguments["attention"], **attention}
    with pytest.raises(CheckpointError, match=text):
        build_model(Checkpoint(factory=config.factory, arguments=arguments, state_dict={}))


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"target": ""}, "history, target: got 'seen' and '', expected two features of one table"),
        ({"max_history": 0}, "model sizes"),
        ({"attention_layers": ()}, "model sizes"),
    ],
)
def test_model_configs(fields: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        ModelConfig(**{"model": "din", "history": "seen", "target": "item", **fields})
