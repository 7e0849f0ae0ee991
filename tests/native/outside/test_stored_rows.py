"""Rows that lie in Redis nodes give the same bits as rows in memory, through deltas and failures of nodes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from export.config import ExportConfig
from export.delta.delta import DeltaConfig, export_delta
from export.pipeline import export_model
from recsys import EmbeddingBagCollection, KeyedJaggedTensor
from recsys.artifact.load import LoadedArtifact, load_artifact
from recsys.artifact.store.push import push_artifact
from serve.engine.reference.raw_request import RawRequestLike
from tests.native.models.test_model import assert_same, batches
from tests.native.tool import NativeModel, as_json, needs_tool
from tests.support.helpers import bag
from tests.support.redis_nodes import RedisNode, address_of, needs_redis, redis_nodes

pytestmark = [needs_tool, needs_redis]

NUM_DELTAS = 5
#: Enough for chunks of several nodes.
NUM_ITEMS, NUM_USERS = 2_000, 900


class Items(nn.Module):
    """Two tables, one of them of two features, beside a small one that stays in memory."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.bags = EmbeddingBagCollection(
            [
                bag("items", NUM_ITEMS, 16, ["item", "seen"]),
                bag("users", NUM_USERS, 24, ["user"]),
                bag("days", 7, 16, ["day"]),
            ]
        )
        self.layer = nn.Linear(16 + 16 + 24 + 16, 3)

    def forward(self, features: KeyedJaggedTensor) -> dict[str, Tensor]:
        """Scores, and a vector that shows wrong rows at once."""
        pooled = self.bags(features)
        return {"scores": self.layer(pooled.values()), "item": pooled["item"]}


def moved(old: Items, seed: int) -> Items:
    """A copy with other rows here and there."""
    import copy

    new, generator = copy.deepcopy(old), torch.Generator().manual_seed(seed)
    for table in new.bags.embedding_bags.values():
        weight = table.weight
        rows = torch.rand(weight.shape[0], generator=generator) < 0.3
        weight.data[rows] += torch.randn(int(rows.sum()), weight.shape[1], generator=generator)
    return new


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """An artifact, and deltas behind it."""
    folder = tmp_path_factory.mktemp("chain")
    model = Items()
    export_model(model, folder / "a", ExportConfig())
    deltas: list[Path] = []
    for seed in range(NUM_DELTAS):
        new, path = moved(model, seed + 1), folder / f"{seed}.delta"
        export_delta(model, new, path, DeltaConfig(artifact=folder / "a", after=tuple(deltas)))
        deltas.append(path)
        model = new
    return [folder / "a", *deltas]


@pytest.fixture(scope="module")
def servers() -> Iterator[list[RedisNode]]:
    with redis_nodes(3) as nodes:
        yield nodes


@pytest.fixture
def nodes(servers: list[RedisNode]) -> list[RedisNode]:
    """Three nodes without rows."""
    for node in servers:
        with node.client as client:
            client.flushall()
    return servers


@pytest.fixture(scope="module")
def python(chain: list[Path]) -> LoadedArtifact:
    return load_artifact(chain[0])


def push(chain: list[Path], nodes: list[RedisNode], over_bytes: int = 1_000) -> None:
    push_artifact(chain[0], address_of(nodes), over_bytes)


def open_there(native: NativeModel, chain: list[Path], nodes: list[RedisNode], **options: object) -> None:
    rows = [node.address for node in nodes]
    native.open(chain[0], rows=rows, **{"rows_over_bytes": 1_000, **options})


def some(python: LoadedArtifact, seed: int, num: int = 25) -> list[list[RawRequestLike]]:
    return list(batches(python.signature, seed, num))


@pytest.mark.parametrize("num_nodes", [1, 3])
@pytest.mark.parametrize("cache_bytes", [0, 10_000, 1 << 20], ids=["uncached", "small", "large"])
def test_the_same_bits(
    native: NativeModel,
    chain: list[Path],
    nodes: list[RedisNode],
    python: LoadedArtifact,
    num_nodes: int,
    cache_bytes: int,
) -> None:
    push(chain, nodes[:num_nodes])
    open_there(native, chain, nodes[:num_nodes], rows_cache_bytes=cache_bytes)
    for batch in 2 * some(python, 1):
        assert_same(native, python, batch)
    counts = native.call("outside_rows")
    assert counts["misses"] > 0
    assert (counts["hits"] > 0) == (cache_bytes > 0)
    assert counts["cache_bytes"] <= cache_bytes
    assert counts["failures"] == 0
    answer = native.call("predict_in_threads", requests=[as_json(r) for r in some(python, 2)[-1]])
    assert answer["num_different"] == 0
