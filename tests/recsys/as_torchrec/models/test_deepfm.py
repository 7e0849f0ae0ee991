from __future__ import annotations

import itertools

import pytest
import torch

from recsys import EmbeddingBagCollection, KeyedJaggedTensor
from recsys.as_torchrec.models.deepfm import FMInteractionArch, SimpleDeepFMNN
from tests.support.helpers import bag


def _model() -> SimpleDeepFMNN:
    torch.manual_seed(0)
    tables = [bag("t", 20, 4, ["a", "b"]), bag("u", 20, 4, ["c"])]
    return SimpleDeepFMNN(5, EmbeddingBagCollection(tables), 6, 3)


def test_the_parts_together() -> None:
    model = _model()
    kjt = KeyedJaggedTensor(keys=["c", "a", "b"], values=[1, 2, 3, 4, 5], lengths=[1, 0, 1, 1, 2, 0])
    dense = torch.randn(2, 5)
    embedded = model.dense_arch(dense)
    vectors = model.sparse_arch(kjt)
    numbers = torch.cat([embedded, vectors["a"], vectors["b"], vectors["c"]], 1)
    pairs = sum(numbers[:, i] * numbers[:, j] for i, j in itertools.combinations(range(16), 2))
    deep = model.inter_arch.deep_fm.dense_module(numbers)
    logits = model.over_arch.model[0](torch.cat([embedded, deep, pairs[:, None]], 1))
    torch.testing.assert_close(model(dense, kjt), logits.sigmoid())


def test_without_features_the_dense_vector_stays() -> None:
    dense = torch.randn(3, 4)
    assert FMInteractionArch(4, [], 2)(dense, None) is dense


def test_dims_that_differ() -> None:
    bags = EmbeddingBagCollection([bag("t", 20, 4, ["a"]), bag("u", 20, 8, ["b"])])
    with pytest.raises(ValueError, match=r"tables: got embedding_dim .*'u': 8"):
        SimpleDeepFMNN(5, bags, 6, 3)
