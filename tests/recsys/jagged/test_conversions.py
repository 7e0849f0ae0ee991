"""Batches to dicts and back, comparisons and checks."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from recsys import EmbeddingBagCollection, JaggedTensor, KeyedJaggedTensor
from recsys.jagged.conversions import (
    ComputeJTDictToKJT,
    ComputeKJTToJTDict,
    jt_is_equal,
    kjt_is_equal,
    maybe_td_to_kjt,
    validate_keyed_jagged_tensor,
)
from tests.support.helpers import bag, kjt_of

BATCH = kjt_of({"a": [[1], []], "b": [[2, 3], [4]]})


def test_to_a_dict_and_back() -> None:
    parts = ComputeKJTToJTDict()(BATCH)
    assert list(parts) == ["a", "b"]
    assert kjt_is_equal(ComputeJTDictToKJT()(parts), BATCH)


@pytest.mark.parametrize(
    "other",
    [
        kjt_of({"a": [[1], []], "b": [[2, 3], [5]]}),
        kjt_of({"a": [[1], []], "c": [[2, 3], [4]]}),
        kjt_of({"a": [[1], []], "b": [[2], [3, 4]]}),
        kjt_of({"a": [[1], []], "b": [[2, 3], [4]]}, [1.0] * 4),
        KeyedJaggedTensor(["a", "b"], [1, 2, 3, 4], lengths=[1, 0, 2, 1], stride_per_key=[1, 3]),
        BATCH["a"],
        None,
    ],
    ids=["values", "keys", "lengths", "weights", "batch sizes", "a feature", "none"],
)
def test_batches_that_differ(other: Any) -> None:
    assert kjt_is_equal(BATCH, kjt_of({"a": [[1], []], "b": [[2, 3], [4]]}))
    assert not kjt_is_equal(BATCH, other)


def test_features_that_differ() -> None:
    rows = JaggedTensor([1.0, 2.0], lengths=[1, 1])
    assert jt_is_equal(rows, JaggedTensor([1.0, 2.0], offsets=[0, 1, 2]))
    assert not jt_is_equal(rows, JaggedTensor([1.0, 2.0], lengths=[2, 0]))
    assert not jt_is_equal(rows, JaggedTensor([1.0, 2.5], lengths=[1, 1]))
    assert not jt_is_equal(rows, None)


def test_ids_beyond_their_tables_are_noticed() -> None:
    assert validate_keyed_jagged_tensor(BATCH)
    assert validate_keyed_jagged_tensor(BATCH, [bag("t", 5, 4, ["b", "other"])])
    assert not validate_keyed_jagged_tensor(BATCH, [bag("t", 4, 4, ["a", "b"])])
    with pytest.raises(ValueError, match="lengths: got a sum of 3 for 1 values"):
        validate_keyed_jagged_tensor(KeyedJaggedTensor(["a"], [1], lengths=[3]))


@pytest.mark.peer
@pytest.mark.filterwarnings("ignore")
def test_dicts_of_nested_tensors_are_batches() -> None:
    tensordict: Any = pytest.importorskip("tensordict", reason="needs tensordict (group: peer)")
    nested = {
        "b": torch.nested.nested_tensor([torch.tensor([2, 3]), torch.tensor([4])], layout=torch.jagged),
        "a": torch.nested.nested_tensor(
            [torch.tensor([1]), torch.tensor([], dtype=torch.int64)], layout=torch.jagged
        ),
    }
    given = tensordict.TensorDict(nested, batch_size=[2])
    assert kjt_is_equal(maybe_td_to_kjt(given, ["a", "b"]), BATCH)
    assert maybe_td_to_kjt(given).keys() == ["b", "a"]
    tables = EmbeddingBagCollection([bag("t", 9, 4, ["a", "b"])])
    assert torch.equal(tables(given).values(), tables(BATCH).values())
    assert maybe_td_to_kjt(BATCH) is BATCH
