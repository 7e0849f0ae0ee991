"""HTTP/2 by hand (RFC 9113, RFC 7541): what no client library would send, straight onto the socket."""

from __future__ import annotations

import contextlib
import socket
import struct
import time
from collections.abc import Iterator
from typing import NamedTuple

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = (
    range(10)
)
END_STREAM, ACK, END_HEADERS = 1, 1, 4
#: What a frame may hold unless its receiver says more.
MAX_FRAME_BYTES = 16384
# What a server lets a connection send before it has given more room.
WINDOW_BYTES = 65535
_HEAD_BYTES = 9
# Longer than any server takes to answer on a busy machine.
_PATIENCE_S = 30.0


class Frame(NamedTuple):
    """A frame that was read."""

    kind: int
    flags: int
    stream: int
    payload: bytes


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """A frame as bytes."""
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def hello() -> bytes:
    """What every client says first, with no settings of its own."""
    return PREFACE + frame(SETTINGS, 0, 0)


def header(name: str, value: str) -> bytes:
    """A header as HPACK's plainest form: a literal that is not remembered."""
    return b"\x00" + _text(name) + _text(value)


def remembered(name: str, value: str) -> bytes:
    """A header that the receiver has to keep in its table, as its newest entry (index 62)."""
    return b"\x40" + _text(name) + _text(value)


def call(path: str, *more: bytes) -> bytes:
    """The header block that opens a gRPC call."""
    names = {
        ":method": "POST",
        ":scheme": "http",
        ":path": path,
        ":authority": "localhost",
        "te": "trailers",
        "content-type": "application/grpc",
    }
    return b"".join([*(header(name, value) for name, value in names.items()), *more])


def opened(path: str, stream: int = 1) -> bytes:
    """The frame that opens a gRPC call."""
    return frame(HEADERS, END_HEADERS, stream, call(path))


def message(data: bytes, stream: int = 1, *, flags: int = END_STREAM) -> bytes:
    """A whole gRPC message in as many frames as it needs; ``flags`` are the last one's."""
    body = struct.pack(">BI", 0, len(data)) + data
    parts = [body[i : i + MAX_FRAME_BYTES] for i in range(0, len(body), MAX_FRAME_BYTES)]
    return b"".join(
        frame(DATA, flags if i == len(parts) - 1 else 0, stream, part) for i, part in enumerate(parts)
    )


def _text(text: str) -> bytes:
    data = text.encode()
    return _number(len(data), 7) + data


def _number(value: int, prefix_bits: int) -> bytes:
    """A number as HPACK writes it behind a prefix of zeros."""
    most = (1 << prefix_bits) - 1
    if value < most:
        return bytes([value])
    parts = bytearray([most])
    value -= most
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)


class RawConnection:
    """A TCP connection to a server. A context manager.

    Args:
        address: ``host:port``.
        receive_bytes: of the socket's own buffer; 0 for the system's choice.
    """

    def __init__(self, address: str, receive_bytes: int = 0) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.socket()
        if receive_bytes:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        self._socket.settimeout(_PATIENCE_S)
        self._socket.connect((host, int(port)))

    def __enter__(self) -> RawConnection:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def send(self, data: bytes) -> None:
        """Send; a server that has closed the connection meanwhile has said enough."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._socket.sendall(data)

    def end_of_input(self) -> None:
        """Say that nothing more will come, as a client that is killed does."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    def reset(self) -> None:
        """Be gone without a word: the server gets a TCP reset."""
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._socket.close()

    def received(self) -> bytes:
        """Everything that has arrived by now; does not wait."""
        parts = []
        self._socket.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while part := self._socket.recv(1 << 18):
                parts.append(part)
        self._socket.settimeout(_PATIENCE_S)
        return b"".join(parts)

    def drain(self) -> bytes:
        """Everything until the server closes the connection.

        Raises:
            TimeoutError: it does not.
        """
        parts = []
        with contextlib.suppress(ConnectionResetError):
            while part := self._socket.recv(1 << 16):
                parts.append(part)
        return b"".join(parts)

    def frames(self) -> Iterator[Frame]:
        """Frame by frame until the server closes the connection; its questions are answered.

        Raises:
            TimeoutError: the server does neither.
        """
        end_s = time.monotonic() + _PATIENCE_S
        while (head := self._exactly(_HEAD_BYTES)) is not None:
            if time.monotonic() > end_s:
                raise TimeoutError("the server asks and never answers")
            payload = self._exactly(int.from_bytes(head[:3], "big"))
            if payload is None:
                return
            kind, flags = head[3], head[4]
            if kind in (SETTINGS, PING) and not flags & ACK:
                self.send(frame(kind, ACK, 0, payload if kind == PING else b""))
            yield Frame(kind, flags, int.from_bytes(head[5:], "big"), payload)

    def until_ended(self, stream: int = 1) -> Frame | None:
        """The frame that ends a call: its trailers, a reset, or a goodbye; None where the connection just ends."""
        for got in self.frames():
            if got.kind == GOAWAY or (
                got.stream == stream and (got.kind == RST_STREAM or got.flags & END_STREAM)
            ):
                return got
        return None

    def until_acknowledged(self) -> None:
        """Until the server has answered a ping: it has read everything that was sent before."""
        self.send(frame(PING, 0, 0, b"are you?"))
        for got in self.frames():
            if got.kind == PING and got.flags & ACK:
                return
        raise ConnectionError("the server closed the connection")

    def _exactly(self, num_bytes: int) -> bytes | None:
        parts = bytearray()
        while len(parts) < num_bytes:
            try:
                part = self._socket.recv(num_bytes - len(parts))
            except ConnectionResetError:
                return None
            if not part:
                return None
            parts += part
        return bytes(parts)
