"""Clients that keep many calls open on a few connections, as fast as a server answers them.

``python -m tests.conformance.support.pipelines`` is one such client: a process with several connections. When it
ends it prints how many calls were answered.
"""

from __future__ import annotations

import contextlib
import selectors
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from tests.conformance.support import http2
from tests.conformance.support.http2 import END_HEADERS, END_STREAM, WINDOW_BYTES, frame, message

# HPACK: POST and http of the static table; then path, authority, te and content-type, in this order, of the table that
# the first call has filled.
_FIRST = b"\x83\x86"
_LATER = b"\x83\x86\xc1\xc0\xbf\xbe"
_STREAM_AT = 5
_HEAD_BYTES = 9
_ROOM_BYTES = 1 << 30
# Streams of a connection; then it is closed and opened again.
_MAX_STREAM = 1 << 30
# Then a client ends that nobody ends.
_LONGEST_S = 600.0


def first_headers(path: str) -> bytes:
    """The header block of a connection's first call, which the server remembers."""
    fields = ((":path", path), (":authority", "localhost"), ("te", "trailers"))
    remembered = b"".join(http2.remembered(name, value) for name, value in fields)
    return _FIRST + remembered + http2.remembered("content-type", "application/grpc")


class Calls:
    """The frames of calls that are all alike, by their stream numbers.

    Args:
        path: the method.
        request: the message; None for calls that never send one.
        more: further headers of each call, in HPACK's form.
        is_part: whether a last byte of the message is never sent.
    """

    def __init__(self, path: str, request: bytes | None, more: bytes = b"", *, is_part: bool = False) -> None:
        self.first = first_headers(path) + more
        head = frame(http2.HEADERS, END_HEADERS, 0, _LATER + more)
        body = b"" if request is None else message(request, 0)
        if is_part and request is not None:
            body = message(request + b"?", 0, flags=0)
            at = max(i for i in _frame_starts(body))
            body = body[:at] + frame(http2.DATA, 0, 0, body[at + _HEAD_BYTES : -1])
        self._template = np.frombuffer(head + body, dtype=np.uint8)
        self._starts = [start + _STREAM_AT for start in _frame_starts(head + body)]
        self.body = body
        self.num_data_bytes = 0 if request is None else len(body) - _HEAD_BYTES * (len(self._starts) - 1)

    def opening(self) -> bytes:
        """The first call of a connection, on stream 1."""
        return frame(http2.HEADERS, END_HEADERS, 1, self.first) + _on_stream(self.body, 1)

    def of(self, first_stream: int, num_calls: int) -> bytes:
        """The frames of ``num_calls`` further calls, from ``first_stream`` on."""
        calls = np.tile(self._template, (num_calls, 1))
        streams = np.arange(first_stream, first_stream + 2 * num_calls, 2, dtype=">u4")
        for start in self._starts:
            calls[:, start : start + 4] = streams.view(np.uint8).reshape(num_calls, 4)
        return calls.tobytes()


def _frame_starts(frames: bytes) -> Iterator[int]:
    at = 0
    while at < len(frames):
        yield at
        at += _HEAD_BYTES + int.from_bytes(frames[at : at + 3], "big")


def _on_stream(frames: bytes, stream: int) -> bytes:
    parts = bytearray(frames)
    for start in _frame_starts(frames):
        parts[start + _STREAM_AT : start + _HEAD_BYTES] = stream.to_bytes(4, "big")
    return bytes(parts)


