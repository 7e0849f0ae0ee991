"""Equal bags stored once: what is kept, the way back, and that float collections answer and learn the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from recsys import EmbeddingBagCollection, EmbeddingCollection, KeyedJaggedTensor
from recsys.jagged.dedup import deduplicate, expand
from tests.support.helpers import bag, kjt_of, sequence

Bags = list[list[tuple[int, float]]]
KEYS = ["a", "b", "c"]
TABLES = [
    bag("t", 5, 4, ["a", "b"]),
    bag("u", 5, 3, ["c", "a"], "MEAN"),
]


@st.composite
def batches(draw: st.DrawFn) -> KeyedJaggedTensor:
    """Three features, up to 12 rows of few different bags: equal ones are common."""
    weighted = draw(st.booleans())
    item = st.tuples(st.integers(0, 4), st.sampled_from([0.5, 2.0] if weighted else [1.0]))
    num_rows = draw(st.integers(0, 12))
    bags = {
        key: draw(st.lists(st.lists(item, max_size=3), min_size=num_rows, max_size=num_rows)) for key in KEYS
    }
    flat = [i for rows in bags.values() for row in rows for i in row]
    return KeyedJaggedTensor(
        KEYS,
        torch.tensor([i for i, _ in flat], dtype=draw(st.sampled_from([torch.int32, torch.int64]))),
        torch.tensor([w for _, w in flat]) if weighted else None,
        torch.tensor(
            [len(row) for rows in bags.values() for row in rows],
            dtype=draw(st.sampled_from([torch.int32, torch.int64])),
        ),
    )


def rows_of(batch: KeyedJaggedTensor) -> dict[str, list[tuple[Any, ...]]]:
    """Each feature's bags as one compares them by hand."""
    found = {}
    for key, jt in batch.to_dict().items():
        ids = [row.tolist() for row in jt.to_dense()]
        weights = jt.to_dense_weights()
        per_row = [[]] * len(ids) if weights is None else [row.tolist() for row in weights]
        found[key] = [(tuple(i), tuple(w)) for i, w in zip(ids, per_row, strict=True)]
    return found


@settings(deadline=None)
@given(batches())
def test_each_different_bag_is_kept_once_in_the_order_of_first_coming(batch: KeyedJaggedTensor) -> None:
    small = deduplicate(batch).validate()
    by_hand = {key: list(dict.fromkeys(rows)) for key, rows in rows_of(batch).items()}
    assert rows_of(small) == by_hand
    assert small.stride_per_key_per_rank() == [[len(rows)] for rows in by_hand.values()]
    assert small.stride() == batch.stride()
    assert small.length_per_key_or_none() is not None
    assert (small.values().dtype, small.lengths().dtype) == (batch.values().dtype, batch.lengths().dtype)
    for key, rows in zip(*small.inverse_indices(), strict=True):
        assert [by_hand[key][i] for i in rows.tolist()] == rows_of(batch)[key]


@settings(deadline=None)
@given(batches(), st.permutations(range(3)))
def test_expanding_is_the_way_back_whatever_happens_to_the_keys(
    batch: KeyedJaggedTensor, order: list[int]
) -> None:
    back, expected = expand(deduplicate(batch).permute(order)), batch.permute(order)
    assert back.keys() == expected.keys()
    assert back.stride_per_key() == expected.stride_per_key()
    assert not back.variable_stride_per_key()
    for ours, theirs in (
        (back.values(), expected.values()),
        (back.lengths(), expected.lengths()),
        (back.weights_or_none(), expected.weights_or_none()),
    ):
        assert (ours is None and theirs is None) or torch.equal(ours, theirs)


def answer_and_gradients(
    batch: KeyedJaggedTensor, state: dict[str, Tensor]
) -> tuple[Tensor, dict[str, Tensor]]:
    ebc = EmbeddingBagCollection(TABLES, is_weighted=batch.weights_or_none() is not None)
    ebc.load_state_dict(state)
    answer = ebc(batch).values()
    weights = torch.linspace(-1, 1, answer.numel()).view_as(answer)
    (answer * weights).sum().backward()
    return answer.detach(), {
        name: torch.zeros_like(w) if w.grad is None else w.grad for name, w in ebc.named_parameters()
    }


@settings(deadline=None)
@given(batches())
def test_bags_answer_and_learn_the_same(batch: KeyedJaggedTensor) -> None:
    state = EmbeddingBagCollection(TABLES).state_dict()
    expected, expected_gradients = answer_and_gradients(batch, state)
    answer, gradients = answer_and_gradients(deduplicate(batch), state)
    assert torch.equal(answer, expected)
    assert expected_gradients.keys() == gradients.keys()
    for name, gradient in gradients.items():
        # Sums of at most 36 products of numbers up to 2, in another order.
        torch.testing.assert_close(gradient, expected_gradients[name], rtol=1e-5, atol=1e-4)


def test_the_gradient_of_a_weight_is_that_of_all_its_copies() -> None:
    weights = torch.tensor([1.0, 1.0, 3.0], requires_grad=True)
    batch = KeyedJaggedTensor(["a"], [1, 1, 2], weights, [1, 1, 1])
    table = bag("t", 4, 2, ["a"])
    ebc = EmbeddingBagCollection([table], is_weighted=True)
    ebc(deduplicate(batch)).values().sum().backward()
    rows = ebc.embedding_bags["t"].weight
    assert isinstance(rows, Tensor)
    sums = rows.detach().sum(dim=1)
    assert weights.grad is not None
    torch.testing.assert_close(weights.grad, torch.stack([2 * sums[1], torch.tensor(0.0), sums[2]]))


