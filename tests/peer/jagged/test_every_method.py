"""Every public method of the data types beside TorchRec's, on batches of every kind, on the host and on meta."""

from __future__ import annotations

import inspect
import itertools
import operator
from collections import defaultdict
from collections.abc import Callable, Iterator
from fnmatch import fnmatch
from typing import Any

import pytest
import torch
from torch import Tensor

import recsys
from tests.peer.torchrec_peer import torchrec

pytestmark = pytest.mark.peer

Make = Callable[[Any, str], Any]
Call = Callable[[Any], Any]


def ints(*numbers: int, on: str = "cpu", dtype: torch.dtype = torch.int64) -> Tensor:
    return torch.tensor(numbers, dtype=dtype, device=on)


def floats(n: int, on: str, width: int | None = None) -> Tensor:
    values = torch.arange(float(n if width is None else n * width)) / 4
    return (values if width is None else values.view(n, width)).to(on)


LENGTHS = (3, 0, 1, 2, 0, 1)
OFFSETS = (0, 3, 3, 4, 6, 6, 7)
KEYS = ["a", "b", "c"]


def ids(on: str) -> Tensor:
    return torch.arange(10, 17, device=on)


def inverse(on: str) -> Any:
    return KEYS, torch.tensor([[0, 1, 2, 0], [0, 0, 0, 0], [1, 1, 0, 0]], device=on)


