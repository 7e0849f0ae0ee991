"""The mapping over real ranks: each has batches of its own, and all come to the mapping that one rank would.

Shape letters: W world size.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from torch import Tensor, distributed
from torch.nn.parallel import DistributedDataParallel

from recsys import EmbeddingBagCollection
from recsys.managed import (
    HashZchEvictionConfig,
    HashZchEvictionPolicyName,
    HashZchManagedCollisionModule,
    LFU_EvictionPolicy,
    LRU_EvictionPolicy,
    ManagedCollisionCollection,
    ManagedCollisionEmbeddingBagCollection,
    MCHManagedCollisionModule,
    mapping_buffer_names,
    reset_optimizer_rows,
)
from tests.recsys.managed.test_module import random_ids
from tests.support.helpers import bag, kjt_of
from tests.support.ranks import live_pool

WORLD_SIZE = 2
STEPS = 24
POLICIES = {"lfu": LFU_EvictionPolicy, "lru": LRU_EvictionPolicy}


def _ids(rank: int, step: int) -> list[int]:
    """Ranks have other numbers of IDs, in some steps none at all."""
    rng = random.Random(f"{rank} {step}")
    return random_ids(rng, rng.choice([0, 3, 3 + 8 * rank]), favourite=step // 8 * 8)


def _collection(policy: str, interval: int) -> ManagedCollisionEmbeddingBagCollection:
    torch.manual_seed(0)
    table = bag("t", 9, 4, ["f"])
    module = MCHManagedCollisionModule(9, None, POLICIES[policy](), interval)
    mapping = ManagedCollisionCollection({"t": module}, [table])
    return ManagedCollisionEmbeddingBagCollection(
        EmbeddingBagCollection([table]), mapping, embeddings_only=True
    )


def _hashed() -> ManagedCollisionEmbeddingBagCollection:
    torch.manual_seed(0)
    table = bag("t", 9, 4, ["f"])
    config = HashZchEvictionConfig(features=["f"], single_ttl=2)
    hours = iter(range(100, 100 + STEPS))
    module = HashZchManagedCollisionModule(
        9,
        None,
        3,
        eviction_policy_name=HashZchEvictionPolicyName.LRU_EVICTION,
        eviction_config=config,
        track_id_freq=True,
        clock=lambda: 3600.0 * next(hours),
    )
    mapping = ManagedCollisionCollection({"t": module}, [table])
    return ManagedCollisionEmbeddingBagCollection(
        EmbeddingBagCollection([table]), mapping, embeddings_only=True
    )


def train_hashed_ranks(rank: int, world_size: int) -> dict[str, Any]:
    """A rank's mapping and weights after all steps, of rows by hash."""
    del world_size
    collection = _hashed().train()
    collection.managed_collision_collection.set_process_group(distributed.group.WORLD)
    found = [collection(kjt_of({"f": [_ids(rank, step)]})).values().detach() for step in range(STEPS)]
    return {"state": collection.state_dict(), "found": torch.cat(found)}


def _check_found(alone: Any, ranks: list[Any]) -> list[list[int]]:
    """Check each rank's rows against one module that gets all ranks' IDs; return the rows that changed hands in it."""
    heard: list[list[int]] = []
    alone.register_eviction_hook(lambda _table, rows: heard.append(rows.tolist()))
    for step in range(STEPS):
        together = alone(kjt_of({"f": [_ids(rank, step) for rank in range(WORLD_SIZE)]})).values()
        for rank, result in enumerate(ranks):
            assert torch.equal(result["found"][step], together[rank])
    assert heard
    return heard


def test_every_rank_holds_the_rows_by_hash_of_one() -> None:
    ranks = live_pool(WORLD_SIZE).run(train_hashed_ranks)
    alone = _hashed().train()
    _check_found(alone, ranks)
    for result in ranks:
        for name, tensor in alone.state_dict().items():
            assert torch.equal(result["state"][name], tensor), name


