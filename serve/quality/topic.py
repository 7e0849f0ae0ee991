"""Labels from a topic of Kafka, read by a thread of its own."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any

from recsys.streams.address import KafkaAddress
from recsys.streams.kafka.config import opened, settings, text_of
from serve.errors import RequestError
from serve.quality.labels import FeedbackItem, items_of_record

_log = logging.getLogger("serve.quality")
_POLL_S = 0.2
# Between attempts to learn the topic's partitions, and between looks for new ones.
_RETRY_S = 2.0
_LOOK_S = 30.0
# An offset is never committed: after a restart no answer is kept that earlier labels could be for.
_OURS = {"group.id": "recsys-serving-labels", "enable.auto.commit": False, "allow.auto.create.topics": False}
_QUEUED_KB = 16 << 10


class LabelTopic:
    """Reads all partitions of a topic from the end that they have when it begins.

    A record is a serialized ``recsys.v1.FeedbackRequest``, or the JSON body of REST. Every server reads every label,
    because labels carry no name of the server that answered.

    Args:
        address: the topic.
        take: takes the labels of a record; the next one is read when it returns. Called in the reading thread.
        refuse: is called for each record that holds no labels.

    Raises:
        StreamError: a property of the connection is wrong.
    """

    def __init__(
        self,
        address: KafkaAddress,
        take: Callable[[Sequence[FeedbackItem]], object],
        refuse: Callable[[], None],
    ) -> None:
        from confluent_kafka import Consumer

        self._address = address
        self._take, self._refuse = take, refuse
        self._is_closed = threading.Event()
        self._partitions: set[int] = set()
        self._said = ""
        properties = settings(
            address,
            {**_OURS, "queued.max.messages.kbytes": _QUEUED_KB},
            lambda error: self._say(text_of(error)),
        )
        self._consumer: Any = opened(Consumer, properties)
        self._thread = threading.Thread(target=self._run, name="labels", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread; idempotent. Blocks for as long as a request to the brokers takes."""
        self._is_closed.set()
        self._thread.join(self._address.timeout_s + 1)

    def _run(self) -> None:
        try:
            while not self._is_closed.is_set():
                if not self._assign():
                    self._is_closed.wait(_RETRY_S)
                    continue
                num_polls = int(_LOOK_S / _POLL_S)
                for _ in range(num_polls):
                    if self._is_closed.is_set():
                        break
                    message = self._consumer.poll(_POLL_S)
                    if message is not None:
                        self._read(message)
        except Exception:
            _log.exception("labels: topic %s is no longer read", self._address.topic)
        finally:
            self._consumer.close()

    def _assign(self) -> bool:
        """Read partitions that are new: from their end at first, later from their beginning."""
        from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, KafkaException, TopicPartition

        topic = self._address.topic
        try:
            found = self._consumer.list_topics(topic, timeout=self._address.timeout_s).topics[topic]
        except KafkaException as error:
            self._say(text_of(error.args[0]))
            return False
        if found.error is not None:
            self._say(text_of(found.error))
            return False
        new = found.partitions.keys() - self._partitions
        if new:
            start = OFFSET_BEGINNING if self._partitions else OFFSET_END
            places = [TopicPartition(topic, partition, start) for partition in new]
            if self._partitions:
                self._consumer.incremental_assign(places)
            else:
                self._consumer.assign(places)
            self._partitions |= new
            _log.info("labels: %d partitions of topic %s are read", len(self._partitions), topic)
        self._said = ""
        return True

    def _read(self, message: Any) -> None:
        from confluent_kafka import KafkaError

        error = message.error()
        if error is not None:
            if error.code() != KafkaError._PARTITION_EOF:
                self._say(text_of(error))
            return
        try:
            items = items_of_record(message.value() or b"")
        except RequestError as wrong:
            self._refuse()
            self._say(f"a record is left out: {wrong}")
            return
        self._take(items)

    def _say(self, text: str) -> None:
        """Log what is wrong, unless it was said last."""
        if text != self._said:
            self._said = text
            _log.warning("labels: topic %s: %s", self._address.topic, text[:300])
