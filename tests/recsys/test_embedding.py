"""The float collections: pooled and single rows, against sums written out by hand."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from recsys import DataType, EmbeddingBagCollection, EmbeddingCollection, KeyedJaggedTensor
from recsys.embedding import tables_on
from tests.support.helpers import bag, kjt_of, sequence

TABLES = [bag("t", 10, 4, ["a"]), bag("u", 6, 3, ["b", "a"], "MEAN"), bag("v", 5, 2, ["c"])]
BAGS = {"a": [[1, 2, 2], [], [5]], "b": [[3], [0, 4], []], "c": [[], [4, 4], [1]]}
NAMES = ["a@t", "b", "a@u", "c"]


def weights_of(ebc: EmbeddingBagCollection) -> dict[str, Tensor]:
    return {name.split(".")[1]: w for name, w in ebc.state_dict().items()}


def by_hand(
    weight: Tensor, bags: Sequence[Sequence[int]], mean: bool, per_id: Sequence[float] | None = None
) -> Tensor:
    rows, at = [], 0
    for ids in bags:
        total = torch.zeros(weight.shape[1])
        for i in ids:
            total += weight[i] * (1.0 if per_id is None else per_id[at])
            at += 1
        rows.append(total / max(len(ids), 1) if mean else total)
    return torch.stack(rows)


def test_state_dict_names_and_shapes() -> None:
    shapes = {name: tuple(w.shape) for name, w in EmbeddingBagCollection(TABLES).state_dict().items()}
    assert shapes == {
        "embedding_bags.t.weight": (10, 4),
        "embedding_bags.u.weight": (6, 3),
        "embedding_bags.v.weight": (5, 2),
    }
    assert list(EmbeddingCollection([sequence("t", 4, 2, ["a"])]).state_dict()) == ["embeddings.t.weight"]


@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
def test_pooled_rows_are_the_sums_by_hand_in_the_tables_order(weighted: bool) -> None:
    ebc = EmbeddingBagCollection(TABLES, is_weighted=weighted)
    per_id = {key: [0.5 + i for i in range(sum(map(len, bags)))] for key, bags in BAGS.items()}
    flat = [w for key in BAGS for w in per_id[key]] if weighted else None
    answer = ebc(kjt_of(BAGS, flat))
    weights = weights_of(ebc)
    assert answer.keys() == NAMES
    assert answer.length_per_key() == [4, 3, 3, 2]
    assert answer.values().shape == (3, 12)
    for name, table, key, mean in (
        ("a@t", "t", "a", False),
        ("b", "u", "b", True),
        ("a@u", "u", "a", True),
        ("c", "v", "c", False),
    ):
        expected = by_hand(weights[table], BAGS[key], mean, per_id[key] if weighted else None)
        torch.testing.assert_close(answer[name], expected)


def test_mixed_poolings_do_not_change_the_order_of_keys() -> None:
    tables = [bag(n, 4, 2, [n], p) for n, p in (("x", "SUM"), ("y", "MEAN"), ("z", "SUM"))]
    assert EmbeddingBagCollection(tables)(kjt_of({k: [[1]] for k in "zyx"})).keys() == ["x", "y", "z"]


def test_features_in_any_order_and_others_beside_them() -> None:
    ebc = EmbeddingBagCollection(TABLES)
    expected = ebc(kjt_of(BAGS)).values()
    for order in (["c", "b", "a"], ["b", "x", "a", "c"], ["x", "c", "a", "b"]):
        assert torch.equal(
            ebc(kjt_of({key: BAGS.get(key, [[9], [9], [9]]) for key in order})).values(), expected
        )


def test_missing_features_are_named() -> None:
    for module in (
        EmbeddingBagCollection(TABLES),
        EmbeddingCollection([sequence("t", 4, 2, ["a", "b", "c"])]),
    ):
        with pytest.raises(
            ValueError, match=r"features: missing \['a', 'c'\], expected \['a', 'b', 'c'\], got \['b'\]"
        ):
            module(kjt_of({"b": [[1]]}))


def test_missing_weights_are_named() -> None:
    with pytest.raises(ValueError, match="weights: this KeyedJaggedTensor has none"):
        EmbeddingBagCollection(TABLES, is_weighted=True)(kjt_of(BAGS))


def test_an_empty_batch() -> None:
    none: dict[str, list[list[int]]] = {"a": [], "b": [], "c": []}
    assert EmbeddingBagCollection(TABLES)(kjt_of(none)).values().shape == (0, 12)
    rows = EmbeddingCollection([sequence("t", 4, 2, ["a", "b"])])(kjt_of(none))
    assert {name: jt.values().shape for name, jt in rows.items()} == {"a": (0, 2), "b": (0, 2)}


@pytest.mark.parametrize(
    ("ids", "offsets"), [(a, b) for a in (torch.int32, torch.int64) for b in (torch.int32, torch.int64)]
)
def test_every_mix_of_integer_types(ids: torch.dtype, offsets: torch.dtype) -> None:
    ebc = EmbeddingBagCollection(TABLES)
    plain = kjt_of(BAGS)
    mixed = KeyedJaggedTensor(plain.keys(), plain.values().to(ids), offsets=plain.offsets().to(offsets))
    assert torch.equal(ebc(mixed).values(), ebc(plain).values())


@pytest.mark.parametrize("kind", [DataType.FP16, DataType.BF16], ids=lambda k: k.name)
def test_half_tables_give_float32(kind: DataType) -> None:
    ebc = EmbeddingBagCollection([replace(t, data_type=kind) for t in TABLES])
    answer = ebc(kjt_of(BAGS)).values()
    assert answer.dtype == torch.float32
    expected = EmbeddingBagCollection(TABLES)
    expected.load_state_dict({name: w.float() for name, w in ebc.state_dict().items()})
    torch.testing.assert_close(answer, expected(kjt_of(BAGS)).values(), rtol=2.0**-6, atol=2.0**-6)


def test_sequences_are_the_rows_themselves() -> None:
    tables = [sequence("t", 10, 4, ["a"]), sequence("u", 6, 4, ["b", "a"])]
    ec = EmbeddingCollection(tables)
    found = ec(kjt_of(BAGS))
    weights = {name.split(".")[1]: w for name, w in ec.state_dict().items()}
    assert list(found) == ["a@t", "b", "a@u"]
    for name, table, key in (("a@t", "t", "a"), ("b", "u", "b"), ("a@u", "u", "a")):
        ids = [i for bag_ids in BAGS[key] for i in bag_ids]
        assert torch.equal(found[name].values(), weights[table][ids])
        assert found[name].lengths().tolist() == [len(b) for b in BAGS[key]]
    assert ec.embedding_names_by_table() == [["a@t"], ["b", "a@u"]]
    assert ec.embedding_dim() == 4


def test_both_collections_train() -> None:
    ebc = EmbeddingBagCollection(TABLES)
    ebc(kjt_of(BAGS)).values().sum().backward()
    grad = ebc.embedding_bags["t"].weight.grad
    assert isinstance(grad, Tensor)
    assert grad[2].tolist() == [2.0] * 4
    assert grad[7].tolist() == [0.0] * 4


def test_tables_can_be_put_on_meta_until_weights_come() -> None:
    rng = random.Random(0)
    with tables_on("meta"):
        made = EmbeddingBagCollection(TABLES)
        named = EmbeddingBagCollection(TABLES, device="cpu")
        rows = EmbeddingCollection([sequence("t", 10**9, 64, ["a"])])
    assert (made.device.type, named.device.type, rows.device.type) == ("meta", "cpu", "meta")
    assert EmbeddingBagCollection(TABLES).device.type == "cpu"
    made.load_state_dict(named.state_dict(), assign=True)
    batch = kjt_of({key: [[rng.randrange(5)]] for key in BAGS})
    assert torch.equal(made(batch).values(), named(batch).values())
