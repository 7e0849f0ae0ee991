"""Conversion of Open Inference's HTTP bodies to messages and back, with Triton's binary tensors.

A body is JSON. With the header ``Inference-Header-Content-Length``, the length of the JSON, it is JSON
followed by the bytes of the tensors that have ``binary_data_size``, in order.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from serve.errors import BodyTooLargeError, RequestError
from serve.protocols.calls import checked_request_id
from serve.protocols.open_inference import DTYPES, TEXT, Parameters, pack_texts
from serve.wire import open_inference_pb2 as wire

HEADER_LENGTH = "Inference-Header-Content-Length"
_MAX_SIZE = 2**63 - 1


class Body(NamedTuple):
    """The body of an answer: JSON, then binary tensors if there are any."""

    data: bytes
    num_json_bytes: int


def parse_json(data: bytes, max_bytes: int) -> dict[str, Any]:
    """Parse the JSON object in a body.

    Args:
        data: the body.
        max_bytes: limit of its size.

    Raises:
        BodyTooLargeError: the body is longer.
        RequestError: the body is not a JSON object.
    """
    if len(data) > max_bytes:
        raise BodyTooLargeError(
            f"body: got {len(data)} bytes of JSON, expected at most {max_bytes}; split the request, "
            "send binary tensors, or use the gRPC port"
        )
    try:
        parsed = json.loads(data)
    except json.JSONDecodeError as error:
        raise RequestError(f"body: got {len(data)} bytes that are not JSON ({error})") from None
    except (ValueError, RecursionError):
        raise RequestError(
            f"body: got {len(data)} bytes that are not JSON in UTF-8, or nested too deep"
        ) from None
    if not isinstance(parsed, dict):
        raise RequestError(f"body: got {kind_text(parsed)}, expected an object")
    return parsed


class Inference:
    """The contents of a body, parsed as far as possible without a model.

    Args:
        data: the body.
        num_json_bytes: size of its JSON; None for all.
        max_json_bytes: limit of that size.

    Attributes:
        parameters: parameters of the request.

    Raises:
        RequestError: the body is invalid; errors in its tensors are raised by ``message``.
    """

    def __init__(self, data: bytes, num_json_bytes: int | None, max_json_bytes: int) -> None:
        size = len(data) if num_json_bytes is None else num_json_bytes
        if not 0 <= size <= len(data):
            raise RequestError(
                f"{HEADER_LENGTH}: got {size}, expected 0 to {len(data)}, the size of the body"
            )
        body = parse_json(data[:size], max_json_bytes)
        self._inputs: list[Any] = entry(body, "inputs", list, "body")
        self._outputs: list[Any] = entry(body, "outputs", list, "body")
        self._binary = data[size:]
        given = entry(body, "parameters", dict, "body")
        self._id = checked_request_id(entry(body, "id", str, "body"), "id")
        self.parameters = Parameters.read(given)
        self._all_binary: bool = entry(given, "binary_data_output", bool, "parameters")

    def message(self, model: str, version: str) -> bytes:
        """Return the request as a serialized ``ModelInferRequest``, without the timeout.

        Args:
            model: the model of the URL.
            version: the version of the URL, or empty.

        Raises:
            RequestError: the message names the tensor, got and expected.
        """
        wanted = _wanted(self._outputs, self._all_binary)
        message = wire.ModelInferRequest(model_name=model, model_version=version, id=self._id)
        for name, _ in wanted:
            message.outputs.add(name=_utf8(name))
        for name, datatype, shape, data in _tensors(self._inputs, self._binary):
            message.inputs.add(name=_utf8(name), datatype=_utf8(datatype), shape=shape)
            message.raw_input_contents.append(data)
        parameters = message.parameters
        parameters["priority"].int64_param = int(self.parameters.priority)
        if self.parameters.context:
            parameters["context"].string_param = ",".join(map(_utf8, sorted(self.parameters.context)))
        serialized: bytes = message.SerializeToString()
        return serialized

    def body(self, answer: bytes) -> Body:
        """Return the body of an answer: a serialized ``ModelInferResponse``."""
        response = wire.ModelInferResponse.FromString(answer)
        as_binary = dict(_wanted(self._outputs, self._all_binary))
        binary = []
        described: list[dict[str, Any]] = []
        for output, data in zip(response.outputs, response.raw_output_contents, strict=True):
            one: dict[str, Any] = {
                "name": output.name,
                "datatype": output.datatype,
                "shape": list(output.shape),
            }
            if as_binary.get(output.name, self._all_binary):
                one["parameters"] = {"binary_data_size": len(data)}
                binary.append(data)
            else:
                one["data"] = np.frombuffer(data, DTYPES[output.datatype]).tolist()
            described.append(one)
        content: dict[str, Any] = {
            "model_name": response.model_name,
            "model_version": response.model_version,
        }
        if response.id:
            content["id"] = response.id
        text = write_json({**content, "outputs": described})
        return Body(b"".join((text, *binary)), len(text))


def write_json(content: Any) -> bytes:
    """Return JSON without spaces; numbers that JSON does not have (NaN, infinities) become null."""
    try:
        text = json.dumps(content, separators=(",", ":"), allow_nan=False)
    except ValueError:
        text = json.dumps(_with_nulls(content), separators=(",", ":"), allow_nan=False)
    return text.encode()


def plain(message: Message) -> dict[str, Any]:
    """Return a message as a dict: all fields by name, integers as numbers, enum values by name."""
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
    """Return one entry of an object; an empty value if it is missing.

    Raises:
        RequestError: the holder is not an object, or the entry has another type.
    """
    if not isinstance(holder, dict):
        raise RequestError(f"{at}: got {kind_text(holder)}, expected an object")
    value = holder.get(name)
    if value is None:
        return kind()
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise RequestError(f"{at}[{name[:64]!r}]: got {kind_text(value)}, expected {_KINDS[kind]}")
    return value


_Tensor = tuple[str, str, tuple[int, ...], bytes]
"""Name, datatype, shape, data."""


def _tensors(inputs: Sequence[Any], binary: bytes) -> list[_Tensor]:
    tensors: list[_Tensor] = []
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
        tensors.append((name, datatype, shape, data))
    if start != len(binary):
        raise RequestError(
            f"body: got {len(binary)} bytes after the JSON, expected {start}, as the inputs say"
        )
    return tensors


def _utf8(text: str) -> str:
    """Escape characters that UTF-8 cannot encode: JSON may contain lone surrogates, messages may not."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def _binary_size(parameters: dict[str, Any], num_left: int, at: str) -> int:
    size: int = entry(parameters, "binary_data_size", int, f"{at}.parameters")
    if not 0 <= size <= num_left:
        raise RequestError(
            f"{at}.parameters['binary_data_size']: got {size}, expected 0 to {num_left} (bytes left)"
        )
    return size


