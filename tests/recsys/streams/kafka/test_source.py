"""A topic with loss, duplicates, reordering, damage, strangers' messages, and brokers and publishers that go away."""

from __future__ import annotations

import logging
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaError

from recsys.streams.address import KafkaAddress
from recsys.streams.cache import DeltaCache
from recsys.streams.interface import DeltaSource, StreamedDelta, StreamError
from recsys.streams.kafka.config import user_properties
from recsys.streams.kafka.message import chunks_of, parts_of
from recsys.streams.kafka.positions import Positions
from recsys.streams.kafka.sink import KafkaSink
from recsys.streams.kafka.source import KafkaSource
from recsys.streams.opening import open_sink, open_source
from tests.recsys.streams.deltas import ARTIFACT, OTHER, write, write_chain
from tests.support.services.kafka import PATIENCE_S, Broker, kafka, start_broker, stop_broker

__all__ = ["kafka"]
CHUNK_BYTES = 1024


@pytest.fixture
def topic() -> str:
    return f"deltas-{uuid.uuid4().hex}"


@pytest.fixture
def source(kafka: Broker, topic: str, tmp_path: Path) -> Iterator[DeltaSource]:
    opened = open_source(kafka.address(topic, chunk_bytes=CHUNK_BYTES), tmp_path / "cache")
    opened.expect(ARTIFACT)
    yield opened
    opened.close()


def messages_of(path: Path) -> list[tuple[str, bytes, list[tuple[str, bytes]]]]:
    return [*chunks_of(path, parts_of(path, CHUNK_BYTES))]


def errors(found: object) -> list[str]:
    assert isinstance(found, list)
    return [delta.error for delta in found]


def test_a_delta_with_lost_messages_is_no_delta_until_they_come(
    kafka: Broker, topic: str, source: DeltaSource, tmp_path: Path
) -> None:
    write(tmp_path / "a.delta", num_bytes=5000)
    messages = messages_of(tmp_path / "a.delta")
    kafka.send(topic, [messages[4], messages[0], messages[2]])
    (partial,) = source.scan()
    assert partial.error == "3 of its 6 messages have arrived whole; publish it again"
    assert (partial.artifact, partial.base) == (ARTIFACT, ARTIFACT)
    with open_sink(kafka.address(topic, chunk_bytes=CHUNK_BYTES)) as sink:
        sink.publish(tmp_path / "a.delta")
    (whole,) = source.scan()
    assert (whole.error, whole.name) == ("", "a.delta")
    assert whole.stamp != partial.stamp
    assert source.fetch(whole).read_bytes() == (tmp_path / "a.delta").read_bytes()


def test_doubled_and_reordered_messages_make_the_same_deltas(
    kafka: Broker, topic: str, source: DeltaSource, tmp_path: Path
) -> None:
    paths = write_chain(tmp_path, 2, num_bytes=5000)
    messages = [message for path in paths for message in messages_of(path)]
    for partition in (3, 0):  # each of both in another order
        kafka.send(topic, [*reversed(messages), *messages[::2]], partition)
    found = source.scan()
    assert errors(found) == ["", ""]
    assert [source.fetch(delta).read_bytes() for delta in found] == [path.read_bytes() for path in paths]


def test_damaged_and_foreign_messages_are_passed_over_and_said_once(
    kafka: Broker, topic: str, source: DeltaSource, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path / "a.delta", num_bytes=5000)
    messages = messages_of(tmp_path / "a.delta")
    key, value, headers = messages[1]
    damaged = [(key, value[:-1] + b"\0", headers)] * 3
    kafka.send(topic, [("k", b"an order", [("kind", b"order")])] * 3)
    kafka.send(topic, [("k", b"an order", [])])
    kafka.send(topic, [messages[0], *damaged, *messages[2:]])
    assert errors(source.scan()) == ["5 of its 6 messages have arrived whole; publish it again"]
    source.scan()
    said = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(said) == 2
    assert "messages that are no deltas are passed over: it has no header 'recsys-delta'" in said[0]
    assert "damaged messages are passed over: value: its checksum does not match" in said[1]
    kafka.send(topic, [messages[1]])
    (whole,) = source.scan()
    assert source.fetch(whole).read_bytes() == (tmp_path / "a.delta").read_bytes()


