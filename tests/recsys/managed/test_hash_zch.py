"""Rows by hash: a new ID gets the first free row on its way, and loses it when its time is over."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from torch import Tensor

from recsys import EmbeddingBagCollection, JaggedTensor
from recsys.errors import CheckpointError
from recsys.managed import (
    HashZchEvictionConfig,
    HashZchEvictionPolicyName,
    HashZchManagedCollisionModule,
    LFU_EvictionPolicy,
    ManagedCollisionCollection,
    ManagedCollisionEmbeddingBagCollection,
    MCHManagedCollisionModule,
)
from recsys.managed.frozen import FrozenLookup
from tests.recsys.managed.test_frozen import assert_same
from tests.support.helpers import bag, kjt_of

HOUR = 3600
POLICIES = [None, *HashZchEvictionPolicyName]
BITS = 2**64 - 1


def murmur(number: int) -> int:
    """MurmurHash3's x64 128-bit hash of 16 bytes, the number and 0, folded; written after its public description."""

    def rotated(bits: int, by: int) -> int:
        return ((bits << by) | (bits >> (64 - by))) & BITS

    def mixed(bits: int) -> int:
        for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
            bits = (bits ^ (bits >> 33)) * factor & BITS
        return bits ^ (bits >> 33)

    block = rotated((number & BITS) * 0x87C37B91114253D5 & BITS, 31) * 0x4CF5AD432745937F & BITS
    first = (rotated(block, 27) * 5 + 0x52DCE729) & BITS
    second = (first * 5 + 0x38495AB5) & BITS
    first, second = first ^ 16, second ^ 16
    first = (first + second) & BITS
    second = (second + first) & BITS
    first, second = mixed(first), mixed(second)
    first = (first + second) & BITS
    return first ^ ((second + first) & BITS)


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.hours = 100

    def __call__(self) -> float:
        return self.hours * HOUR + 7.5


class Brute:
    """The rule, one ID after the other, in dicts and lists."""

    def __init__(self, num_rows: int, num_buckets: int, probes: int, reserved: int, policy: Any) -> None:
        self.size, self.num_buckets, self.probes = num_rows // num_buckets, num_buckets, probes
        self.reserved, self.policy = reserved, policy
        self.owner: list[int | None] = [None] * num_rows
        self.until = [0] * num_rows
        self.evicted: list[int] = []

    def way(self, number: int) -> list[int]:
        size = self.size - self.reserved
        start, home = number % self.num_buckets * self.size, murmur(number) % size
        return [start + (home + probe) % size for probe in range(self.probes)]

    def row(self, number: int) -> int:
        found = [row for row in self.way(number) if self.owner[row] == number]
        if found:
            return found[0]
        start = number % self.num_buckets * self.size
        if self.reserved:
            return start + self.size - self.reserved + murmur(number) % self.reserved
        return start + murmur(number) % self.size

    def use(self, number: int, hour: int, lives: int) -> None:
        until = hour + lives
        row = self.row(number)
        if self.owner[row] == number:
            self.until[row] = max(self.until[row], until)
            return
        way = self.way(number)
        free = [row for row in way if self.owner[row] is None]
        expired = [
            row for row in way if self.owner[row] is not None and self.until[row] < min(hour, until)
        ] * (self.policy is not None)
        asked = free + expired
        if not asked:
            return
        if self.policy is HashZchEvictionPolicyName.LRU_EVICTION:
            row = free[0] if free else min(expired, key=lambda one: self.until[one])
        else:
            row = min(asked, key=way.index)
        if self.owner[row] is not None:
            self.evicted.append(row)
        self.owner[row], self.until[row] = number, until


def module_of(num_rows: int = 40, num_buckets: int = 4, **options: Any) -> HashZchManagedCollisionModule:
    return HashZchManagedCollisionModule(num_rows, None, num_buckets, **options)


def ttl(policy: Any, hours: int = 3) -> dict[str, Any]:
    if policy is None:
        return {}
    each = policy is HashZchEvictionPolicyName.PER_FEATURE_TTL_EVICTION
    return {
        "eviction_policy_name": policy,
        "eviction_config": HashZchEvictionConfig(
            features=["a", "b"], single_ttl=None if each else hours, per_feature_ttl=[3, 9] if each else None
        ),
    }


