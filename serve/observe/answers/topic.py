"""A topic of Kafka: each message is a Parquet file of whole requests of one version, as in a folder.

The queue of librdkafka holds what brokers have not taken; messages beyond it are dropped and counted, those that they
do not take in time are counted as ``write_failed``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from recsys.inputs.answer_columns import AnswerLayout
from recsys.streams.address import KafkaAddress
from recsys.streams.interface import StreamError
from recsys.streams.kafka.config import opened, settings, text_of
from serve.config.settings import AnswerLogConfig
from serve.observe.answers.parquet.file import ParquetFile
from serve.observe.answers.parquet.pages import numbers_of
from serve.observe.answers.table import UNIQUE, SentKinds

_CLOSE_S = 20.0
_LEAST_KIB = 1024
_OVERHEAD_BYTES = 64 << 10
# Messages that are expected to be larger than their bound over it are not tried.
_MARGIN = 1.1


class Topic:
    """See ``Destination``. Belongs to one thread.

    Args:
        config: its bounds.
        address: the topic.
        count: called with requests and their outcome.
        report: called with failures.

    Raises:
        StreamError: a property of the user's is wrong.
    """

    def __init__(
        self,
        config: AnswerLogConfig,
        address: KafkaAddress,
        count: Callable[[str, int], None],
        report: Callable[[Exception], None],
    ) -> None:
        from confluent_kafka import Producer

        self._address, self._count, self._report = address, count, report
        self._layout: AnswerLayout | None = None
        self._kinds = SentKinds()
        # Bytes of the last message for each of its columns in memory.
        self._packed_share = 1.0
        ours = {
            "acks": "all",
            "enable.idempotence": True,
            "message.timeout.ms": int(address.timeout_s * 1000),
            "message.max.bytes": address.chunk_bytes + _OVERHEAD_BYTES,
            "queue.buffering.max.kbytes": max(_LEAST_KIB, config.max_waiting_bytes >> 10),
        }
        self._producer: Any = opened(Producer, settings(address, ours, lambda _: None))

    def kinds(self, model: str, version: str, layout: AnswerLayout) -> SentKinds:
        """See ``Destination``."""
        del model, version
        self._layout, self._kinds = layout, SentKinds()
        return self._kinds

    def write(self, model: str, version: str, batch: pa.RecordBatch, num_requests: int) -> None:
        """See ``Destination``; a failure is reported, and counted for the requests that it concerns."""
        assert self._layout is not None
        metadata = self._kinds.completed(self._layout).metadata()
        headers = [("model", model.encode()), ("version", version.encode())]
        starts = np.flatnonzero(numbers_of(batch.column("row"), np.dtype(np.int32)) == 0)
        # Requests without rows have nothing to send.
        self._count("written", num_requests - len(starts))
        self._send(batch, starts, metadata, headers)
        self._producer.poll(0)

    def tick(self) -> None:
        """See ``Destination``."""
        self._producer.poll(0)

    def close(self) -> None:
        """See ``Destination``."""
        self._producer.flush(_CLOSE_S)
        self._producer.purge()
        self._producer.flush(0)

    def _send(
        self,
        batch: pa.RecordBatch,
        starts: Any,
        metadata: dict[bytes, bytes],
        headers: list[tuple[str, bytes]],
    ) -> None:
        """Send requests in one message, or in halves where that is too large."""
        from confluent_kafka import KafkaException

        if not len(starts):
            return
        data, most = b"", self._address.chunk_bytes
        is_small = len(starts) == 1 or _MARGIN * self._packed_share * batch.nbytes <= most
        if is_small:
            data = _file_of(batch, metadata)
            self._packed_share = min(1.0, len(data) / batch.nbytes)
        if not is_small or (len(data) > most and len(starts) > 1):
            half = len(starts) // 2
            at = int(starts[half])
            self._send(batch.slice(0, at), starts[:half], metadata, headers)
            self._send(batch.slice(at), starts[half:] - at, metadata, headers)
            return
        delivered = partial(self._delivered, len(starts))
        try:
            self._producer.produce(self._address.topic, data, headers=headers, on_delivery=delivered)
        except BufferError:
            self._count("queue_full", len(starts))
            self._producer.poll(0)
        except KafkaException as error:
            self._failed(len(starts), error.args[0])

    def _delivered(self, num_requests: int, error: Any, _: Any) -> None:
        if error is None:
            self._count("written", num_requests)
        else:
            self._failed(num_requests, error)

    def _failed(self, num_requests: int, error: Any) -> None:
        self._count("write_failed", num_requests)
        self._report(StreamError(f"topic {self._address.topic}: {text_of(error)}"))


def _file_of(batch: pa.RecordBatch, metadata: dict[bytes, bytes]) -> bytes:
    parts: list[bytes] = []
    file = ParquetFile(parts.extend, batch.schema, UNIQUE)
    file.add(batch)
    file.close(metadata)
    return b"".join(parts)
