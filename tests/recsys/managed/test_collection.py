"""ManagedCollisionCollection and the collections around tables: batches of raw IDs, rows that start afresh.

Shape letters: B batch, D embedding dim.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from recsys import EmbeddingBagCollection, EmbeddingCollection, KeyedJaggedTensor, KeyedTensor
from recsys.managed import (
    LFU_EvictionPolicy,
    LRU_EvictionPolicy,
    ManagedCollisionCollection,
    ManagedCollisionEmbeddingBagCollection,
    ManagedCollisionEmbeddingCollection,
    MCHManagedCollisionModule,
    mapping_buffer_names,
    reset_optimizer_rows,
)
from recsys.managed.fresh_rows import fresh_values
from tests.support.helpers import bag, kjt_of, scripted, sequence
from tests.support.reads import CountReads

BIG = 2**62


def module_of(rows: int, interval: int = 1) -> MCHManagedCollisionModule:
    return MCHManagedCollisionModule(rows, None, LRU_EvictionPolicy(), interval)


def tables() -> list[Any]:
    return [bag("users", 5, 4, ["user", "friend"]), bag("plain", 9, 4, ["day"]), bag("wares", 6, 4, ["item"])]


def managed(**options: bool) -> ManagedCollisionEmbeddingBagCollection:
    torch.manual_seed(0)
    mapping = ManagedCollisionCollection({"users": module_of(5), "wares": module_of(6)}, tables())
    return ManagedCollisionEmbeddingBagCollection(EmbeddingBagCollection(tables()), mapping, **options)


def batch_of(user: list[int], friend: list[int], day: list[int], item: list[int]) -> KeyedJaggedTensor:
    """One row; the features in another order than the tables'."""
    return kjt_of({"friend": [friend], "item": [item], "other": [[3, 4]], "day": [day], "user": [user]})


class TestRemapping:
    def test_each_table_has_its_own_mapping(self) -> None:
        module = managed(return_remapped_features=True)
        _, remapped = module.train()(batch_of([BIG], [-BIG, BIG], [8], [BIG, 7]))
        found = {key: jagged.values().tolist() for key, jagged in remapped.to_dict().items()}
        # Free rows are handed out from the lowest, to the most frequent ID first, then to the smallest.
        assert found == {"user": [0], "friend": [1, 0], "day": [8], "item": [1, 0]}
        # As in TorchRec: the tables' features in the tables' order, no others.
        assert remapped.keys() == ["user", "friend", "day", "item"]

    def test_tables_may_be_called_as_methods(self) -> None:
        made = ManagedCollisionCollection(
            {"items": module_of(5), "keys": module_of(6)},
            [bag("items", 5, 4, ["item"]), bag("keys", 6, 4, ["key"])],
        )
        assert list(made.managed_collision_modules()) == ["items", "keys"]
        remapped = made.train()(kjt_of({"item": [[BIG]], "key": [[BIG, 7]]}))
        assert [j.values().tolist() for j in remapped.to_dict().values()] == [[0], [1, 0]]

    def test_lengths_and_weights_stay(self) -> None:
        module = managed(return_remapped_features=True)
        batch = KeyedJaggedTensor(
            ["user", "day", "friend", "item"],
            values=[BIG, 1, 2, 3, 4, 5],
            lengths=[1, 0, 2, 0, 1, 1, 0, 1],
            weights=[0.5, 1.5, 2.5, 3.5, 4.5, 5.5],
        )
        _, remapped = module.eval()(batch)
        batch = batch.permute([0, 2, 1, 3])
        assert remapped.keys() == batch.keys()
        assert remapped.stride() == 2
        assert torch.equal(remapped.lengths(), batch.lengths())
        assert torch.equal(remapped.weights(), batch.weights())
        assert remapped.values().tolist() == [4, 4, 4, 1, 2, 5]

    def test_int32_ids_and_an_empty_batch(self) -> None:
        module = managed(return_remapped_features=True).eval()
        ids = torch.tensor([1, 2, 3, 4], dtype=torch.int32)
        batch = KeyedJaggedTensor(
            ["user", "friend", "day", "item"], ids, lengths=torch.ones(4, dtype=torch.int32)
        )
        assert module(batch)[1].values().tolist() == [4, 4, 3, 5]
        empty = KeyedJaggedTensor(["user", "friend", "day", "item"], [], lengths=[])
        assert module(empty)[0].values().shape == (0, 16)
        assert module.train()(empty)[0].values().shape == (0, 16)

    @pytest.mark.parametrize("training", [True, False])
    def test_ids_that_are_no_integers(self, training: bool) -> None:
        batch = KeyedJaggedTensor(["user", "friend", "day", "item"], torch.rand(4), lengths=[1] * 4)
        with pytest.raises(ValueError, match=r"got dtype torch.float32, expected int32 or int64"):
            managed().train(training)(batch)

    def test_a_feature_is_missing(self) -> None:
        with pytest.raises(ValueError, match=r"missing \['friend'\]"):
            managed().train()(kjt_of({"user": [[1]], "day": [[1]], "item": [[1]]}))

    def test_looking_up_reads_no_tensor(self) -> None:
        module = managed().managed_collision_collection.eval()
        batch = batch_of([BIG], [1], [8], [7])
        with CountReads() as reads:
            module(batch)
        assert reads.found == []

    def test_scripted_it_is_the_same(self) -> None:
        module = managed(embeddings_only=True)
        module.train()(batch_of([BIG, -1], [3], [8], [-BIG, 7]))
        module.eval()
        batch = batch_of([BIG, -1, 99], [3, 2**63 - 1], [8, 2], [-BIG, 7, 8])
        script = scripted(module, batch.keys())
        weights = torch.ones(batch.values().numel())
        found = script(batch.lengths(), batch.values(), weights)
        expected = module(batch)
        names = expected.keys()
        assert all(torch.equal(found[name], expected[name]) for name in names)


