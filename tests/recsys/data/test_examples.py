"""Columns of examples, and the batches made of them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from recsys.data.batches import EpochOrder, batches
from recsys.data.examples import Bags, Examples, held_out_rows

_LISTS = [[3, 1], [], [4], [1, 5, 9], [2]]


def _examples() -> Examples:
    return Examples(
        dense=np.arange(10, dtype=np.float32).reshape(5, 2),
        bags={"many": Bags.from_lists(_LISTS), "one": Bags.single(np.array([10, 11, 12, 13, 14]))},
        labels=np.array([1, 0, 0, 1, 0], dtype=np.float32),
    )


def _as_lists(bags: Bags) -> list[list[int]]:
    return [bags.values[a:b].tolist() for a, b in zip(bags.offsets[:-1], bags.offsets[1:], strict=True)]


@pytest.mark.parametrize(
    "rows",
    [[0, 1, 2, 3, 4], [3, 0], [1], [1, 1, 3, 3], []],
    ids=["all", "some", "empty-bag", "twice", "none"],
)
def test_take(rows: list[int]) -> None:
    taken = Bags.from_lists(_LISTS).take(np.array(rows, dtype=np.int64))
    assert _as_lists(taken) == [_LISTS[row] for row in rows]


def test_optional_leaves_negative_ids_out() -> None:
    assert _as_lists(Bags.optional(np.array([3, -1, 0]))) == [[3], [], [0]]


def test_batch_is_key_major_and_knows_its_lengths_per_key() -> None:
    batch = _examples().batch(np.array([3, 1]))
    assert batch.dense.tolist() == [[6.0, 7.0], [2.0, 3.0]]
    assert batch.labels.tolist() == [1.0, 0.0]
    assert batch.kjt.length_per_key_or_none() == [3, 2]
    batch.kjt.validate()
    rows = {key: [t.tolist() for t in jt.to_dense()] for key, jt in batch.kjt.to_dict().items()}
    assert rows == {"many": [[1, 5, 9], []], "one": [[13], [11]]}


class _Reads(TorchDispatchMode):
    """Counts the reads of tensor contents."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        if func is torch.ops.aten._local_scalar_dense.default:
            type(self).count += 1
        return func(*args, **(kwargs or {}))


def test_a_batch_is_made_without_reading_tensors() -> None:
    examples = _examples()
    with _Reads():
        kjt = examples.batch(np.array([0, 2, 4])).kjt
        kjt.to_dict()
        assert _Reads.count == 0
        assert int(kjt.lengths()[0]) == 2
        assert _Reads.count == 1  # the counter does count


def test_batches_keep_or_mix_the_order() -> None:
    labels = [b.labels.tolist() for b in batches(iter([_examples(), _examples()]), 2)]
    assert labels == [[1, 0], [0, 1], [0], [1, 0], [0, 1], [0]]
    mixed = [
        batch.kjt["one"].values().tolist()
        for batch in batches(iter([_examples()]), 5, EpochOrder(seed=0, epoch=0))
    ]
    assert sorted(mixed[0]) == [10, 11, 12, 13, 14] != mixed[0]


@pytest.mark.parametrize(("num_rows", "expected"), [(2, 1), (19, 1), (20, 2), (100_000, 10_000)])
def test_held_out_rows(num_rows: int, expected: int) -> None:
    assert held_out_rows(num_rows) == expected


def test_too_few_rows_to_hold_any_out() -> None:
    with pytest.raises(ValueError, match="rows: got 1, expected at least 2"):
        held_out_rows(1)
