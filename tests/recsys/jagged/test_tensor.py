"""JaggedTensor: what it gives, what it prints, what it refuses."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from recsys import JaggedTensor

LENGTHS = [3, 0, 1, 2]
OFFSETS = [0, 3, 3, 4, 6]
VALUES = [10, 11, 12, 13, 14, 15]


def jagged(**changes: Any) -> JaggedTensor:
    return JaggedTensor(**{"values": VALUES, "lengths": LENGTHS} | changes)


def test_lengths_and_offsets_follow_from_each_other() -> None:
    assert jagged().offsets().tolist() == OFFSETS
    by_offsets = JaggedTensor(VALUES, offsets=OFFSETS)
    assert by_offsets.lengths_or_none() is None
    assert by_offsets.lengths().tolist() == LENGTHS
    assert jagged().offsets_or_none() is None


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_dtypes_stay(dtype: torch.dtype) -> None:
    made = jagged(lengths=torch.tensor(LENGTHS, dtype=dtype), values=torch.tensor(VALUES, dtype=dtype))
    assert made.values().dtype == made.lengths().dtype == made.offsets().dtype == dtype


def test_lists_become_tensors() -> None:
    made = jagged(weights=[1, 2, 3, 4, 5, 6])
    assert made.values().dtype == made.lengths().dtype == torch.int64
    assert made.weights().dtype == torch.float32
    assert JaggedTensor([0.5], lengths=[1]).values().dtype == torch.float32
    assert JaggedTensor([], lengths=[0]).values().dtype == torch.int64


def test_rows_as_dense_tensors() -> None:
    made = jagged(weights=[0.0, 1.0, 2.0, 3.0, 4.0, 5.0])
    assert [row.tolist() for row in made.to_dense()] == [[10, 11, 12], [], [13], [14, 15]]
    weights = made.to_dense_weights()
    assert weights is not None
    assert [row.tolist() for row in weights] == [[0, 1, 2], [], [3], [4, 5]]
    assert jagged().to_dense_weights() is None


def test_padded_rows() -> None:
    assert jagged().to_padded_dense().tolist() == [[10, 11, 12], [0, 0, 0], [13, 0, 0], [14, 15, 0]]
    assert jagged().to_padded_dense(2, -1).tolist() == [[10, 11], [-1, -1], [13, -1], [14, 15]]
    assert jagged().to_padded_dense().dtype == torch.int64
    vectors = JaggedTensor(torch.arange(12.0).view(6, 2), lengths=LENGTHS).to_padded_dense(1)
    assert vectors.tolist() == [[[0, 1]], [[0, 0]], [[6, 7]], [[8, 9]]]
    weighted = jagged(weights=[1.0] * 6)
    padded = weighted.to_padded_dense_weights(2, 0.5)
    assert padded is not None
    assert padded.tolist() == [[1, 1], [0.5, 0.5], [1, 0.5], [1, 1]]
    assert jagged().to_padded_dense_weights() is None
    assert JaggedTensor([], lengths=[]).to_padded_dense().shape == (0, 0)


def test_from_dense_and_back() -> None:
    rows = [torch.tensor([1.0, 2.0]), torch.tensor([]), torch.tensor([3.0])]
    made = JaggedTensor.from_dense(rows, weights=[row * 2 for row in rows]).validate()
    assert made.lengths().tolist() == [2, 0, 1]
    assert made.weights().tolist() == [2, 4, 6]
    assert all(torch.equal(a, b) for a, b in zip(made.to_dense(), rows, strict=True))
    assert JaggedTensor.from_dense([]).lengths().numel() == 0


def test_from_dense_lengths_takes_the_first_of_each_row() -> None:
    padded = torch.tensor([[1, 2, 9], [9, 9, 9], [3, 9, 9]])
    made = JaggedTensor.from_dense_lengths(padded, torch.tensor([2, 0, 1]), weights=padded / 2)
    assert made.validate().values().tolist() == [1, 2, 3]
    assert made.weights().tolist() == [0.5, 1.0, 1.5]


def test_empty() -> None:
    made = JaggedTensor.empty(is_weighted=True, values_dtype=torch.int64)
    assert made.values().dtype == torch.int64
    assert made.weights().numel() == made.lengths().numel() == 0
    assert made.lengths().dtype == torch.int32
    assert made.offsets().tolist() == [0]
    assert JaggedTensor.empty().weights_or_none() is None


def test_to_moves_everything() -> None:
    moved = jagged(weights=[1.0] * 6).to("meta")
    assert moved.device().type == moved.weights().device.type == moved.lengths().device.type == "meta"


PRINTED = [
    (jagged(), "JaggedTensor({\n    [[10, 11, 12], [], [13], [14, 15]]\n})\n"),
    (
        JaggedTensor([1, 2], lengths=[1, 1], weights=[0.5, 1.0]),
        'JaggedTensor({\n    "values": [[1], [2]],\n    "weights": [[0.5], [1.0]]\n})\n',
    ),
    (JaggedTensor.empty(), "JaggedTensor({\n    []\n})\n"),
    (
        JaggedTensor.empty(is_weighted=True),
        'JaggedTensor({\n    "values": [],\n    "weights": []\n})\n',
    ),
]


@pytest.mark.parametrize(("made", "text"), PRINTED, ids=["plain", "weighted", "empty", "empty weighted"])
def test_printed_form(made: JaggedTensor, text: str) -> None:
    assert str(made) == text


def test_repr_shows_shapes_and_reads_nothing() -> None:
    assert repr(jagged().to("meta")) == "JaggedTensor(values=int64[6], rows=int64[4])"


WRONG_SHAPES: list[tuple[str, dict[str, Any], str]] = [
    ("neither", {"lengths": None}, "lengths, offsets: got neither"),
    ("lengths of two dimensions", {"lengths": [[1], [2]]}, r"lengths: got shape \[2, 1\].*one dimension"),
    ("float lengths", {"lengths": [1.0, 5.0]}, "lengths: got dtype torch.float32.*int32 or int64"),
    ("no offsets", {"lengths": None, "offsets": []}, "offsets: got no elements.*leading 0"),
    ("offsets without the end", {"offsets": [0, 3, 3, 4]}, "offsets: got 4 for 4 lengths, expected 5"),
    ("weights", {"weights": [1.0]}, r"weights: got \[1\] for values \[6\].*one weight per value"),
    ("a text", {"values": "abc"}, "values: got str, expected a tensor or a list"),
    ("a number", {"values": 3}, "values: got int, expected a tensor or a list"),
    ("ragged lists", {"values": [[1], [2, 3]]}, "values: cannot make a tensor"),
    ("a list of texts", {"lengths": ["1"]}, "lengths: cannot make a tensor"),
]


@pytest.mark.parametrize(
    ("changes", "message"), [case[1:] for case in WRONG_SHAPES], ids=[case[0] for case in WRONG_SHAPES]
)
def test_the_constructor_refuses(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        jagged(**changes)


WRONG_CONTENTS: list[tuple[str, dict[str, Any], str]] = [
    ("negative length", {"lengths": [7, -1]}, "lengths: got -1 at position 1, expected 0 or more"),
    ("short sum", {"lengths": [1, 2]}, "lengths: got a sum of 3 for 6 values"),
    ("long sum", {"lengths": [4, 3]}, "lengths: got a sum of 7 for 6 values"),
    ("late start", {"lengths": None, "offsets": [1, 6]}, "offsets: got 1 as the first, expected 0"),
    ("falling", {"lengths": None, "offsets": [0, 4, 3, 6]}, "offsets: got 4 and then 3 at position 2"),
    ("no end", {"lengths": None, "offsets": [0, 3, 3, 4]}, r"offsets: got 4 as the last.*append 6"),
    (
        "disagreement",
        {"lengths": [3, 3], "offsets": [0, 2, 6]},
        "offsets: got a row of 2 at position 0 where lengths say 3",
    ),
]


@pytest.mark.parametrize(
    ("changes", "message"), [case[1:] for case in WRONG_CONTENTS], ids=[case[0] for case in WRONG_CONTENTS]
)
def test_validate_refuses(changes: dict[str, Any], message: str) -> None:
    made = jagged(**changes)
    with pytest.raises(ValueError, match=message):
        made.validate()


def test_validate_returns_what_it_passes() -> None:
    made = jagged(offsets=OFFSETS)
    assert made.validate() is made


def test_missing_weights_are_an_error_that_says_so() -> None:
    with pytest.raises(ValueError, match="weights: this JaggedTensor has none"):
        jagged().weights()
