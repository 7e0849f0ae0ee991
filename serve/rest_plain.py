"""Requests in plain JSON, one list per row and no tensors: the form that ``recsys-predict`` reads too.

    {"dense": {"price": [[0.5]]}, "sparse": {"user": [[7]], "genres": [[1, 4]]}, "weights": {}}

and, for inputs that have one row for all, the same three under ``"context"``.
"""

from __future__ import annotations

from itertools import chain
from typing import Any

import numpy as np

from serve.errors import RequestError
from serve.kserve_tensors import DTYPES, FLOAT, ID, LENGTH
from serve.raw import RawDense, RawRequest, RawSparse
from serve.rest_json import entry, flat, pack, write_json
from serve.work import Rows

_PARTS = ("dense", "sparse", "weights")
_ENTRIES = (*_PARTS, "context", "id", "priority")


def read_plain(body: dict[str, Any]) -> RawRequest:
    """The inputs of a request.

    Raises:
        RequestError: names the input, what it holds and what it should.
    """
    _check_entries("body", body, _ENTRIES)
    context = entry(body, "context", dict, "body")
    _check_entries("context", context, _PARTS)
    dense, sparse, rows = _inputs("", body)
    context_dense, context_sparse, _ = _inputs("context.", context)
    first = next(iter(rows), "")
    for name, num_rows in rows.items():
        if num_rows != rows[first]:
            raise RequestError(f"{name}: got {num_rows} rows, expected {rows[first]}, as many as {first} has")
    return RawRequest(
        num_rows=rows.get(first, 0),
        dense=dense,
        sparse=sparse,
        context_dense=context_dense,
        context_sparse=context_sparse,
    )


def write_plain(rows: Rows) -> bytes:
    """The answer: each output by name, one entry per row."""
    outputs = {}
    for output, values in zip(rows.signature.outputs, rows.values, strict=True):
        outputs[output.name] = (
            np.frombuffer(values, DTYPES[FLOAT]).reshape(rows.num_rows, *output.shape).tolist()
        )
    return write_json({"model": rows.info.name, "version": rows.info.version, "outputs": outputs})


def _check_entries(at: str, given: dict[str, Any], known: tuple[str, ...]) -> None:
    unknown = next((name for name in given if name not in known), None)
    if unknown is not None:
        raise RequestError(f"{at}: got an unknown entry {unknown[:64]!r}, expected {', '.join(known)}")


def _inputs(prefix: str, holder: dict[str, Any]) -> tuple[list[RawDense], list[RawSparse], dict[str, int]]:
    """Dense and sparse inputs, and the rows of each."""
    at = f"{prefix.rstrip('.') or 'body'}"
    given = {part: entry(holder, part, dict, at) for part in _PARTS}
    rows: dict[str, int] = {}
    dense, sparse = [], []
    for name in given["dense"]:
        field = f"{prefix}dense[{name[:64]!r}]"
        numbers, shape = flat(field, entry(given["dense"], name, list, f"{prefix}dense"))
        dense.append(RawDense(name, pack(field, numbers, DTYPES[FLOAT])))
        rows[field] = shape[0]
    for name in given["sparse"]:
        field = f"{prefix}sparse[{name[:64]!r}]"
        raw, rows[field] = _sparse(field, name, entry(given["sparse"], name, list, f"{prefix}sparse"))
        if name in given["weights"]:
            weights = f"{prefix}weights[{name[:64]!r}]"
            raw.weights = _weights(weights, entry(given["weights"], name, list, f"{prefix}weights"), raw)
        sparse.append(raw)
    unknown = next((name for name in given["weights"] if name not in given["sparse"]), None)
    if unknown is not None:
        raise RequestError(f"{prefix}weights: got {unknown[:64]!r}, expected only names of sparse inputs")
    return dense, sparse, rows


def _sparse(field: str, name: str, rows: list[Any]) -> tuple[RawSparse, int]:
    """One sparse input, from a list of IDs per row; a bare ID is a row of one."""
    lists = _lists(rows)
    lengths = np.fromiter(map(len, lists), DTYPES[LENGTH], len(lists)).tobytes()
    return RawSparse(name, lengths, pack(field, list(chain.from_iterable(lists)), DTYPES[ID])), len(lists)


def _weights(field: str, rows: list[Any], ids: RawSparse) -> bytes:
    lists = _lists(rows)
    lengths = np.fromiter(map(len, lists), DTYPES[LENGTH], len(lists))
    if lengths.tobytes() != ids.lengths:
        expected = np.frombuffer(ids.lengths, DTYPES[LENGTH])
        raise RequestError(
            f"{field}: got {lengths[:8].tolist()} weights per row, expected one per ID: {expected[:8].tolist()}"
        )
    return pack(field, list(chain.from_iterable(lists)), DTYPES[FLOAT])


def _lists(rows: list[Any]) -> list[list[Any]]:
    return [row if type(row) is list else [row] for row in rows]
