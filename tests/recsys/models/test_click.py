"""ClickModel and the factory that checkpoints name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from recsys import KeyedJaggedTensor
from recsys.checkpoint import Checkpoint, build_model, load_checkpoint, save_checkpoint
from recsys.errors import CheckpointError
from recsys.models.click import ClickModel, build_dlrm


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
    assert outputs["score"].shape == (2,)
    assert logits.shape == (2, 1)
    torch.testing.assert_close(outputs["score"], 1 / (1 + torch.exp(-logits[:, 0])))


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


def _raw() -> tuple[torch.Tensor, KeyedJaggedTensor]:
    return torch.zeros(2, 2), KeyedJaggedTensor(
        keys=["user", "item", "recent"],
        values=[-(2**63), 2**63 - 1, 0, 6, 2**40, -1, 4],
        lengths=[1, 1, 1, 1, 3, 0],
    )


def _managed(eviction: str = "lru") -> dict[str, Any]:
    arguments = _arguments()
    arguments["tables"][1]["managed"] = {"eviction": eviction, "interval": 2}
    arguments["tables"][0]["managed"] = {"eviction": "lfu", "interval": 1}
    return arguments


class TestManagedTables:
    @pytest.mark.parametrize("eviction", ["lfu", "lru", "distance_lfu"])
    def test_raw_ids_get_rows(self, eviction: str) -> None:
        model = build_dlrm(**json.loads(json.dumps(_managed(eviction)))).train()
        mapping = model.model.sparse_arch.embedding_bag_collection.managed_collision_collection
        assert model(*_raw())["score"].shape == (2,)
        assert mapping.open_slots() == {"user": 6, "item": 6}
        model(*_raw())
        assert mapping.open_slots() == {"user": 6, "item": 1}

    def test_a_table_beside_them_takes_rows(self) -> None:
        arguments = _managed()
        del arguments["tables"][1]["managed"]
        mapping = build_dlrm(**arguments).model.sparse_arch.embedding_bag_collection
        assert list(mapping.managed_collision_collection.managed_collision_modules()) == ["user"]

    def test_without_them_names_stay(self) -> None:
        names = build_dlrm(**_arguments()).state_dict()
        assert "model.sparse_arch.embedding_bag_collection.embedding_bags.user.weight" in names

    def test_checkpoints_hold_the_mapping(self, tmp_path: Path) -> None:
        model = build_dlrm(**_managed())
        for _ in range(4):
            model.train()(*_raw())
        _save(tmp_path / "model.pt", model)
        again = build_model(load_checkpoint(tmp_path / "model.pt")).eval()
        assert torch.equal(again(*_raw())["score"], model.eval()(*_raw())["score"])
        assert not torch.equal(again(*_raw())["score"], build_dlrm(**_managed()).eval()(*_raw())["score"])
        again.train()(*_raw())
        assert again.model.sparse_arch.embedding_bag_collection.managed_collision_collection.open_slots() == {
            "user": 6,
            "item": 1,
        }

    def test_a_checkpoint_whose_mapping_is_none(self, tmp_path: Path) -> None:
        model = build_dlrm(**_managed())
        model.train()(*_raw())
        mapping = model.model.sparse_arch.embedding_bag_collection.managed_collision_collection
        mapping.managed_collision_modules()["user"].rows[0] = 99
        _save(tmp_path / "model.pt", model)
        with pytest.raises(CheckpointError, match="rows: got rows 1 to 99, expected 0 <= row < 8"):
            build_model(load_checkpoint(tmp_path / "model.pt"))

    @pytest.mark.parametrize(
        ("managed", "text"),
        [
            pytest.param("lfu", r"tables\[1\].managed: got lfu, expected an object", id="text"),
            pytest.param(
                {"eviction": "lfu"}, r"expected an object with 'eviction' and 'interval'", id="missing"
            ),
            pytest.param({"eviction": "lfu", "interval": 1, "x": 1}, r"expected an object", id="unknown"),
            pytest.param({"eviction": "fifo", "interval": 1}, r"managed.eviction: got 'fifo'", id="policy"),
            pytest.param({"eviction": [], "interval": 1}, r"managed.eviction: got '\[\]'", id="policy list"),
            pytest.param({"eviction": "lru", "interval": 0}, r"managed.interval: got \[0\]", id="interval"),
            pytest.param({"eviction": "lru", "interval": True}, r"managed.interval", id="interval flag"),
        ],
    )
    def test_wrong_fields(self, managed: Any, text: str) -> None:
        arguments = _arguments()
        arguments["tables"][1]["managed"] = managed
        with pytest.raises(ValueError, match=text):
            build_dlrm(**arguments)


def _save(path: Path, model: ClickModel) -> None:
    save_checkpoint(
        path,
        Checkpoint(
            factory="recsys.models.click:build_dlrm", arguments=_managed(), state_dict=model.state_dict()
        ),
    )
