"""The whole road of raw IDs: trained with eviction, checkpointed, exported, served; requests hold raw 64-bit IDs.

Shape letters: B batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from export.cli import main
from recsys import KeyedJaggedTensor
from recsys.artifact.load import load_artifact
from recsys.checkpoint import Checkpoint, save_checkpoint
from recsys.configs import DataType
from recsys.managed import reset_optimizer_rows
from recsys.models.click import ClickModel, build_dlrm
from serve.client import Client
from serve.client.errors import InvalidRequestError
from serve.wire import predict_pb2 as wire
from tests.support.helpers import kjt_of
from tests.support.models.export_models import rounded
from tests.support.serve.live import LiveServer

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
ARGUMENTS: dict[str, Any] = {
    "tables": [
        {
            "name": "user",
            "num_embeddings": 40,
            "embedding_dim": 8,
            "feature_names": ["user"],
            "managed": {"eviction": "lru", "interval": 2},
        },
        {
            "name": "ware",
            "num_embeddings": 60,
            "embedding_dim": 8,
            "feature_names": ["ware", "recent"],
            "pooling": "MEAN",
            "managed": {"eviction": "lfu", "interval": 3},
        },
        {"name": "day", "num_embeddings": 7, "embedding_dim": 8, "feature_names": ["day"]},
    ],
    "dense_in_features": 2,
    "dense_arch_layer_sizes": [16, 8],
    "over_arch_layer_sizes": [16, 1],
}
Bags = dict[str, list[list[int]]]


def raw_ids(generator: torch.Generator, num_rows: int) -> Bags:
    """Raw IDs of a skewed distribution over all of int64, spread by a product with an odd number."""

    def ids(count: int, scale: float) -> list[int]:
        ranks = torch.empty(count).exponential_(1 / scale, generator=generator).to(torch.int64)
        spread: list[int] = ((ranks - 3) * 0x1E3779B97F4A7C15).tolist()
        return spread

    return {
        "user": [ids(1, 25.0) for _ in range(num_rows)],
        "ware": [ids(1, 20.0) for _ in range(num_rows)],
        "recent": [ids(i % 4, 20.0) for i in range(num_rows)],
        "day": [[i % 7] for i in range(num_rows)],
    }


def trained() -> ClickModel:
    """A few steps of SGD with momentum, in which rows change hands."""
    torch.manual_seed(0)
    model = build_dlrm(**ARGUMENTS).train()
    bags = model.model.sparse_arch.embedding_bag_collection
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.5)
    evicted: dict[str, int] = {}

    def start_afresh(table: str, rows: Tensor) -> None:
        evicted[table] = evicted.get(table, 0) + rows.numel()
        reset_optimizer_rows(optimizer, bags.embedding_module.embedding_bags[table].weight, rows)

    bags.register_eviction_hook(start_afresh)
    generator = torch.Generator().manual_seed(1)
    for _ in range(24):
        batch = kjt_of(raw_ids(generator, 32))
        dense = torch.randn(32, 2, generator=generator)
        loss = functional.binary_cross_entropy_with_logits(
            model.logits(dense, batch)[:, 0], (dense[:, 0] > 0).float()
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert evicted["user"] > 10
    return model.eval()


@dataclass(frozen=True, kw_only=True)
class Road:
    """A trained model, and a client of the server that serves its artifact."""

    model: ClickModel
    client: Client

    def scores(self, dense: Tensor, bags: Bags) -> Tensor:
        """What the server answers."""
        sparse = {name: [np.array(ids, np.int64) for ids in rows] for name, rows in bags.items()}
        return torch.tensor(self.client.predict({"dense_features": dense.numpy()}, sparse)["score"])

    def expected(self, dense: Tensor, batch: KeyedJaggedTensor) -> Tensor:
        """What the float model says of rows as the artifact stores them."""
        with torch.no_grad():
            found: Tensor = rounded(self.model, DataType.INT8)(dense, batch)["score"]
        return found


@pytest.fixture(scope="module", params=["cpu", "cpu,cpu"])
def road(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Road]:
    folder = tmp_path_factory.mktemp("road")
    model = trained()
    save_checkpoint(
        folder / "model.pt",
        Checkpoint(
            factory="recsys.models.click:build_dlrm", arguments=ARGUMENTS, state_dict=model.state_dict()
        ),
    )
    options = ["--out", str(folder / "artifact"), "--target", request.param, "--json"]
    assert main([str(folder / "model.pt"), *options]) == 0
    served = load_artifact(folder / "artifact")
    with LiveServer(served) as server, Client(server.address, timeout_s=30) as client:
        yield Road(model=model, client=client)


def test_scores_are_those_of_the_float_model(road: Road) -> None:
    generator = torch.Generator().manual_seed(2)
    bags = raw_ids(generator, 64)
    dense = torch.randn(64, 2, generator=generator)
    found = road.scores(dense, bags)
    torch.testing.assert_close(found, road.expected(dense, kjt_of(bags)), rtol=0, atol=1e-5)
    with torch.no_grad():
        floats = road.model(dense, kjt_of(bags))["score"]
    torch.testing.assert_close(found, floats, rtol=0, atol=0.02)
    assert float(found.std()) > 0.01


def test_ids_that_nobody_learned_share_the_last_row(road: Road) -> None:
    strangers = [INT64_MIN, INT64_MIN + 1, -12345, INT64_MAX, 12345]
    mapping = road.model.model.sparse_arch.embedding_bag_collection.managed_collision_collection
    modules = mapping.managed_collision_modules()
    assert not torch.isin(torch.tensor(strangers), modules["user"].owners()[0]).any()
    known = modules["user"].owners()[0][0].item()
    users = [[i] for i in [*strangers, known]]
    others = {"ware": [[]] * 6, "recent": [[]] * 6, "day": [[3]] * 6}
    dense = torch.zeros(6, 2)
    found = road.scores(dense, {"user": users, **others})
    assert torch.equal(found[:5], found[0].expand(5))
    assert found[5] != found[0]
    assert modules["user"].remap(torch.tensor(strangers)).tolist() == [39] * 5
    torch.testing.assert_close(
        found, road.expected(dense, kjt_of({"user": users, **others})), rtol=0, atol=1e-5
    )


def test_the_server_says_that_ids_are_raw(road: Road) -> None:
    user, ware, recent, day = road.client.metadata().sparse
    for feature in (user, ware, recent):
        assert feature.tables[0].id_policy == wire.ID_POLICY_MAPPED
        assert not feature.HasField("id_limit")
    assert day.id_limit == 7


def test_the_table_of_rows_refuses_raw_ids(road: Road) -> None:
    bags = {"user": [[1]], "ware": [[1]], "recent": [[1]], "day": [[INT64_MAX]]}
    with pytest.raises(InvalidRequestError, match=r"'day'.*got ID 9223372036854775807"):
        road.scores(torch.zeros(1, 2), bags)