def train_while_the_hour_changes(rank: int, world_size: int) -> dict[str, Tensor]:
    """A rank's mapping after batches at whose time the ranks' clocks show other hours."""
    del world_size
    hours = iter(100 + step + rank for step in range(STEPS))
    module = HashZchManagedCollisionModule(
        8,
        None,
        2,
        eviction_policy_name=HashZchEvictionPolicyName.SINGLE_TTL_EVICTION,
        eviction_config=HashZchEvictionConfig(features=["f"], single_ttl=1),
        process_group=distributed.group.WORLD,
        clock=lambda: 3600.0 * next(hours),
    )
    for step in range(STEPS):
        module.profile_features({"f": torch.tensor(_ids(rank, step), dtype=torch.int64)})
    return module.state_dict()


def test_ranks_agree_on_the_hour() -> None:
    first, second = live_pool(WORLD_SIZE).run(train_while_the_hour_changes)
    for name, tensor in first.items():
        assert torch.equal(second[name], tensor), name


def train_ranks(rank: int, world_size: int, policy: str, interval: int) -> dict[str, Any]:
    """A rank's mapping, weights, and rows that changed hands, after all steps."""
    del world_size
    collection = _collection(policy, interval).train()
    collection.managed_collision_collection.set_process_group(distributed.group.WORLD)
    heard: list[list[int]] = []
    collection.register_eviction_hook(lambda _table, rows: heard.append(rows.tolist()))
    found: list[Tensor] = []
    for step in range(STEPS):
        found.append(collection(kjt_of({"f": [_ids(rank, step)]})).values().detach())
    return {"state": collection.state_dict(), "heard": heard, "found": torch.cat(found)}


@pytest.mark.parametrize("policy", list(POLICIES))
@pytest.mark.parametrize("interval", [1, 3])
def test_every_rank_holds_the_mapping_of_one(policy: str, interval: int) -> None:
    ranks = live_pool(WORLD_SIZE).run(train_ranks, policy, interval)
    alone = _collection(policy, interval).train()
    heard = _check_found(alone, ranks)
    for result in ranks:
        assert result["heard"] == heard
        for name, tensor in alone.state_dict().items():
            assert torch.equal(result["state"][name], tensor), name


def train_on_nothing(rank: int, world_size: int) -> list[int]:
    """No rank has any ID; nothing hangs and nothing is admitted."""
    del rank, world_size
    module = MCHManagedCollisionModule(
        4, None, LFU_EvictionPolicy(), 1, process_group=distributed.group.WORLD
    )
    module.train()(torch.empty(0, dtype=torch.int64))
    return module.owners()[0].tolist()


def test_no_rank_has_ids() -> None:
    assert live_pool(WORLD_SIZE).run(train_on_nothing) == [[], []]


def train_ddp(rank: int, world_size: int) -> dict[str, Tensor]:
    """A rank's whole state after steps of DistributedDataParallel with momentum, in which rows change hands."""
    del world_size
    collection = _collection("lru", 2).train()
    collection.managed_collision_collection.set_process_group(distributed.group.WORLD)
    names = mapping_buffer_names(collection)
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(collection, names)
    wrapped = DistributedDataParallel(collection)
    assert wrapped.modules_buffers == []
    optimizer = torch.optim.SGD(collection.parameters(), lr=0.1, momentum=0.9)
    weight = collection.get_parameter("_embedding_module.embedding_bags.t.weight")
    collection.register_eviction_hook(lambda _table, rows: reset_optimizer_rows(optimizer, weight, rows))
    for step in range(STEPS):
        optimizer.zero_grad()
        wrapped(kjt_of({"f": [_ids(rank, step)]})).values().square().sum().backward()
        optimizer.step()
    return {**collection.state_dict(), "momentum": optimizer.state[weight]["momentum_buffer"]}


def test_replicas_stay_equal() -> None:
    first, second = live_pool(WORLD_SIZE).run(train_ddp)
    assert int(first["_managed_collision_collection._managed_collision_modules.t.step"]) == STEPS
    for name, tensor in first.items():
        assert torch.equal(second[name], tensor), name
