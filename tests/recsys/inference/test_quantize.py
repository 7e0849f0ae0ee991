"""Models whose collections are quantized in place: which, to what, and what stays."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from recsys import EmbeddingBagCollection, EmbeddingCollection, KeyedJaggedTensor
from recsys.configs import DataType
from recsys.inference.quantize import quantize_embeddings, quantize_inference_model
from recsys.modules.feature_processors import (
    FeatureProcessedEmbeddingBagCollection,
    PositionWeightedModuleCollection,
)
from recsys.quant import QuantEmbeddingBagCollection, QuantEmbeddingCollection
from tests.support.helpers import bag, kjt_of, sequence

BATCH = kjt_of({"a": [[1, 2], []], "b": [[3], [4]]})


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.bags = EmbeddingBagCollection([bag("t", 9, 8, ["a"]), bag("u", 9, 8, ["b"])])
        self.same = nn.ModuleList([self.bags])
        self.rows = EmbeddingCollection([sequence("v", 9, 8, ["a"])])
        self.processed = FeatureProcessedEmbeddingBagCollection(
            EmbeddingBagCollection([bag("w", 9, 8, ["a"])], is_weighted=True),
            PositionWeightedModuleCollection({"a": 3}),
        )

    def forward(self, features: KeyedJaggedTensor) -> list[Tensor]:
        pooled = [self.bags(features), self.same[0](features), self.processed(features)]
        return [*[keyed.values() for keyed in pooled], self.rows(features)["a"].values()]


def types_of(module: Any) -> list[DataType]:
    tables = module.embedding_bag_configs() if hasattr(module, "embedding_bag_configs") else None
    return [table.data_type for table in tables or module.embedding_configs()]


def test_the_whole_model() -> None:
    expected, model = Model()(BATCH), Model()
    assert (
        quantize_inference_model(
            model, per_table_weight_dtype={"u": torch.float32}, fp_weight_dtype=torch.quint4x2
        )
        is model
    )
    assert isinstance(model.bags, QuantEmbeddingBagCollection)
    assert isinstance(model.rows, QuantEmbeddingCollection)
    assert model.same[0] is model.bags
    assert types_of(model.bags) == [DataType.INT8, DataType.FP32]
    assert types_of(model.rows) == [DataType.INT8]
    assert types_of(model.processed._embedding_bag_collection) == [DataType.INT4]
    for found, exact in zip(model(BATCH), expected, strict=True):
        torch.testing.assert_close(found, exact, atol=0.05, rtol=0.05)


def test_types_of_rows_and_outputs() -> None:
    model = quantize_inference_model(Model(), quantization_dtype=torch.quint4x2, output_dtype=torch.float16)
    assert types_of(model.bags) == [DataType.INT4] * 2
    assert {values.dtype for values in model(BATCH)} == {torch.float16}


def test_a_mapping_says_which_types() -> None:
    mapping = {torch.typename(EmbeddingBagCollection): QuantEmbeddingBagCollection}
    model = quantize_inference_model(Model(), mapping)
    assert isinstance(model.bags, QuantEmbeddingBagCollection)
    assert type(model.rows) is EmbeddingCollection


def test_pooled_collections_alone() -> None:
    given = Model()
    model = quantize_embeddings(given, torch.qint8, inplace=False)
    assert type(given.bags) is EmbeddingBagCollection
    assert not hasattr(given.bags, "qconfig")
    assert isinstance(model.bags, QuantEmbeddingBagCollection)
    assert type(model.rows) is EmbeddingCollection
    both = quantize_embeddings(given, torch.int8, True, [EmbeddingCollection])
    assert both is given
    assert isinstance(both.rows, QuantEmbeddingCollection)


def test_a_bare_collection() -> None:
    made = quantize_inference_model(Model().bags)
    assert isinstance(made, QuantEmbeddingBagCollection)


def test_what_cannot_be_quantized_is_named() -> None:
    with pytest.raises(
        ValueError, match=r"additional_qconfig_spec_keys: got Linear, expected its quantized type"
    ):
        quantize_embeddings(Model(), torch.int8, False, [nn.Linear])
    with pytest.raises(ValueError, match=r"dtype: got torch.float64"):
        quantize_embeddings(Model(), torch.float64, False)
