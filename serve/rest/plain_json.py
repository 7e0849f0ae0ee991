"""Requests in plain JSON, with one list per row instead of tensors. ``recsys-predict`` reads it too.

    {"dense": {"price": [[0.5]]}, "sparse": {"user": [[7]], "genres": [[1, 4]]}, "weights": {}}

A sparse input's IDs are numbers, or texts that stand for them. A dense input's row is a list, or an object with its
numbers by the names of their columns.

Inputs that have one row for all are in the same form under ``"context"``, where ``"num_rows"`` gives the
number of rows if there is no other input.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np

from recsys.inputs.signature import DenseInput, Signature
from serve.client.packing import output_array
from serve.config.models import BatchLimits
from serve.errors import RequestError, listed
from serve.protocols.calls import check_size
from serve.protocols.open_inference import DTYPES, FLOAT, ID, LENGTH
from serve.rest.tensors_json import entry, flat, pack, utf8, write_json
from serve.wire import predict_pb2 as wire

_PARTS = ("dense", "sparse", "weights")
_ENTRIES = (*_PARTS, "context", "id", "priority")
_CONTEXT = (*_PARTS, "num_rows")


def read_plain(body: dict[str, Any], signature: Signature, limits: BatchLimits) -> wire.PredictRequest:
    """Return the inputs of a request.

    Args:
        body: body of the request.
        signature: signature of the model; unknown inputs are not converted.
        limits: limits of one request; more rows and IDs are not converted.

    Raises:
        RequestError: the message names the input, got and expected.
    """
    _check_entries("body", body, _ENTRIES)
    context = entry(body, "context", dict, "body")
    _check_entries("context", context, _CONTEXT)
    reader = _Reader(signature, limits)
    dense, sparse, rows = reader.inputs("", body)
    context_dense, context_sparse, _ = reader.inputs("context.", context)
    if "num_rows" in context:
        rows = {"context.num_rows": _given_rows(context, limits), **rows}
    elif not rows and context:
        raise RequestError(
            "context: got every input, expected at least one with a row for each candidate, or num_rows"
        )
    first = next(iter(rows), "")
    for name, num_rows in rows.items():
        if num_rows != rows[first]:
            raise RequestError(f"{name}: got {num_rows} rows, expected {rows[first]}, as many as {first} has")
    return wire.PredictRequest(
        num_rows=rows.get(first, 0),  # without any input, the request's checks report the missing ones
        dense=dense,
        sparse=sparse,
        context_dense=context_dense,
        context_sparse=context_sparse,
    )


def write_plain(answer: bytes) -> bytes:
    """Return the body of an answer, a serialized ``PredictResponse``: each output by name, one entry per row."""
    response = wire.PredictResponse.FromString(answer)
    outputs = {output.name: output_array(output).tolist() for output in response.outputs}
    return write_json({"model": response.model, "version": response.version, "outputs": outputs})


def _check_entries(at: str, given: dict[str, Any], known: tuple[str, ...]) -> None:
    unknown = next((name for name in given if name not in known), None)
    if unknown is not None:
        raise RequestError(f"{at}: got an unknown entry {unknown[:64]!r}, expected {', '.join(known)}")


def _given_rows(context: dict[str, Any], limits: BatchLimits) -> int:
    num_rows: int = entry(context, "num_rows", int, "context")
    if num_rows < 0:
        raise RequestError(f"context['num_rows']: got {num_rows}, expected 0 or more")
    check_size(limits, num_rows, 0)
    return num_rows


class _Reader:
    """Converts lists to bytes; refuses inputs that are too large or unknown before the conversion."""

    def __init__(self, signature: Signature, limits: BatchLimits) -> None:
        sparse = [s.name for s in signature.sparse]
        self._dense = {dense.name: dense for dense in signature.dense}
        self._names = {"dense": list(self._dense), "sparse": sparse}
        self._limits = limits
        self._num_ids = 0

    def inputs(
        self, prefix: str, holder: dict[str, Any]
    ) -> tuple[list[wire.DenseInput], list[wire.SparseInput], dict[str, int]]:
        """Return dense and sparse inputs, and the number of rows of each."""
        at = f"{prefix.rstrip('.') or 'body'}"
        given = {part: entry(holder, part, dict, at) for part in _PARTS}
        for part in ("dense", "sparse"):
            _check_names(f"{prefix}{part}", given[part], self._names[part])
        rows: dict[str, int] = {}
        dense, sparse = [], []
        for name in given["dense"]:
            field = f"{prefix}dense[{name!r}]"
            given_rows = self._rows(given["dense"], name, f"{prefix}dense")
            if dict in set(map(type, given_rows)):
                given_rows = _by_column(field, given_rows, self._dense[name])
            rows[field] = len(given_rows)
            dense.append(wire.DenseInput(name=name, values=_numbers(field, given_rows, self._dense[name])))
        for name in given["sparse"]:
            field = f"{prefix}sparse[{name!r}]"
            lists = _lists(self._rows(given["sparse"], name, f"{prefix}sparse"))
            raw = self._sparse(field, name, lists)
            if name in given["weights"]:
                weights = _lists(self._rows(given["weights"], name, f"{prefix}weights"))
                raw.weights = _weights(f"{prefix}weights[{name!r}]", weights, raw)
            sparse.append(raw)
            rows[field] = len(lists)
        unknown = next((name for name in given["weights"] if name not in given["sparse"]), None)
        if unknown is not None:
            raise RequestError(f"{prefix}weights: got {unknown[:64]!r}, expected only names of sparse inputs")
        return dense, sparse, rows

    def _rows(self, holder: dict[str, Any], name: str, at: str) -> list[Any]:
        rows: list[Any] = entry(holder, name, list, at)
        check_size(self._limits, len(rows), 0)
        return rows

    def _sparse(self, field: str, name: str, lists: list[list[Any]]) -> wire.SparseInput:
        """Return a sparse input for one list of IDs, or of texts, per row."""
        lengths = np.fromiter(map(len, lists), DTYPES[LENGTH], len(lists))
        self._num_ids += int(lengths.sum())
        check_size(self._limits, 0, self._num_ids)
        raw = wire.SparseInput(name=name, lengths=lengths.tobytes())
        ids = list(chain.from_iterable(lists))
        if type(None) in set(map(type, ids)):
            raise RequestError(f"{field}: got null, expected IDs or texts; send [] for no value")
        if ids and type(ids[0]) is str:
            raw.strings.extend(utf8(field, ids))
        else:
            raw.values = pack(field, ids, DTYPES[ID])
        return raw


def _check_names(at: str, given: dict[str, Any], known: Sequence[str]) -> None:
    unknown = next((name for name in given if name not in known), None)
    if unknown is not None:
        raise RequestError(f"{at}: got an unknown input {unknown[:64]!r}, expected {listed(known)}")


def _numbers(field: str, rows: list[Any], dense: DenseInput) -> bytes:
    """Return a dense input's numbers as bytes."""
    numbers, shape = flat(field, rows)
    if numbers and len(shape) == 1 and dense.width > 1:
        raise RequestError(
            f"{field}: got one list of {len(numbers)} numbers, expected one of {dense.width} for each row: [[…], …]"
        )
    try:
        return pack(field, numbers, DTYPES[FLOAT])
    except RequestError as error:
        if dense.missing and str in set(map(type, numbers)):
            raise RequestError(f"{error}; send null for a missing number") from None
        raise


