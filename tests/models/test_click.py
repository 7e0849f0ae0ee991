"""ClickModel and the factory that checkpoints name."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from recsys import KeyedJaggedTensor
from recsys.models.click import build_dlrm


def _arguments() -> dict[str, Any]:
    return {
        "tables": [
            {"name": "user", "num_embeddings": 9, "embedding_dim": 4, "feature_names": ["user"]},
            {
                "name": "item",
                "num_embeddings": 7,
                "embedding_dim": 4,
                "feature_names": ["item", "recent"],
                "pooling": "MEAN",
            },
        ],
        "dense_in_features": 2,
        "dense_arch_layer_sizes": [8, 4],
        "over_arch_layer_sizes": [8, 1],
    }


def _kjt() -> KeyedJaggedTensor:
    return KeyedJaggedTensor(
        keys=["user", "item", "recent"], values=[1, 8, 0, 6, 2, 3, 4], lengths=[1, 1, 1, 1, 3, 0]
    )


def test_score_is_the_probability_of_the_logits() -> None:
    model = build_dlrm(**_arguments())
    dense = torch.randn(2, 2)
    outputs = model(dense, _kjt())
    logits = model.logits(dense, _kjt())
    assert list(outputs) == ["score"]
    assert outputs["score"].shape == logits.shape == (2,)
    torch.testing.assert_close(outputs["score"], 1 / (1 + torch.exp(-logits)))


def test_empty_batch() -> None:
    kjt = KeyedJaggedTensor(keys=["user", "item", "recent"], values=[], lengths=[])
    assert build_dlrm(**_arguments())(torch.empty(0, 2), kjt)["score"].shape == (0,)


def test_arguments_survive_json() -> None:
    model = build_dlrm(**json.loads(json.dumps(_arguments())))
    tables = model.model.sparse_arch.embedding_bag_collection.embedding_bag_configs()
    assert [(t.name, t.num_embeddings, t.embedding_dim, t.pooling.value) for t in tables] == [
        ("user", 9, 4, "SUM"),
        ("item", 7, 4, "MEAN"),
    ]
    assert tables[1].feature_names == ["item", "recent"]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        pytest.param({"tables": "user"}, "tables: expected a list", id="tables-text"),
        pytest.param({"tables": [3]}, "tables: expected a list of objects", id="table-number"),
        pytest.param({"tables": []}, "tables", id="no-tables"),
        pytest.param({"tables": [{"name": "user"}]}, r"tables\[0\].*embedding_dim", id="fields-missing"),
        pytest.param({"dense_in_features": 0}, "dense_in_features", id="no-dense"),
        pytest.param({"dense_in_features": True}, "dense_in_features", id="flag-as-number"),
        pytest.param({"dense_arch_layer_sizes": [8.0, 4]}, "dense_arch_layer_sizes", id="float-size"),
        pytest.param({"over_arch_layer_sizes": [8, 2]}, "over_arch_layer_sizes.*one logit", id="two-logits"),
        pytest.param({"over_arch_layer_sizes": "81"}, "over_arch_layer_sizes", id="text-sizes"),
    ],
)
def test_wrong_arguments(change: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        build_dlrm(**{**_arguments(), **change})


@pytest.mark.parametrize(
    ("change", "text"),
    [
        pytest.param({"extra": 1}, r"tables\[0\].*'extra'", id="unknown-field"),
        pytest.param({"pooling": "NONE"}, r"tables\[0\].pooling: got 'NONE'", id="pooling"),
        pytest.param({"num_embeddings": -1}, r"tables\[0\].num_embeddings", id="negative-rows"),
        pytest.param({"embedding_dim": "4"}, r"tables\[0\].embedding_dim", id="text-dim"),
        pytest.param({"feature_names": "user"}, r"tables\[0\].*list as feature_names", id="features-text"),
        pytest.param({"feature_names": [1]}, r"tables\[0\].feature_names", id="feature-number"),
        pytest.param({"name": 1}, r"tables\[0\].*name", id="name-number"),
    ],
)
def test_wrong_table(change: dict[str, Any], text: str) -> None:
    arguments = _arguments()
    arguments["tables"][0].update(change)
    with pytest.raises(ValueError, match=text):
        build_dlrm(**arguments)