@pytest.mark.parametrize("policy", POLICIES, ids=str)
@pytest.mark.parametrize("reserved", [0, 2])
def test_ids_one_by_one_get_the_rows_of_the_rule(policy: Any, reserved: int) -> None:
    clock = Clock()
    extra = {"opt_in_prob": 100, "percent_reserved_slots": 20} if reserved else {}
    module = module_of(max_probe=5, clock=clock, **ttl(policy), **extra).train()
    brute = Brute(40, 4, 5, reserved, policy)
    rng = random.Random(3)
    changed: list[int] = []
    for _ in range(400):
        number, feature = rng.randrange(-60, 60), rng.choice("ab")
        if number == -1:
            continue
        clock.hours += rng.choice([0, 0, 0, 1])
        lives = 9 if feature == "b" and policy is HashZchEvictionPolicyName.PER_FEATURE_TTL_EVICTION else 3
        brute.use(number, clock.hours, lives)
        batch = {feature: JaggedTensor(torch.tensor([number]), lengths=torch.tensor([1]))}
        assert module(batch)[feature].values().tolist() == [brute.row(number)]
        rows = module.evict()
        changed += [] if rows is None else rows.tolist()
    assert changed == brute.evicted
    assert bool(changed) == (policy is not None)
    everyone = torch.arange(-60, 60)
    everyone = everyone[everyone != -1]
    assert module.eval()(everyone).tolist() == [brute.row(number) for number in everyone.tolist()]
    ids, rows = module.owners()
    assert {row: number for number, row in zip(ids.tolist(), rows.tolist(), strict=True) if number != -1} == {
        row: number for row, number in enumerate(brute.owner) if number is not None
    }
    assert module.open_slots().tolist() == [brute.owner.count(None) - 4 * reserved]


def test_ids_of_one_batch_get_rows_of_their_own_while_there_are_any() -> None:
    module = module_of(40, 2, max_probe=40).train()
    ids = torch.randperm(2000)[:40] * 2  # all of one bucket, twice as many as it has rows
    rows = module(torch.cat([ids, ids]))
    assert torch.equal(rows[:40], rows[40:])
    owners, of = module.owners()
    assert of[owners != -1].unique().numel() == 20
    assert module.open_slots().tolist() == [20]
    again = module(ids)
    assert torch.equal(again, rows[:40])


def test_a_table_whose_ids_do_not_collide_is_filled_by_one_batch() -> None:
    module = module_of(5000, 10, max_probe=500).train()
    ids = torch.arange(20000, 25000)
    assert module(ids).unique().numel() == 5000
    assert module.open_slots().tolist() == [0]


def test_minus_one_is_no_owner_and_reads_a_free_row() -> None:
    module = module_of().train()
    row = int(module(torch.tensor([-1])))
    assert module.open_slots().tolist() == [40]
    module(torch.arange(200, 300))
    assert -1 not in module._hash_zch_identities[module._hash_zch_identities != -1]
    assert 0 <= row < 40