def test_sequences_keep_the_batch_of_their_feature() -> None:
    batch = kjt_of({"a": [[1, 2], [1, 2], []], "b": [[3], [3], [3]]})
    ec = EmbeddingCollection([sequence("t", 5, 4, ["a", "b"])])
    found, rows = ec(deduplicate(batch)), ec.embeddings["t"].weight
    assert found["a"].lengths().tolist() == [2, 0]
    assert found["b"].lengths().tolist() == [1]
    assert torch.equal(found["a"].values(), rows[[1, 2]])
    assert torch.equal(found["b"].values(), rows[[3]])


class TestWithoutInverseIndices:
    ebc = EmbeddingBagCollection(TABLES)

    def test_equal_batch_sizes_are_one_batch(self) -> None:
        bags = {"a": [[1], [2]], "b": [[3], [4]], "c": [[0], []]}
        batch = kjt_of(bags | {"not looked up": [[1]] * 2})
        several = KeyedJaggedTensor.concat(
            [
                KeyedJaggedTensor(
                    batch.keys(), batch.values(), lengths=batch.lengths(), stride_per_key_per_rank=[[2]] * 4
                ),
                KeyedJaggedTensor(["x"], [7], lengths=[1], stride_per_key_per_rank=[[1]]),
            ]
        )
        assert torch.equal(self.ebc(several).values(), self.ebc(batch).values())

    def test_different_ones_are_refused(self) -> None:
        batch = KeyedJaggedTensor(
            KEYS, [1, 2, 3, 4], lengths=[1, 1, 1, 1], stride_per_key_per_rank=[[1], [2], [1]]
        )
        with pytest.raises(
            ValueError,
            match=r"features: got batch sizes \{'a': 1, 'b': 2, 'c': 1\} without inverse_indices",
        ):
            self.ebc(batch)


def test_weights_that_differ_keep_bags_apart() -> None:
    batch = kjt_of({"a": [[1], [1], [1]], "b": [[1], [1], [2]]}, [0.5, 2.0, 0.5, 0.5, 0.5, 0.5])
    small = deduplicate(batch)
    assert small.stride_per_key() == [2, 2]
    assert small.weights().tolist() == [0.5, 2.0, 0.5, 0.5]
    assert small.inverse_indices()[1].tolist() == [[0, 1, 0], [0, 0, 1]]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_every_type_of_weight(dtype: torch.dtype) -> None:
    batch = kjt_of({"a": [[1], [1], [1]]}, [0.5, 0.5, 2.0]).to("cpu", dtype=dtype)
    assert deduplicate(batch).weights().tolist() == [0.5, 2.0]


def test_large_ids_are_compared_in_full() -> None:
    ids = [2**53, 2**53 + 1, 2**53, -(2**63)]
    assert deduplicate(kjt_of({"a": [[i] for i in ids]})).values().tolist() == [2**53, 2**53 + 1, -(2**63)]


def test_no_features() -> None:
    small = deduplicate(KeyedJaggedTensor([], [], lengths=[], stride=3))
    assert (small.keys(), small.stride(), small.inverse_indices()[1].shape) == ([], 3, (0, 3))
    assert expand(small).stride() == 3


PLAIN = kjt_of({"a": [[1], [1]]})
WRONG: list[tuple[str, Callable[[], object], str]] = [
    ("twice", lambda: deduplicate(deduplicate(PLAIN)), "kjt: got a batch size per feature"),
    ("elsewhere", lambda: deduplicate(PLAIN.to("meta")), r"kjt: got tensors on \['meta'\], expected host"),
    ("expand elsewhere", lambda: expand(deduplicate(PLAIN).to("meta")), r"kjt: got tensors on \['meta'\]"),
    ("expand nothing", lambda: expand(PLAIN), "inverse_indices: this KeyedJaggedTensor has none"),
    (
        "lengths that lie",
        lambda: deduplicate(KeyedJaggedTensor(["a"], [1], lengths=[2, 1])),
        "lengths: got a sum of 3 for 1 values",
    ),
    (
        "inverse indices that lie",
        lambda: expand(
            KeyedJaggedTensor(
                ["a"], [1], lengths=[1], stride_per_key_per_rank=[[1]], inverse_indices=(["a"], [[0, 1]])
            )
        ),
        r"inverse_indices\['a'\]: got 1 at position 1",
    ),
    (
        "fractions",
        lambda: deduplicate(KeyedJaggedTensor(["a"], [1.5], lengths=[1])),
        "values: got dtype torch.float32",
    ),
    (
        "vectors",
        lambda: deduplicate(KeyedJaggedTensor(["a"], torch.zeros(1, 2, dtype=torch.int64), lengths=[1])),
        r"values: got shape \[1, 2\]",
    ),
    (
        "vectors as weights",
        lambda: deduplicate(KeyedJaggedTensor(["a"], [1], torch.zeros(1, 2), lengths=[1])),
        r"weights: got shape \[1, 2\]",
    ),
]


@pytest.mark.parametrize(("use", "message"), [c[1:] for c in WRONG], ids=[c[0] for c in WRONG])
def test_wrong_use_is_named(use: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        use()
