"""Publish deltas to a topic."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from recsys.streams.address import KafkaAddress
from recsys.streams.folder import checked
from recsys.streams.interface import DeltaSink, StreamError
from recsys.streams.kafka.config import opened, settings, text_of
from recsys.streams.kafka.message import chunks_of, parts_of

# Chunks that wait for the brokers.
_QUEUE_KIB = 32 << 10
# Headers and key of a message.
_OVERHEAD_BYTES = 64 << 10
_POLL_S = 0.1


class KafkaSink(DeltaSink):
    """Publishes each delta as messages; readers take it once all of them are there.

    Publishing a delta again is harmless: readers leave messages alone that they know.

    Args:
        address: the topic. Brokers may make it when the first message comes.
    """

    def __init__(self, address: KafkaAddress) -> None:
        self._address = address
        self._producer: Any = None

    def publish(self, path: Path) -> None:
        """See ``DeltaSink``."""
        checked(path)
        parts = parts_of(path, self._address.chunk_bytes)
        failed: list[Any] = []

        def delivered(error: Any, _: Any) -> None:
            if error is not None:
                failed.append(error)

        producer = self._connected()
        stamp_ms = int(parts.created_s * 1000)
        for key, value, headers in chunks_of(path, parts):
            send = partial(
                producer.produce,
                self._address.topic,
                value,
                key,
                headers=headers,
                timestamp=stamp_ms,
                on_delivery=delivered,
            )
            self._send(send, failed)
            producer.poll(0)
            if failed:
                break
        while not failed and len(producer):
            producer.poll(_POLL_S)  # each message fails by itself once its time is over
        if failed:
            self.close()
            raise self._refused(failed[0], parts.name)

    def close(self) -> None:
        """See ``DeltaSink``."""
        if self._producer is not None:
            self._producer.purge()
            self._producer.flush(_POLL_S)
            self._producer = None

    def _send(self, send: Callable[[], None], failed: list[Any]) -> None:
        from confluent_kafka import KafkaException

        end_s = time.monotonic() + self._address.timeout_s
        while True:
            try:
                send()
            except BufferError:  # the queue is full
                self._producer.poll(_POLL_S)
                if failed:
                    return
                if time.monotonic() > end_s:
                    self.close()
                    raise StreamError(
                        f"kafka: the brokers took nothing for {self._address.timeout_s:g} s"
                    ) from None
            except KafkaException as error:
                failed.append(error.args[0])
                return
            else:
                return

    def _refused(self, error: Any, name: str) -> StreamError:
        from confluent_kafka import KafkaError

        topic, chunk_bytes = self._address.topic, self._address.chunk_bytes
        if error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
            return StreamError(
                f"delta {name}: topic {topic} takes no messages of {chunk_bytes:,} bytes: lower chunk_bytes in the "
                "address, or raise the topic's max.message.bytes"
            )
        if error.code() in (KafkaError._MSG_TIMED_OUT, KafkaError._ALL_BROKERS_DOWN, KafkaError._TRANSPORT):
            return StreamError(
                f"delta {name}: the brokers of topic {topic} did not take it within {self._address.timeout_s:g} s"
            )
        return StreamError(f"delta {name}: topic {topic} did not take it: {text_of(error)}")

    def _connected(self) -> Any:
        if self._producer is None:
            from confluent_kafka import Producer

            ours = {
                # Readers leave doubled messages alone, and order those that were reordered.
                "acks": "all",
                "message.timeout.ms": int(self._address.timeout_s * 1000),
                "message.max.bytes": self._address.chunk_bytes + _OVERHEAD_BYTES,
                "queue.buffering.max.kbytes": max(_QUEUE_KIB, 4 * self._address.chunk_bytes >> 10),
                "linger.ms": 0,
            }
            self._producer = opened(Producer, settings(self._address, ours, lambda _: None))
        return self._producer
