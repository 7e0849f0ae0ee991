"""MCHManagedCollisionModule: who owns which row, step by step, against dicts and against the peer.

Shape letters: N number of IDs.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from recsys import JaggedTensor
from recsys.errors import CheckpointError
from recsys.managed import (
    DistanceLFU_EvictionPolicy,
    LFU_EvictionPolicy,
    LRU_EvictionPolicy,
    MCHEvictionPolicy,
    MCHManagedCollisionModule,
    average_threshold_filter,
    dynamic_threshold_filter,
    probabilistic_threshold_filter,
)
from tests.recsys.managed.brute import BruteMapping

MIN, MAX = -(2**63), 2**63 - 1
POLICIES = {
    "lfu": LFU_EvictionPolicy,
    "lru": LRU_EvictionPolicy,
    "distance": DistanceLFU_EvictionPolicy,
}


def module_of(zch_size: int, policy: str = "lfu", interval: int = 1) -> MCHManagedCollisionModule:
    return MCHManagedCollisionModule(zch_size, None, POLICIES[policy](), interval)


def feed(module: MCHManagedCollisionModule, *batches: list[int]) -> Tensor:
    """Train on batches; the last one's rows."""
    rows = torch.empty(0)
    for ids in batches:
        rows = module.train()(torch.tensor(ids, dtype=torch.int64))
    return rows


def looked_up(module: MCHManagedCollisionModule, ids: list[int]) -> list[int]:
    found: list[int] = module.eval()(torch.tensor(ids, dtype=torch.int64)).tolist()
    return found


def random_ids(rng: random.Random, num_ids: int, favourite: int = 0) -> list[int]:
    """Few distinct IDs from both ends of int64 and from its middle, those next to a favourite far more often."""
    pool = [MIN, MIN + 1, -2, -1, 0, 1, 2**40, MAX - 1, MAX, *range(10, 30)]
    return [pool[(favourite + int(rng.expovariate(0.12))) % len(pool)] for _ in range(num_ids)]


