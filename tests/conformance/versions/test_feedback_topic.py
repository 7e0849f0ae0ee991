"""Labels from a topic of Kafka: records of both forms, damaged ones, and a broker that goes and comes back."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from serve.wire import feedback_pb2 as wire
from tests.conformance.support.artifacts import Exported
from tests.conformance.support.harness import ServerUnderTest, refused, running
from tests.support.services.kafka import Broker, kafka, start_broker, stop_broker

__all__ = ["kafka"]
pytestmark = pytest.mark.engine


def answered(server: ServerUnderTest, small: Exported, *request_ids: str) -> None:
    sample, client = small.sample(2), server.client()
    for request_id in request_ids:
        client.predict(sample.dense, sample.sparse, sample.weights, request_id=request_id)


def wait_for(server: ServerUnderTest, result: str, count: float) -> None:
    while server.total("recsys_feedback_labels_total", source="kafka", result=result) < count:
        pass


def body(request_id: str, *values: int) -> bytes:
    return json.dumps({"items": [{"request_id": request_id, "labels": {"click": values}}]}).encode()


def wait_until_read(server: ServerUnderTest, broker: Broker, topic: str) -> None:
    """Send labels for nobody until the server reads the topic: it begins at the topic's end."""
    while not server.total("recsys_feedback_labels_total", source="kafka", result="unknown"):
        broker.send(topic, [("", body("nobody", 1), None)])


def test_records_of_both_forms_are_taken_and_damaged_ones_counted(
    small: Exported, kafka: Broker, tmp_path: Path
) -> None:
    topic = "labels-both"
    kafka.send(topic, [("", body("before", 1, 1), None)])
    with running(small.path, "--quality-labels", kafka.address(topic), folder=tmp_path) as server:
        wait_until_read(server, kafka, topic)
        answered(server, small, "a", "b")
        item = wire.FeedbackItem(request_id="b", labels=[wire.Label(name="click", values=[0, 1])])
        message = wire.FeedbackRequest(items=[item]).SerializeToString()
        kafka.send(
            topic,
            [
                ("k", body("a", 1, 0), None),
                ("", b"{nonsense", None),
                ("", message, None),
                ("", b"\xff", None),
            ],
        )
        wait_for(server, "invalid", 2)
        assert server.total("recsys_feedback_labels_total", source="kafka", result="taken") == 4
        assert server.total("recsys_quality_labels", label="click", window="1h") == 4
        score = small.answer(small.sample(2))["score"].reshape(-1)
        got = server.total("recsys_quality_calibration", label="click", window="1h")
        assert got == pytest.approx(float(np.mean(score)) / 0.5, rel=1e-4)
        code, last = server.stop()
        assert code == 0, last
        assert "a record is left out: record: not readable as JSON" in server.log.read_text()


def test_a_broker_that_goes_and_comes_back_is_read_on(small: Exported, tmp_path: Path) -> None:
    broker, topic = start_broker(), "labels-away"
    try:
        broker.send(topic, [("", b"{}", None)])
        with running(small.path, "--quality-labels", broker.address(topic), folder=tmp_path) as server:
            wait_until_read(server, broker, topic)
            broker.go_away()
            # Requests are answered meanwhile.
            answered(server, small, "a")
            broker.come_back()
            broker.send(topic, [("", body("a", 1, 0), None)])
            wait_for(server, "taken", 2)
    finally:
        stop_broker(broker)


@pytest.mark.parametrize(
    ("address", "text"),
    [
        ("s3://bucket/labels", "quality.labels: got 's3://bucket/labels', expected kafka://HOST:PORT/TOPIC"),
        ("kafka://nowhere", "quality.labels: got"),
        ("/some/where", "expected kafka://HOST:PORT/TOPIC"),
    ],
)
def test_addresses_of_no_topic_are_refused(small: Exported, address: str, text: str) -> None:
    code, said = refused(small.path, "--quality-labels", address)
    assert code == 2
    assert text in said
