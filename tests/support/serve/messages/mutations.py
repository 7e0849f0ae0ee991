"""Ways to spoil a request: as bytes, as a message, and from nothing."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from serve.wire import predict_pb2 as wire

Mutation = Callable[[bytes, np.random.Generator], bytes]


def flip(data: bytes, rng: np.random.Generator) -> bytes:
    spoiled = bytearray(data)
    for _ in range(rng.integers(1, 9)):
        spoiled[rng.integers(len(spoiled))] ^= 1 << rng.integers(8)
    return bytes(spoiled)


def truncate(data: bytes, rng: np.random.Generator) -> bytes:
    return data[: rng.integers(len(data))]


def extend(data: bytes, rng: np.random.Generator) -> bytes:
    return data + rng.bytes(int(rng.integers(1, 65)))


def splice(data: bytes, rng: np.random.Generator) -> bytes:
    """A piece of the request, copied over or into another place."""
    start, to = rng.integers(len(data), size=2)
    piece = data[start : start + rng.integers(1, 33)]
    return data[:to] + piece + data[to + rng.integers(0, 2) * len(piece) :]


def garbage(_data: bytes, rng: np.random.Generator) -> bytes:
    return rng.bytes(int(rng.integers(0, 513)))


def fields(_data: bytes, rng: np.random.Generator) -> bytes:
    """Well-formed protobuf of random fields, nested lengths included."""
    made = bytearray()
    for _ in range(rng.integers(1, 20)):
        content = rng.bytes(int(rng.integers(0, 41)))
        made += bytes([int(rng.integers(1, 16)) << 3 | 2, len(content)]) + content
    return bytes(made)


def _any_sparse(request: wire.PredictRequest, rng: np.random.Generator) -> wire.SparseInput:
    return request.sparse[rng.integers(len(request.sparse))]


def lie_about_lengths(data: bytes, rng: np.random.Generator) -> bytes:
    request = wire.PredictRequest.FromString(data)
    sparse = _any_sparse(request, rng)
    count = len(sparse.lengths) // 4
    choices = np.array([-1, 0, 1, 2, 3, 1000, 2**31 - 1, -(2**31)], "<i4")
    sparse.lengths = rng.choice(choices, count).astype("<i4").tobytes()
    return request.SerializeToString()


def move_ids(data: bytes, rng: np.random.Generator) -> bytes:
    """IDs of one input appended to another's: the totals still agree."""
    request = wire.PredictRequest.FromString(data)
    one, other = _any_sparse(request, rng), _any_sparse(request, rng)
    one.values, other.values = b"", other.values + one.values
    return request.SerializeToString()


def huge_ids(data: bytes, rng: np.random.Generator) -> bytes:
    request = wire.PredictRequest.FromString(data)
    sparse = _any_sparse(request, rng)
    ids = np.frombuffer(sparse.values, "<i8").copy()
    if ids.size:
        ids[rng.integers(ids.size)] = rng.integers(-(2**63), 2**63 - 1, endpoint=True)
    sparse.values = ids.tobytes()
    return request.SerializeToString()


def huge_rows(data: bytes, rng: np.random.Generator) -> bytes:
    request = wire.PredictRequest.FromString(data)
    request.num_rows = int(rng.choice([-1, 0, 1, 5, 4096, 4097, 2**31 - 1, -(2**31)]))
    return request.SerializeToString()


def wrong_name(data: bytes, rng: np.random.Generator) -> bytes:
    request = wire.PredictRequest.FromString(data)
    inputs = request.dense if rng.integers(2) and len(request.dense) else request.sparse
    inputs[rng.integers(len(inputs))].name = rng.choice(
        ["", "user", "no such", "x" * 5000, "\u00e9\u4e2d", "\0"]
    )
    if rng.integers(8) == 0:
        request.model = "no such model"
    return request.SerializeToString()


def wrong_dtype(data: bytes, rng: np.random.Generator) -> bytes:
    """Numbers of the right count in another type."""
    request = wire.PredictRequest.FromString(data)
    sparse = _any_sparse(request, rng)
    which = rng.integers(4)
    if which == 0:
        sparse.values = np.frombuffer(sparse.values, "<i8").astype("<i4").tobytes()
    elif which == 1:
        sparse.lengths = np.frombuffer(sparse.lengths, "<i4").astype("<i8").tobytes()
    elif which == 2:
        sparse.weights = np.ones(len(sparse.values) // 8, "<f8").tobytes()
    elif len(request.dense):
        dense = request.dense[rng.integers(len(request.dense))]
        dense.values = np.frombuffer(dense.values, "<f4").astype(rng.choice(["<f8", "<f2"])).tobytes()
    return request.SerializeToString()


def texts(data: bytes, rng: np.random.Generator) -> bytes:
    """Texts in place of an input's IDs: numbers, any bytes, empty ones, or beside them."""
    request = wire.PredictRequest.FromString(data)
    for _ in range(rng.integers(1, 4)):
        sparse = _any_sparse(request, rng)
        kind = rng.integers(5)
        for number in np.frombuffer(sparse.values, "<i8").tolist():
            text = [str(number).encode(), rng.bytes(int(rng.integers(1, 80))), b"%020d" % number]
            sparse.strings.append(text[min(int(kind), 2)])
        if kind == 3 and sparse.strings:
            sparse.strings[rng.integers(len(sparse.strings))] = rng.choice(
                [b"", b"x", b"-", b"9" * 19, b"-" + b"9" * 19, b"1" * 20, b"\xff" * 70, "é".encode() * 70]
            )
        if kind != 4 or rng.integers(2):
            sparse.values = b""
    return request.SerializeToString()


def shuffle(data: bytes, rng: np.random.Generator) -> bytes:
    """Inputs dropped, doubled and reordered."""
    request = wire.PredictRequest.FromString(data)
    inputs = list(request.sparse)
    picked = rng.integers(len(inputs), size=len(inputs) + rng.integers(-1, 2))
    del request.sparse[:]
    request.sparse.extend(inputs[i] for i in picked)
    return request.SerializeToString()


def strange_floats(data: bytes, rng: np.random.Generator) -> bytes:
    request = wire.PredictRequest.FromString(data)
    if not len(request.dense):
        return flip(data, rng)
    dense = request.dense[rng.integers(len(request.dense))]
    values = np.frombuffer(dense.values, "<f4").copy()
    if values.size:
        values[rng.integers(values.size)] = rng.choice([np.nan, np.inf, -np.inf, 1e-45, -0.0, 3e38])
    dense.values = values.tobytes()
    return request.SerializeToString()


MUTATIONS: tuple[Mutation, ...] = (
    flip,
    truncate,
    extend,
    splice,
    garbage,
    fields,
    lie_about_lengths,
    move_ids,
    huge_ids,
    huge_rows,
    wrong_name,
    wrong_dtype,
    texts,
    shuffle,
    strange_floats,
)
