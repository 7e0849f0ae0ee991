"""The answer log to Kafka: what brokers took is counted as written, and they hold it; others are counted too."""

from __future__ import annotations

import uuid
from typing import Any

import pyarrow as pa
from confluent_kafka import Consumer
from pyarrow import parquet

from recsys.inputs.answer_columns import layout_of
from serve.config.settings import AnswerLogConfig
from serve.engine.reference.answers import RecordedBlock
from serve.observe.answers.log import AnswerLog
from tests.support.answer_logs import SIGNATURE, answered
from tests.support.services.kafka import PATIENCE_S, Broker, kafka

__all__ = ["kafka"]

MOST_BYTES = 8192


def messages_of(broker: Broker, topic: str, num_requests: int) -> list[tuple[dict[str, bytes], pa.Table]]:
    """The headers and tables of a topic, until they have so many requests."""
    properties = {"bootstrap.servers": broker.brokers, "group.id": topic, "auto.offset.reset": "earliest"}
    consumer = Consumer(properties)
    consumer.subscribe([topic])
    found: list[tuple[dict[str, bytes], pa.Table]] = []
    while sum(table.column("row").to_pylist().count(0) for _, table in found) < num_requests:
        message: Any = consumer.poll(PATIENCE_S)
        assert message is not None
        assert message.error() is None, message.error()
        assert len(message.value()) <= MOST_BYTES
        found.append((dict(message.headers()), parquet.read_table(pa.BufferReader(message.value()))))
    consumer.close()
    return found


def test_messages_are_whole_requests_of_bounded_size(kafka: Broker) -> None:
    topic = f"answers-{uuid.uuid4().hex}"
    log = AnswerLog(AnswerLogConfig(destination=kafka.address(topic, chunk_bytes=MOST_BYTES)))
    log.offer(RecordedBlock([answered(f"{uuid.uuid4().hex}-{i}", [i, 5, 8]) for i in range(200)]))
    log.offer(RecordedBlock([answered("texts", ["x"], version="2")]))
    log.close()
    assert log.counts() == {"written": 201, "queue_full": 0, "write_failed": 0}
    found = messages_of(kafka, topic, 201)
    assert 3 < len(found) < 40
    assert {headers["version"] for headers, _ in found} == {b"1", b"2"}
    for headers, table in found:
        layout = layout_of(table.schema.metadata, topic)
        assert layout.signature == SIGNATURE
        assert ("item" in layout.has_texts) == (headers["version"] == b"2")
        assert table.column("row").to_pylist()[0] == 0
        if headers["version"] == b"1":
            assert table.num_rows % 3 == 0


def test_brokers_that_are_away_cost_requests_and_not_the_server(kafka: Broker) -> None:
    topic = f"answers-{uuid.uuid4().hex}"
    log = AnswerLog(AnswerLogConfig(destination=kafka.address(topic, timeout_s=0.5)))
    kafka.go_away()
    try:
        log.offer(RecordedBlock([answered("a", [3])]))
        log.close()
    finally:
        kafka.come_back()
    assert log.counts() == {"written": 0, "queue_full": 0, "write_failed": 1}