class TestCollections:
    def test_what_forward_returns(self) -> None:
        batch = batch_of([1], [2], [3], [4])
        embeddings, nothing = managed().eval()(batch)
        assert isinstance(embeddings, KeyedTensor)
        assert nothing is None
        only = managed(embeddings_only=True).eval()(batch)
        assert torch.equal(only.values(), embeddings.values())
        with pytest.raises(ValueError, match="embeddings_only"):
            managed(embeddings_only=True, return_remapped_features=True)

    def test_the_rows_are_those_of_the_mapping(self) -> None:
        module = managed(embeddings_only=True)
        module.train()(batch_of([BIG], [-BIG], [8], [7]))
        users = module.embedding_module.embedding_bags["users"].weight
        found = module.eval()(batch_of([BIG, 5], [-BIG], [8], [7]))
        torch.testing.assert_close(found["user"][0], users[1] + users[4])
        torch.testing.assert_close(found["friend"][0], users[0])

    def test_sequences(self) -> None:
        configs = [sequence("users", 4, 8, ["user"]), sequence("days", 7, 8, ["day"])]
        mapping = ManagedCollisionCollection({"users": module_of(4)}, configs)
        module = ManagedCollisionEmbeddingCollection(
            EmbeddingCollection(configs), mapping, embeddings_only=True
        )
        batch = kjt_of({"user": [[BIG, -1], [BIG]], "day": [[6], []]})
        found = module.train()(batch)
        weights = module.embedding_module.embeddings["users"].weight
        assert torch.equal(found["user"].values(), weights[torch.tensor([0, 1, 0])])
        assert module.embedding_configs() == configs

    def test_names_in_the_state_dict(self) -> None:
        names = list(managed().state_dict())
        assert names[0] == "_embedding_module.embedding_bags.users.weight"
        at = "_managed_collision_collection._managed_collision_modules.wares."
        assert [n for n in names if n.startswith(at)] == [
            f"{at}{name}" for name in ("raw_ids", "rows", "counts", "last_steps", "step")
        ]
        assert [*mapping_buffer_names(managed())] == [n for n in names if "_collision_" in n]
        assert mapping_buffer_names(module_of(3)) == ["raw_ids", "rows", "counts", "last_steps", "step"]

    def test_open_slots(self) -> None:
        module = managed()
        module.train()(batch_of([1, 2], [3], [8], [7]))
        found = module.managed_collision_collection.open_slots()
        assert {table: slots.tolist() for table, slots in found.items()} == {"users": [1], "wares": [4]}

    @pytest.mark.parametrize(
        ("modules", "configs", "text"),
        [
            pytest.param({}, tables(), "got none", id="no modules"),
            pytest.param({"goods": module_of(5)}, tables(), r"got \['goods'\]", id="no such table"),
            pytest.param({"users": module_of(6)}, tables(), r"'users'\]: got 6 rows, expected 5", id="rows"),
            pytest.param(
                {"a": module_of(5)},
                [bag("a", 5, 4, ["f", "g"]), bag("b", 5, 4, ["g"])],
                r"tables 'a' and 'b': got features \['g'\] in both",
                id="shared feature",
            ),
        ],
    )
    def test_wrong_modules(self, modules: dict[str, Any], configs: list[Any], text: str) -> None:
        with pytest.raises(ValueError, match=text):
            ManagedCollisionCollection(modules, configs)

    def test_other_tables_than_the_mappings(self) -> None:
        mapping = ManagedCollisionCollection({"users": module_of(5)}, tables())
        with pytest.raises(ValueError, match=r"expected the same"):
            ManagedCollisionEmbeddingBagCollection(EmbeddingBagCollection(tables()[:2]), mapping)


