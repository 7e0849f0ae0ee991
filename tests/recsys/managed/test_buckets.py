"""Mappings of several buckets: each is a mapping of its own, whatever the others hold.

Shape letters: K buckets, S rows of a bucket, Z rows of the table.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from torch import Tensor

from recsys.errors import CheckpointError
from recsys.managed import (
    DistanceLFU_EvictionPolicy,
    HashZchEvictionConfig,
    HashZchEvictionPolicyName,
    HashZchManagedCollisionModule,
    LFU_EvictionPolicy,
    LRU_EvictionPolicy,
    MCHEvictionPolicy,
    MCHManagedCollisionModule,
    average_threshold_filter,
)
from tests.recsys.managed.test_module import random_ids

K, Z = 4, 20
S = Z // K
POLICIES: dict[str, MCHEvictionPolicy] = {
    "lfu": LFU_EvictionPolicy(),
    "lru": LRU_EvictionPolicy(),
    "filtered": DistanceLFU_EvictionPolicy(threshold_filtering_func=average_threshold_filter),
}


def _batches(seed: str, num_batches: int = 40) -> list[Tensor]:
    rng = random.Random(seed)
    return [
        torch.tensor(random_ids(rng, rng.choice([0, 4, 30]), favourite=step // 8 * 8), dtype=torch.int64)
        for step in range(num_batches)
    ]


@pytest.mark.parametrize("interval", [1, 3])
@pytest.mark.parametrize("policy", list(POLICIES))
def test_a_bucket_is_a_mapping_of_its_own(policy: str, interval: int) -> None:
    together = MCHManagedCollisionModule(Z, None, POLICIES[policy], interval, buckets=K).train()
    # The last row of the table has no owner; alone, the other buckets need one more row for that.
    alone = [
        MCHManagedCollisionModule(S + (bucket < K - 1), None, POLICIES[policy], interval).train()
        for bucket in range(K)
    ]
    num_evicted = 0
    for ids in _batches(f"{policy} {interval}"):
        rows = together(ids)
        buckets = together.buckets_of(ids)
        evicted = []
        for bucket, module in enumerate(alone):
            mine = module(ids[buckets == bucket])
            own = torch.where(mine == module.output_size() - 1, Z - 1, mine + bucket * S)
            assert torch.equal(rows[buckets == bucket], own)
            found = module.evict()
            evicted += [] if found is None else (found + bucket * S).tolist()
        heard = together.evict()
        assert ([] if heard is None else heard.tolist()) == evicted
        num_evicted += len(evicted)
        owners, rows_of = together.owners()
        assert torch.equal(owners, owners.sort().values)
        assert torch.equal(together.remap(owners), rows_of)
        assert int(together.open_slots()) == Z - 1 - len(owners)
    assert num_evicted > 0


def test_a_full_table_has_an_owner_of_every_row_but_the_last() -> None:
    module = MCHManagedCollisionModule(Z, None, LRU_EvictionPolicy(), 1, buckets=K).train()
    ids = torch.arange(-200, 200)
    module(torch.cat([ids, torch.tensor([2**63 - 1, -(2**63)])]))
    assert sorted(module.owners()[1].tolist()) == list(range(Z - 1))
    assert int(module.open_slots()) == 0
    again = MCHManagedCollisionModule(Z, None, LRU_EvictionPolicy(), 1, buckets=K)
    again.load_state_dict(module.state_dict())
    assert torch.equal(again.eval()(ids), module.eval()(ids))


@pytest.mark.parametrize(("saved", "loaded"), [(1, 4), (4, 1), (4, 2), (2, 4)])
def test_states_of_other_buckets_are_refused(saved: int, loaded: int) -> None:
    module = MCHManagedCollisionModule(Z, None, LRU_EvictionPolicy(), 1, buckets=saved).train()
    module(torch.arange(400))
    other = MCHManagedCollisionModule(Z, None, LRU_EvictionPolicy(), 1, buckets=loaded)
    with pytest.raises(CheckpointError, match=f"expected .*{loaded} buckets?"):
        other.load_state_dict(module.state_dict())


def test_states_of_torchrec_need_one_bucket() -> None:
    module = MCHManagedCollisionModule(Z, None, LRU_EvictionPolicy(), 1, buckets=K)
    with pytest.raises(CheckpointError, match="got a state of TorchRec for a module with 4 buckets"):
        module.load_state_dict({"_mch_sorted_raw_ids": torch.arange(Z)})


@pytest.mark.parametrize("buckets", [0, 3, 40])
def test_wrong_buckets_are_named(buckets: int) -> None:
    with pytest.raises(ValueError, match=rf"buckets: got {buckets}, expected .* divisor of zch_size \(20\)"):
        MCHManagedCollisionModule(Z, None, LRU_EvictionPolicy(), 1, buckets=buckets)


@pytest.mark.parametrize("input_hash_size", [0, 1_000_000])
def test_rows_by_hash_do_not_depend_on_other_buckets(input_hash_size: int) -> None:
    options: dict[str, Any] = {
        "input_hash_size": input_hash_size,
        "eviction_policy_name": HashZchEvictionPolicyName.LRU_EVICTION,
        "eviction_config": HashZchEvictionConfig(features=["f"], single_ttl=0),
        "max_probe": 8,
    }
    hours = {name: iter(range(100)) for name in ("together", "alone")}
    together, alone = (
        HashZchManagedCollisionModule(40_000, None, 2, clock=lambda at=at: 3600.0 * next(at), **options)
        for at in hours.values()
    )
    generator = torch.Generator().manual_seed(0)
    for _ in range(3):
        # More new IDs than are placed at once, so that IDs of one row come in several turns.
        ids = torch.randint(0, 1_000_000, (30_000,), generator=generator)
        mine = ids[together.buckets_of(ids) == 1]
        together.profile_features({"f": ids})
        alone.profile_features({"f": mine})
        assert torch.equal(together.remap(mine), alone.remap(mine))
    assert torch.equal(together._hash_zch_identities[20_000:], alone._hash_zch_identities[20_000:])
