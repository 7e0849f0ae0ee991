"""FrozenLookup against the modules that it is made of.

Shape letters: F features, N number of IDs.
"""

from __future__ import annotations

import itertools
import random

import pytest
import torch
from torch import Tensor

from recsys import KeyedJaggedTensor
from recsys.managed import (
    LFU_EvictionPolicy,
    ManagedCollisionCollection,
    MCHManagedCollisionModule,
)
from recsys.managed.frozen import FrozenLookup, filled_slots, freezable_modules
from recsys.managed.slots import placeholder
from recsys.ops import multiplied_bits
from tests.recsys.managed.other import OtherModule
from tests.support.helpers import bag, kjt_of
from tests.support.reads import CountReads

MIN, MAX = -(2**63), 2**63 - 1


def collection_of(*ids: list[int] | Tensor, more: int = 0) -> ManagedCollisionCollection:
    """A managed table for each list of learned IDs, with a feature and a second one; one table of rows at the end."""
    tables = [
        bag(f"t{i}", max(len(known), 1) + 1 + more, 8, [f"f{i}", f"g{i}"]) for i, known in enumerate(ids)
    ]
    modules = {}
    for table, known in zip(tables, ids, strict=True):
        module = MCHManagedCollisionModule(table.num_embeddings, None, LFU_EvictionPolicy(), 1)
        module.train()(torch.as_tensor(known, dtype=torch.int64))
        modules[table.name] = module
    return ManagedCollisionCollection(modules, [*tables, bag("rows", 9, 8, ["row"])]).eval()


def assert_same(collection: ManagedCollisionCollection, batch: KeyedJaggedTensor) -> None:
    found, expected = FrozenLookup(collection)(batch), collection(batch)
    assert found.keys() == batch.keys()
    assert found.values().dtype == torch.int64
    for key, jagged in expected.to_dict().items():
        assert torch.equal(found[key].values(), jagged.values())
        assert torch.equal(found[key].lengths(), jagged.lengths())


def test_raw_ids_are_hashed_as_by_the_modules() -> None:
    tables = [bag("t", 5, 8, ["a"]), bag("u", 5, 8, ["b"]), bag("rows", 300, 8, ["row"])]
    modules = {
        "t": MCHManagedCollisionModule(5, None, LFU_EvictionPolicy(), 1, 100, lambda ids, size: ids % size),
        "u": MCHManagedCollisionModule(5, None, LFU_EvictionPolicy(), 1),
    }
    collection = ManagedCollisionCollection(modules, tables)
    collection.train()(kjt_of({"a": [[107]], "b": [[107, 7]], "row": [[1]]}))
    batch = kjt_of({"a": [[7, 207, 8]], "b": [[7, 207, 107]], "row": [[207, 7]]})
    assert collection.eval()(batch).to_dict()["a"].values().tolist() == [0, 0, 4]
    assert_same(collection, batch)


