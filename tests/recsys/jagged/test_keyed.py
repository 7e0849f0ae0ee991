"""KeyedTensor: columns by key."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from recsys import KeyedTensor

VALUES = torch.arange(10.0).view(2, 5)


def keyed() -> KeyedTensor:
    return KeyedTensor(["a", "b"], [2, 3], VALUES)


def test_columns_by_key_are_views() -> None:
    made = keyed()
    assert made.keys() == ["a", "b"]
    assert made.length_per_key() == [2, 3]
    assert made.offset_per_key() == [0, 2, 5]
    assert made["b"].tolist() == [[2, 3, 4], [7, 8, 9]]
    assert made.to_dict()["a"].tolist() == [[0, 1], [5, 6]]
    assert made["b"].untyped_storage().data_ptr() == VALUES.untyped_storage().data_ptr()


def test_keys_along_another_dimension() -> None:
    made = KeyedTensor(["a", "b"], [1, 2], torch.arange(6).view(3, 2), key_dim=0)
    assert made["b"].tolist() == [[2, 3], [4, 5]]
    assert made.key_dim() == 0


def test_from_tensor_list() -> None:
    made = KeyedTensor.from_tensor_list(["a", "b"], [VALUES[:, :2], VALUES[:, 2:]])
    assert torch.equal(made.values(), VALUES)
    assert made.length_per_key() == [2, 3]


def test_regroup_takes_columns_from_whichever_tensor() -> None:
    other = KeyedTensor(["c", "d"], [1, 1], torch.tensor([[10.0, 11.0], [12.0, 13.0]]))
    first, second = KeyedTensor.regroup([keyed(), other], [["c", "a"], ["d", "c"]])
    assert first.tolist() == [[10, 0, 1], [12, 5, 6]]
    assert second.tolist() == [[11, 10], [13, 12]]
    assert KeyedTensor.regroup([keyed(), other], [[]])[0].shape == (2, 0)
    named = KeyedTensor.regroup_as_dict([keyed(), other], [["c", "a"], ["d"]], ["x", "y"])
    assert torch.equal(named["x"], first)
    assert list(named) == ["x", "y"]


def test_to() -> None:
    assert keyed().to("meta").device().type == "meta"


def test_printed_form() -> None:
    text = (
        'KeyedTensor({\n    "a": [[0.0, 1.0], [5.0, 6.0]],\n    "b": [[2.0, 3.0, 4.0], [7.0, 8.0, 9.0]]\n})\n'
    )
    assert str(keyed()) == text
    assert str(KeyedTensor([], [], torch.empty(2, 0))) == "KeyedTensor()\n"
    assert repr(keyed().to("meta")) == "KeyedTensor(keys=['a', 'b'], length_per_key=[2, 3])"


WRONG: list[tuple[str, Callable[[], object], type[Exception], str]] = [
    ("widths", lambda: KeyedTensor(["a"], [2, 3], VALUES), ValueError, "length_per_key: got 2 for 1 keys"),
    ("key", lambda: KeyedTensor(["a", "a"], [2, 3], VALUES), ValueError, r"keys: got \['a'\] more than"),
    ("sum", lambda: KeyedTensor(["a", "b"], [2, 2], VALUES), ValueError, "values: got 5.*sum.*4"),
    ("missing key", lambda: keyed()["c"], KeyError, "key 'c' is not in the KeyedTensor"),
    ("group of no key", lambda: KeyedTensor.regroup([keyed()], [["z"]]), KeyError, "z"),
    (
        "key of two tensors",
        lambda: KeyedTensor.regroup([keyed(), keyed()], [["a"]]),
        ValueError,
        "key 'a' is in more than one",
    ),
    (
        "names of groups",
        lambda: KeyedTensor.regroup_as_dict([keyed()], [["a"]], []),
        ValueError,
        "keys: got 0 for 1 groups",
    ),
]


@pytest.mark.parametrize(
    ("use", "error", "message"), [case[1:] for case in WRONG], ids=[case[0] for case in WRONG]
)
def test_wrong_use_is_named(use: Callable[[], object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        use()
