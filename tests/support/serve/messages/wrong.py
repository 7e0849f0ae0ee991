"""Every way for a request to contradict its signature: how to make it, and what the answer must say."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from serve.wire import predict_pb2 as wire


def _floats(*values: float) -> bytes:
    return np.array(values, "<f4").tobytes()


def _ids(*values: int) -> bytes:
    return np.array(values, "<i8").tobytes()


def _lengths(*values: int) -> bytes:
    return np.array(values, "<i4").tobytes()


def good() -> wire.PredictRequest:
    """Two rows of the small model's inputs, nothing wrong with them."""
    return wire.PredictRequest(
        num_rows=2,
        dense=[
            wire.DenseInput(name="context", values=_floats(1, 2, 3, 4, 5, 6)),
            wire.DenseInput(name="price", values=_floats(0.5, 0.25)),
        ],
        sparse=[
            wire.SparseInput(name="user", lengths=_lengths(1, 2), values=_ids(3, 4, 5)),
            wire.SparseInput(name="genres", lengths=_lengths(0, 1), values=_ids(6)),
            wire.SparseInput(name="item", lengths=_lengths(1, 1), values=_ids(-9, 1 << 60)),
            wire.SparseInput(
                name="tags", lengths=_lengths(2, 0), values=_ids(0, 19), weights=_floats(0.5, 2.0)
            ),
        ],
    )


@dataclass(frozen=True)
class Wrong:
    """One way to be wrong: ``spoil`` changes a good request in place; ``text`` is a part of the answer."""

    name: str
    spoil: Callable[[wire.PredictRequest], object]
    text: str


def _set(message: object, **values: object) -> None:
    for name, value in values.items():
        setattr(message, name, value)


