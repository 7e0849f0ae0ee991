"""A broker of Kafka on loopback: librdkafka's mock cluster in a process of its own.

It keeps the last five megabytes of each of a topic's partitions. Import the fixture ``kafka`` by name.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

_BROKER = """
import sys
from confluent_kafka import Producer
cluster = Producer({"bootstrap.servers": "mock", "test.mock.num.brokers": 1, "log_level": 0})
(broker,) = cluster.list_topics(timeout=30).brokers.values()
print(f"{broker.host}:{broker.port}", flush=True)
sys.stdin.read()
"""
#: How long a broker that is there may take, on a busy machine.
PATIENCE_S = 60.0


@dataclass
class Broker:
    """A running broker.

    Attributes:
        brokers: its ``host:port``.
        process: runs it.
    """

    brokers: str
    process: subprocess.Popen[str]
    _producers: list[Any] = field(default_factory=list)

    def address(self, topic: str, **options: object) -> str:
        """The address of a topic."""
        query = "&".join(f"{name}={value}" for name, value in options.items())
        return f"kafka://{self.brokers}/{topic}" + (f"?{query}" if query else "")

    def send(self, topic: str, messages: Sequence[tuple[str, bytes, Any]], partition: int = 0) -> None:
        """Send messages, each its key, value and headers, in this order; returns when they are there."""
        from confluent_kafka import Producer

        if not self._producers:
            self._producers.append(Producer({"bootstrap.servers": self.brokers, "log_level": 0}))
        (producer,) = self._producers
        for key, value, headers in messages:
            producer.produce(topic, value, key, partition, headers=headers)
        assert producer.flush(PATIENCE_S) == 0

    def go_away(self) -> None:
        """Answer nothing until ``come_back``."""
        os.kill(self.process.pid, signal.SIGSTOP)
        os.waitpid(self.process.pid, os.WUNTRACED)  # it has stopped

    def come_back(self) -> None:
        """Answer again."""
        os.kill(self.process.pid, signal.SIGCONT)


def start_broker() -> Broker:
    """A broker of its own; ``stop_broker`` ends it."""
    process = subprocess.Popen(
        [sys.executable, "-c", _BROKER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    return Broker(process.stdout.readline().strip(), process)


def stop_broker(broker: Broker) -> None:
    """End a broker."""
    broker.process.kill()
    with broker.process:
        broker.process.wait()


@pytest.fixture(scope="session")
def kafka() -> Iterator[Broker]:
    """A broker for the tests of a session; each test has a topic of its own."""
    broker = start_broker()
    yield broker
    stop_broker(broker)
