"""KeyedJaggedTensor: made in every way, taken apart in every way, and what it refuses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from recsys import JaggedTensor, KeyedJaggedTensor, KeyedTensor
from recsys.jagged.streamable import Multistreamable, Pipelineable
from tests.support.helpers import kjt_of

BAGS = {"a": [[1, 2, 3], []], "b": [[4], [5, 6]], "c": [[], [7]]}
LENGTHS = [3, 0, 1, 2, 0, 1]
OFFSETS = [0, 3, 3, 4, 6, 6, 7]
WEIGHTS = [0.0, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5]


def bags_of(batch: KeyedJaggedTensor) -> dict[str, list[list[int]]]:
    return {key: [row.tolist() for row in jt.to_dense()] for key, jt in batch.validate().to_dict().items()}


def from_jt_dict(weights: list[float] | None) -> KeyedJaggedTensor:
    parts, at = {}, 0
    for key, rows in BAGS.items():
        ids = [i for row in rows for i in row]
        own = None if weights is None else weights[at : at + len(ids)]
        parts[key] = JaggedTensor(ids, weights=own, lengths=[len(row) for row in rows])
        at += len(ids)
    return KeyedJaggedTensor.from_jt_dict(parts)


KEYS, VALUES = list(BAGS), [1, 2, 3, 4, 5, 6, 7]
MAKERS: dict[str, Callable[[list[float] | None], KeyedJaggedTensor]] = {
    "constructor": lambda w: KeyedJaggedTensor(KEYS, VALUES, weights=w, lengths=LENGTHS),
    "offsets": lambda w: KeyedJaggedTensor(KEYS, VALUES, weights=w, offsets=OFFSETS),
    "lengths [F, B]": lambda w: KeyedJaggedTensor(KEYS, VALUES, w, torch.tensor(LENGTHS).view(3, 2)),
    "from_lengths": lambda w: KeyedJaggedTensor.from_lengths(KEYS, VALUES, LENGTHS, w),
    "from_offsets": lambda w: KeyedJaggedTensor.from_offsets(KEYS, VALUES, OFFSETS, w),
    "from_lengths_sync": lambda w: KeyedJaggedTensor.from_lengths_sync(KEYS, VALUES, LENGTHS, w),
    "from_offsets_sync": lambda w: KeyedJaggedTensor.from_offsets_sync(KEYS, VALUES, OFFSETS, w),
    "length_per_key": lambda w: KeyedJaggedTensor(KEYS, VALUES, w, LENGTHS, length_per_key=[3, 3, 1]),
    "offset_per_key": lambda w: KeyedJaggedTensor(KEYS, VALUES, w, LENGTHS, offset_per_key=[0, 3, 6, 7]),
    "from_jt_dict": from_jt_dict,
    "int32": lambda w: KeyedJaggedTensor(
        KEYS, torch.tensor(VALUES, dtype=torch.int32), w, torch.tensor(LENGTHS, dtype=torch.int32)
    ),
}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
@pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["plain", "weighted"])
class TestEveryWayToMakeOne:
    def test_is_the_same(
        self, make: Callable[[list[float] | None], KeyedJaggedTensor], weights: list[float] | None
    ) -> None:
        made = make(weights)
        assert made.keys() == KEYS
        assert made.stride() == 2
        assert made.stride_per_key() == [2, 2, 2]
        assert made.lengths_offset_per_key() == [0, 2, 4, 6]
        assert made.stride_per_key_per_rank() == []
        assert not made.variable_stride_per_key()
        assert made.inverse_indices_or_none() is None
        assert made.lengths().tolist() == LENGTHS
        assert made.offsets().tolist() == OFFSETS
        assert made.length_per_key() == [3, 3, 1]
        assert made.offset_per_key() == [0, 3, 6, 7]
        assert made.index_per_key() == {"a": 0, "b": 1, "c": 2}
        assert bags_of(made) == BAGS
        assert (made.weights_or_none() is None) == (weights is None)
        if weights is not None:
            assert made["b"].weights().tolist() == [0.75, 1.0, 1.25]

    def test_can_be_taken_apart(
        self, make: Callable[[list[float] | None], KeyedJaggedTensor], weights: list[float] | None
    ) -> None:
        made = make(weights)
        left, none, right = made.split([1, 0, 2])
        assert (left.keys(), none.keys(), right.keys()) == (["a"], [], ["b", "c"])
        assert none.stride() == 2
        assert bags_of(right) == {"b": BAGS["b"], "c": BAGS["c"]}
        turned = made.permute([2, 0])
        assert turned.keys() == ["c", "a"]
        assert bags_of(turned) == {"c": BAGS["c"], "a": BAGS["a"]}
        again = KeyedJaggedTensor.concat([right, left])
        assert bags_of(again) == {key: BAGS[key] for key in ("b", "c", "a")}
        if weights is not None:
            assert turned.weights().tolist() == [1.5, 0.0, 0.25, 0.5]
            assert again.weights().tolist() == [0.75, 1.0, 1.25, 1.5, 0.0, 0.25, 0.5]


def test_lengths_per_key_are_known_where_shapes_tell_them() -> None:
    assert MAKERS["constructor"](None).length_per_key_or_none() is None
    assert MAKERS["constructor"](None).offset_per_key_or_none() is None
    assert MAKERS["from_jt_dict"](None).length_per_key_or_none() == [3, 3, 1]
    assert MAKERS["from_lengths_sync"](None).length_per_key_or_none() == [3, 3, 1]
    made = MAKERS["from_jt_dict"](None)
    assert made.permute([2, 0]).length_per_key_or_none() == [1, 3]
    assert KeyedJaggedTensor.concat(made.split([1, 2])).offset_per_key_or_none() == [0, 3, 6, 7]
    assert made.unsync().length_per_key_or_none() is None
    assert made.sync().length_per_key() == [3, 3, 1]


def test_to_takes_everything_along() -> None:
    made = KeyedJaggedTensor(KEYS, VALUES, WEIGHTS, LENGTHS, length_per_key=[3, 3, 1])
    moved = made.to("meta", dtype=torch.float16)
    assert moved.weights().dtype == torch.float16
    assert moved.weights().device.type == moved.lengths().device.type == "meta"
    assert moved.length_per_key() == [3, 3, 1]
    assert moved.stride() == 2


def test_an_empty_batch() -> None:
    made = kjt_of({"a": [], "b": []}).validate()
    assert made.stride() == 0
    assert made.length_per_key() == [0, 0]
    assert bags_of(made) == {"a": [], "b": []}
    assert made.permute([1, 0]).keys() == ["b", "a"]


def test_no_features() -> None:
    made = KeyedJaggedTensor.empty(is_weighted=True)
    assert made.keys() == []
    assert made.stride() == made.weights().numel() == 0
    assert str(made) == "KeyedJaggedTensor()\n"


def test_an_empty_one_like_another() -> None:
    made = KeyedJaggedTensor(KEYS, VALUES, WEIGHTS, LENGTHS).sync()
    empty = KeyedJaggedTensor.empty_like(made)
    assert (empty.keys(), empty.stride(), empty.values().numel()) == ([], 2, 0)
    there = KeyedJaggedTensor.empty_like(made, torch.device("meta"))
    assert (there.keys(), there.length_per_key(), there.weights().device.type) == (KEYS, [3, 3, 1], "meta")


def test_copy_takes_the_contents_over() -> None:
    source = MAKERS["lengths [F, B]"](WEIGHTS).sync()
    made = KeyedJaggedTensor.empty_like(source, torch.device("cpu"))
    values = made.values()
    made.to_dict(), made.offsets()
    assert bags_of(made.copy_(source)) == BAGS
    assert made.values() is values
    assert made.offsets().tolist() == OFFSETS


def test_the_size_counts_every_tensor_and_can_be_freed() -> None:
    made = KeyedJaggedTensor(KEYS, VALUES, WEIGHTS, LENGTHS)
    assert made.size_in_bytes() == 7 * 8 + 7 * 4 + 6 * 8
    assert made.clear_storage() == 7 * 8 + 7 * 4 + 6 * 8
    assert made.values().untyped_storage().nbytes() == 0


def test_batch_sizes_per_key_are_those_of_one_rank() -> None:
    made = KeyedJaggedTensor(KEYS, VALUES, lengths=LENGTHS, stride_per_key=[1, 3, 2])
    assert made.stride_per_key_per_rank() == [[1], [3], [2]]
    assert not KeyedJaggedTensor(
        KEYS, VALUES, lengths=LENGTHS, stride_per_key=[2, 2, 2]
    ).variable_stride_per_key()


def test_a_dict_that_is_given_is_returned() -> None:
    parts = MAKERS["constructor"](None).to_dict()
    assert KeyedJaggedTensor(KEYS, VALUES, lengths=LENGTHS, jt_dict=parts).to_dict() is parts


@pytest.mark.parametrize("kind", [KeyedJaggedTensor, JaggedTensor, KeyedTensor])
def test_the_types_are_what_a_pipeline_takes(kind: type) -> None:
    assert issubclass(kind, Pipelineable)
    assert issubclass(kind, Multistreamable)


PRINTED = [
    (
        kjt_of({"a": [[1, 2], []], "b": [[], [3]]}),
        'KeyedJaggedTensor({\n    "a": [[1, 2], []],\n    "b": [[], [3]]\n})\n',
    ),
    (
        kjt_of({"a": [[1, 2]]}, [0.5, 1.0]),
        'KeyedJaggedTensor({\n    "a": {\n        "values": [[1, 2]],\n        "weights": [[0.5, 1.0]]\n    }\n})\n',
    ),
]


@pytest.mark.parametrize(("made", "text"), PRINTED, ids=["plain", "weighted"])
def test_printed_form(made: KeyedJaggedTensor, text: str) -> None:
    assert str(made) == text


def test_repr_reads_nothing() -> None:
    shown = repr(kjt_of({"a": [[1, 2]]}).to("meta"))
    assert shown == "KeyedJaggedTensor(keys=['a'], values=int64[2], stride=1)"


WRONG_SHAPES: list[tuple[str, dict[str, Any], str]] = [
    ("doubled key", {"keys": ["a", "b", "a"]}, r"keys: got \['a'\] more than once"),
    ("lengths", {"lengths": [1, 1, 5, 0]}, "lengths: got 4 for 3 keys, expected keys × batch"),
    ("stride", {"stride": 3}, "lengths: got 6 for 3 keys, expected keys × batch = 3 × 3 = 9"),
    (
        "offsets of the starts only",
        {"lengths": None, "offsets": [0, 3, 3, 4, 6, 6]},
        r"offsets: got 6 for 3 keys, expected keys × batch \+ 1: the end of the last row belongs",
    ),
    (
        "offsets of the starts and a stride",
        {"lengths": None, "offsets": [0, 3, 3, 4, 6, 6], "stride": 2},
        r"offsets: got 6 for 3 keys, expected keys × batch \+ 1 = 3 × 2 \+ 1 = 7: the end of the last row",
    ),
    ("neither", {"lengths": None}, "lengths, offsets: got neither"),
    ("length_per_key", {"length_per_key": [3, 4]}, "length_per_key: got 2 for 3 keys"),
    ("lengths_offset_per_key", {"lengths_offset_per_key": [0, 2, 3, 6]}, "lengths_offset_per_key: got"),
    ("index_per_key", {"index_per_key": {"a": 1, "b": 0, "c": 2}}, "index_per_key: got"),
    (
        "stride_per_key",
        {"stride_per_key": [2, 2, 2], "stride_per_key_per_rank": [[1], [3], [2]]},
        r"stride_per_key: got \[2, 2, 2\], expected the sums.*\[1, 3, 2\]",
    ),
    ("offset_per_key", {"offset_per_key": [0, 7]}, "length_per_key: got 1 for 3 keys"),
    ("weights", {"weights": [1.0]}, "weights: got.*one weight per value"),
    ("float lengths", {"lengths": [1.0] * 6}, "lengths: got dtype torch.float32"),
    ("three dimensions", {"lengths": torch.zeros(1, 1, 6, dtype=torch.int64)}, "lengths: got shape"),
    ("a text", {"values": "ids"}, "values: got str"),
]


@pytest.mark.parametrize(
    ("changes", "message"), [case[1:] for case in WRONG_SHAPES], ids=[case[0] for case in WRONG_SHAPES]
)
def test_the_constructor_refuses(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        KeyedJaggedTensor(**{"keys": KEYS, "values": VALUES, "lengths": LENGTHS} | changes)


WRONG_CONTENTS: list[tuple[str, dict[str, Any], str]] = [
    ("negative length", {"lengths": [3, -1, 2, 2, 0, 1]}, "lengths: got -1 at position 1"),
    ("sum", {"lengths": [3, 0, 1, 2, 0, 2]}, "lengths: got a sum of 8 for 7 values"),
    ("late start", {"lengths": None, "offsets": [1, 3, 3, 4, 6, 6, 7]}, "offsets: got 1 as the first"),
    ("falling", {"lengths": None, "offsets": [0, 3, 2, 4, 6, 6, 7]}, "offsets: got 3 and then 2"),
    ("last offset", {"lengths": None, "offsets": [0, 3, 3, 4, 6, 6, 6]}, "offsets: got 6 as the last"),
    ("disagreement", {"offsets": [0, 2, 3, 4, 6, 6, 7]}, "offsets: got a row of 2 at position 0 where"),
    ("length_per_key", {"length_per_key": [2, 4, 1]}, r"length_per_key: got \[2, 4, 1\].*\[3, 3, 1\]"),
]


@pytest.mark.parametrize(
    ("changes", "message"), [case[1:] for case in WRONG_CONTENTS], ids=[case[0] for case in WRONG_CONTENTS]
)
def test_validate_refuses(changes: dict[str, Any], message: str) -> None:
    made = KeyedJaggedTensor(**{"keys": KEYS, "values": VALUES, "lengths": LENGTHS} | changes)
    with pytest.raises(ValueError, match=message):
        made.validate()


def test_validate_returns_what_it_passes() -> None:
    made = KeyedJaggedTensor(KEYS, VALUES, WEIGHTS, LENGTHS, OFFSETS, length_per_key=[3, 3, 1])
    assert made.validate() is made


PLAIN, WEIGHTED = kjt_of({"a": [[1]]}), kjt_of({"b": [[1]]}, [1.0])
WRONG_USES: list[tuple[str, Callable[[], object], type[Exception], str]] = [
    ("key", lambda: PLAIN["b"], KeyError, "key 'b' is not in the KeyedJaggedTensor"),
    ("split", lambda: PLAIN.split([2]), ValueError, "segments: got"),
    ("negative split", lambda: PLAIN.split([2, -1]), ValueError, "segments: got"),
    ("permute", lambda: PLAIN.permute([1]), ValueError, r"indices: got \[1\]"),
    ("negative permute", lambda: PLAIN.permute([-1]), ValueError, r"indices: got \[-1\]"),
    (
        "a repeated key once more",
        lambda: KeyedJaggedTensor.concat([PLAIN, PLAIN.permute([0])]),
        ValueError,
        "keys: got",
    ),
    (
        "lengths that miss the values",
        lambda: KeyedJaggedTensor.from_lengths_sync(["a"], [1, 2, 3], [1]).to_dict(),
        ValueError,
        "lengths: got 1 in all for 3 values",
    ),
    ("weights", lambda: PLAIN.weights(), ValueError, "weights: this KeyedJaggedTensor has none"),
    ("concat nothing", lambda: KeyedJaggedTensor.concat([]), ValueError, "kjt_list: got no"),
    (
        "concat of two sizes",
        lambda: KeyedJaggedTensor.concat([PLAIN, kjt_of({"b": [[1], [2]]})]),
        ValueError,
        r"kjt_list: got batch sizes \[1, 2\]",
    ),
    (
        "concat with some weights",
        lambda: KeyedJaggedTensor.concat([PLAIN, WEIGHTED]),
        ValueError,
        "kjt_list: got weights in some",
    ),
    ("concat twice", lambda: KeyedJaggedTensor.concat([PLAIN, PLAIN]), ValueError, "keys: got"),
    ("no jt", lambda: KeyedJaggedTensor.from_jt_dict({}), ValueError, "jt_dict: got no features"),
    (
        "jts with some weights",
        lambda: KeyedJaggedTensor.from_jt_dict(
            {"a": JaggedTensor([1], lengths=[1]), "b": JaggedTensor([1], weights=[1.0], lengths=[1])}
        ),
        ValueError,
        r"jt_dict: got no weights for \['a'\]",
    ),
]


@pytest.mark.parametrize(
    ("use", "error", "message"), [case[1:] for case in WRONG_USES], ids=[case[0] for case in WRONG_USES]
)
def test_wrong_use_is_named(use: Callable[[], object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        use()


def test_a_key_taken_several_times_has_its_rows_each_time() -> None:
    batch = kjt_of({"a": [[1, 2], [3]], "b": [[], [4]]})
    repeated = batch.permute([1, 0, 1])
    assert repeated.keys() == ["b", "a", "b"]
    for copied in (repeated, repeated.to("cpu"), tree_map(torch.clone, repeated).to("cpu")):
        assert copied.values().tolist() == [4, 1, 2, 3, 4]
        assert copied.lengths().tolist() == [0, 1, 2, 1, 0, 1]
        assert [part.keys() for part in copied.split([2, 1])] == [["b", "a"], ["b"]]
        assert copied["b"].values().tolist() == [4]


@pytest.mark.parametrize("rows", [torch.tensor([]), torch.tensor([[], []])], ids=["flat", "by key"])
def test_no_rows_are_integers(rows: Tensor) -> None:
    batch = KeyedJaggedTensor(["a", "b"], torch.tensor([]), lengths=rows)
    assert batch.lengths().dtype == torch.int64
    assert batch.length_per_key() == [0, 0]
    assert batch["a"].offsets().tolist() == [0]


def test_lengths_of_no_keys_are_where_the_values_are() -> None:
    assert KeyedJaggedTensor([], torch.empty(0, device="meta")).lengths().is_meta


@pytest.mark.parametrize("weights", [None, [0.5, 1.0, 2.0]])
def test_features_of_one_batch_size_make_a_variable_batch_if_asked(weights: list[float] | None) -> None:
    values, lengths = torch.tensor([1, 2, 3]), torch.tensor([2, 1])
    given = None if weights is None else torch.tensor(weights)
    parts = {key: JaggedTensor(values, given, lengths) for key in "ab"}
    plain = KeyedJaggedTensor.from_jt_dict(parts)
    found = KeyedJaggedTensor.from_jt_dict(parts, force_variable_stride=True)
    assert not plain.variable_stride_per_key()
    assert found.variable_stride_per_key()
    assert found.stride_per_key_per_rank() == [[2], [2]]
    assert found.stride_per_key() == [2, 2]
    assert found.length_per_key() == plain.length_per_key()
    for key in "ab":
        assert torch.equal(found[key].values(), plain[key].values())
        assert torch.equal(found[key].lengths(), plain[key].lengths())