class TestAgainstDicts:
    @pytest.mark.parametrize("policy", list(POLICIES))
    @pytest.mark.parametrize("interval", [1, 3])
    @pytest.mark.parametrize("seed", range(6))
    def test_every_step_is_the_same(self, policy: str, interval: int, seed: int) -> None:
        rng = random.Random(seed)
        zch_size = rng.choice([2, 5, 12, 40])
        module, brute = module_of(zch_size, policy, interval), BruteMapping(zch_size, policy, interval)
        num_changed = 0
        for step in range(60):
            ids = random_ids(rng, rng.choice([0, 1, 7, 20]), favourite=step // 15 * 8)
            rows = feed(module, ids)
            changed = brute.batch(ids)
            evicted = module.evict()
            assert set([] if evicted is None else evicted.tolist()) == changed
            assert rows.tolist() == brute.rows(ids)
            assert module.open_slots() == brute.num_slots - len(brute.row_of)
            num_changed += len(changed)
        everything = random_ids(rng, 300)
        assert looked_up(module, everything) == brute.rows(everything)
        if zch_size > 30:
            assert num_changed == 0
        elif policy == "lru":  # the least used of few owners can be used too often to lose its row
            assert num_changed > 0


class TestRawIds:
    def test_both_ends_of_int64_are_ids_like_others(self) -> None:
        module = module_of(6)
        assert looked_up(module, [MAX, MIN, -1, 0]) == [5] * 4
        assert sorted(feed(module, [MAX, MIN, -1, 0]).tolist()) == [0, 1, 2, 3]
        assert looked_up(module, [MAX - 1, MIN + 1, 1]) == [5] * 3

    def test_a_full_table_without_the_largest_id(self) -> None:
        module = module_of(4)
        feed(module, [7, -7, 9])
        assert module.open_slots() == 0
        assert looked_up(module, [MAX, MAX - 1, MIN]) == [3] * 3
        assert sorted(looked_up(module, [7, -7, 9])) == [0, 1, 2]

    def test_no_ids_at_all(self) -> None:
        module = module_of(3)
        assert feed(module, [], []).shape == (0,)
        assert module.current_step() == 2
        assert module.evict() is None

    def test_many_ids_get_rows_of_their_own(self) -> None:
        ids = torch.randint(MIN, MAX, (5000,), generator=torch.Generator().manual_seed(0)).unique()
        module = module_of(ids.numel() + 1)
        rows = module.train()(ids)
        assert sorted(rows.tolist()) == list(range(ids.numel()))
        assert module.open_slots() == 0


class TestPolicies:
    def test_lfu_keeps_what_is_used_often(self) -> None:
        module = module_of(3)
        feed(module, [1, 1, 1, 2])
        feed(module, [3])  # as rare as 2: the owner keeps its row
        assert looked_up(module, [3]) == [2]
        feed(module, [3, 3])
        assert looked_up(module, [2]) == [2]
        assert sorted(looked_up(module, [1, 3])) == [0, 1]

    def test_lru_keeps_what_was_used_lately(self) -> None:
        module = module_of(3, "lru")
        feed(module, [1, 1, 1, 2], [2], [3])
        assert looked_up(module, [1]) == [2]
        assert sorted(looked_up(module, [2, 3])) == [0, 1]

    def test_distance_lets_frequency_fade(self) -> None:
        often = [[1] * 4] + [[2]] * 5 + [[3, 3]]
        assert looked_up(_fed(module_of(3, "lfu"), often), [1]) != [2]
        assert looked_up(_fed(module_of(3, "distance"), often), [1]) == [2]

    def test_ids_wait_for_the_end_of_the_interval(self) -> None:
        module = module_of(4, interval=3)
        assert feed(module, [1, 2]).tolist() == [3, 3]
        assert feed(module, [1, 2]).tolist() == [3, 3]
        assert sorted(feed(module, [1, 2]).tolist()) == [0, 1]

    def test_evicted_rows_add_up_until_they_are_asked_for(self) -> None:
        module = module_of(3, "lru")
        feed(module, [1, 2], [3], [4], [5])
        evicted = module.evict()
        assert evicted is not None
        assert evicted.tolist() == [0, 1]
        assert module.evict() is None

    def test_a_decay_below_zero(self) -> None:
        with pytest.raises(ValueError, match="decay_exponent: got -1"):
            DistanceLFU_EvictionPolicy(-1)


def _fed(module: MCHManagedCollisionModule, batches: list[list[int]]) -> MCHManagedCollisionModule:
    feed(module, *batches)
    return module


class TestState:
    def test_eval_changes_nothing(self) -> None:
        module = _fed(module_of(4), [[1, 2], [2]])
        before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
        looked_up(module, [1, 2, 3, 4, 5])
        after = module.state_dict()
        assert list(after) == ["raw_ids", "rows", "counts", "last_steps", "step"]
        assert all(torch.equal(before[name], after[name]) for name in before)

    @pytest.mark.parametrize("policy", list(POLICIES))
    def test_a_training_goes_on_from_a_file(self, tmp_path: Path, policy: str) -> None:
        rng = random.Random(3)
        batches = [random_ids(rng, 9) for _ in range(30)]
        straight = _fed(module_of(8, policy, 2), batches)
        first = _fed(module_of(8, policy, 2), batches[:16])
        torch.save(first.state_dict(), tmp_path / "state")
        second = module_of(8, policy, 2)
        second.load_state_dict(torch.load(tmp_path / "state", weights_only=True))
        feed(second, *batches[16:])
        assert second.current_step() == 30
        for name, tensor in straight.state_dict().items():
            assert torch.equal(second.state_dict()[name], tensor), name

    def test_what_was_pending_or_evicted_is_not_of_the_loaded_state(self) -> None:
        module = _fed(module_of(3, "lru", 2), [[1, 2], [1, 2], [3, 4], [3, 4], [5]])
        module.load_state_dict(_fed(module_of(3, "lru", 2), [[7]] * 2).state_dict())
        assert module.evict() is None
        feed(module, [8], [8])
        assert module.owners()[0].tolist() == [7, 8]

    @pytest.mark.parametrize(
        ("change", "text"),
        [
            pytest.param({"raw_ids": [5, 4, MAX, MAX]}, "raw_ids: got IDs out of order", id="order"),
            pytest.param({"raw_ids": [4, 4, MAX, MAX]}, "raw_ids: got an ID more than once", id="doubled-id"),
            pytest.param({"raw_ids": [4, 5, 6, MAX]}, "raw_ids: got an ID in a free entry", id="free-id"),
            pytest.param({"rows": [1, 1, 3, 3]}, "rows: got a row more than once", id="doubled-row"),
            pytest.param({"rows": [0, 4, 3, 3]}, "rows: got rows 0 to 4, expected 0 <= row < 3", id="beyond"),
            pytest.param({"rows": [-1, 1, 3, 3]}, "rows: got rows -1 to 1", id="negative"),
            pytest.param({"rows": [3, 1, 3, 3]}, "rows: got free entries before others", id="hole"),
            pytest.param({"rows": [0, 1, 2, 2]}, "rows: got free entries", id="last row owned"),
            pytest.param({"step": [-1]}, "step: got -1", id="step"),
        ],
    )
    def test_a_state_that_is_no_mapping(self, change: dict[str, list[int]], text: str) -> None:
        state = _fed(module_of(4), [[4, 5]]).state_dict()
        wrong = {name: torch.tensor(values) for name, values in change.items()}
        with pytest.raises(CheckpointError, match=text):
            module_of(4).load_state_dict({**state, **wrong})

    @pytest.mark.parametrize(
        ("arguments", "text"),
        [
            pytest.param((1, 1), "zch_size: got 1, expected 2", id="size"),
            pytest.param((4, 0), "eviction_interval: got 0", id="interval"),
        ],
    )
    def test_wrong_arguments(self, arguments: tuple[int, int], text: str) -> None:
        with pytest.raises(ValueError, match=text):
            MCHManagedCollisionModule(arguments[0], None, LFU_EvictionPolicy(), arguments[1])


@pytest.mark.peer
class TestAgainstThePeer:
    @pytest.mark.parametrize("policy", list(POLICIES))
    @pytest.mark.parametrize("interval", [1, 4])
    @pytest.mark.filterwarnings("ignore")
    def test_the_same_ids_own_rows(self, policy: str, interval: int) -> None:
        peer_modules: Any = pytest.importorskip("torchrec.modules.mc_modules", reason="needs torchrec==1.8.0")
        from torchrec.sparse.jagged_tensor import JaggedTensor as PeerJaggedTensor

        ours = module_of(12, policy, interval)
        kind: type[MCHEvictionPolicy] = getattr(peer_modules, POLICIES[policy].__name__)
        theirs = peer_modules.MCHManagedCollisionModule(
            zch_size=12, device=torch.device("cpu"), eviction_policy=kind(), eviction_interval=interval
        )
        theirs.train()
        rng = random.Random(interval)
        for _ in range(48):
            # The largest int64 marks free slots there.
            ids = [i if i < MAX else 77 for i in random_ids(rng, 12)]
            feed(ours, ids)
            theirs({"f": PeerJaggedTensor(torch.tensor(ids), lengths=torch.tensor([12]))})
            peer_ids = [i for i in theirs._mch_sorted_raw_ids.tolist() if i != MAX]
            assert ours.owners()[0].tolist() == peer_ids
            assert torch.equal(ours.open_slots(), theirs.open_slots())

    @pytest.mark.parametrize("policy", list(POLICIES))
    @pytest.mark.filterwarnings("ignore")
    def test_a_state_of_the_peer_is_loaded(self, policy: str) -> None:
        peer_modules: Any = pytest.importorskip("torchrec.modules.mc_modules", reason="needs torchrec==1.8.0")
        from torchrec.sparse.jagged_tensor import JaggedTensor as PeerJaggedTensor

        kind: type[MCHEvictionPolicy] = getattr(peer_modules, POLICIES[policy].__name__)
        arguments: dict[str, Any] = {"zch_size": 9, "device": torch.device("cpu"), "eviction_interval": 2}
        theirs = peer_modules.MCHManagedCollisionModule(**arguments, eviction_policy=kind()).train()
        ours = MCHManagedCollisionModule(**arguments, eviction_policy=POLICIES[policy]())
        rng = random.Random(policy)
        batches = [[rng.randrange(-20, 20) for _ in range(8)] for _ in range(12)]
        for ids in batches[:4]:
            theirs({"f": PeerJaggedTensor(torch.tensor(ids), lengths=torch.tensor([8]))})
        ours.load_state_dict(theirs.state_dict())
        everything = torch.arange(-21, 21)
        jagged = PeerJaggedTensor(everything, lengths=torch.tensor([len(everything)]))
        assert torch.equal(ours.remap(everything), theirs.remap({"f": jagged})["f"].values())
        assert ours.current_step() == 4
        # It is trained further as the peer does.
        for ids in batches[4:]:
            theirs({"f": PeerJaggedTensor(torch.tensor(ids), lengths=torch.tensor([8]))})
            feed(ours, ids)
            peer_ids = [i for i in theirs._mch_sorted_raw_ids.tolist() if i != MAX]
            assert ours.owners()[0].tolist() == peer_ids


def peer_state() -> dict[str, Tensor]:
    """As a checkpoint of TorchRec's holds it: two parts of a state, each sorted, one after the other."""
    return {
        "_mch_sorted_raw_ids": torch.tensor([10, 30, MAX, -5, MAX, MAX]),
        "_mch_remapped_ids_mapping": torch.tensor([1, 0, 2, 4, 3, 5]),
        "_current_iter_tensor": torch.tensor([7]),
        "_output_segments_tensor": torch.tensor([0, 3, 6, -1]),
        "_mch_counts": torch.tensor([3, 4, 0, 5, 0, 0]),
    }


class TestStatesOfTorchRec:
    def test_are_put_together_from_their_parts(self) -> None:
        module = module_of(6)
        module.load_state_dict(peer_state())
        assert looked_up(module, [10, 30, -5, 11]) == [1, 0, 4, 5]
        assert module.counts.tolist() == [4, 3, 0, 0, 5, 0]
        assert module.last_steps.tolist() == [7, 7, 0, 0, 7, 0]
        assert (module.current_step(), module.open_slots().tolist()) == (7, [2])

    def test_inside_a_model(self) -> None:
        model = torch.nn.ModuleDict({"users": module_of(6)})
        model.load_state_dict({f"users.{name}": tensor for name, tensor in peer_state().items()})
        assert looked_up(model["users"], [30]) == [0]

    @pytest.mark.parametrize(
        ("change", "text"),
        [
            pytest.param({"_mch_remapped_ids_mapping": torch.arange(6) + 6}, "rows 0 to 5 once", id="a part"),
            pytest.param({"_mch_counts": torch.zeros(6)}, "_mch_counts: got torch.float32", id="type"),
            pytest.param(
                {"_mch_counts": torch.zeros(5, dtype=torch.int64)}, r"_mch_counts: .*\[6\]", id="size"
            ),
            pytest.param({"_current_iter_tensor": None}, "_current_iter_tensor: missing", id="missing"),
        ],
    )
    def test_that_are_wrong(self, change: dict[str, Any], text: str) -> None:
        state = {name: t for name, t in (peer_state() | change).items() if t is not None}
        with pytest.raises(CheckpointError, match=text):
            module_of(6).load_state_dict(state)


class TestArgumentsOfTorchRec:
    def test_raw_ids_are_hashed(self) -> None:
        module = MCHManagedCollisionModule(
            5, torch.device("cpu"), LFU_EvictionPolicy(), 1, 100, lambda ids, size: ids % size
        )
        assert (module.input_size(), module.buckets()) == (100, 1)
        assert module.train()(torch.tensor([7, 107, 8])).tolist() == [0, 0, 1]
        assert module.owners()[0].tolist() == [7, 8]

    def test_features_by_name(self) -> None:
        module = module_of(5)
        features = {"a": JaggedTensor([9, 7, 9], lengths=[2, 1]), "b": JaggedTensor([9], lengths=[0, 1])}
        found = module.train()(features, mutate_miss_lengths=False)
        assert {name: rows.values().tolist() for name, rows in found.items()} == {"a": [0, 1, 0], "b": [0]}
        assert found["b"].lengths().tolist() == [0, 1]
        assert (module.current_step(), module.device.type) == (1, "cpu")

    def test_rare_ids_are_not_counted(self) -> None:
        module = MCHManagedCollisionModule(5, None, LFU_EvictionPolicy(average_threshold_filter), 1)
        feed(module, [1, 1, 1, 2, 3, 3, 3])
        assert module.owners()[0].tolist() == [1, 3]
        strict = LFU_EvictionPolicy(lambda counts: dynamic_threshold_filter(counts, 1.2))
        module = MCHManagedCollisionModule(5, None, strict, 1)
        feed(module, [1, 1, 1, 2, 3, 3])
        assert module.owners()[0].tolist() == [1]
        assert probabilistic_threshold_filter(torch.tensor([1, 10**9]), 0.5)[0].tolist()[1]

    @pytest.mark.parametrize(
        ("arguments", "text"),
        [
            ({"output_global_offset": 3}, "output_global_offset: got 3, expected 0"),
            ({"output_segments": [0, 5]}, r"output_segments: got \[0, 5\], expected None"),
        ],
    )
    def test_parts_are_refused(self, arguments: dict[str, Any], text: str) -> None:
        with pytest.raises(ValueError, match=text):
            MCHManagedCollisionModule(5, None, LFU_EvictionPolicy(), 1, **arguments)