@pytest.mark.parametrize("limit", [100, 90])
def test_buckets_are_runs_of_ids_below_a_limit(limit: int) -> None:
    module = module_of(input_hash_size=limit, max_probe=10).train()
    run = -(-limit // 4)
    ids = torch.tensor([0, run - 1, run, 2 * run, limit - 1, limit + 5, -7])
    buckets = module(ids) // 10
    assert buckets.tolist() == [0, 0, 1, 2, 3, 3, 0]


def test_eval_changes_nothing() -> None:
    module = module_of(**ttl(HashZchEvictionPolicyName.SINGLE_TTL_EVICTION)).train()
    module(torch.arange(10))
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    module.eval()(torch.arange(500))
    for name, tensor in module.state_dict().items():
        assert torch.equal(tensor, before[name])


def test_features_that_are_read_only_teach_nothing() -> None:
    module = module_of().train()
    numbers = JaggedTensor(torch.tensor([3, 4]), lengths=torch.tensor([2]))
    module({"x_readonly": numbers, "X_READONLY": numbers})
    assert module.open_slots().tolist() == [40]
    found = module({"x": numbers, "x_readonly": numbers})
    assert torch.equal(found["x"].values(), found["x_readonly"].values())
    assert module.open_slots().tolist() == [38]


def test_the_suffix_of_such_features_can_be_chosen() -> None:
    module = module_of(read_only_suffix="_old").train()
    assert (module_of().read_only_suffix, module.read_only_suffix) == ("_readonly", "_old")
    module({"x_old": JaggedTensor(torch.tensor([3]), lengths=torch.tensor([1]))})
    assert module.open_slots().tolist() == [40]
    module({"x_readonly": JaggedTensor(torch.tensor([3]), lengths=torch.tensor([1]))})
    assert module.open_slots().tolist() == [39]


def test_the_collection_names_the_features_of_each_id() -> None:
    clock = Clock()
    policy = ttl(HashZchEvictionPolicyName.PER_FEATURE_TTL_EVICTION)
    module = module_of(1, 1, clock=clock, **policy)
    tables = [bag("t", 1, 4, ["a", "b"])]
    mapping = ManagedCollisionCollection({"t": module}, tables).train()
    mapping(kjt_of({"a": [[]], "b": [[5]]}))  # lives 9 hours
    clock.hours += 5
    mapping(kjt_of({"a": [[6]], "b": [[]]}))
    assert module.owners()[0].tolist() == [5]
    clock.hours += 5
    mapping(kjt_of({"a": [[6]], "b": [[]]}))  # lives 3 hours
    assert module.owners()[0].tolist() == [6]
    clock.hours += 4
    mapping(kjt_of({"a": [[7]], "b": [[]]}))
    assert module.owners()[0].tolist() == [7]
    assert mapping.evict()["t"].tolist() == [0]


def test_rows_that_change_hands_start_with_fresh_weights() -> None:
    clock = Clock()
    tables = [bag("t", 1, 4, ["a"])]
    module = module_of(1, 1, clock=clock, **ttl(HashZchEvictionPolicyName.LRU_EVICTION))
    mapping = ManagedCollisionCollection({"t": module}, tables)
    bags = ManagedCollisionEmbeddingBagCollection(EmbeddingBagCollection(tables), mapping).train()
    with torch.no_grad():
        bags.embedding_module.embedding_bags["t"].weight.fill_(1000.0)
    first, _ = bags(kjt_of({"a": [[5]]}))
    assert first.values().tolist() == [[1000.0] * 4]
    clock.hours += 10
    second, _ = bags(kjt_of({"a": [[6]]}))
    assert second.values().abs().max() <= 1


def test_only_ids_that_opt_in_get_rows() -> None:
    torch.manual_seed(0)
    module = module_of(4000, 1, opt_in_prob=20, percent_reserved_slots=10, max_probe=500).train()
    rows = module(torch.arange(1000))
    num_owners = int((module._hash_zch_identities != -1).sum())
    assert 150 < num_owners < 250
    assert int((rows < 3600).sum()) == num_owners
    assert int(rows.min()) >= 0
    assert int(rows.max()) < 4000


def test_uses_are_counted_and_go_with_their_owner() -> None:
    clock = Clock()
    policy = ttl(HashZchEvictionPolicyName.SINGLE_TTL_EVICTION)
    module = module_of(1, 1, track_id_freq=True, clock=clock, **policy).train()
    rows = module(torch.tensor([5, 5, 6]))
    assert module.lookup_runtime_meta(torch.tensor([5, 5, 6]), rows).tolist() == [2, 2, 0]
    clock.hours += 10
    rows = module(torch.tensor([6]))
    assert module.lookup_runtime_meta(torch.tensor([6, 5]), rows.expand(2)).tolist() == [1, 0]
    assert module_of().lookup_runtime_meta(torch.tensor([5]), torch.tensor([0])).tolist() == [-1]


def test_states_are_those_of_torchrec_and_can_be_loaded() -> None:
    policy = ttl(HashZchEvictionPolicyName.SINGLE_TTL_EVICTION)
    module = module_of(track_id_freq=True, **policy).train()
    module(torch.arange(30))
    state = module.state_dict()
    assert {name: (list(t.shape), t.dtype) for name, t in state.items()} == {
        "_hash_zch_identities": ([40, 1], torch.int64),
        "_hash_zch_metadata": ([40, 1], torch.int32),
        "_hash_zch_bucket": ([1, 1], torch.int64),
        "_hash_zch_runtime_meta": ([40, 1], torch.int64),
    }
    other = module_of(track_id_freq=True, **policy)
    other.load_state_dict(state)
    assert torch.equal(other.eval()(torch.arange(60)), module.eval()(torch.arange(60)))
    frozen = module_of(track_id_freq=True, is_inference=True, **policy)
    frozen.load_state_dict(dict(state))
    assert set(frozen.state_dict()) == set(state) - {"_hash_zch_metadata"}
    assert set(module_of(persist_hash_zch_bucket=False).state_dict()) == {"_hash_zch_identities"}


def test_a_frozen_module_learns_again_in_training_mode() -> None:
    module = module_of(**ttl(HashZchEvictionPolicyName.SINGLE_TTL_EVICTION))
    module.reset_inference_mode()
    module(torch.arange(3))
    assert module.open_slots().tolist() == [40]
    module.reset_training_mode()
    module(torch.arange(3))
    assert module.open_slots().tolist() == [37]
    module.reset_intrainer_bulk_eval_mode()
    assert not module.training


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"num_buckets": 2}, r"_hash_zch_bucket: got \[\[4\]\], expected \[\[2\]\]"),
        ({"num_buckets": 2, "persist_hash_zch_bucket": False}, "rows that are not on their way"),
        ({"max_probe": 1}, "rows that are not on their way"),
        ({"input_hash_size": 1000}, "rows that are not on their way"),
    ],
)
def test_a_state_of_another_kind_is_refused(other: dict[str, Any], message: str) -> None:
    module = module_of().train()
    module(torch.arange(35))
    state = module.state_dict()
    if "persist_hash_zch_bucket" in other:
        del state["_hash_zch_bucket"]
    with pytest.raises(CheckpointError, match=message):
        module_of(**other).load_state_dict(state)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_rows": 41}, "zch_size: got 41, expected a multiple of total_num_buckets"),
        ({"num_buckets": 0}, "total_num_buckets: got 0"),
        ({"max_probe": 0}, "max_probe: got 0"),
        ({"output_segments": [0, 10, 40]}, "output_segments: got"),
        ({"output_segments": [0, 10, 10, 20, 40]}, "output_segments: got"),
        ({"start_bucket": 1}, "DistributedModelParallel divides a mapping"),
        ({"end_bucket": 2}, "DistributedModelParallel divides a mapping"),
        ({"opt_in_prob": 0}, "opt_in_prob: got 0"),
        ({"opt_in_prob": 50}, "percent_reserved_slots: got 0"),
        ({"percent_reserved_slots": 100}, "percent_reserved_slots: got 100"),
        (
            {
                "output_segments": [0, 1, 10, 20, 40],
                "opt_in_prob": 100,
                "percent_reserved_slots": 20,
            },
            "a bucket of 1 rows",
        ),
        ({"disable_fallback": True}, "disable_fallback: got True.*opt_in_prob=100"),
        ({"inference_dispatch_div_train_world_size": True}, "raw IDs are kept"),
        ({"write_runtime_meta_dim": 2}, "write_runtime_meta_dim"),
        ({"eviction_policy_name": HashZchEvictionPolicyName.LRU_EVICTION}, "eviction_config: got None"),
        (
            {
                "eviction_policy_name": HashZchEvictionPolicyName.LRU_EVICTION,
                "eviction_config": HashZchEvictionConfig(features=["a"]),
            },
            "single_ttl: got None",
        ),
        (
            {
                "eviction_policy_name": HashZchEvictionPolicyName.PER_FEATURE_TTL_EVICTION,
                "eviction_config": HashZchEvictionConfig(features=["a", "b"], per_feature_ttl=[1]),
            },
            r"per_feature_ttl: got \[1\]",
        ),
    ],
)
def test_bad_arguments_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        module_of(**options)