class Pipeline:
    """A connection that keeps ``depth`` calls open."""

    def __init__(self, address: str, calls: Calls, depth: int) -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), timeout=60)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.setblocking(False)
        self.num_answered = 0
        self._calls = calls
        self._depth = depth
        self._next_stream = 3
        self._num_open = 1
        self._window = WINDOW_BYTES - calls.num_data_bytes
        room = frame(http2.WINDOW_UPDATE, 0, 0, struct.pack(">I", _ROOM_BYTES))
        self._unsent = memoryview(http2.hello() + room + calls.opening())
        self._unread = b""
        self._read = 0

    @property
    def wants_to_send(self) -> bool:
        return bool(self._unsent) or self._num_possible() > 0

    def _num_possible(self) -> int:
        size = self._calls.num_data_bytes
        most = self._depth - self._num_open
        return most if size == 0 else min(most, self._window // size)

    def send(self) -> None:
        """Send as much as the socket takes."""
        if not self._unsent:
            num = self._num_possible()
            self._unsent = memoryview(self._calls.of(self._next_stream, num))
            self._next_stream += 2 * num
            self._num_open += num
            self._window -= num * self._calls.num_data_bytes
        with contextlib.suppress(BlockingIOError):
            self._unsent = self._unsent[self.socket.send(self._unsent) :]

    def receive(self) -> bool:
        """Count the calls that have ended; False once the server has closed the connection."""
        try:
            data = self.socket.recv(1 << 18)
        except BlockingIOError:
            return True
        except OSError:
            return False
        if not data or self._next_stream > _MAX_STREAM:
            return False
        data, at, replies = self._unread + data, 0, b""
        while at + _HEAD_BYTES <= len(data):
            size = int.from_bytes(data[at : at + 3], "big")
            end = at + _HEAD_BYTES + size
            if end > len(data):
                break
            kind, flags = data[at + 3], data[at + 4]
            if (kind == http2.HEADERS and flags & END_STREAM) or (
                kind == http2.RST_STREAM and data[at + _HEAD_BYTES : end] != b"\0\0\0\0"
            ):
                self._num_open -= 1
                self.num_answered += 1
            elif kind == http2.WINDOW_UPDATE and data[at + _STREAM_AT : at + _HEAD_BYTES] == b"\0\0\0\0":
                self._window += int.from_bytes(data[at + _HEAD_BYTES : end], "big")
            elif kind in (http2.SETTINGS, http2.PING) and not flags & http2.ACK:
                payload = data[at + _HEAD_BYTES : end] if kind == http2.PING else b""
                replies += frame(kind, http2.ACK, 0, payload)
            elif kind == http2.DATA:
                self._read += size
            at = end
        self._unread = data[at:]
        if self._read > _ROOM_BYTES // 2:
            replies += frame(http2.WINDOW_UPDATE, 0, 0, struct.pack(">I", self._read))
            self._read = 0
        if replies:
            self._unsent = memoryview(bytes(self._unsent) + replies)
        return True


def run(address: str, calls: Calls, num_connections: int, depth: int, is_over: Callable[[], bool]) -> int:
    """Keep ``depth`` calls open on each connection until it is over; return how many were answered.

    A connection that the server closes is opened again.
    """
    num_answered = 0
    with selectors.DefaultSelector() as selector:
        for _ in range(num_connections):
            pipeline = Pipeline(address, calls, depth)
            selector.register(pipeline.socket, selectors.EVENT_READ | selectors.EVENT_WRITE, pipeline)
        while not is_over():
            for key, events in selector.select(0.1):
                pipeline = key.data
                is_open = not events & selectors.EVENT_READ or pipeline.receive()
                try:
                    if is_open and pipeline.wants_to_send:
                        pipeline.send()
                except OSError:
                    is_open = False
                if not is_open:
                    num_answered += pipeline.num_answered
                    selector.unregister(pipeline.socket)
                    pipeline.socket.close()
                    time.sleep(0.005)
                    pipeline = Pipeline(address, calls, depth)
                    selector.register(pipeline.socket, selectors.EVENT_READ | selectors.EVENT_WRITE, pipeline)
                    continue
                wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if pipeline.wants_to_send else 0)
                if wanted != key.events:
                    selector.modify(key.fileobj, wanted, pipeline)
        for key in list(selector.get_map().values()):
            num_answered += key.data.num_answered
            key.data.socket.close()
    return num_answered


@dataclass(frozen=True, kw_only=True)
class Load:
    """What senders flood a server with.

    Attributes:
        path: the method.
        request: the message of each call; None for calls that never send one.
        header_bytes: of a further header of each call.
        is_part: whether the last byte of each message never comes.
        num_senders: processes.
        num_connections: connections of each process.
        depth: calls that each connection keeps open.
    """

    path: str
    request: bytes | None
    header_bytes: int = 0
    is_part: bool = False
    num_senders: int = 8
    num_connections: int = 4
    depth: int = 900


@contextmanager
def flooded(address: str, load: Load) -> Iterator[list[int]]:
    """Senders that flood a server until the end of the block.

    Yields:
        A list that holds, after the block, how many calls of each sender were answered.
    """
    numbers = (load.num_connections, load.depth, load.header_bytes, int(load.is_part))
    command = [sys.executable, "-m", "tests.conformance.support.pipelines", address, load.path]
    command += [*map(str, numbers)] + ([] if load.request is None else [load.request.hex() or "empty"])
    senders = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(load.num_senders)]
    answered: list[int] = []
    try:
        yield answered
    finally:
        for sender in senders:
            sender.terminate()
        for sender in senders:
            output, _ = sender.communicate()
            answered.append(int(output or 0))


def main(arguments: Sequence[str]) -> None:
    """Flood as the command line says, until the time is over or SIGTERM comes."""
    address, path, num_connections, depth, header_bytes, is_part, *rest = arguments
    request = bytes.fromhex(rest[0].replace("empty", "")) if rest else None
    more = http2.header("x-more", "a" * int(header_bytes)) if int(header_bytes) else b""
    end_s = time.monotonic() + _LONGEST_S
    stopped: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: stopped.append(number))
    calls = Calls(path, request, more, is_part=is_part == "1")
    num_answered = run(
        address, calls, int(num_connections), int(depth), lambda: bool(stopped) or time.monotonic() > end_s
    )
    print(num_answered)


if __name__ == "__main__":
    main(sys.argv[1:])