JAGGED: dict[str, Make] = {
    "lengths": lambda m, on: m.JaggedTensor(ids(on), lengths=ints(*LENGTHS, on=on)),
    "offsets": lambda m, on: m.JaggedTensor(ids(on), offsets=ints(*OFFSETS, on=on)),
    "int32": lambda m, on: m.JaggedTensor(ids(on).int(), lengths=ints(*LENGTHS, on=on, dtype=torch.int32)),
    "weights": lambda m, on: m.JaggedTensor(ids(on), floats(7, on), ints(*LENGTHS, on=on)),
    "vectors": lambda m, on: m.JaggedTensor(floats(7, on, 2), lengths=ints(*LENGTHS, on=on)),
    "all": lambda m, on: m.JaggedTensor(
        floats(7, on), floats(7, on), ints(*LENGTHS, on=on), ints(*OFFSETS, on=on)
    ),
    "no IDs": lambda m, on: m.JaggedTensor(ints(on=on), lengths=ints(0, 0, on=on)),
    "no rows": lambda m, on: m.JaggedTensor(ints(on=on), lengths=ints(on=on)),
    "empty": lambda m, on: m.JaggedTensor.empty(device=torch.device(on)),
    "empty, weights": lambda m, on: m.JaggedTensor.empty(True, torch.device(on), torch.int32, torch.float64),
    "from dense": lambda m, on: m.JaggedTensor.from_dense([floats(2, on), floats(0, on), floats(3, on)]),
    "from dense, weights": lambda m, on: m.JaggedTensor.from_dense([floats(2, on)], [floats(2, on)]),
}
KEYED_JAGGED: dict[str, Make] = {
    "lengths": lambda m, on: m.KeyedJaggedTensor(KEYS, ids(on), lengths=ints(*LENGTHS, on=on)),
    "offsets": lambda m, on: m.KeyedJaggedTensor(KEYS, ids(on), offsets=ints(*OFFSETS, on=on)),
    "from lengths": lambda m, on: m.KeyedJaggedTensor.from_lengths_sync(
        KEYS, ids(on), ints(*LENGTHS, on=on, dtype=torch.int32), floats(7, on)
    ),
    "from offsets": lambda m, on: m.KeyedJaggedTensor.from_offsets_sync(KEYS, ids(on), ints(*OFFSETS, on=on)),
    "weights": lambda m, on: m.KeyedJaggedTensor(KEYS, ids(on), floats(7, on), ints(*LENGTHS, on=on)),
    "vectors": lambda m, on: m.KeyedJaggedTensor(KEYS, floats(7, on, 2), lengths=ints(*LENGTHS, on=on)),
    "two-dimensional lengths": lambda m, on: m.KeyedJaggedTensor(
        KEYS, ids(on), lengths=ints(*LENGTHS, on=on).view(3, 2)
    ),
    "one key": lambda m, on: m.KeyedJaggedTensor(["a"], ids(on), lengths=ints(*LENGTHS, on=on)),
    "no IDs": lambda m, on: m.KeyedJaggedTensor(["a", "b"], ints(on=on), lengths=ints(0, 0, on=on)),
    "no rows": lambda m, on: m.KeyedJaggedTensor(["a", "b"], ints(on=on), lengths=ints(on=on)),
    "no rows, of floats": lambda m, on: m.KeyedJaggedTensor(
        ["a", "b"], torch.tensor([], device=on), lengths=torch.tensor([], device=on)
    ),
    "no rows, two-dimensional": lambda m, on: m.KeyedJaggedTensor.from_lengths_sync(
        ["a", "b"], torch.tensor([], device=on), torch.tensor([[], []], device=on)
    ),
    "no keys": lambda m, on: m.KeyedJaggedTensor([], torch.tensor([], device=on)),
    "empty": lambda m, on: m.KeyedJaggedTensor.empty(device=torch.device(on)),
    "empty, weights": lambda m, on: m.KeyedJaggedTensor.empty(
        True, torch.device(on), torch.int32, torch.float64
    ),
    "variable": lambda m, on: m.KeyedJaggedTensor(
        KEYS, ids(on), floats(7, on), ints(*LENGTHS, on=on), stride_per_key_per_rank=[[3], [1], [2]]
    ),
    "variable, ranks": lambda m, on: m.KeyedJaggedTensor(
        KEYS, ids(on), offsets=ints(*OFFSETS, on=on), stride_per_key_per_rank=[[1, 2], [0, 1], [2, 0]]
    ),
    "variable, inverse": lambda m, on: m.KeyedJaggedTensor.from_lengths_sync(
        KEYS,
        ids(on),
        ints(*LENGTHS, on=on),
        stride_per_key_per_rank=[[3], [1], [2]],
        inverse_indices=inverse(on),
    ),
    "from jagged": lambda m, on: (
        m.KeyedJaggedTensor.from_jt_dict({"x": JAGGED["weights"](m, on), "y": JAGGED["all"](m, on)})
        if on == "cpu"
        else KEYED_JAGGED["weights"](m, on)
    ),
    "repeated": lambda m, on: KEYED_JAGGED["weights"](m, on).permute([1, 0, 1, 2, 2]),
}
KEYED: dict[str, Make] = {
    "two": lambda m, on: m.KeyedTensor(["a", "b"], [2, 3], floats(2, on, 5)),
    "of rows": lambda m, on: m.KeyedTensor(["a", "b"], [1, 2], floats(3, on, 2), key_dim=0),
    "no rows": lambda m, on: m.KeyedTensor(["a", "b"], [1, 2], floats(0, on, 3)),
    "none": lambda m, on: m.KeyedTensor([], [], floats(2, on, 0)),
    "nothing": lambda m, on: m.KeyedTensor([], [], torch.tensor([], device=on)),
    "from tensors": lambda m, on: m.KeyedTensor.from_tensor_list(
        ["a", "b"], [floats(2, on, 1), floats(2, on, 3)]
    ),
    "from rows": lambda m, on: m.KeyedTensor.from_tensor_list(
        ["a", "b"], [floats(1, on, 2), floats(3, on, 2)], 0, 0
    ),
}


def first(batch: Any) -> str:
    return batch.keys()[0] if batch.keys() else "a"


