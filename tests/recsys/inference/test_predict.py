"""Models behind a dict of tensors, dense layers in halves, and what factories say."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from recsys import EmbeddingBagCollection, KeyedJaggedTensor
from recsys.inference.predict import (
    BatchingMetadata,
    PredictFactory,
    PredictModule,
    QualNameMetadata,
    quantize_dense,
)
from tests.support.helpers import bag


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bags = EmbeddingBagCollection([bag("t", 9, 4, ["a"])])
        self.over = nn.Linear(4, 1)

    def forward(self, features: KeyedJaggedTensor) -> Tensor:
        return self.over(self.bags(features).values())


class Predict(PredictModule):
    def predict_forward(self, batch: dict[str, Tensor]) -> Tensor:
        return self.predict_module(KeyedJaggedTensor(["a"], batch["values"], lengths=batch["lengths"]))


BATCH = {"values": torch.tensor([1, 2]), "lengths": torch.tensor([1, 1])}


def test_a_model_behind_tensors() -> None:
    model = Model()
    made = Predict(model, "cpu")
    expected = model(KeyedJaggedTensor(["a"], BATCH["values"], lengths=BATCH["lengths"]))
    found = made(BATCH)
    assert torch.equal(found, expected)
    assert found.is_inference()
    assert not model.training
    assert list(made.state_dict()) == list(model.state_dict())
    assert list(made.state_dict(prefix="model.")) == [f"model.{name}" for name in model.state_dict()]
    with pytest.raises(NotImplementedError, match="predict_forward is not defined"):
        PredictModule(model, "cpu")(BATCH)


def test_dense_layers_in_halves() -> None:
    made = quantize_dense(Predict(Model(), "cpu"), torch.half)
    assert made.predict_module.over.weight.dtype == torch.float16
    assert made.predict_module.bags.embedding_bags.t.weight.dtype == torch.float32
    assert made(BATCH).dtype == torch.float16
    whole = quantize_dense(Predict(Model(), "cpu"), torch.half, [nn.Linear])
    assert whole.predict_module.over.weight.dtype == torch.float32
    with pytest.raises(ValueError, match=r"dtype: got torch.int8, expected torch.half"):
        quantize_dense(Predict(Model(), "cpu"), torch.int8)


class Factory(PredictFactory):
    def create_predict_module(self) -> nn.Module:
        return Predict(Model(), "cpu")

    def batching_metadata(self) -> dict[str, BatchingMetadata]:
        return {"values": BatchingMetadata(type="sparse", device="cpu", pinned=["lengths"])}

    def result_metadata(self) -> str:
        return "dict_of_tensor"

    def run_weights_independent_tranformations(self, predict_module: Any) -> Any:
        return predict_module

    def run_weights_dependent_transformations(self, predict_module: Any) -> Any:
        return predict_module

    def qualname_metadata(self) -> dict[str, QualNameMetadata]:
        return {"forward": QualNameMetadata(need_preproc=False)}


def test_what_factories_say() -> None:
    factory = Factory()
    assert json.loads(factory.batching_metadata_json()) == {
        "values": {"type": "sparse", "device": "cpu", "pinned": ["lengths"]}
    }
    assert json.loads(factory.qualname_metadata_json()) == {"forward": {"need_preproc": False}}
    assert factory.model_inputs_data() == {}
