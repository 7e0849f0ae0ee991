"""Sharded mappings: ranks that hold some buckets each come to the rows of the unsharded module with as many buckets.

Shape letters: K buckets, W ranks.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from recsys import (
    DistributedModelParallel,
    EmbeddingBagCollection,
    EmbeddingBagCollectionSharder,
    EmbeddingCollection,
    EmbeddingCollectionSharder,
    EmbeddingConfig,
    EmbOptimType,
    KeyedJaggedTensor,
    ShardingPlan,
)
from recsys.checkpoint.distributed import TrainingState, load_training, save_training
from recsys.managed import (
    DistanceLFU_EvictionPolicy,
    HashZchEvictionConfig,
    HashZchEvictionPolicyName,
    HashZchManagedCollisionModule,
    ManagedCollisionCollection,
    ManagedCollisionEmbeddingBagCollection,
    ManagedCollisionEmbeddingCollection,
    MCHManagedCollisionModule,
    average_threshold_filter,
)
from recsys.sharding.plan.sharding_types import row_wise, table_wise
from recsys.train.stepping.ranks import whole_state_dict
from recsys.training import TouchedRows
from recsys.training.skeletons import skeleton_of, with_weights
from recsys.training.snapshot import Snapshots
from recsys.training.touched_ids import OwnedRows, TouchedIds
from tests.support.helpers import bag, kjt_of
from tests.support.ranks import live_pool

K = 4
STEPS = 16
LEARNING_RATE = 0.25
TABLES = [
    bag("listed", 24, 8, ["a", "b"]),
    bag("hashed", 16, 8, ["c", "c_readonly"]),
    bag("plain", 20, 4, ["d"]),
    bag("idle", 8, 4, ["e"]),
]
FEATURES = {table.name: table.feature_names for table in TABLES}
KEYS = [name for table in TABLES for name in table.feature_names]


def _clock(start: int) -> Iterator[float]:
    while True:
        yield 3600.0 * start
        start += 1


def _managed(start: int = 0) -> ManagedCollisionEmbeddingBagCollection:
    """The unsharded collection; rows change hands in both kinds of mappings."""
    torch.manual_seed(0)
    clock = _clock(start)
    config = HashZchEvictionConfig(features=["c", "c_readonly"], single_ttl=2)
    policy = DistanceLFU_EvictionPolicy(threshold_filtering_func=average_threshold_filter)
    modules = {
        "listed": MCHManagedCollisionModule(24, None, policy, 2, buckets=K),
        "hashed": HashZchManagedCollisionModule(
            16,
            None,
            K,
            eviction_policy_name=HashZchEvictionPolicyName.LRU_EVICTION,
            eviction_config=config,
            track_id_freq=True,
            clock=lambda: next(clock),
        ),
        "idle": MCHManagedCollisionModule(8, None, DistanceLFU_EvictionPolicy(), 2, buckets=K),
    }
    return ManagedCollisionEmbeddingBagCollection(
        EmbeddingBagCollection(TABLES, is_weighted=True),
        ManagedCollisionCollection(modules, TABLES),
        return_remapped_features=True,
    ).train()


def _bags(step: int, rank: int) -> dict[str, list[list[int]]]:
    """One rank's batch: ranks have other numbers of bags, in some steps none at all; popular IDs move on."""
    rng = random.Random(f"{step} {rank}")
    num_bags = rng.choice([0, 1, 3, 5])
    popular = [(step // 4 * 1_000_003 + i) * (-1) ** i for i in range(12)]

    def ids() -> list[int]:
        return [rng.choice([*popular, rng.randrange(-(2**63), 2**63)]) for _ in range(rng.choice([0, 2, 4]))]

    def rows() -> list[int]:
        return [rng.randrange(20) for _ in range(2)]

    made = {"d": rows, "e": list}
    return {key: [made.get(key, ids)() for _ in range(num_bags)] for key in KEYS}


def _batch(step: int, ranks: range) -> KeyedJaggedTensor:
    """The batch of some ranks as one, with weights that depend on the ID alone."""
    parts = [_bags(step, rank) for rank in ranks]
    batch = {key: [ids for part in parts for ids in part[key]] for key in KEYS}
    weights = [1 + i % 7 / 8 for bags in batch.values() for ids in bags for i in ids]
    if not any(batch.values()):
        return KeyedJaggedTensor(
            KEYS,
            torch.empty(0, dtype=torch.int64),
            lengths=torch.empty(0, dtype=torch.int64),
            weights=torch.empty(0),
            stride=0,
        )
    return kjt_of(batch, weights)


def _step(model: nn.Module, batch: KeyedJaggedTensor, divisor: int) -> tuple[Tensor, dict[str, list[int]]]:
    """Train one step; return what was looked up, and the rows of the features of managed tables."""
    pooled, mapped = model(batch)
    values = pooled.values()
    (values * torch.arange(1, values.size(1) + 1) / 16 / divisor).sum().backward()
    return values.detach(), {key: mapped[key].values().tolist() for key in KEYS}


def _sharded(world_size: int, cut: str, start: int) -> DistributedModelParallel:
    """The collection over ranks: mappings are sharded where rows are cut at buckets, else every rank has them whole."""
    ranks = list(range(world_size))
    plan = {
        table.name: row_wise(table, ranks[::-1]) if cut == "row_wise" else table_wise(table, i % world_size)
        for i, table in enumerate(TABLES)
    }
    plan["plain"] = table_wise(TABLES[2], 0)
    options = {"optimizer": EmbOptimType.EXACT_SGD, "learning_rate": LEARNING_RATE}
    return DistributedModelParallel(
        _managed(start),
        plan=ShardingPlan(plan={"_embedding_module": plan}),
        sharders=[EmbeddingBagCollectionSharder(options)],
    )


def _mapping(model: nn.Module) -> ManagedCollisionCollection:
    inner = model.module if isinstance(model, DistributedModelParallel) else model
    assert isinstance(inner, ManagedCollisionEmbeddingBagCollection)
    return inner.managed_collision_collection


def trained(
    rank: int, world_size: int, cut: str, folder: Path, steps: range, state: dict[str, Tensor] | None = None
) -> dict[str, Any]:
    """Train some steps, from a whole state or the newest checkpoint on, and save; return what a rank saw."""
    model = _sharded(world_size, cut, steps.start)
    if state is None:
        assert (load_training(folder, model, None) is None) == (steps.start == 0)
    else:
        model.load_state_dict(state)
    model.train()
    touched, ids = TouchedRows(model), TouchedIds(model)
    followed = [ids.owned(whole=True)]
    evicted: dict[str, list[int]] = {}
    model.module.register_eviction_hook(
        lambda table, rows: evicted.setdefault(table, []).extend(rows.tolist())
    )
    seen = []
    for step in steps:
        seen.append(_step(model, _batch(step, range(rank, rank + 1)), 1))
        if step % 3:
            followed.append(ids.owned())
    followed.append(ids.owned())
    save_training(folder, model, None, TrainingState(step=steps.stop))
    modules = _mapping(model).managed_collision_modules()
    model.eval()
    _, mapped = model(_batch(99, range(rank, rank + 1)))
    return {
        "seen": seen,
        "evicted": evicted,
        "touched": {name.rpartition(".")[2]: rows.tolist() for name, rows in touched.rows().items()},
        "state": whole_state_dict(model),
        "later": {key: mapped[key].values().tolist() for key in KEYS},
        "bytes": {table: sum(b.nbytes for b in m.buffers()) for table, m in modules.items()},
        "owners": {table: [part.tolist() for part in m.owners()] for table, m in modules.items()},
        "open": {table: int(m.open_slots()) for table, m in modules.items()},
        "loaded": _loads_wholes(model),
        "published": _published(model),
        "followed": _followed(followed),
    }


def _followed(changes: list[dict[str, OwnedRows]]) -> dict[str, list[list[int]]]:
    """The owners of rows by their changes."""
    found: dict[str, dict[int, int]] = {}
    for number, change in enumerate(changes):
        for path, owned in change.items():
            table = path.rpartition(".")[2]
            assert owned.is_whole == (number == 0)
            assert owned.ids.tolist() == sorted(set(owned.ids.tolist()))
            found.setdefault(table, {}).update(zip(owned.ids.tolist(), owned.rows.tolist(), strict=True))
    kept = {table: sorted((i, row) for i, row in rows.items() if row >= 0) for table, rows in found.items()}
    return {table: [[i for i, _ in pairs], [row for _, row in pairs]] for table, pairs in kept.items()}


def _published(model: DistributedModelParallel) -> dict[str, Any]:
    """The owners of rows in a copy of the model without its ranks, as rank 0 publishes it."""
    copied, dense = skeleton_of(model), Snapshots(model).dense()
    if torch.distributed.get_rank():
        return {}
    modules = _mapping(with_weights(copied, dense)).managed_collision_modules()
    return {table: [part.tolist() for part in module.owners()] for table, module in modules.items()}


def _loads_wholes(model: DistributedModelParallel) -> bool:
    """Whether a model takes its own state dict."""
    before = {name: buffer.clone() for name, buffer in _mapping(model).named_buffers()}
    model.load_state_dict(model.state_dict())
    return all(torch.equal(before[name], buffer) for name, buffer in _mapping(model).named_buffers())


def _check(
    alone: ManagedCollisionEmbeddingBagCollection,
    ranks: list[dict[str, Any]],
    steps: range,
    *,
    sharded: bool = True,
) -> None:
    """Train the unsharded collection with all batches, and compare the ranks' results with it."""
    world_size = len(ranks)
    evicted: dict[str, list[int]] = {}
    alone.register_eviction_hook(lambda table, rows: evicted.setdefault(table, []).extend(rows.tolist()))
    for number, step in enumerate(steps):
        values, mapped = _step(alone, _batch(step, range(world_size)), world_size)
        with torch.no_grad():
            for parameter in alone.parameters():
                assert parameter.grad is not None
                parameter -= LEARNING_RATE * parameter.grad
                parameter.grad = None
        of_ranks = [result["seen"][number] for result in ranks]
        assert {key: [row for of in of_ranks for row in of[1][key]] for key in KEYS} == mapped
        torch.testing.assert_close(torch.cat([of[0] for of in of_ranks]), values, rtol=1e-5, atol=1e-5)
    assert set(evicted) == {"listed", "hashed"}
    for table, rows in evicted.items():
        heard = [result["evicted"].get(table, []) for result in ranks]
        if sharded:
            assert sorted(row for part in heard for row in part) == sorted(rows)
        else:
            assert heard == [rows] * world_size
        read = {
            row for of in ranks for _, mapped in of["seen"] for key in FEATURES[table] for row in mapped[key]
        }
        assert all(result["touched"][table] == sorted({*rows, *read}) for result in ranks)
    state = ranks[0]["state"]
    assert list(state) == list(alone.state_dict())
    for name, tensor in alone.state_dict().items():
        exact = tensor.dtype != torch.float32
        tolerance = {"rtol": 0.0, "atol": 0.0} if exact else {"rtol": 1e-5, "atol": 1e-5}
        torch.testing.assert_close(state[name], tensor, **tolerance, msg=name)
    alone.eval()
    for rank, result in enumerate(ranks):
        mapped = alone(_batch(99, range(rank, rank + 1)))[1]
        assert result["later"] == {key: mapped[key].values().tolist() for key in KEYS}
        assert result["loaded"]
    for table, module in _mapping(alone).managed_collision_modules().items():
        ids, rows = (part.tolist() for part in module.owners())
        assert ranks[0]["published"][table] == [ids, rows]
        assert all(result["followed"][table] == [ids, rows] for result in ranks)
        parts = [list(zip(*result["owners"][table], strict=True)) for result in ranks]
        pairs = sorted(zip(ids, rows, strict=True))
        if not sharded:
            assert all(sorted(part) == pairs for part in parts)
            continue
        assert sorted(pair for part in parts for pair in part) == pairs
        assert sum(result["open"][table] for result in ranks) == int(module.open_slots())
        # A few numbers are the same on every rank.
        whole = sum(buffer.nbytes for buffer in module.buffers())
        assert all(result["bytes"][table] <= whole / world_size + 80 for result in ranks)
    alone.train()


@pytest.mark.parametrize(("first", "then"), [(4, 2), (2, 4)])
def test_ranks_come_to_the_rows_of_the_unsharded_module(first: int, then: int, tmp_path: Path) -> None:
    run, half = tmp_path / "run", range(STEPS // 2)
    ranks = live_pool(first).run(trained, "row_wise", run, half)
    _check(_managed(), ranks, half)

    rest = range(STEPS // 2, STEPS)
    alone = _managed(rest.start)
    assert load_training(run, alone, None) is not None, "an unsharded model takes the checkpoint of ranks"
    state = {name: tensor.clone() for name, tensor in alone.state_dict().items()}
    # The checkpoint is loaded by two ranks, and the whole state by four.
    ranks = live_pool(then).run(trained, "row_wise", run, rest, state if then == 4 else None)
    _check(alone.train(), ranks, rest)


def test_ranks_that_all_hold_the_mappings_come_to_them_too(tmp_path: Path) -> None:
    steps = range(STEPS // 2)
    ranks = live_pool(2).run(trained, "table_wise", tmp_path / "run", steps)
    _check(_managed(), ranks, steps, sharded=False)


TABLE = EmbeddingConfig(name="t", num_embeddings=12, embedding_dim=4, feature_names=["f"])


def _sequences(device: str | None = None) -> ManagedCollisionEmbeddingCollection:
    torch.manual_seed(0)
    module = HashZchManagedCollisionModule(12, device, K)
    tables = EmbeddingCollection([TABLE], device=None if device is None else torch.device(device))
    return ManagedCollisionEmbeddingCollection(
        tables, ManagedCollisionCollection({"t": module}, [TABLE]), embeddings_only=True
    ).train()


def looked_up(rank: int, world_size: int, weight: Tensor) -> dict[str, Any]:
    """What a rank finds in a model from the meta device, planned by itself; and a call of the module alone."""
    del world_size
    model = DistributedModelParallel(_sequences("meta"), sharders=[EmbeddingCollectionSharder()])
    model.load_state_dict({"_embedding_module.embeddings.t.weight": weight}, strict=False)
    rows = [model(kjt_of({"f": [_ids(step, rank)]}))["f"].values().tolist() for step in range(4)]
    (module,) = model.module.managed_collision_collection.managed_collision_modules().values()
    try:
        module.remap(torch.arange(3))
    except ValueError as error:
        return {
            "rows": rows,
            "error": str(error),
            "type": model.plan.plan["_embedding_module"]["t"].sharding_type,
        }
    return {}


def _ids(step: int, rank: int) -> list[int]:
    return [10**9 * step + 7 * i for i in range(3 + rank)]


def test_sequences_read_the_rows_of_the_unsharded_module() -> None:
    alone = _sequences()
    weight = alone.get_parameter("_embedding_module.embeddings.t.weight").detach()
    ranks = live_pool(2).run(looked_up, weight)
    for step in range(4):
        rows = alone(kjt_of({"f": [_ids(step, rank) for rank in range(2)]}))["f"].values().tolist()
        assert [*ranks[0]["rows"][step], *ranks[1]["rows"][step]] == rows
    for found in ranks:
        assert found["type"] == "row_wise", "the planner cuts tables whose mappings have buckets"
        assert "expected a call of its ManagedCollisionCollection" in found["error"]