def test_a_delta_that_is_not_what_its_messages_say_is_damaged(
    kafka: Broker, topic: str, source: DeltaSource, tmp_path: Path
) -> None:
    write(tmp_path / "a.delta", num_bytes=5000)
    for key, value, headers in messages_of(tmp_path / "a.delta"):
        kafka.send(topic, [(key, value, [*{**dict(headers), "base": OTHER.encode()}.items()])])
    (delta,) = source.scan()
    assert "its header is not what its messages say" in delta.error


def test_deltas_with_one_name_have_names_of_their_own(
    kafka: Broker, topic: str, source: DeltaSource, tmp_path: Path
) -> None:
    for number in range(2):
        write(tmp_path / "a.delta", 100.0 + number)
        kafka.send(topic, messages_of(tmp_path / "a.delta"))
        (tmp_path / "a.delta").unlink()
    first, second = source.scan()
    assert first.name == "a.delta"
    assert second.name.startswith("a.delta~")
    assert source.fetch(first).read_bytes() != source.fetch(second).read_bytes()


def test_the_follower_is_woken_to_look_for_a_topic_that_does_not_exist_yet(
    kafka: Broker, topic: str, source: DeltaSource, tmp_path: Path
) -> None:
    woken = threading.Event()
    source.on_arrival(woken.set)
    assert source.scan() == []
    write(tmp_path / "a.delta", num_bytes=100)
    with open_sink(kafka.address(topic, chunk_bytes=CHUNK_BYTES)) as sink:
        sink.publish(tmp_path / "a.delta")
    found: list[StreamedDelta] = []
    while not found:
        assert woken.wait(PATIENCE_S)
        woken.clear()
        found = source.scan()
    assert [delta.name for delta in found] == ["a.delta"]


def test_the_follower_is_woken_when_a_delta_is_whole(
    kafka: Broker, topic: str, source: DeltaSource, tmp_path: Path
) -> None:
    first, second = write_chain(tmp_path, 2, num_bytes=5000)
    woken = threading.Semaphore(0)
    source.on_arrival(woken.release)
    kafka.send(topic, messages_of(first))
    source.scan()
    assert woken.acquire(timeout=PATIENCE_S)
    kafka.send(topic, messages_of(second)[:-1])
    source.scan()
    assert not woken.acquire(blocking=False)
    kafka.send(topic, messages_of(second)[-1:])
    assert woken.acquire(timeout=PATIENCE_S)
    assert errors(source.scan()) == ["", ""]


def test_deltas_of_other_artifacts_are_seen_and_read_when_they_are_wanted(
    kafka: Broker, topic: str, source: DeltaSource, tmp_path: Path
) -> None:
    write(tmp_path / "a.delta", base=OTHER, artifact=OTHER, num_bytes=5000)
    kafka.send(topic, messages_of(tmp_path / "a.delta"))
    (delta,) = source.scan()
    assert delta.artifact == OTHER
    assert not [*tmp_path.glob("cache/*.delta")]
    source.expect(OTHER)
    assert source.fetch(delta).read_bytes() == (tmp_path / "a.delta").read_bytes()


_PUBLISHER = """
import sys
from pathlib import Path
from recsys.streams.kafka.message import chunks_of, parts_of
from confluent_kafka import Producer
path = Path(sys.argv[2])
producer = Producer({"bootstrap.servers": sys.argv[1]})
for number, (key, value, headers) in enumerate(chunks_of(path, parts_of(path, 1024))):
    if number == 3:
        print("half", flush=True)
        sys.stdin.read()
    producer.produce(sys.argv[3], value, key, headers=headers)
    producer.flush()
"""


