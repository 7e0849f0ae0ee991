"""Bodies of Open Inference over HTTP to requests, and answers to bodies; with Triton's binary tensors.

A body is JSON; or, where the header ``Inference-Header-Content-Length`` says how long the JSON is, JSON and then the
bytes of those tensors that say ``binary_data_size``, in their order.
"""

from __future__ import annotations

import contextlib
import gc
import json
import math
import struct
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from serve.errors import BodyTooLargeError, RequestError
from serve.kserve_request import InferRequest, Parameters, wanted_outputs
from serve.kserve_tensors import DTYPES, FLOAT, Tensor
from serve.work import Rows

HEADER_LENGTH = "Inference-Header-Content-Length"
# Answers cross from the executor's thread as bytes: how much of them is JSON stands in front.
_MAX_SIZE = 2**63 - 1
_JSON_BYTES = struct.Struct("<Q")


class Body(NamedTuple):
    """The body of an answer: JSON first, then binary tensors if there are any."""

    data: memoryview
    num_json_bytes: int


class Inference(NamedTuple):
    """A request, and how its answer is to be written, in an executor's thread; ``read_answer`` takes it apart."""

    request: InferRequest
    encode: Callable[[Rows], bytes]


def parse_json(data: bytes, max_bytes: int) -> dict[str, Any]:
    """The JSON object that a body holds.

    Args:
        data: the body.
        max_bytes: of it.

    Raises:
        BodyTooLargeError: it is longer.
        RequestError: it holds none.
    """
    if len(data) > max_bytes:
        raise BodyTooLargeError(
            f"body: got {len(data)} bytes of JSON, expected at most {max_bytes}; split the request, "
            "send binary tensors, or use the gRPC port"
        )
    try:
        with _without_collector():
            parsed = json.loads(data)
    except json.JSONDecodeError as error:
        raise RequestError(f"body: got {len(data)} bytes that are not JSON ({error})") from None
    except (ValueError, RecursionError):
        raise RequestError(
            f"body: got {len(data)} bytes that are not JSON in UTF-8, or nested too deep"
        ) from None
    if not isinstance(parsed, dict):
        raise RequestError(f"body: got {_kind(parsed)}, expected an object")
    return parsed


@contextlib.contextmanager
def _without_collector() -> Iterator[None]:
    """Parsed JSON has no cycles, and looking for some in it takes ten times as long as parsing it."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def read_inference(
    model: str, version: str, data: bytes, num_json_bytes: int | None, max_json_bytes: int
) -> Inference:
    """What a body asks for.

    Args:
        model: as the address names it.
        version: as the address names it, or empty.
        data: the body.
        num_json_bytes: how much of it is JSON; None for all.
        max_json_bytes: how much of it may be.

    Raises:
        RequestError: it is no such body; what is wrong with its tensors shows when the request is read.
    """
    size = len(data) if num_json_bytes is None else num_json_bytes
    if not 0 <= size <= len(data):
        raise RequestError(f"{HEADER_LENGTH}: got {size}, expected 0 to {len(data)}, the size of the body")
    body = parse_json(data[:size], max_json_bytes)
    inputs, outputs = entry(body, "inputs", list, "body"), entry(body, "outputs", list, "body")
    parameters = entry(body, "parameters", dict, "body")
    request = InferRequest(
        model=model,
        version=version,
        request_id=entry(body, "id", str, "body"),
        parameters=Parameters.read(parameters),
        num_inputs=len(inputs),
        inputs=lambda: _tensors(inputs, data[size:]),
        num_outputs=len(outputs),
        outputs=lambda: [name for name, _ in _wanted(outputs, False)],
    )
    all_binary = entry(parameters, "binary_data_output", bool, "parameters")
    return Inference(request, lambda rows: _answer(request, outputs, all_binary, rows))


def read_answer(answer: bytes) -> Body:
    """What ``Inference.encode`` wrote."""
    (num_json_bytes,) = _JSON_BYTES.unpack_from(answer)
    return Body(memoryview(answer)[_JSON_BYTES.size :], num_json_bytes)


def write_json(content: Any) -> bytes:
    """JSON without spaces; numbers that JSON does not have (NaN, infinities) become null."""
    try:
        text = json.dumps(content, separators=(",", ":"), allow_nan=False)
    except ValueError:
        text = json.dumps(_with_nulls(content), separators=(",", ":"), allow_nan=False)
    return text.encode()


def plain(message: Message) -> dict[str, Any]:
    """A message as an object: every field by its name, whole numbers as numbers, constants by name."""
    fields = message.DESCRIPTOR.fields
    return {
        f.name: _plain_field(f, getattr(message, f.name))
        for f in fields
        if not f.has_presence or message.HasField(f.name)
    }


def _plain_field(field: FieldDescriptor, value: Any) -> Any:
    if field.is_repeated and field.message_type is not None and field.message_type.GetOptions().map_entry:
        of_value = field.message_type.fields_by_name["value"]
        return {key: _plain_value(of_value, one) for key, one in value.items()}
    if field.is_repeated:
        return [_plain_value(field, one) for one in value]
    return _plain_value(field, value)


def _plain_value(field: FieldDescriptor, value: Any) -> Any:
    if field.message_type is not None:
        return plain(value)
    return field.enum_type.values_by_number[value].name if field.enum_type is not None else value


def entry(holder: Any, name: str, kind: type, at: str) -> Any:
    """One entry of an object; empty where it is missing.

    Raises:
        RequestError: the holder is no object, or the entry is of another kind.
    """
    if not isinstance(holder, dict):
        raise RequestError(f"{at}: got {_kind(holder)}, expected an object")
    value = holder.get(name)
    if value is None:
        return kind()
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise RequestError(f"{at}[{name[:64]!r}]: got {_kind(value)}, expected {_KINDS[kind]}")
    return value


def _tensors(inputs: Sequence[Any], binary: bytes) -> list[Tensor]:
    tensors = []
    start = 0
    for i, given in enumerate(inputs):
        at = f"inputs[{i}]"
        name, datatype = entry(given, "name", str, at), entry(given, "datatype", str, at)
        shape = tuple(entry(given, "shape", list, at))
        if not all(type(size) is int and abs(size) <= _MAX_SIZE for size in shape):
            raise RequestError(f"{at}['shape']: expected whole numbers of at most 64 bits")
        parameters = entry(given, "parameters", dict, at)
        if "binary_data_size" in parameters:
            end = start + _binary_size(parameters, len(binary) - start, at)
            data, start = binary[start:end], end
        else:
            data = _values(f"inputs[{name[:64]!r}].data", datatype, shape, entry(given, "data", list, at))
        tensors.append(Tensor(name, datatype, shape, data))
    if start != len(binary):
        raise RequestError(
            f"body: got {len(binary)} bytes after the JSON, expected {start}, as the inputs say"
        )
    return tensors


def _binary_size(parameters: dict[str, Any], num_left: int, at: str) -> int:
    size: int = entry(parameters, "binary_data_size", int, f"{at}.parameters")
    if not 0 <= size <= num_left:
        raise RequestError(
            f"{at}.parameters['binary_data_size']: got {size}, expected 0 to {num_left} (bytes left)"
        )
    return size


def _values(field: str, datatype: str, shape: tuple[int, ...], data: list[Any]) -> bytes:
    """A tensor's bytes from numbers, in a flat list or in nested ones."""
    if datatype not in DTYPES:
        return b""  # the tensor's own checks say so
    numbers, nested = flat(field, data)
    if len(nested) > 1 and nested != shape[: len(nested)]:
        raise RequestError(
            f"{field}: got lists of shape {list(nested[:8])}, expected {list(shape[:8])}, or one flat list"
        )
    return pack(field, numbers, DTYPES[datatype])