def test_a_feature_without_a_time_is_refused() -> None:
    module = module_of(**ttl(HashZchEvictionPolicyName.PER_FEATURE_TTL_EVICTION)).train()
    with pytest.raises(ValueError, match=r"got IDs of feature 'c', expected one of \['a', 'b'\]"):
        module({"c": JaggedTensor(torch.tensor([1]), lengths=torch.tensor([1]))})


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"opt_in_prob": 100, "percent_reserved_slots": 20},
        {"input_hash_size": 500},
        {"output_segments": [0, 3, 10, 25, 40]},
        {"opt_in_prob": 100, "percent_reserved_slots": 10, "output_segments": [0, 3, 10, 25, 40]},
    ],
)
def test_a_frozen_mapping_reads_the_same_rows(options: dict[str, Any]) -> None:
    rng = random.Random(1)
    tables = [bag("t", 40, 8, ["a"]), bag("u", 5, 8, ["b"]), bag("v", 20, 8, ["c"]), bag("rows", 9, 8, ["r"])]
    modules = {
        "t": module_of(max_probe=6, **options),
        "u": MCHManagedCollisionModule(5, None, LFU_EvictionPolicy(), 1),
        "v": module_of(20, 2),
    }
    collection = ManagedCollisionCollection(modules, tables).train()

    def batch(num_ids: int) -> Any:
        bags = {key: [[rng.randrange(-700, 700) for _ in range(num_ids)]] for key in "abc"}
        return kjt_of(bags | {"r": [[rng.randrange(9) for _ in range(3)]]})

    for _ in range(4):
        collection(batch(7))
    collection.eval()
    for num_ids in (0, 1, 300):
        assert_same(collection, batch(num_ids))
    ends = [-(2**63), -1, 0, 2**63 - 1]
    assert_same(collection, kjt_of({"a": [ends], "b": [ends], "c": [ends], "r": [[0]]}))