def test_a_publisher_that_is_killed_in_the_middle_leaves_nothing_that_could_be_applied(
    kafka: Broker, topic: str, source: DeltaSource, tmp_path: Path
) -> None:
    write(tmp_path / "a.delta", num_bytes=5000)
    command = [sys.executable, "-c", _PUBLISHER, kafka.brokers, str(tmp_path / "a.delta"), topic]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "half\n"
        process.kill()
        assert process.wait() == -signal.SIGKILL
    assert errors(source.scan()) == ["3 of its 6 messages have arrived whole; publish it again"]
    with open_sink(kafka.address(topic, chunk_bytes=CHUNK_BYTES)) as sink:
        sink.publish(tmp_path / "a.delta")
    (whole,) = source.scan()
    assert source.fetch(whole).read_bytes() == (tmp_path / "a.delta").read_bytes()


def test_brokers_that_go_away_and_come_back(tmp_path: Path, topic: str) -> None:
    broker = start_broker()
    try:
        first, second = write_chain(tmp_path, 2, num_bytes=5000)
        address = broker.address(topic, chunk_bytes=CHUNK_BYTES, timeout_s=1)
        source = open_source(address, tmp_path / "cache")
        source.expect(ARTIFACT)
        with open_sink(address) as sink:
            sink.publish(first)
            assert len(source.scan()) == 1
            broker.go_away()
            for _ in range(2):
                with pytest.raises(StreamError) as caught:
                    source.scan()
                assert str(caught.value) == f"kafka: the brokers of topic {topic} cannot be reached"
            with pytest.raises(StreamError, match="did not take it within 1 s"):
                sink.publish(second)
            broker.come_back()
        with open_sink(broker.address(topic, chunk_bytes=CHUNK_BYTES)) as sink:
            sink.publish(second)
        found = source.scan()
        assert errors(found) == ["", ""]
        assert source.fetch(found[1]).read_bytes() == second.read_bytes()
        source.close()
    finally:
        stop_broker(broker)


def test_brokers_that_are_not_there_are_an_error_and_closing_does_not_wait(tmp_path: Path) -> None:
    address = "kafka://127.0.0.1:1/t?timeout_s=1"
    write(tmp_path / "a.delta")
    source = open_source(address, tmp_path / "cache")
    for ask in (source.check, source.scan):
        with pytest.raises(StreamError, match="the brokers of topic t cannot be reached"):
            ask()
    source.close()
    with pytest.raises(StreamError, match="the stream is closed"):
        source.scan()
    with open_sink(address) as sink, pytest.raises(StreamError, match="did not take it within 1 s"):
        sink.publish(tmp_path / "a.delta")


def test_what_a_topic_refuses_is_an_error_that_says_what_to_do() -> None:
    # The mock cluster takes messages of any size, so the broker's answer is made here.
    sink = KafkaSink(KafkaAddress(brokers="127.0.0.1:1", topic="t"))
    too_large = sink._refused(KafkaError(KafkaError.MSG_SIZE_TOO_LARGE), "a.delta")
    assert "takes no messages of 786,432 bytes: lower chunk_bytes in the address" in str(too_large)
    denied = sink._refused(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED), "a.delta")
    assert "topic t did not take it" in str(denied)
    assert "TOPIC_AUTHORIZATION_FAILED" in str(denied)


def test_a_topic_that_was_made_again_is_read_from_its_beginning(tmp_path: Path, topic: str) -> None:
    # The source believes that it has read further than the topic goes.
    paths = write_chain(tmp_path, 2, num_bytes=5000)
    broker = start_broker()
    try:
        source = KafkaSource(
            KafkaAddress(brokers=broker.brokers, topic=topic), DeltaCache(tmp_path / "cache", 1 << 20)
        )
        source.expect(ARTIFACT)
        broker.send(topic, messages_of(paths[0]))
        assert len(source.scan()) == 1
        with source._read_on:
            source._positions[0] = 1000
        broker.send(topic, messages_of(paths[1]))
        assert errors(source.scan()) == ["", ""]
        source.close()
    finally:
        stop_broker(broker)