def flat(field: str, data: list[Any]) -> tuple[list[Any], tuple[int, ...]]:
    """The innermost entries of nested lists, and how many lists there are at each level.

    Raises:
        RequestError: lists of a level differ in length.
    """
    shape = [len(data)]
    while data and type(data[0]) is list:
        if set(map(type, data)) != {list} or len(set(map(len, data))) != 1:
            raise RequestError(f"{field}: got lists of unequal lengths, expected rows of equal ones")
        shape.append(len(data[0]))
        data = list(chain.from_iterable(data))
    return data, tuple(shape)


def pack(field: str, numbers: list[Any], dtype: np.dtype[Any]) -> bytes:
    """Little-endian numbers of a type; never rounds an ID.

    Types are looked at before NumPy is: of texts it would make room for the longest in every place.

    Raises:
        RequestError: there is something else than numbers, or one that the type cannot hold.
    """
    allowed = {int} if dtype.kind == "i" else {int, float}
    others = set(map(type, numbers)) - allowed
    if others:
        wanted = "whole numbers" if dtype.kind == "i" else "numbers"
        got = " and ".join(sorted(_KINDS[kind] for kind in others))
        raise RequestError(f"{field}: got {got}, expected {wanted} alone")
    try:
        with np.errstate(over="ignore"):  # what float32 cannot hold becomes infinite, and is refused as such
            return np.array(numbers, dtype if dtype.kind == "i" else np.float64).astype(dtype).tobytes()
    except OverflowError:
        raise RequestError(f"{field}: got a number beyond the range of {dtype.name}") from None


def _wanted(outputs: Sequence[Any], all_binary: bool) -> list[tuple[str, bool]]:
    """The outputs that are asked for, in their order, and whether as binary tensors."""
    wanted = []
    for i, output in enumerate(outputs):
        at = f"outputs[{i}]"
        parameters = entry(output, "parameters", dict, at)
        own = entry(parameters, "binary_data", bool, f"{at}.parameters")
        name: str = entry(output, "name", str, at)
        wanted.append((name, own if "binary_data" in parameters else all_binary))
    return wanted


def _answer(request: InferRequest, outputs: Sequence[Any], all_binary: bool, rows: Rows) -> bytes:
    as_binary = dict(_wanted(outputs, all_binary))
    binary = []
    described: list[dict[str, Any]] = []
    for output in wanted_outputs(request, rows):
        one: dict[str, Any] = {"name": output.name, "datatype": FLOAT, "shape": output.shape}
        if as_binary.get(output.name, all_binary):
            one["parameters"] = {"binary_data_size": len(output.values)}
            binary.append(output.values)
        else:
            one["data"] = np.frombuffer(output.values, DTYPES[FLOAT]).tolist()
        described.append(one)
    content: dict[str, Any] = {"model_name": rows.info.name, "model_version": rows.info.version}
    if request.request_id:
        content["id"] = request.request_id
    text = write_json({**content, "outputs": described})
    return b"".join((_JSON_BYTES.pack(len(text)), text, *binary))


def _with_nulls(content: Any) -> Any:
    if isinstance(content, float):
        return content if math.isfinite(content) else None
    if isinstance(content, dict):
        return {name: _with_nulls(value) for name, value in content.items()}
    if isinstance(content, (list, tuple)):
        return [_with_nulls(value) for value in content]
    return content


_KINDS: dict[type, str] = {
    dict: "an object",
    list: "a list",
    str: "a text",
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    type(None): "null",
}


def _kind(value: Any) -> str:
    return _KINDS[type(value)]