def _values(field: str, datatype: str, shape: tuple[int, ...], data: list[Any]) -> bytes:
    """Return a tensor's bytes for numbers, or texts for BYTES, in a flat or nested list."""
    if datatype != TEXT and datatype not in DTYPES:
        return b""  # the tensor's checks report it
    entries, nested = flat(field, data)
    if len(nested) > 1 and nested != shape[: len(nested)]:
        raise RequestError(
            f"{field}: got lists of shape {list(nested[:8])}, expected {list(shape[:8])}, or one flat list"
        )
    return pack_texts(utf8(field, entries)) if datatype == TEXT else pack(field, entries, DTYPES[datatype])


def flat(field: str, data: list[Any]) -> tuple[list[Any], tuple[int, ...]]:
    """Return the innermost entries of nested lists, and the shape.

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
    """Return numbers as little-endian bytes of a type; never rounds an ID.

    A null is a missing float, NaN; as floats, true is 1 and false 0.

    Types are checked before the conversion: for strings NumPy would allocate the longest length for every
    entry.

    Raises:
        RequestError: an entry is not a number, or the type cannot hold it.
    """
    allowed = {int} if dtype.kind == "i" else {int, float, bool, type(None)}
    others = set(map(type, numbers)) - allowed
    if others:
        wanted = "whole numbers" if dtype.kind == "i" else "numbers"
        got = " and ".join(sorted(_KINDS[kind] for kind in others))
        raise RequestError(f"{field}: got {got}, expected {wanted} alone")
    try:
        with np.errstate(over="ignore"):  # numbers beyond float32 become infinite and are refused
            return np.array(numbers, dtype if dtype.kind == "i" else np.float64).astype(dtype).tobytes()
    except OverflowError:
        raise RequestError(f"{field}: got a number beyond the range of {dtype.name}") from None


def utf8(field: str, entries: list[Any]) -> list[bytes]:
    """Return texts as UTF-8.

    Raises:
        RequestError: an entry is not a text, or half a surrogate pair, which JSON can escape and UTF-8 not encode.
    """
    others = set(map(type, entries)) - {str}
    if others:
        got = " and ".join(sorted(_KINDS[kind] for kind in others))
        raise RequestError(f"{field}: got {got}, expected texts alone")
    texts = []
    for i, text in enumerate(entries):
        try:
            texts.append(text.encode())
        except UnicodeEncodeError:
            raise RequestError(
                f"{field}: got half a surrogate pair at position {i}, expected text in UTF-8"
            ) from None
    return texts


def _wanted(outputs: Sequence[Any], all_binary: bool) -> list[tuple[str, bool]]:
    """Return the requested outputs in order, and whether as binary tensors."""
    wanted = []
    for i, output in enumerate(outputs):
        at = f"outputs[{i}]"
        parameters = entry(output, "parameters", dict, at)
        own = entry(parameters, "binary_data", bool, f"{at}.parameters")
        name: str = entry(output, "name", str, at)
        wanted.append((name, own if "binary_data" in parameters else all_binary))
    return wanted


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


def kind_text(value: Any) -> str:
    """Return what kind of JSON a value is, for messages."""
    return _KINDS[type(value)]
