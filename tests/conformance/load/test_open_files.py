"""A server that may open no more files: new connections end or wait, old ones are served, and the log stays short."""

from __future__ import annotations

import resource
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from serve.client import Client
from tests.conformance.support.artifacts import Exported
from tests.conformance.support.harness import ServerUnderTest
from tests.support.serve.messages.cases import assert_answers

pytestmark = pytest.mark.engine

NUM_CLIENTS = 40
PORTS = ("port", "http_port", "admin_port", "metrics_port")


@contextmanager
def at_the_limit(server: ServerUnderTest) -> Iterator[None]:
    """Let a server open no more files than it has now."""
    pid = server.process.pid
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (len([*Path(f"/proc/{pid}/fd").iterdir()]), before[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, before)


@pytest.mark.parametrize("port", PORTS)
def test_old_connections_are_served_and_new_ones_again_once_there_is_room(
    server: ServerUnderTest, small: Exported, port: str
) -> None:
    sample = small.sample(2)

    def is_served(client: Client) -> None:
        assert_answers(client.predict(sample.dense, sample.sparse, sample.weights), small.answer(sample))

    old = server.client()
    is_served(old)
    before = len(server.log.read_text().splitlines())
    with at_the_limit(server):
        waiting = [socket.socket() for _ in range(NUM_CLIENTS)]
        for one in waiting:
            one.connect(("127.0.0.1", server.ready[port]))
        for _ in range(5):
            is_served(old)
    for one in waiting:
        one.close()
    is_served(server.client())
    assert "recsys_requests_total" in str(server.metrics())
    lines = server.log.read_text().splitlines()[before:]
    assert len(lines) <= 5, lines
    assert not any("Traceback" in line for line in lines), lines
