"""Redis servers of a test's own, on free ports of loopback."""

from __future__ import annotations

import contextlib
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import pytest

PROGRAM = shutil.which("redis-server") or shutil.which("valkey-server")

needs_redis = pytest.mark.skipif(
    PROGRAM is None, reason="no redis-server or valkey-server on the PATH: apt-get install redis-server"
)


class RedisNode:
    """A server that keeps nothing on the disk; ``start`` and ``kill`` as often as a test likes.

    Args:
        arguments: further ones of the server.
    """

    def __init__(self, *arguments: str) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]
        self._arguments = arguments
        self._process: subprocess.Popen[bytes] | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self.start()

    @property
    def address(self) -> str:
        """Return host and port."""
        return f"127.0.0.1:{self.port}"

    @property
    def client(self) -> Any:
        """Return a connection."""
        import redis

        return redis.Redis(port=self.port, protocol=2)

    def start(self) -> None:
        """Start it, without rows, and wait until it answers."""
        assert PROGRAM is not None
        # A replica keeps a copy of its primary's rows there, which a later server would read.
        self._folder = tempfile.TemporaryDirectory(prefix="recsys-redis-")
        self._process = subprocess.Popen(
            [PROGRAM, "--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no",
             "--dir", self._folder.name, "--repl-diskless-sync-delay", "0", *self._arguments],
            stdout=subprocess.DEVNULL,
        )  # fmt: skip
        import redis

        for _ in range(500):
            with contextlib.suppress(redis.RedisError), self.client as client:
                if client.ping():
                    return
            assert self._process.poll() is None, "redis-server has ended"
            time.sleep(0.02)
        raise AssertionError("redis-server does not answer")

    def follow(self, other: RedisNode) -> None:
        """Become a replica of another node, and wait until it holds the same."""
        with self.client as client:
            client.replicaof("127.0.0.1", other.port)
            until = time.monotonic() + 60
            while client.info("replication")["master_link_status"] != "up":
                assert time.monotonic() < until, "the replica does not reach its node"
                time.sleep(0.05)

    def stop(self) -> None:
        """Let it hang: it takes connections and answers nothing."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """Let it answer again."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """End it; its rows are gone."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None


@contextlib.contextmanager
def redis_nodes(count: int) -> Iterator[list[RedisNode]]:
    """Yield so many servers."""
    nodes: list[RedisNode] = []
    try:
        nodes.extend(RedisNode() for _ in range(count))
        yield nodes
    finally:
        for node in nodes:
            node.kill()


def address_of(nodes: list[RedisNode]) -> str:
    """Return the address of the rows that lie in some nodes."""
    return "redis://" + ",".join(node.address for node in nodes)
