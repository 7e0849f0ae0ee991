"""Raw IDs that get or lose rows: a follower of the changes holds the mapping of the model."""

from __future__ import annotations

import copy
import itertools
import random
from typing import Any

import pytest
import torch
from torch import Tensor

from recsys.managed import HashZchManagedCollisionModule, MCHManagedCollisionModule, VocabularyModule
from recsys.managed.changes import change_of_slots, mapping_change
from recsys.managed.slots import changed_buckets, empty_slots, num_buckets_of, owners_of
from recsys.training.touched_ids import TouchedIds
from tests.support.models.managed import POOL, USERS, WARES, WORDS, Managed

SEEDS = range(20)


def modules_of(model: Managed) -> dict[str, Any]:
    modules = model.bags.managed_collision_collection.managed_collision_modules()
    return {USERS: modules["users"], WARES: modules["wares"], WORDS: modules["words"]}


class Follower:
    """What servers hold of the mappings of a model."""

    def __init__(self, model: Managed) -> None:
        self.touched, self._modules = TouchedIds(model), modules_of(model)
        self._slots = {
            path: empty_slots(num_buckets_of(module.output_size())) for path, module in self._modules.items()
        }
        self.follow(whole=True)

    def follow(self, *, whole: bool = False) -> dict[str, tuple[Tensor, bool]]:
        """Follow the changes; return the IDs of each table, and whether they are all."""
        every = self.touched.owned(whole=whole)
        assert list(every) == list(self._modules)
        for path, owned in every.items():
            slots, (ids, rows) = self._slots[path], self._modules[path].owners()
            change = change_of_slots(slots, owned.ids, owned.rows, is_whole=owned.is_whole)
            expected = mapping_change(owners_of(slots), (ids, rows))
            for part in ("raw_ids", "rows", "evicted"):
                assert torch.equal(getattr(change, part), getattr(expected, part)), (path, part)
            known = owners_of(slots)[0]
            removed = torch.cat([change.evicted, change.raw_ids[torch.isin(change.raw_ids, known)]])
            buckets, contents = changed_buckets(slots, change.raw_ids, change.rows, removed)
            slots[buckets] = contents
        return {path: (owned.ids, owned.is_whole) for path, owned in every.items()}


def learn(model: Managed, rng: random.Random) -> None:
    for path in (USERS, WARES):
        modules_of(model)[path].train()(torch.tensor(rng.sample(POOL, rng.randrange(8)), dtype=torch.int64))


@pytest.mark.parametrize("seed", SEEDS)
def test_whatever_happens_to_mappings(seed: int) -> None:
    rng, clock = random.Random(seed), itertools.count()
    model = Managed()
    # Rows of hashed IDs are lost, too.
    model.bags.managed_collision_collection._managed_collision_modules["wares"] = hashed(clock, rng)
    follower, states = Follower(model), [copy.deepcopy(model.state_dict())]
    for _ in range(20):
        for _ in range(rng.randrange(4)):
            learn(model, rng)
        what = rng.randrange(8)
        if what == 0:
            modules_of(model)[WORDS].set_ids(torch.tensor(rng.sample(POOL, rng.randrange(1, 19))))
        elif what == 1:
            model.load_state_dict(rng.choice(states))
        elif what == 2:
            modules_of(model)[rng.choice([USERS, WARES])].reset_parameters()
        states.append(copy.deepcopy(model.state_dict()))
        follower.follow(whole=what == 3)


def hashed(clock: itertools.count[int], rng: random.Random) -> HashZchManagedCollisionModule:
    """A module whose owners lose their rows after two hours; each batch is an hour."""
    from recsys.managed import HashZchEvictionConfig, HashZchEvictionPolicyName

    names = [HashZchEvictionPolicyName.LRU_EVICTION, HashZchEvictionPolicyName.SINGLE_TTL_EVICTION]
    return HashZchManagedCollisionModule(
        24,
        None,
        2,
        eviction_policy_name=rng.choice(names),
        eviction_config=HashZchEvictionConfig(features=["ware"], single_ttl=2),
        clock=lambda: next(clock) * 3600.0,
    )


class TestWhatIsReturned:
    def test_only_ids_that_have_got_or_lost_a_row(self) -> None:
        model = Managed()
        follower = Follower(model)
        users = modules_of(model)[USERS].train()
        users(torch.tensor([3, 1, 3]))
        found = follower.follow()
        assert found[USERS][0].tolist() == [1, 3]
        assert not any(is_whole for _, is_whole in found.values())
        users(torch.tensor([1, 3]))
        assert not follower.follow()[USERS][0].numel()
        users(torch.arange(20, 29))  # all 11 rows have an owner now
        follower.follow()
        users(torch.tensor([40]))
        ids, is_whole = follower.follow()[USERS]
        assert ids.tolist() == [3, 40]
        assert not is_whole

    def test_all_after_more_changes_than_rows(self) -> None:
        model = Managed()
        follower = Follower(model)
        users = modules_of(model)[USERS].train()
        for first in range(0, 60, 6):
            users(torch.arange(first, first + 6))
        assert follower.follow()[USERS][1]
        assert not follower.follow()[USERS][1]

    def test_all_of_a_module_of_another_class(self) -> None:
        class Own(MCHManagedCollisionModule):
            """May change its owners without telling."""

        model = Managed()
        modules = model.bags.managed_collision_collection._managed_collision_modules
        modules["users"].__class__ = Own
        follower = Follower(model)
        modules["users"].raw_ids[0], modules["users"].rows[0] = 77, 4
        ids, is_whole = follower.follow()[USERS]
        assert is_whole
        assert ids.tolist() == [77]

    def test_names_are_those_of_what_grows_with_rows(self) -> None:
        model = Managed()
        path = "bags._managed_collision_collection._managed_collision_modules"
        assert TouchedIds(model).names == {
            f"{path}.{table}.{name}"
            for table in ("users", "words")
            for name in ("raw_ids", "rows", "counts", "last_steps")
        } | {f"{path}.wares._hash_zch_identities"}


def test_copies_tell_nothing_and_no_more_is_told_at_the_end() -> None:
    model = Managed()
    follower = Follower(model)
    copied = copy.deepcopy(model)
    learn(copied, random.Random(0))
    assert not any(ids.numel() for ids, _ in follower.follow().values())
    follower.touched.close()
    assert all(not module._owner_hooks for module in modules_of(model).values())
    assert isinstance(modules_of(model)[WORDS], VocabularyModule)
