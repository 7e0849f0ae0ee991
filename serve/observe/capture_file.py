"""The file format of captures.

All numbers are little-endian and unsigned. CRC-32 is that of zlib and PNG. A header:

* 8 bytes: ``RECSCAP`` and a line feed
* 4 bytes: version of the format, 1
* 8 bytes: microseconds since the epoch at which the records' times begin
* 4 bytes: CRC-32 of the 20 bytes before

Then, for each request, a record. The checksum of its head keeps a damaged length from looking like a truncated file:

* 4 bytes: bytes of the body
* 4 bytes: CRC-32 of the body
* 4 bytes: CRC-32 of the 8 bytes before
* the body: 8 bytes, microseconds since the beginning at which the request was taken in; 2 bytes, bytes of the model's
  name; 2 bytes, bytes of the version; the name and the version of the model that answered, UTF-8; a serialized
  ``recsys.v1.PredictRequest`` with ``num_rows`` and the inputs alone

Records are ordered by time. A file may end within a record.
"""

from __future__ import annotations

import logging
import os
import stat
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path

from google.protobuf.message import DecodeError

from serve.wire import predict_pb2 as wire

_log = logging.getLogger("serve.capture")
MAGIC = b"RECSCAP\n"
VERSION = 1
# Magic, version, start time in microseconds since the epoch; their CRC-32 follows.
_HEADER = struct.Struct("<8sIQ")
# Length and CRC-32 of the body; their CRC-32 follows.
_HEAD = struct.Struct("<II")
# Microseconds since the start, length of the model's name, length of the version.
_BODY = struct.Struct("<QHH")
_CRC = struct.Struct("<I")
HEADER_BYTES = _HEADER.size + _CRC.size
_HEAD_BYTES = _HEAD.size + _CRC.size
_MAX_NAME_BYTES = 0xFFFF


class CaptureError(ValueError):
    """The file is not a capture, has a newer version, or is damaged; the message says where."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CapturedRequest:
    """One request of a capture.

    Attributes:
        time_us: when it arrived, in microseconds since the start of the capture.
        model: the model that answered it.
        version: version of the model.
        data: a serialized ``recsys.v1.PredictRequest`` without model, version and request ID.
    """

    time_us: int
    model: str
    version: str
    data: bytes

    def parse(self) -> wire.PredictRequest:
        """Return the request as a message.

        Raises:
            CaptureError: ``data`` is not such a message.
        """
        try:
            request: wire.PredictRequest = wire.PredictRequest.FromString(self.data)
        except DecodeError:
            raise CaptureError(
                f"a record holds {len(self.data)} bytes that are not a PredictRequest"
            ) from None
        return request


def header(began_us: int) -> bytes:
    """Return the file's header.

    Args:
        began_us: microseconds since the epoch at which the records' times begin.
    """
    data = _HEADER.pack(MAGIC, VERSION, began_us)
    return data + _CRC.pack(zlib.crc32(data))


def record(request: CapturedRequest) -> bytes:
    """Return one request as bytes."""
    model, version = (name.encode()[:_MAX_NAME_BYTES] for name in (request.model, request.version))
    body = b"".join((_BODY.pack(request.time_us, len(model), len(version)), model, version, request.data))
    head = _HEAD.pack(len(body), zlib.crc32(body))
    return b"".join((head, _CRC.pack(zlib.crc32(head)), body))


class CaptureReader:
    """An iterator over the requests of a capture, one record in memory at a time. A context manager.

    Args:
        path: the file.

    Attributes:
        began_us: microseconds since the epoch at which the records' times begin.
        num_cut_bytes: after the iteration, bytes of an incomplete last record, as left by an interrupted
            writer; 0 if the last record is complete.

    Raises:
        CaptureError: the file is missing, not a capture, has a newer version, or its header is damaged.
            Iterating also raises it, at the first damaged record.
    """

    def __init__(self, path: Path) -> None:
        self._file = _opened(path)
        self.num_cut_bytes = 0
        try:
            self._size = os.fstat(self._file.fileno()).st_size
            self.began_us = _began_us(self._file.read(HEADER_BYTES))
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> CaptureReader:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def __iter__(self) -> Iterator[CapturedRequest]:
        start, number = self._file.tell(), 0
        while start < self._size:
            number += 1
            at = f"record {number}, at byte {start}"
            head = self._file.read(_HEAD_BYTES)
            length = _body_length(head, at) if len(head) == _HEAD_BYTES else self._size
            if start + _HEAD_BYTES + length > self._size:
                self.num_cut_bytes = self._size - start
                return
            yield _request(self._file.read(length), head, at)
            start += _HEAD_BYTES + length


def captured_requests(path: Path) -> Iterator[bytes]:
    """Yield the requests of a capture as serialized ``PredictRequest``s, up to the first damaged record.

    Raises:
        CaptureError: the file is missing, or not a capture.
    """
    with CaptureReader(path) as reader:
        try:
            for captured in reader:
                yield captured.data
        except CaptureError as error:
            _log.warning("the capture for the warm-up is used up to its damage: %s", error)


def _opened(path: Path) -> BufferedReader:
    try:
        file = path.open("rb")
    except OSError as error:
        raise CaptureError(f"capture {path.name}: cannot be read: {error.strerror}") from error
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise CaptureError(f"capture {path.name}: got something else, expected a file")
    return file


def _began_us(data: bytes) -> int:
    if len(data) < HEADER_BYTES or not data.startswith(MAGIC):
        raise CaptureError(f"header: got {data[:8]!r}, expected {MAGIC!r}: this is not a capture")
    _, version, began_us = _HEADER.unpack_from(data)
    if data[_HEADER.size :] != _CRC.pack(zlib.crc32(data[: _HEADER.size])):
        raise CaptureError("header: its checksum does not fit: the file is damaged")
    if version != VERSION:
        raise CaptureError(
            f"header: got version {version}, expected {VERSION}: use the release that wrote it"
        )
    return int(began_us)


def _body_length(head: bytes, at: str) -> int:
    if head[_HEAD.size :] != _CRC.pack(zlib.crc32(head[: _HEAD.size])):
        raise CaptureError(f"{at}: the checksum of its head does not fit: the file is damaged from here on")
    return int(_HEAD.unpack_from(head)[0])


def _request(body: bytes, head: bytes, at: str) -> CapturedRequest:
    if zlib.crc32(body) != _HEAD.unpack_from(head)[1]:
        raise CaptureError(f"{at}: its checksum does not fit: the file is damaged here")
    if len(body) < _BODY.size:
        raise CaptureError(f"{at}: got {len(body)} bytes, expected at least {_BODY.size}")
    time_us, model_bytes, version_bytes = _BODY.unpack_from(body)
    names_end = _BODY.size + model_bytes + version_bytes
    if names_end > len(body):
        raise CaptureError(f"{at}: got names of {model_bytes} and {version_bytes} bytes in {len(body)} bytes")
    names = body[_BODY.size : names_end]
    try:
        model, version = names[:model_bytes].decode(), names[model_bytes:].decode()
    except UnicodeDecodeError:
        raise CaptureError(f"{at}: got names that are not UTF-8") from None
    return CapturedRequest(time_us=time_us, model=model, version=version, data=body[names_end:])
