"""Variable batch per feature: batches whose keys have sizes of their own, made, taken apart and refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import fx, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from recsys import EmbeddingBagCollection, EmbeddingCollection, JaggedTensor, KeyedJaggedTensor
from tests.support.helpers import bag, kjt_of, needs_gpu, sequence
from tests.support.reads import CountReads

KEYS = ["a", "b", "c"]
BAGS = {"a": [[1, 2, 3], []], "b": [[4]], "c": [[5, 6], [], [7]]}
VALUES = [1, 2, 3, 4, 5, 6, 7]
LENGTHS = [3, 0, 1, 2, 0, 1]
OFFSETS = [0, 3, 3, 4, 6, 6, 7]
WEIGHTS = [0.0, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5]
STRIDES = [[2], [1], [3]]
INVERSE = (KEYS, torch.tensor([[1, 1, 0, 1], [0, 0, 0, 0], [2, 0, 1, 1]]))
INVERSE_OF = {key: rows.tolist() for key, rows in zip(*INVERSE, strict=True)}


def made(**changes: Any) -> KeyedJaggedTensor:
    given = {
        "values": VALUES,
        "lengths": LENGTHS,
        "stride_per_key_per_rank": STRIDES,
        "inverse_indices": INVERSE,
    }
    return KeyedJaggedTensor(**{"keys": KEYS} | given | changes)


def bags_of(batch: KeyedJaggedTensor) -> dict[str, list[list[int]]]:
    return {key: [row.tolist() for row in jt.to_dense()] for key, jt in batch.validate().to_dict().items()}


def inverse_of(batch: KeyedJaggedTensor) -> dict[str, list[int]]:
    keys, rows = batch.inverse_indices()
    return dict(zip(keys, rows.tolist(), strict=True))


MAKERS: dict[str, Callable[[], KeyedJaggedTensor]] = {
    "lengths": made,
    "offsets": lambda: made(lengths=None, offsets=OFFSETS),
    "two ranks": lambda: made(stride_per_key_per_rank=[[1, 1], [0, 1], [3, 0]]),
    "strides as a tensor": lambda: made(stride_per_key_per_rank=torch.tensor(STRIDES, dtype=torch.int32)),
    "strides as tuples": lambda: made(stride_per_key_per_rank=((2,), (1,), (3,))),
    "inverse as a list": lambda: made(inverse_indices=(KEYS, INVERSE[1].tolist())),
    "inverse in another order": lambda: made(
        inverse_indices=(["c", "x", "b", "a"], INVERSE[1][[2, 0, 1, 0]])
    ),
    "stride": lambda: made(stride=4),
    "length_per_key": lambda: made(length_per_key=[3, 1, 3]),
    "offset_per_key": lambda: made(offset_per_key=[0, 3, 4, 7]),
    "from_lengths": lambda: KeyedJaggedTensor.from_lengths(
        KEYS, VALUES, LENGTHS, stride_per_key_per_rank=STRIDES, inverse_indices=INVERSE
    ),
    "from_offsets": lambda: KeyedJaggedTensor.from_offsets(
        KEYS, VALUES, OFFSETS, stride_per_key_per_rank=STRIDES, inverse_indices=INVERSE
    ),
    "from_lengths_sync": lambda: KeyedJaggedTensor.from_lengths_sync(
        KEYS, VALUES, LENGTHS, stride_per_key_per_rank=STRIDES, inverse_indices=INVERSE
    ),
    "from_offsets_sync": lambda: KeyedJaggedTensor.from_offsets_sync(
        KEYS, VALUES, OFFSETS, stride_per_key_per_rank=STRIDES, inverse_indices=INVERSE
    ),
    "moved": lambda: made().to("cpu", non_blocking=True),
}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
class TestEveryWayToMakeOne:
    def test_is_the_same(self, make: Callable[[], KeyedJaggedTensor]) -> None:
        batch = make()
        assert batch.variable_stride_per_key()
        assert batch.stride() == 4
        assert batch.stride_per_key() == [2, 1, 3]
        assert [sum(ranks) for ranks in batch.stride_per_key_per_rank()] == [2, 1, 3]
        assert batch.lengths_offset_per_key() == [0, 2, 3, 6]
        assert batch.lengths().tolist() == LENGTHS
        assert batch.offsets().tolist() == OFFSETS
        assert batch.length_per_key() == [3, 1, 3]
        assert batch.offset_per_key() == [0, 3, 4, 7]
        assert bags_of(batch) == BAGS
        assert {key: inverse_of(batch)[key] for key in KEYS} == INVERSE_OF
        assert bags_of(KeyedJaggedTensor.concat([batch])) == BAGS

    def test_can_be_taken_apart(self, make: Callable[[], KeyedJaggedTensor]) -> None:
        batch = make()
        left, none, right = batch.split([1, 0, 2])
        assert (left.keys(), none.keys(), right.keys()) == (["a"], [], ["b", "c"])
        assert [part.stride() for part in (left, none, right)] == [4, 4, 4]
        assert [part.stride_per_key() for part in (left, none, right)] == [[2], [], [1, 3]]
        assert bags_of(right) == {"b": BAGS["b"], "c": BAGS["c"]}
        assert inverse_of(right) == {"b": INVERSE_OF["b"], "c": INVERSE_OF["c"]}
        turned = batch.permute([2, 0])
        assert bags_of(turned) == {"c": BAGS["c"], "a": BAGS["a"]}
        assert turned.stride_per_key() == [3, 2]
        assert inverse_of(turned) == {"c": INVERSE_OF["c"], "a": INVERSE_OF["a"]}
        again = KeyedJaggedTensor.concat([right, none, left])
        assert bags_of(again) == {key: BAGS[key] for key in ("b", "c", "a")}
        assert again.stride_per_key() == [1, 3, 2]
        assert inverse_of(again) == {key: INVERSE_OF[key] for key in ("b", "c", "a")}


def test_weights_go_along() -> None:
    batch = made(weights=WEIGHTS)
    assert batch["c"].weights().tolist() == WEIGHTS[4:]
    assert batch.permute([2, 0]).weights().tolist() == WEIGHTS[4:] + WEIGHTS[:3]
    assert KeyedJaggedTensor.concat(batch.split([2, 1])[::-1]).weights().tolist() == WEIGHTS[4:] + WEIGHTS[:4]


def test_ranks_stay_apart() -> None:
    batch = made(stride_per_key_per_rank=[[1, 1], [0, 1], [3, 0]], inverse_indices=None)
    assert batch.permute([2, 1]).stride_per_key_per_rank() == [[3, 0], [0, 1]]
    assert batch.split([1, 2])[1].stride_per_key_per_rank() == [[0, 1], [3, 0]]
    assert KeyedJaggedTensor.concat(batch.split([1, 2])).stride_per_key_per_rank() == [[1, 1], [0, 1], [3, 0]]


def test_without_inverse_indices_the_largest_batch_counts_unless_told() -> None:
    assert made(inverse_indices=None).stride() == 3
    assert made(inverse_indices=None, stride=9).stride() == 9
    assert made(inverse_indices=None).inverse_indices_or_none() is None
    assert [part.stride() for part in made(inverse_indices=None).split([2, 1])] == [3, 3]


def test_jagged_tensors_of_different_sizes_make_one() -> None:
    parts = {"a": JaggedTensor([1, 2], lengths=[2, 0]), "b": JaggedTensor([3], lengths=[1])}
    with CountReads() as reads:
        batch = KeyedJaggedTensor.from_jt_dict(parts)
    assert reads.found == []
    assert batch.stride_per_key_per_rank() == [[2], [1]]
    assert batch.length_per_key_or_none() == [2, 1]
    assert bags_of(batch) == {"a": [[1, 2], []], "b": [[3]]}


def test_an_empty_batch_and_keys_of_none() -> None:
    batch = KeyedJaggedTensor(
        ["a", "b"],
        [5],
        lengths=[1],
        stride_per_key_per_rank=[[0], [1]],
        inverse_indices=(["a", "b"], torch.empty(2, 0, dtype=torch.int64)),
    )
    assert batch.stride() == 0
    assert bags_of(batch) == {"a": [], "b": [[5]]}
    assert str(batch) == 'KeyedJaggedTensor({\n    "a": [],\n    "b": [[5]]\n})\n'
    none = KeyedJaggedTensor([], [], lengths=[], stride_per_key_per_rank=[])
    assert (none.stride(), none.stride_per_key(), none.variable_stride_per_key()) == (0, [], True)


def test_to_takes_the_inverse_indices_along() -> None:
    moved = made(weights=WEIGHTS, length_per_key=[3, 1, 3]).to("meta", dtype=torch.float16)
    assert moved.inverse_indices()[1].device.type == "meta"
    assert moved.weights().dtype == torch.float16
    assert moved.stride_per_key() == [2, 1, 3]
    assert moved.length_per_key() == [3, 1, 3]


def test_repr_tells_the_batch_sizes() -> None:
    assert (
        repr(made())
        == "KeyedJaggedTensor(keys=['a', 'b', 'c'], values=int64[7], stride=4, stride_per_key=[2, 1, 3])"
    )


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_nothing_is_read_where_the_lengths_per_key_are_known(device: str) -> None:
    batch = made(weights=WEIGHTS, length_per_key=[3, 1, 3]).to(device)
    with CountReads() as reads:
        batch.lengths(), batch.offsets(), batch.stride(), batch.stride_per_key(), batch.offset_per_key()
        batch.lengths_offset_per_key(), batch.inverse_indices(), repr(batch)
        left, right = batch.split([1, 2])
        KeyedJaggedTensor.concat([right, left]).permute([2, 0, 1]).to_dict()["b"].offsets()
    assert reads.found == []


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_float_collections_read_nothing(device: str) -> None:
    batch = made(length_per_key=[3, 1, 3]).to(device)
    pooled = EmbeddingBagCollection([bag("t", 8, 4, KEYS), bag("u", 8, 2, ["c"], "MEAN")], device=device)
    rows = EmbeddingCollection([sequence("t", 8, 4, KEYS)], device=device)
    with CountReads() as reads:
        assert pooled(batch).values().shape == (4, 14)
        assert [jt.lengths().numel() for jt in rows(batch).values()] == [2, 1, 3]
    assert reads.found == []


def test_lengths_per_key_are_not_fetched_from_a_device_in_secret() -> None:
    with FakeTensorMode():  # tensors of a device that this machine may lack
        ids, lengths = (torch.empty(size, dtype=torch.int64, device="cuda") for size in (7, 6))
        batch = KeyedJaggedTensor(KEYS, ids, lengths=lengths, stride_per_key_per_rank=STRIDES)
        with pytest.raises(ValueError, match=r"length_per_key.*not known for tensors on cuda.*sync"):
            batch.to_dict()


class TestOnADevice:
    pytestmark = needs_gpu

    def test_everything_goes_there_and_back(self) -> None:
        pinned = made(weights=WEIGHTS).sync().pin_memory()
        assert pinned.inverse_indices()[1].is_pinned()
        there = pinned.to("cuda", non_blocking=True)
        there.record_stream(torch.cuda.current_stream())
        assert there.inverse_indices()[1].device.type == "cuda"
        turned = there.permute([2, 0]).to("cpu")
        assert bags_of(turned) == {"c": BAGS["c"], "a": BAGS["a"]}
        assert inverse_of(turned) == {"c": INVERSE_OF["c"], "a": INVERSE_OF["a"]}
        assert there.unsync().sync().length_per_key() == [3, 1, 3]
        assert there.validate() is there


WRONG_SHAPES: list[tuple[str, dict[str, Any], str]] = [
    (
        "sum of strides",
        {"stride_per_key_per_rank": [[2], [1], [2]]},
        "lengths: got 6, expected the sum of stride_per_key_per_rank = 5",
    ),
    (
        "sum of strides beside offsets",
        {"lengths": None, "offsets": OFFSETS, "stride_per_key_per_rank": [[2], [1], [2]]},
        r"offsets: got 7, expected the sum of stride_per_key_per_rank \+ 1 = 6",
    ),
    ("keys", {"stride_per_key_per_rank": [[2], [4]]}, "stride_per_key_per_rank: got 2 for 3 keys"),
    (
        "ranks",
        {"stride_per_key_per_rank": [[2], [1, 0], [3]]},
        r"stride_per_key_per_rank: got lists of \[1, 2\] ranks",
    ),
    (
        "negative",
        {"stride_per_key_per_rank": [[2], [-1], [5]]},
        r"stride_per_key_per_rank: got \{'b': \[-1\]\}, expected 0 or more",
    ),
    (
        "flat",
        {"stride_per_key_per_rank": [2, 1, 3]},
        r"stride_per_key_per_rank: got \[2, 1, 3\], expected a list",
    ),
    ("fractions", {"stride_per_key_per_rank": [[2.0], [1.0], [3.0]]}, "with a whole number for each rank"),
    (
        "flat tensor",
        {"stride_per_key_per_rank": torch.tensor([2, 1, 3])},
        r"got torch.int64 \[3\], expected integers \[keys, ranks\]",
    ),
    (
        "tensor of fractions",
        {"stride_per_key_per_rank": torch.tensor([[2.0], [1.0], [3.0]])},
        r"got torch.float32 \[3, 1\], expected integers",
    ),
    (
        "tensor elsewhere",
        {"stride_per_key_per_rank": torch.tensor(STRIDES).to("meta")},
        "got a tensor on meta, expected numbers in host memory",
    ),
    ("stride", {"stride": 3}, "stride: got 3 with inverse_indices of 4 rows"),
    (
        "inverse indices alone",
        {"stride_per_key_per_rank": None},
        "inverse_indices: got them without stride_per_key_per_rank",
    ),
    ("no pair", {"inverse_indices": INVERSE[1]}, "inverse_indices: expected a pair"),
    (
        "inverse shape",
        {"inverse_indices": (KEYS, INVERSE[1].flatten())},
        r"inverse_indices: got shape \[12\] for 3 keys, expected \[keys, batch\]",
    ),
    (
        "inverse rows",
        {"inverse_indices": (KEYS, INVERSE[1][:2])},
        r"inverse_indices: got shape \[2, 4\] for 3 keys",
    ),
    (
        "inverse key",
        {"inverse_indices": (["a", "x", "c"], INVERSE[1])},
        r"inverse_indices: got keys \['a', 'x', 'c'\], expected \['b'\] too",
    ),
    (
        "inverse keys doubled",
        {"inverse_indices": (["a", "a", "c"], INVERSE[1])},
        r"inverse_indices: got \['a'\] more than once",
    ),
    (
        "inverse dtype",
        {"inverse_indices": (KEYS, INVERSE[1].to(torch.int32))},
        "inverse_indices: got dtype torch.int32, expected int64",
    ),
    ("length_per_key", {"length_per_key": [3, 4]}, "length_per_key: got 2 for 3 keys"),
]


@pytest.mark.parametrize(
    ("changes", "message"), [case[1:] for case in WRONG_SHAPES], ids=[case[0] for case in WRONG_SHAPES]
)
def test_the_constructor_refuses(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        made(**changes)


WRONG_CONTENTS: list[tuple[str, dict[str, Any], str]] = [
    ("lengths", {"lengths": [3, 0, 1, 2, 0, 2]}, "lengths: got a sum of 8 for 7 values"),
    ("length_per_key", {"length_per_key": [3, 2, 2]}, r"length_per_key: got \[3, 2, 2\].*\[3, 1, 3\]"),
    (
        "a row of another key",
        {"inverse_indices": (KEYS, [[1, 1, 0, 1], [0, 0, 1, 0], [2, 0, 1, 1]])},
        r"inverse_indices\['b'\]: got 1 at position 2, expected a row of the key's batch, 0 <= row < 1",
    ),
    (
        "negative",
        {"inverse_indices": (KEYS[::-1], [[2, 0, 1, -1], [0, 0, 0, 0], [1, 1, 0, 1]])},
        r"inverse_indices\['c'\]: got -1 at position 3",
    ),
]


@pytest.mark.parametrize(
    ("changes", "message"), [case[1:] for case in WRONG_CONTENTS], ids=[case[0] for case in WRONG_CONTENTS]
)
def test_validate_refuses(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        made(**changes).validate()


def test_a_tracer_is_refused() -> None:
    class Model(nn.Module):
        def forward(self, values: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
            return made(values=values, lengths=lengths)["a"].values()

    with pytest.raises(ValueError, match="stride_per_key_per_rank: got a batch under a tracer"):
        fx.symbolic_trace(Model())


def other(**changes: Any) -> KeyedJaggedTensor:
    given = {"values": [1], "lengths": [1, 0], "stride_per_key_per_rank": [[2]]}
    return KeyedJaggedTensor(["d"], **given | changes)


WRONG_USES: list[tuple[str, Callable[[], object], str]] = [
    ("no inverse", lambda: made(inverse_indices=None).inverse_indices(), "inverse_indices: this .* has none"),
    (
        "no variable batch",
        lambda: kjt_of({"a": [[1]]}).inverse_indices(),
        "inverse_indices: this .* has none",
    ),
    (
        "concat with one batch",
        lambda: KeyedJaggedTensor.concat([made(), kjt_of({"d": [[1]] * 4})]),
        "kjt_list: got batch sizes per key in some",
    ),
    (
        "concat with some inverse indices",
        lambda: KeyedJaggedTensor.concat([made(), other()]),
        "kjt_list: got inverse indices in some",
    ),
    (
        "concat of two full batches",
        lambda: KeyedJaggedTensor.concat([made(), other(inverse_indices=(["d"], [[0, 0, 0]]))]),
        r"kjt_list: got batch sizes \[4, 3\]",
    ),
    (
        "concat of different ranks",
        lambda: KeyedJaggedTensor.concat(
            [made(inverse_indices=None), other(stride_per_key_per_rank=[[1, 1]])]
        ),
        r"stride_per_key_per_rank: got lists of \[1, 2\] ranks",
    ),
]


@pytest.mark.parametrize(
    ("use", "message"), [case[1:] for case in WRONG_USES], ids=[case[0] for case in WRONG_USES]
)
def test_wrong_use_is_named(use: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        use()