class Sharded(nn.Module):
    """Stands where a sharded collection will: knows itself how to overwrite rows."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[str, list[int], tuple[int, ...]]] = []
        self.given: list[int] = []

    def forward(self, features: KeyedJaggedTensor) -> list[int]:
        self.given = features["user"].values().tolist()
        return self.given

    def reset_rows(self, table: str, rows: Tensor, values: Tensor) -> None:
        self.calls.append((table, rows.tolist(), tuple(values.shape)))


class TestRowsThatChangeHands:
    def test_they_are_fresh_when_they_are_first_looked_up(self) -> None:
        module = managed(embeddings_only=True).train()
        heard: list[tuple[str, list[int]]] = []
        module.register_eviction_hook(lambda table, rows: heard.append((table, rows.tolist())))
        weight = module.embedding_module.embedding_bags["users"].weight
        module(batch_of([1, 2, 3, 4], [], [8], [7]))
        with torch.no_grad():
            weight.fill_(9.0)
        found = module(batch_of([10, 2, 3], [], [8], [7]))
        # 1 and 4 were not used again; of two that score the same the larger ID goes first.
        assert heard == [("users", [3])]
        fresh = fresh_values(tables()[0], 1, step=2)
        assert torch.equal(weight[3], fresh[0])
        assert torch.equal(weight[[0, 1, 2, 4]], torch.full((4, 4), 9.0))
        torch.testing.assert_close(found["user"][0], fresh[0] + 18.0)

    def test_they_learn_from_then_on(self) -> None:
        module = managed(embeddings_only=True).train()
        module(batch_of([1, 2, 3, 4], [], [8], [7]))
        found = module(batch_of([10], [], [8], [7]))
        found.values().sum().backward()
        gradient = module.embedding_module.embedding_bags["users"].weight.grad
        assert gradient is not None
        assert gradient[:, 0].tolist() == [0, 0, 0, 1, 0]

    def test_fresh_values_are_those_of_the_config(self) -> None:
        config = bag("t", 100, 16, ["f"])
        values = fresh_values(config, 50, step=3)
        assert float(values.abs().max()) <= 0.1
        assert float(values.abs().max()) > 0.08
        assert torch.equal(values, fresh_values(config, 50, step=3))
        assert not torch.equal(values, fresh_values(config, 50, step=4))
        assert not torch.equal(values, fresh_values(bag("u", 100, 16, ["f"]), 50, step=3))

    def test_fresh_values_of_an_init_fn(self) -> None:
        config = bag("t", 100, 16, ["f"])
        config.init_fn = nn.init.normal_
        torch.manual_seed(5)
        expected_next = torch.rand(1)
        torch.manual_seed(5)
        values = fresh_values(config, 50, step=3)
        assert torch.equal(values, fresh_values(config, 50, step=3))
        assert float(values.std()) == pytest.approx(1.0, abs=0.1)
        assert torch.equal(torch.rand(1), expected_next)

    def test_a_collection_that_resets_rows_itself(self) -> None:
        module = managed(embeddings_only=True).train()
        module._embedding_module = sharded = Sharded()
        module(batch_of([1, 2, 3, 4], [], [8], [7]))
        assert sharded.calls == []
        assert module(batch_of([10, 11], [], [8], [7])) == sharded.given == [3, 2]
        assert sharded.calls == [("users", [2, 3], (2, 4))]

    def test_a_collection_that_cannot(self) -> None:
        module = managed(embeddings_only=True).train()
        module._embedding_module = nn.Identity()
        module(batch_of([1, 2, 3, 4], [], [8], [7]))
        with pytest.raises(TypeError, match=r"got Identity, expected .* reset_rows"):
            module(batch_of([10, 11], [], [8], [7]))


class TestOptimizers:
    @pytest.mark.parametrize(
        ("make", "start"),
        [
            pytest.param(lambda p: torch.optim.Adam(p, lr=0.1), 0.0, id="adam"),
            pytest.param(lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), 0.0, id="momentum"),
            pytest.param(
                lambda p: torch.optim.Adagrad(p, lr=0.1, initial_accumulator_value=0.25), 0.25, id="adagrad"
            ),
        ],
    )
    def test_rows_are_as_in_the_beginning(self, make: Any, start: float) -> None:
        weight = nn.Parameter(torch.ones(4, 3))
        other = nn.Parameter(torch.ones(2))
        optimizer = make([other, weight])
        ((weight**2).sum() + other.sum()).backward()
        optimizer.step()
        kept = {
            name: value.clone()
            for name, value in optimizer.state[weight].items()
            if isinstance(value, Tensor)
        }
        assert any(value.shape == (4, 3) for value in kept.values())
        reset_optimizer_rows(optimizer, weight, torch.tensor([1, 3]))
        for name, before in kept.items():
            after = optimizer.state[weight][name]
            if before.dim() == 0:
                assert torch.equal(after, before)
                continue
            assert torch.equal(after[[0, 2]], before[[0, 2]])
            assert torch.equal(after[[1, 3]], torch.full((2, 3), start))
            assert not torch.equal(before[[1, 3]], after[[1, 3]])

    def test_before_the_first_step(self) -> None:
        weight = nn.Parameter(torch.ones(4, 3))
        optimizer = torch.optim.SGD([weight], lr=0.1)
        reset_optimizer_rows(optimizer, weight, torch.tensor([1]))
        assert not optimizer.state.get(weight)


def test_lfu_modules_take_part_too() -> None:
    module = MCHManagedCollisionModule(3, None, LFU_EvictionPolicy(), 1)
    mapping = ManagedCollisionCollection({"t": module}, [bag("t", 3, 4, ["f"])])
    rows = mapping.train()(kjt_of({"f": [[5, 5, 6], [7]]}))
    assert rows.values().tolist() == [0, 0, 1, 2]