def test_only_collections_with_hashed_rows_pay_for_them() -> None:
    def lookup(module: Any) -> FrozenLookup:
        return FrozenLookup(ManagedCollisionCollection({"t": module}, [bag("t", 40, 8, ["a"])]))

    def names(module: Any) -> set[str]:
        return {name for name, _ in lookup(module).named_buffers()}

    plain = names(MCHManagedCollisionModule(40, None, LFU_EvictionPolicy(), 1))
    assert "fallbacks" in plain
    assert "shared_sizes" not in plain
    assert "shared_sizes" in names(module_of())


def test_the_hash_is_murmur_hash() -> None:
    ids = torch.tensor([0, 1, -1, 12345678901234, -(2**63), 2**63 - 1])
    module = module_of(1_000_003, 1)
    found: Tensor = module.eval()(ids[ids != -1])
    assert found.tolist() == [murmur(number) % 1_000_003 for number in ids.tolist() if number != -1]


@pytest.mark.parametrize("kind", ["listed", "hashed"])
def test_steps_take_features_by_name(kind: str) -> None:
    def made() -> Any:
        if kind == "hashed":
            return module_of().train()
        return MCHManagedCollisionModule(40, None, LFU_EvictionPolicy(), 1, 50, torch.remainder).train()

    features = {
        "a": JaggedTensor(torch.tensor([77, 3]), torch.tensor([0.5, 2.0]), torch.tensor([2])),
        "b": JaggedTensor(torch.tensor([3, 8, 9]), lengths=torch.tensor([1, 2])),
    }
    steps, whole = made(), made()
    given = steps.preprocess(features)
    assert steps.profile(given) is given
    found, expected = steps.remap(given), whole(features)
    for name, part in features.items():
        assert torch.equal(found[name].values(), expected[name].values())
        assert torch.equal(found[name].lengths(), part.lengths())
    assert torch.equal(found["a"].weights(), features["a"].weights())
    assert found["a"].values()[1] == found["b"].values()[0]