COMMON: dict[str, Call] = {
    name: operator.methodcaller(name)
    for name in (
        "device",
        "lengths",
        "lengths_or_none",
        "offsets",
        "offsets_or_none",
        "size_in_bytes",
        "values",
        "weights",
        "weights_or_none",
        "__str__",
    )
} | {
    "to": lambda b: b.to(torch.device("cpu" if b.device().type == "cpu" else "meta")),
    "to meta": lambda b: b.to(torch.device("meta"), non_blocking=True),
}
OF_JAGGED: dict[str, Call] = COMMON | {
    "to_dense": lambda b: b.to_dense(),
    "to_dense_weights": lambda b: b.to_dense_weights(),
    "to_padded_dense": lambda b: b.to_padded_dense(),
    "to_padded_dense cut": lambda b: b.to_padded_dense(2, 9.0),
    "to_padded_dense_weights": lambda b: b.to_padded_dense_weights(4, -1.0),
    "copy_": lambda b: b.copy_(b.to(b.device())),
    "empty": lambda b: type(b).empty(lengths_dtype=torch.int64),
    "empty_like": lambda b: type(b).empty_like(b),
    "empty_like on meta": lambda b: type(b).empty_like(b, torch.device("meta")),
    "from_dense": lambda b: type(b).from_dense(b.to_dense(), b.to_dense_weights()),
    "from_dense_lengths": lambda b: type(b).from_dense_lengths(
        b.to_padded_dense(3), b.lengths(), b.to_padded_dense_weights(3)
    ),
}
OF_KEYED_JAGGED: dict[str, Call] = (
    COMMON
    | {
        name: operator.methodcaller(name)
        for name in (
            "keys",
            "stride",
            "stride_per_key",
            "stride_per_key_per_rank",
            "variable_stride_per_key",
            "inverse_indices",
            "inverse_indices_or_none",
            "length_per_key",
            "length_per_key_or_none",
            "offset_per_key",
            "offset_per_key_or_none",
            "lengths_offset_per_key",
            "index_per_key",
            "flatten_lengths",
            "to_dict",
            "sync",
            "unsync",
            "clear_storage",
        )
    }
    | {
        "__getitem__": lambda b: b[first(b)],
        "sync, length_per_key_or_none": lambda b: b.sync().length_per_key_or_none(),
        "split": lambda b: b.split([1] * len(b.keys())),
        "split none": lambda b: b.split([0, len(b.keys()), 0]),
        "split rest": lambda b: b.split([len(b.keys()) // 2, len(b.keys()) - len(b.keys()) // 2]),
        "permute": lambda b: b.permute(list(range(len(b.keys())))[::-1]),
        "permute to some": lambda b: b.permute(list(range(len(b.keys())))[1:]),
        "permute to one twice": lambda b: b.permute([0, 0]),
        "permute by tensor": lambda b: b.permute([0], ints(0, on=b.device().type)),
        "concat": lambda b: type(b).concat([b]),
        "concat of parts": lambda b: type(b).concat(b.split([1] * len(b.keys()))[::-1]),
        "copy_": lambda b: b.copy_(b.to(b.device())),
        "to another type": lambda b: b.to(b.device(), dtype=torch.float64),
        "empty": lambda b: type(b).empty(lengths_dtype=torch.int64),
        "empty_like": lambda b: type(b).empty_like(b),
        "empty_like on meta": lambda b: type(b).empty_like(b, torch.device("meta")),
        "from_jt_dict": lambda b: type(b).from_jt_dict(b.to_dict()),
        "from_lengths_sync": lambda b: type(b).from_lengths_sync(
            b.keys(), b.values(), b.lengths(), b.weights_or_none(), b.stride()
        ),
        "from_offsets_sync": lambda b: type(b).from_offsets_sync(
            b.keys(), b.values(), b.offsets(), b.weights_or_none(), b.stride()
        ),
    }
)
OF_KEYED: dict[str, Call] = {
    name: operator.methodcaller(name)
    for name in (
        "keys",
        "values",
        "key_dim",
        "device",
        "offset_per_key",
        "length_per_key",
        "to_dict",
        "__str__",
        "size_in_bytes",
    )
} | {
    "__getitem__": lambda b: b[first(b)],
    "to": lambda b: b.to(b.device()),
    "to meta": lambda b: b.to(torch.device("meta"), non_blocking=True),
    "from_tensor_list": lambda b: type(b).from_tensor_list(
        b.keys(), list(b.to_dict().values()), b.key_dim(), b.key_dim()
    ),
    "regroup": lambda b: type(b).regroup([b], [b.keys()[::-1], b.keys()[:1]]),
    "regroup_as_dict": lambda b: type(b).regroup_as_dict([b], [b.keys()[::-1]], ["all"]),
}
KINDS: dict[str, tuple[dict[str, Make], dict[str, Call]]] = {
    "JaggedTensor": (JAGGED, OF_JAGGED),
    "KeyedJaggedTensor": (KEYED_JAGGED, OF_KEYED_JAGGED),
    "KeyedTensor": (KEYED, OF_KEYED),
}


# Not called: made for TorchRec's own exchange, or for CUDA alone.
NOT_CALLED = {"dist_init", "dist_labels", "dist_splits", "dist_tensors", "pin_memory", "record_stream"}
# What is different on purpose, by states and calls, and why. An answer where TorchRec raises is no difference.
ON_PURPOSE: list[tuple[str, str, str]] = [
    ("*two-dimensional*", "*", "lengths are flattened at once"),
    ("*of floats*", "*", "lengths and offsets are integers, even of no elements"),
    ("JaggedTensor empty*", "offsets*", "offsets always have the leading zero"),
    ("*one key*", "split rest", "a part without keys keeps the type of the lengths"),
    ("*", "split none", "a part without keys keeps the type of the lengths"),
    ("*", "*_or_none", "sync computes more, or less, beside what was asked"),
    ("*", "size_in_bytes", "inverse indices count, batch sizes on the host do not"),
    ("*", "clear_storage", "inverse indices are freed too"),
    ("*vectors*", "*", "TorchRec counts and permutes numbers instead of rows"),
    ("*, inverse*", "*", "parts keep their inverse indices"),
    ("*variable*", "from_*_sync", "lengths that are no multiple of the keys are refused"),
    ("*variable*", "empty_like", "without keys there are no batch sizes per key"),
    ("*repeated*", "__str__", "each key is printed once"),
    ("*repeated*", "concat of parts", "batches put together have each key once"),
    ("*repeated*meta", "*", "how values are shared out on meta where lengths are not known"),
    ("KeyedTensor no rows*meta", "__str__", "printing reads tensors"),
]


def described(value: Any) -> Any:
    """Return what can be compared of an answer: plain data, with tensors as type, shape and contents."""
    if isinstance(value, Tensor):
        is_there = not value.is_meta and (value.numel() == 0 or value.untyped_storage().size() > 0)
        return str(value.dtype), list(value.shape), value.device.type, value.tolist() if is_there else None
    if isinstance(value, dict):
        return {key: described(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [described(each) for each in value]
    kind = type(value).__name__
    if kind == "KeyedTensor":
        return [kind, value.keys(), value.length_per_key(), value.key_dim(), described(value.values())]
    if kind not in KINDS:
        return value if isinstance(value, (bool, int, str, type(None))) else str(value)
    about = [kind, *map(described, (value.values(), value.weights_or_none(), value.lengths()))]
    if kind == "KeyedJaggedTensor":
        about += [value.keys(), value.stride(), value.stride_per_key(), value.stride_per_key_per_rank()]
        about.append(described(value.inverse_indices_or_none()))
    return about


def answer(m: Any, make: Make, call: Call, on: str) -> tuple[bool, Any]:
    """Return whether there is an answer, and the answer or what was raised."""
    try:
        return True, described(call(make(m, on)))
    except Exception as error:
        return False, repr(error)


def differences(kind: str) -> Iterator[tuple[str, str, str]]:
    """Yield state, call and both answers, wherever TorchRec has one and ours is another."""
    states, calls = KINDS[kind]
    for (state, make), (name, call), on in itertools.product(states.items(), calls.items(), ("cpu", "meta")):
        theirs, ours = (answer(m, make, call, on) for m in (torchrec, recsys))
        if theirs[0] and ours != theirs:
            yield f"{kind} {state} on {on}", name, f"{ours[1]}, TorchRec: {theirs[1]}"


@pytest.mark.filterwarnings("ignore")
def test_answers_are_torchrecs() -> None:
    unexpected, met = [], defaultdict(int)
    for state, call, both in itertools.chain.from_iterable(map(differences, KINDS)):
        reasons = [why for at, of, why in ON_PURPOSE if fnmatch(state, at) and fnmatch(call, of)]
        met[reasons[0] if reasons else ""] += 1
        if not reasons:
            unexpected.append(f"{state}: {call}: {both}")
    assert not unexpected, "\n".join(unexpected)
    assert set(met) == {why for _, _, why in ON_PURPOSE}


@pytest.mark.parametrize("kind", KINDS)
def test_every_method_is_called(kind: str) -> None:
    theirs = getattr(torchrec, kind)
    public = {
        name
        for name, _ in inspect.getmembers(theirs, callable)
        if name in vars(theirs) and not name.startswith("_")
    }
    called = {name.split()[0].rstrip(",") for name in KINDS[kind][1]}
    assert public - called <= NOT_CALLED