def _by_column(field: str, rows: list[Any], dense: DenseInput) -> list[list[Any]]:
    """Return rows that are objects as lists in the order of the input's columns; null for missing numbers."""
    if not dense.columns:
        raise RequestError(
            f"{field}: got objects, expected lists of {dense.width} numbers: the model does not name its columns"
        )
    known = set(dense.columns)
    for i, row in enumerate(rows):
        if type(row) is not dict:
            raise RequestError(f"{field}[{i}]: got no object, expected one in every row, or in none")
        unknown = next((name for name in row if name not in known), None)
        if unknown is not None:
            raise RequestError(
                f"{field}[{i}]: got an unknown column {unknown[:64]!r}, expected {listed(dense.columns)}"
            )
        if not dense.missing and len(row) < len(known):
            name = next(name for name in dense.columns if name not in row)
            raise RequestError(f"{field}[{i}]: missing {name!r}, expected all of {listed(dense.columns)}")
    return [[row.get(name) for name in dense.columns] for row in rows]


def _weights(field: str, lists: list[list[Any]], ids: wire.SparseInput) -> bytes:
    lengths = np.fromiter(map(len, lists), DTYPES[LENGTH], len(lists))
    if lengths.tobytes() != ids.lengths:
        expected = np.frombuffer(ids.lengths, DTYPES[LENGTH])
        raise RequestError(
            f"{field}: got {lengths[:8].tolist()} weights per row, expected one per ID: {expected[:8].tolist()}"
        )
    return pack(field, list(chain.from_iterable(lists)), DTYPES[FLOAT])


def _lists(rows: list[Any]) -> list[list[Any]]:
    """Wrap bare numbers and texts in lists."""
    return [row if type(row) is list else [row] for row in rows]
