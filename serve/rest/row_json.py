"""Requests in JSON with one object per row, as TensorFlow Serving, Vertex AI and MLflow take them.

    {"instances": [{"user": "u1", "genres": ["a", "b"], "price": 3.5}, {"user": null, "genres": [], "price": 2}]}

A row has a field for each sparse input, for each named column of a dense input, else for the dense input as a whole,
and ``NAME.weights`` for a weighted input. Columns ``vector[0]``, ``vector[1]``, … are one field ``vector``, a list.
Fields of no input are ignored, as other columns of a table are. Values are
read as training reads tables: whole numbers may be floats or texts, numbers are texts where texts are hashed, null is a
missing value. Rows become the lists per input that ``plain_json`` reads.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from recsys.inputs.columns import vectors_in
from recsys.inputs.signature import DenseInput, Signature, SparseInput
from serve.client.packing import output_array
from serve.config.models import BatchLimits
from serve.errors import RequestError, listed
from serve.protocols.calls import check_size
from serve.rest.tensors_json import entry, kind_text, write_json
from serve.wire import predict_pb2 as wire

INSTANCES, RECORDS, SPLIT = "instances", "dataframe_records", "dataframe_split"
FORMS = (INSTANCES, RECORDS, SPLIT)
_SIGNATURE = "signature_name"
_SIGNATURES = ("", "serving_default")
# Vertex's and MLflow's; the models have none.
_SETTINGS = ("parameters", "params")
_ENTRIES = (*FORMS, "context", "id", "priority", _SIGNATURE, *_SETTINGS)
_WHOLE = re.compile(r"\s*(-?\d+)(\.0*)?\s*", re.ASCII)
# Floats of 64 bits round whole numbers from here on.
_EXACT = 2.0**53
_LARGEST = 3.4028235677973366e38  # rounds to float32's infinity

Json = dict[str, Any]


def is_rows(body: Json) -> bool:
    """Return whether a body has rows, and not lists per input."""
    return any(name in body for name in FORMS)


def plain_of_rows(body: Json, signature: Signature, limits: BatchLimits) -> Json:
    """Return the body that has the same inputs as lists, for ``plain_json.read_plain``.

    Args:
        body: A body with rows.
        signature: The signature of the model.
        limits: The limits of one request; more rows are not read.

    Raises:
        RequestError: The message names the row, the field, got and expected.
    """
    _check_entries(body)
    output = next((one for one in signature.outputs if one.batch_dims[:1] != (0,)), None)
    if output is not None:
        raise RequestError(
            f"body: got rows, expected lists per input: the output {output.name!r} has no entry for each row"
        )
    rows = _rows(body, limits)
    has_context = body.get("context") is not None
    context = [_Row("context", entry(body, "context", dict, "body"))] if has_context else []
    given = set(context[0].fields) if context else set()
    inputs: list[DenseInput | SparseInput] = [*signature.dense, *signature.sparse]
    shared = [one for one in inputs if given & {*_fields(one), *vectors_in(_fields(one))}]
    plain = _inputs(rows, [one for one in inputs if one not in shared])
    if not has_context:
        return plain
    field = next(
        (name for one in shared for row in rows for name in _fields(one) if name in row.fields), None
    )
    if field is not None:
        raise RequestError(f"context: got {field!r}, expected it in the context or in the rows, not in both")
    return {**plain, "context": {**_inputs(context, shared), "num_rows": len(rows)}}


def write_rows(answer: bytes) -> bytes:
    """Return the body of an answer, a serialized ``PredictResponse``: for each row a value, or an object of several."""
    outputs = {
        one.name: output_array(one).tolist() for one in wire.PredictResponse.FromString(answer).outputs
    }
    if len(outputs) == 1:
        (predictions,) = outputs.values()
    else:
        predictions = [
            dict(zip(outputs, values, strict=True)) for values in zip(*outputs.values(), strict=True)
        ]
    return write_json({"predictions": predictions})


class _Row(NamedTuple):
    """A row, and its place in the body."""

    at: str
    fields: Json


def _check_entries(body: Json) -> None:
    unknown = next((name for name in body if name not in _ENTRIES), None)
    if unknown is not None:
        raise RequestError(
            f"body: got an unknown entry {unknown[:64]!r}, expected one of {', '.join(FORMS)} and perhaps context, "
            "id, priority"
        )
    if sum(name in body for name in FORMS) > 1:
        raise RequestError(f"body: got more than one of {', '.join(FORMS)}, expected one")
    name = entry(body, _SIGNATURE, str, "body")
    if name not in _SIGNATURES:
        raise RequestError(f"{_SIGNATURE}: got {name[:64]!r}, expected 'serving_default' or none")
    for settings in _SETTINGS:
        if entry(body, settings, dict, "body"):
            raise RequestError(f"{settings}: got entries, expected none: the model takes no parameters")


def _rows(body: Json, limits: BatchLimits) -> list[_Row]:
    if SPLIT in body:
        return _split_rows(entry(body, SPLIT, dict, "body"), limits)
    form = INSTANCES if INSTANCES in body else RECORDS
    given = entry(body, form, list, "body")
    check_size(limits, len(given), 0)
    rows = [_Row(f"{form}[{i}]", fields) for i, fields in enumerate(given)]
    for at, fields in rows:
        if type(fields) is not dict:
            raise RequestError(
                f"{at}: got {kind_text(fields)}, expected an object with a field for each input"
            )
    return rows


def _split_rows(frame: Json, limits: BatchLimits) -> list[_Row]:
    unknown = next((name for name in frame if name not in ("columns", "data", "index")), None)
    if unknown is not None:
        raise RequestError(
            f"{SPLIT}: got an unknown entry {unknown[:64]!r}, expected columns, data and perhaps index"
        )
    columns, data = entry(frame, "columns", list, SPLIT), entry(frame, "data", list, SPLIT)
    check_size(limits, len(data), 0)
    other = next((one for one in columns if type(one) is not str), None)
    if other is not None or len(set(columns)) != len(columns):
        raise RequestError(
            f"{SPLIT}['columns']: got texts that repeat, or no texts, expected different names"
        )
    rows = []
    for i, values in enumerate(data):
        at = f"{SPLIT}['data'][{i}]"
        if type(values) is not list or len(values) != len(columns):
            got = f"{len(values)} values" if type(values) is list else kind_text(values)
            raise RequestError(f"{at}: got {got}, expected a list of {len(columns)}, one for each column")
        rows.append(_Row(at, dict(zip(columns, values, strict=True))))
    return rows


def _fields(one: DenseInput | SparseInput) -> Sequence[str]:
    """Return the fields of a row that an input is read from."""
    if isinstance(one, DenseInput):
        return one.columns or (one.name,)
    return (one.name, f"{one.name}.weights") if one.weighted else (one.name,)


def _inputs(rows: Sequence[_Row], inputs: Sequence[DenseInput | SparseInput]) -> Json:
    needed = [name for one in inputs for name in _fields(one)]
    vectors = vectors_in([name for one in inputs if isinstance(one, DenseInput) for name in one.columns])
    rows = [_spread(row, vectors) for row in rows] if vectors else rows
    for at, fields in rows:
        name = next((name for name in needed if name not in fields), None)
        if name is not None:
            raise RequestError(
                f"{at}: missing {name!r}, expected all of {listed(needed)}; send null for a missing value"
            )
    dense = {one.name: _dense(rows, one) for one in inputs if isinstance(one, DenseInput)}
    sparse = {one.name: _bags(rows, one) for one in inputs if isinstance(one, SparseInput)}
    weights = {
        one.name: _weights(rows, f"{one.name}.weights")
        for one in inputs
        if isinstance(one, SparseInput) and one.weighted
    }
    return {"dense": dense, "sparse": sparse, "weights": weights}


def _spread(row: _Row, vectors: dict[str, int]) -> _Row:
    """Return a row with a field for each number of its vectors."""
    fields = dict(row.fields)
    for name, size in vectors.items():
        if name not in fields:
            continue
        given = fields.pop(name)
        if given is not None and (type(given) is not list or len(given) != size):
            got = f"{len(given)} numbers" if type(given) is list else kind_text(given)
            raise RequestError(f"{row.at}[{name!r}]: got {got}, expected a list of {size}")
        fields |= {f"{name}[{i}]": None if given is None else given[i] for i in range(size)}
    return _Row(row.at, fields)


def _dense(rows: Sequence[_Row], one: DenseInput) -> list[list[Any]]:
    if one.columns:
        named = [(name, _numbers(rows, name, is_missing=one.missing)) for name in one.columns]
        return [list(row) for row in zip(*(numbers for _, numbers in named), strict=True)]
    if one.width == 1:
        return [[number] for number in _numbers(rows, one.name, is_missing=one.missing)]
    read = []
    for at, fields in rows:
        row = fields[one.name]
        if type(row) is not list or len(row) != one.width:
            got = f"{len(row)} numbers" if type(row) is list else kind_text(row)
            raise RequestError(f"{at}[{one.name!r}]: got {got}, expected a list of {one.width}")
        read.append([_number(f"{at}[{one.name!r}]", number, is_missing=one.missing) for number in row])
    return read


def _numbers(rows: Sequence[_Row], name: str, *, is_missing: bool) -> Iterator[float | None]:
    for at, fields in rows:
        value = fields[name]
        if type(value) is list and len(value) == 1:
            (value,) = value
        yield _number(f"{at}[{name!r}]", value, is_missing=is_missing)


def _number(at: str, value: Any, *, is_missing: bool) -> float | None:
    if type(value) is float and math.isnan(value):
        value = None
    if value is None and is_missing:
        return None
    if type(value) not in (int, float, bool):
        more = (
            "a number, or null for a missing one"
            if is_missing
            else "a number: the model fills no missing ones"
        )
        raise RequestError(f"{at}: got {kind_text(value)}, expected {more}")
    if not -_LARGEST < value < _LARGEST:
        raise RequestError(f"{at}: got {str(value)[:32]}, expected a number within the range of float32")
    return float(value)


def _bags(rows: Sequence[_Row], one: SparseInput) -> list[list[int] | list[str]]:
    read_one = _text if one.strings else _whole
    bags: list[Any] = []
    for at, fields in rows:
        given = fields[one.name]
        field = f"{at}[{one.name!r}]"
        values = given if type(given) is list else [given]
        bags.append([read_one(field, value) for value in values if not _is_missing(value)])
    return bags


def _is_missing(value: Any) -> bool:
    return value is None or value == "" or (type(value) is float and math.isnan(value))


def _text(at: str, value: Any) -> str:
    """Return a value as the text that training hashes."""
    if type(value) is str:
        return value
    if type(value) is bool:
        return "true" if value else "false"
    whole = _exact(value)
    if whole is None:
        raise RequestError(
            f"{at}: got {_shown(value)}, expected a text, or a whole number, which is read as one"
        )
    return str(whole)


def _whole(at: str, value: Any) -> int:
    matched = _WHOLE.fullmatch(value) if type(value) is str and len(value) <= 64 else None
    whole = int(matched[1]) if matched else _exact(value)
    if whole is None or not -(2**63) <= whole < 2**63:
        expected = "a whole number of 64 bits: the model hashes no texts of this input"
        raise RequestError(f"{at}: got {_shown(value)}, expected {expected}")
    return whole


def _exact(value: Any) -> int | None:
    """Return a whole number that is not rounded, else None."""
    if type(value) in (int, bool):
        return int(value)
    return int(value) if type(value) is float and abs(value) < _EXACT and value.is_integer() else None


def _shown(value: Any) -> str:
    return repr(value)[:64] if type(value) in (str, float, int) else kind_text(value)


def _weights(rows: Sequence[_Row], name: str) -> list[list[float | None]]:
    read = []
    for at, fields in rows:
        given = fields[name]
        values = given if type(given) is list else [] if given is None else [given]
        read.append([_number(f"{at}[{name!r}]", value, is_missing=False) for value in values])
    return read