def test_a_start_reads_no_messages_from_before_those_of_its_artifact_until_it_is_asked_for_others(
    kafka: Broker, topic: str, tmp_path: Path
) -> None:
    write(tmp_path / "old.delta", base=OTHER, artifact=OTHER, num_bytes=5000)
    write(tmp_path / "new.delta", num_bytes=5000)
    kafka.send(topic, messages_of(tmp_path / "old.delta"))
    kafka.send(topic, messages_of(tmp_path / "new.delta"), partition=0)
    opened = []
    for names in (["new.delta", "old.delta"], ["new.delta"]):
        source = open_source(kafka.address(topic), tmp_path / "cache")
        source.expect(ARTIFACT)
        assert sorted(delta.name for delta in source.scan()) == names
        opened.append(source)
    source.expect(OTHER)
    for delta in source.scan():
        assert source.fetch(delta).read_bytes() == (tmp_path / delta.name).read_bytes()
    assert len(source.scan()) == 2
    for source in opened:
        source.close()
    # The same folder, and another topic.
    source = open_source(kafka.address(f"{topic}-2"), tmp_path / "cache")
    kafka.send(f"{topic}-2", messages_of(tmp_path / "old.delta"))
    source.expect(ARTIFACT)
    assert [delta.name for delta in source.scan()] == ["old.delta"]
    source.close()


@pytest.mark.parametrize("content", ["", "[]", '{"place": 3}', '{"place": "x", "read": [], "firsts": 1}'])
def test_a_damaged_file_of_positions_is_none(content: str, tmp_path: Path) -> None:
    (tmp_path / "positions.json").write_text(content.replace('"x"', '"here"'))
    positions = Positions(tmp_path, "here")
    assert positions.start(0, {ARTIFACT}) == 0
    positions.note(ARTIFACT, 0, 7)
    positions.note(ARTIFACT, 0, 5)
    positions.save([(0, 9)])
    again = Positions(tmp_path, "here")
    assert (again.start(0, {ARTIFACT}), again.start(0, {OTHER}), again.start(1, {OTHER})) == (5, 9, 0)
    assert Positions(tmp_path, "there").start(0, {OTHER}) == 0
    again.forget()
    assert Positions(tmp_path, "here").start(0, {OTHER}) == 0


def test_properties_come_from_a_file_and_the_environment_and_are_never_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "kafka.properties"
    file.write_text("# ours\nsecurity.protocol = sasl_plaintext\nsasl.mechanism=PLAIN\nsasl.username=me\n")
    monkeypatch.setenv("RECSYS_KAFKA_SASL_PASSWORD", "hunter2")
    assert user_properties(file) == {
        "security.protocol": "sasl_plaintext",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "me",
        "sasl.password": "hunter2",
    }
    monkeypatch.setenv("RECSYS_KAFKA_CONFIG", str(file))
    assert user_properties(None)["sasl.username"] == "me"
    source = open_source("kafka://127.0.0.1:1/t?timeout_s=1", tmp_path / "cache")
    with pytest.raises(StreamError) as caught:
        source.scan()
    source.close()
    monkeypatch.setenv("RECSYS_KAFKA_SASL_MECHANISM", "hunter3")
    with pytest.raises(StreamError, match="kafka: a property is wrong") as wrong:
        open_source("kafka://127.0.0.1:1/t", tmp_path / "cache").scan()
    assert "hunter" not in f"{caught.value}{wrong.value}{caplog.text}{source!r}"


@pytest.mark.parametrize("content", [None, b"sasl.password", b"=x", b"\xff"])
def test_a_file_of_properties_that_cannot_be_read_is_an_error(content: bytes | None, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "file").write_bytes(content)
    with pytest.raises(StreamError, match=r"file of config.*name=value"):
        user_properties(tmp_path / "file")


def test_streamed_deltas_are_described_by_their_messages_alone(
    kafka: Broker, topic: str, source: DeltaSource, tmp_path: Path
) -> None:
    digest = write(tmp_path / "a.delta", 123.5, num_bytes=100)
    kafka.send(topic, messages_of(tmp_path / "a.delta"))
    (delta,) = source.scan()
    assert delta == StreamedDelta(
        name="a.delta", stamp=delta.stamp, created_s=123.5, digest=digest, artifact=ARTIFACT, base=ARTIFACT
    )
