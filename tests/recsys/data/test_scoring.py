"""Scores of tables: the arguments that a signature asks for, and schemas that do not fit an artifact."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from export.config import ExportConfig
from export.pipeline import export_model
from recsys import EmbeddingBagCollection, KeyedJaggedTensor
from recsys.artifact.load import load_artifact
from recsys.data.examples import Bags, Examples
from recsys.data.lines import DataError
from recsys.data.scoring import label_outputs, model_inputs, schema_for, scores
from recsys.data.sources.synthetic import synthetic
from recsys.inputs.schema import LabelColumn
from recsys.inputs.signature import DenseInput, Output, Signature, SparseInput
from recsys.train.config import ModelConfig, TrainConfig
from tests.recsys.data.blocks import all_of
from tests.support.helpers import bag
from tests.support.training import train

_SIGNATURE = Signature(
    dense=(DenseInput(name="x", width=2), DenseInput(name="y", width=1)),
    sparse=(
        SparseInput(name="b", tables=(), pooling="sum"),
        SparseInput(name="a", tables=(), pooling="sum", weighted=True),
    ),
    outputs=(Output(name="score", shape=()),),
)


def test_arguments_follow_the_signature() -> None:
    examples = Examples(
        dense=np.arange(6, dtype=np.float32).reshape(2, 3),
        bags={
            "a": Bags(np.array([1, 2, 3]), np.array([0, 1, 3])),
            "b": Bags(np.array([9]), np.array([0, 0, 1])),
        },
        labels=np.zeros((2, 0), dtype=np.float32),
    )
    x, y, lengths, values, weights = model_inputs(_SIGNATURE, examples)
    assert (x.tolist(), y.tolist()) == ([[0, 1], [3, 4]], [[2], [5]])
    assert (lengths.tolist(), values.tolist()) == ([0, 1, 1, 2], [9, 1, 2, 3])
    assert weights.tolist() == [1, 1, 1, 1]


class Tripled(nn.Module):
    """IDs of ``f``, tripled, in a table of 50 rows."""

    def __init__(self) -> None:
        super().__init__()
        self.ebc = EmbeddingBagCollection([bag("t", 20, 8, ["f"])])
        self.cross = EmbeddingBagCollection([bag("c", 50, 8, ["made"])])

    def forward(self, features: KeyedJaggedTensor) -> Tensor:
        f = features["f"]
        made = KeyedJaggedTensor(["made"], f.values() * 3, lengths=f.lengths())
        return torch.cat([self.ebc(features).values(), self.cross(made).values()], dim=1).sum(dim=1)


def test_a_computed_id_that_leaves_its_table_names_the_row(tmp_path: Path) -> None:
    samples = tmp_path / "samples"
    samples.write_text(json.dumps({"sparse": {"f": [[3], [16], [2, 4], []]}}))
    export_model(Tripled(), tmp_path / "a", ExportConfig(samples=samples))
    ids = np.full(10, 16)
    examples = Examples(
        dense=np.zeros((10, 0), dtype=np.float32),
        bags={"f": Bags(ids, np.arange(11))},
        labels=np.zeros((10, 0), dtype=np.float32),
    )
    artifact = load_artifact(tmp_path / "a")
    assert len(scores(artifact, examples)["default"]) == 10
    ids[6] = 17
    with pytest.raises(
        DataError, match=r"^row 6: computed ID: table 'cross.c' got 51, expected 0 <= ID < 50$"
    ):
        scores(artifact, examples)


def test_scores_are_the_models(tmp_path: Path) -> None:
    dataset = synthetic(3_000)
    config = ModelConfig(embedding_dim=4, dense_layers=(4,), over_layers=(4,))
    model, _ = train(dataset, config, TrainConfig(batch_size=512))
    export_model(model, tmp_path / "a", ExportConfig())
    artifact = load_artifact(tmp_path / "a")
    assert schema_for(artifact) == dataset.schema
    (block,) = dataset.train()
    examples = all_of(block)
    batch = examples.batch(np.arange(len(examples)))
    expected = model(batch.dense, batch.kjt)["score"].detach().numpy()
    assert np.abs(scores(artifact, examples)["score"] - expected).max() < 0.02
    assert scores(artifact, examples.take(np.arange(0)))["score"].shape == (0,)
    other = replace(dataset.schema, dense=dataset.schema.dense[:1])
    with pytest.raises(DataError, match=r"schema\.dense: got 1 columns, expected 3"):
        schema_for(artifact, other)
    with pytest.raises(DataError, match=r"missing columns for the artifact's inputs \['hour'\]"):
        schema_for(artifact, replace(dataset.schema, tables=dataset.schema.tables[:3]))


def test_labels_and_outputs() -> None:
    schema = synthetic(10).schema
    assert label_outputs(schema, {"score": None}) == {"click": "score"}
    two = replace(schema, labels=(LabelColumn(name="a"), LabelColumn(name="b")))
    assert label_outputs(two, {"b": None, "a": None}) == {"a": "a", "b": "b"}
    with pytest.raises(DataError, match=r"schema\.labels: got 'b', expected names of the outputs"):
        label_outputs(two, {"a": None, "c": None})