class TestSameAsTheModules:
    @pytest.mark.parametrize("seed", range(5))
    def test_random_tables_and_batches(self, seed: int) -> None:
        rng = random.Random(seed)
        pool = [MIN, MIN + 1, -1, 0, 1, MAX - 1, MAX, *(rng.randrange(MIN, MAX) for _ in range(200))]
        learned = [rng.sample(pool, rng.choice([0, 1, 40, 150])) for _ in range(rng.choice([1, 3]))]
        collection = collection_of(*learned, more=rng.choice([0, 7]))
        keys = [f"{kind}{i}" for i in range(len(learned)) for kind in "fg"] + ["row"]
        rng.shuffle(keys)
        bags = {
            key: [
                [rng.choice(pool) if key != "row" else rng.randrange(9) for _ in range(rng.choice([0, 1, 9]))]
                for _ in range(20)
            ]
            for key in keys
        }
        assert_same(collection, kjt_of(bags))

    def test_one_id_in_every_table(self) -> None:
        collection = collection_of([5, 6], [6, 5, 7], [8])
        assert_same(collection, kjt_of({f"f{i}": [[5, 6, 7, 8]] for i in range(3)}))

    @pytest.mark.parametrize(
        "pattern",
        [
            pytest.param(lambda i: i, id="counted"),
            pytest.param(lambda i: -i, id="negative"),
            pytest.param(lambda i: i << 44, id="high bits"),
            pytest.param(lambda i: (i << 32) | i, id="both halves"),
            pytest.param(lambda i: MIN + i * 3, id="from the lowest"),
        ],
    )
    def test_ids_with_a_pattern(self, pattern: object) -> None:
        assert callable(pattern)
        known = torch.tensor([pattern(i) for i in range(20_000)])
        collection = collection_of(known, known)
        ids = torch.cat([known, known + 1])
        assert_same(collection, KeyedJaggedTensor(["f0", "g1"], ids.repeat(2), lengths=[len(ids)] * 2))

    def test_nothing_learned_and_nothing_asked(self) -> None:
        assert_same(collection_of([], more=4), kjt_of({"f0": [[0, MIN, MAX, -1]], "row": [[3]]}))
        assert_same(collection_of([1]), kjt_of({"f0": [[], []], "row": [[], []]}))
        assert_same(collection_of([1]), KeyedJaggedTensor(["f0", "row"], [], lengths=[]))

    def test_weights_stay(self) -> None:
        batch = kjt_of({"f0": [[1, 2]], "row": [[3]]}, weights=[0.5, 1.5, 2.5])
        assert FrozenLookup(collection_of([2]))(batch).weights().tolist() == [0.5, 1.5, 2.5]

    def test_learning_goes_on_without_it(self) -> None:
        collection = collection_of([1, 2], more=3)
        frozen = FrozenLookup(collection)
        collection.train()(kjt_of({"f0": [[7]], "g0": [[]]}))
        assert frozen(kjt_of({"f0": [[1, 2, 7]]})).values().tolist() == [0, 1, 5]


class TestHashes:
    def test_different_ids_have_different_hashes(self) -> None:
        ids = torch.cat([torch.arange(-(2**16), 2**16), torch.tensor([MIN, MAX]), torch.arange(64) << 57])
        ids = torch.unique(ids)
        assert torch.unique(multiplied_bits(ids)).numel() == ids.numel()


def test_it_reads_no_tensor() -> None:
    frozen = FrozenLookup(collection_of([1, 2]))
    batch = kjt_of({"f0": [[1, 9]], "row": [[3]]})
    with CountReads() as reads:
        frozen(batch)
    assert reads.found == []


def test_what_cannot_be_frozen() -> None:
    with pytest.raises(TypeError, match="table 't': got a OtherModule"):
        FrozenLookup(ManagedCollisionCollection({"t": OtherModule()}, [bag("t", 5, 8, ["f"])]))
    module = MCHManagedCollisionModule(5, None, LFU_EvictionPolicy(), 1)
    module.output_size = lambda: 2**32 + 1  # type: ignore[method-assign]
    collection = collection_of([1])
    collection._managed_collision_modules["t0"] = module
    with pytest.raises(ValueError, match=r"table 't0': got 4294967297 rows"):
        FrozenLookup(collection)


def test_tables_of_every_number() -> None:
    learned = [[i, i * 1000, -i] for i in range(1, 27)]
    collection = collection_of(*learned)
    bags = {f"f{i}": [list(itertools.chain(ids, [i]))] for i, ids in enumerate(learned)}
    assert_same(collection, kjt_of(bags))


def test_the_shape_of_the_buckets_depends_only_on_the_tables_sizes() -> None:
    first, second = (FrozenLookup(collection_of(ids, more=3 - len(ids))) for ids in ([1], [5, 6, 7]))
    assert {name: tensor.shape for name, tensor in first.named_buffers()} == {
        name: tensor.shape for name, tensor in second.named_buffers()
    }
    differing = [
        name for name, tensor in first.named_buffers() if not torch.equal(tensor, getattr(second, name))
    ]
    assert differing == ["slots"]


def test_buckets_that_are_set_later() -> None:
    collection = collection_of([1, 2], [3])
    empty = FrozenLookup(
        collection, placeholder(sum(table.num_buckets for table in FrozenLookup(collection).tables))
    )
    batch = kjt_of({"f0": [[1, 2]], "f1": [[3]]})
    assert empty(batch).values().tolist() == [2, 2, 1]
    empty.slots = filled_slots(freezable_modules(collection))
    assert torch.equal(empty(batch).values(), collection(batch).values())