WRONG = [
    Wrong("negative-rows", lambda r: _set(r, num_rows=-1), "num_rows: got -1, expected 0 or more"),
    Wrong("too-many-rows", lambda r: _set(r, num_rows=1 << 30), "num_rows: got 1073741824, expected at most"),
    Wrong(
        "rows-do-not-fit",
        lambda r: _set(r, num_rows=3),
        "dense['context'].values: got 24 bytes, expected 36 (float32 [3, 3])",
    ),
    Wrong("rows-left-out", lambda r: r.ClearField("num_rows"), "got 24 bytes, expected 0 (float32 [0, 3])"),
    Wrong("no-dense", lambda r: r.ClearField("dense"), "dense: missing 'context', 'price'"),
    Wrong("missing-dense", lambda r: r.dense.pop(), "dense: missing 'price'"),
    Wrong(
        "unknown-dense",
        lambda r: _set(r.dense[0], name="contexts"),
        "unknown input 'contexts', expected 'context'",
    ),
    Wrong("doubled-dense", lambda r: r.dense.add().CopyFrom(r.dense[1]), "dense: got 'price' more than once"),
    Wrong("replaced-dense", lambda r: r.dense[0].CopyFrom(r.dense[1]), "dense: got 'price' more than once"),
    Wrong(
        "short-dense",
        lambda r: _set(r.dense[1], values=_floats(1)),
        "dense['price'].values: got 4 bytes, expected 8",
    ),
    Wrong("long-dense", lambda r: _set(r.dense[1], values=_floats(1, 2, 3)), "got 12 bytes, expected 8"),
    Wrong(
        "float64-dense", lambda r: _set(r.dense[1], values=np.zeros(2).tobytes()), "got 16 bytes, expected 8"
    ),
    Wrong("ragged-dense", lambda r: _set(r.dense[1], values=bytes(7)), "got 7 bytes, expected 8"),
    Wrong(
        "nan-dense",
        lambda r: _set(r.dense[0], values=_floats(1, 2, 3, 4, float("nan"), 6)),
        "dense['context'].values: got nan in row 1, column 1, expected finite numbers",
    ),
    Wrong(
        "inf-dense",
        lambda r: _set(r.dense[1], values=_floats(1, float("-inf"))),
        "got -inf in row 1, column 0",
    ),
    Wrong("no-sparse", lambda r: r.ClearField("sparse"), "sparse: missing 'user', 'genres', 'item', 'tags'"),
    Wrong("missing-sparse", lambda r: r.sparse.pop(0), "sparse: missing 'user'"),
    Wrong("unknown-sparse", lambda r: r.sparse.add(name="extra"), "sparse: got an unknown input 'extra'"),
    Wrong("long-name", lambda r: r.sparse.add(name="n" * 10_000), "nnn...'"),
    Wrong("empty-name", lambda r: r.sparse.add(name=""), "unknown input ''"),
    Wrong("flood-of-inputs", lambda r: r.sparse.extend([wire.SparseInput()] * 100_000), "unknown input ''"),
    Wrong(
        "flood-of-one",
        lambda r: r.dense.extend([r.dense[0]] * 100_000),
        "dense: got 'context' more than once",
    ),
    Wrong(
        "doubled-sparse", lambda r: r.sparse.add().CopyFrom(r.sparse[0]), "sparse: got 'user' more than once"
    ),
    Wrong(
        "short-lengths",
        lambda r: _set(r.sparse[0], lengths=_lengths(3)),
        "sparse['user'].lengths: got 4 bytes, expected 8 (int32 [2])",
    ),
    Wrong(
        "int64-lengths",
        lambda r: _set(r.sparse[0], lengths=_ids(1, 2)),
        "got 16 bytes, expected 8 (int32 [2])",
    ),
    Wrong("ragged-lengths", lambda r: _set(r.sparse[0], lengths=bytes(5)), "got 5 bytes, expected 8"),
    Wrong(
        "negative-length",
        lambda r: _set(r.sparse[0], lengths=_lengths(4, -1)),
        "sparse['user'].lengths: got -1 in row 1, expected 0 or more",
    ),
    Wrong(
        "sum-too-large",
        lambda r: _set(r.sparse[1], lengths=_lengths(0, 2)),
        "sparse['genres'].values: got 1 IDs, expected 2 (the sum of its lengths)",
    ),
    Wrong("sum-too-small", lambda r: _set(r.sparse[1], lengths=_lengths(0, 0)), "got 1 IDs, expected 0"),
    Wrong(
        "sum-overflows-int32",
        lambda r: _set(r.sparse[0], lengths=_lengths(2**31 - 1, 2**31 - 1)),
        "got 3 IDs, expected 4294967294",
    ),
    Wrong(
        "sums-agree-only-in-total",
        lambda r: (_set(r.sparse[0], values=_ids(3, 4)), _set(r.sparse[1], values=_ids(5, 6))),
        "sparse['user'].values: got 2 IDs, expected 3",
    ),
    Wrong(
        "int32-ids",
        lambda r: _set(r.sparse[0], values=_lengths(3, 4, 5)),
        "got 12 bytes, expected a multiple of 8",
    ),
    Wrong(
        "ragged-ids", lambda r: _set(r.sparse[0], values=bytes(23)), "got 23 bytes, expected a multiple of 8"
    ),
    Wrong(
        "id-at-limit",
        lambda r: _set(r.sparse[0], values=_ids(3, 4, 50)),
        "sparse['user'].values: got ID 50 in row 1, expected 0 <= ID < 50 (rows of table users)",
    ),
    Wrong("id-negative", lambda r: _set(r.sparse[0], values=_ids(-1, 4, 5)), "got ID -1 in row 0"),
    Wrong(
        "id-smallest",
        lambda r: _set(r.sparse[1], values=_ids(-(2**63))),
        "sparse['genres'].values: got ID -9223372036854775808 in row 1",
    ),
    Wrong(
        "id-largest",
        lambda r: _set(r.sparse[1], values=_ids(2**63 - 1)),
        "got ID 9223372036854775807 in row 1",
    ),
    Wrong(
        "id-in-a-smaller-table",
        lambda r: _set(r.sparse[1], values=_ids(7)),
        "sparse['genres'].values: got ID 7 in row 1, expected 0 <= ID < 7",
    ),
    Wrong(
        "missing-weights",
        lambda r: r.sparse[3].ClearField("weights"),
        "sparse['tags'].weights: got 0 bytes, expected 8 (float32, one for each of 2 IDs)",
    ),
    Wrong("short-weights", lambda r: _set(r.sparse[3], weights=_floats(1)), "got 4 bytes, expected 8"),
    Wrong(
        "float64-weights",
        lambda r: _set(r.sparse[3], weights=np.ones(2).tobytes()),
        "got 16 bytes, expected 8",
    ),
    Wrong(
        "nan-weight",
        lambda r: _set(r.sparse[3], weights=_floats(1, float("nan"))),
        "sparse['tags'].weights: got nan at position 1, expected finite numbers",
    ),
    Wrong(
        "weights-for-an-unweighted-input",
        lambda r: _set(r.sparse[0], weights=_floats(1, 1, 1)),
        "sparse['user'].weights: got 12 bytes, expected none: the input is not weighted",
    ),
]
