"""A server that follows a topic: messages get lost, doubled, reordered and damaged, and the broker goes away."""

from __future__ import annotations

import random
import signal
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from export.config import ExportConfig
from export.delta.compact import compact
from export.delta.delta import DeltaConfig, export_delta
from export.pipeline import export_model
from recsys.artifact.delta.apply import apply, prepare
from recsys.artifact.load import load_artifact
from recsys.streams.kafka.message import chunks_of, parts_of
from recsys.streams.opening import open_sink
from serve.client.packing import read_response
from serve.wire import predict_pb2 as wire
from tests.conformance.support.artifacts import Exported
from tests.conformance.support.chains import Chain
from tests.conformance.support.harness import ServerUnderTest, running, with_admin
from tests.conformance.versions.deltas.test_delta_streams import assert_has, stream_of, until
from tests.conformance.versions.deltas.test_mapping_deltas import sample as managed_sample
from tests.recsys.artifact.delta.deltas import write_delta
from tests.support.models.managed import Managed, trained
from tests.support.serve.messages.cases import answer
from tests.support.services.kafka import Broker, start_broker, stop_broker

pytestmark = [pytest.mark.engine, pytest.mark.slow]

#: 500 take some minutes.
NUM_DELTAS = 30
SEED = 7
CHUNK_BYTES = 1024
_NUM_RANDOM = 11
CHANGES = {"plain.users": range(0, 50, 3), "weighted.tags": range(0, 20, 2)}
_LOST, _DOUBLED, _DAMAGED, _KILLED, _REPAIRED = 0.05, 0.2, 0.03, 0.1, 0.3
_REPAIRED_EACH = 7
Message = tuple[str, bytes, list[tuple[str, bytes]]]


@pytest.fixture
def broker() -> Iterator[Broker]:
    """A broker that may go away."""
    started = start_broker()
    yield started
    stop_broker(started)


def random_chain(small: Exported, folder: Path) -> Chain:
    """Deltas of random rows, and what the model answers after each."""
    folder.mkdir()
    loaded, sample = load_artifact(small.path), small.sample(6, seed=5, max_ids=8)
    answers = [answer(loaded, sample)]
    for number in range(_NUM_RANDOM):
        path = folder / f"{number}.delta"
        write_delta(path, loaded.rows, CHANGES, seed=number)
        apply(prepare(loaded.rows, path))
        answers.append(answer(loaded, sample))
    return Chain(folder, sample, answers)


def managed_chain(folder: Path) -> tuple[Path, Chain, Path]:
    """An artifact whose tables map raw IDs, deltas with new, moved and evicted ones, and a fresh export of the end."""
    folder.mkdir()
    # What was made before is one compacted delta, so that the time does not grow with its length.
    model, made = trained(Managed(), 0), tuple[Path, ...]()
    config = ExportConfig(name="m")
    export_model(model, folder / "first", config)
    loaded, sample = load_artifact(folder / "first"), managed_sample()
    answers = [answer(loaded, sample)]
    for number in range(NUM_DELTAS):
        path, new = folder / f"{number}.delta", trained(model, number + 1)
        export_delta(model, new, path, DeltaConfig(artifact=folder / "first", after=made))
        apply(prepare(loaded.rows, path))
        answers.append(answer(loaded, sample))
        compact([*made, path], folder / "made.delta", overwrite=True)
        made, model = (folder / "made.delta",), new
    export_model(model, folder / "last", config)
    return folder / "first", Chain(folder, sample, answers), folder / "last"


class FaultyPublisher:
    """Sends messages of deltas to a topic, and does everything wrong.

    Attributes:
        faults: numbers of the deltas that did not arrive whole.
    """

    def __init__(self, broker: Broker, topic: str, chain: Chain) -> None:
        self.faults: list[int] = []
        self._broker, self._topic, self._chain = broker, topic, chain
        self._random = random.Random(SEED)
        self._waiting: list[Message] = []

    def publish(self, number: int) -> None:
        """Send a delta, mixed with what waits."""
        path = self._chain.folder / f"{number}.delta"
        messages = [*chunks_of(path, parts_of(path, CHUNK_BYTES))]
        if self._random.random() < _KILLED:
            messages = messages[: self._random.randrange(len(messages))]
            self.faults.append(number)
        for message in messages:
            self._send(message, number)
        if self._random.random() < _REPAIRED:
            self.repair()
        if len(self._waiting) > 2 * len(messages):
            self.flush()

    def repair(self) -> None:
        """Publish deltas once more that did not arrive whole."""
        for number in {*self.faults}:
            path = self._chain.folder / f"{number}.delta"
            self._waiting += chunks_of(path, parts_of(path, CHUNK_BYTES))
        self.faults.clear()

    def flush(self) -> None:
        """Send what waits, in a random order, to random partitions."""
        self._random.shuffle(self._waiting)
        for partition in range(4):
            self._broker.send(self._topic, self._waiting[partition::4], partition)
        self._waiting.clear()

    def _send(self, message: Message, number: int) -> None:
        draw, (key, value, headers) = self._random.random(), message
        if draw < _LOST:
            self.faults.append(number)
        elif draw < _LOST + _DAMAGED:
            self.faults.append(number)
            at = self._random.randrange(len(value))
            self._waiting.append((key, value[:at] + bytes([value[at] ^ 1]) + value[at + 1 :], headers))
        elif draw < _LOST + _DAMAGED + _DOUBLED:
            self._waiting += [message, message]
        else:
            self._waiting += [message, ("order", b"of somebody else", [("kind", b"order")])]


def following(artifact: Path, address: str, work: Path) -> list[str | Path]:
    """The arguments of a server that follows a topic."""
    cache = work / "cache"
    return [
        *(artifact, "--deltas", address, "--poll-deltas-s", "0.2", "--delta-cache", cache),
        *with_admin(work),
    ]


def state_of(server: ServerUnderTest, chain: Chain) -> int:
    """After how many deltas it answers; rows of two states fit none."""
    data = server.predict_bytes()(chain.sample.request().SerializeToString(), timeout=60)
    (number,) = chain.fits(read_response(wire.PredictResponse.FromString(data)))
    return number


def test_whatever_happens_each_answer_is_of_one_state_and_the_last_that_of_a_fresh_export(
    broker: Broker, tmp_path: Path
) -> None:
    artifact, chain, fresh = managed_chain(tmp_path / "chain")
    topic = f"deltas-{uuid.uuid4().hex}"
    address = broker.address(topic, chunk_bytes=CHUNK_BYTES, timeout_s=1)
    publisher, states = FaultyPublisher(broker, topic, chain), [0]
    arguments = following(artifact, address, tmp_path)

    def publish(server: ServerUnderTest, numbers: range) -> None:
        for number in numbers:
            publisher.publish(number)
            states.append(state_of(server, chain))
            if number % _REPAIRED_EACH == 0:
                publisher.repair()
                publisher.flush()
                until(lambda: stream_of(server).last == f"{number}.delta")  # noqa: B023

    with running(*arguments, folder=tmp_path) as server:
        publish(server, range(NUM_DELTAS // 3))
        broker.go_away()
        until(lambda: stream_of(server).state == "failed")
        assert "cannot be reached" in stream_of(server).reason
        states.append(state_of(server, chain))
        broker.come_back()
        publish(server, range(NUM_DELTAS // 3, 2 * NUM_DELTAS // 3))
        publisher.flush()
        server.signal(signal.SIGKILL)
        server.process.wait()
    with running(*arguments, folder=tmp_path) as server:
        states.append(state_of(server, chain))
        publish(server, range(2 * NUM_DELTAS // 3, NUM_DELTAS))
        publisher.repair()
        publisher.flush()
        until(lambda: stream_of(server).last == f"{NUM_DELTAS - 1}.delta")
        until(lambda: stream_of(server).state == "following")
        states.append(state_of(server, chain))
        request = chain.sample.request().SerializeToString()
        answered = server.predict_bytes()(request, timeout=60)
        assert server.stop()[0] == 0
    assert states == sorted(states)
    assert states[-1] == NUM_DELTAS
    assert len({*states}) > NUM_DELTAS // _REPAIRED_EACH
    log = (tmp_path / "server.log").read_text()
    for said in ("messages that are no deltas are passed over", "damaged messages are passed over"):
        assert log.count(said) == 2, "once for each start"
    (tmp_path / "fresh").mkdir()
    with running(fresh, folder=tmp_path / "fresh") as server:
        expected = read_response(wire.PredictResponse.FromString(server.predict_bytes()(request, timeout=60)))
        assert server.stop()[0] == 0
    outputs = read_response(wire.PredictResponse.FromString(answered))
    assert list(outputs) == list(expected)
    for name, values in expected.items():
        assert outputs[name].tobytes() == values.tobytes(), name


def test_a_delta_is_served_as_soon_as_it_arrives(small: Exported, broker: Broker, tmp_path: Path) -> None:
    chain = random_chain(small, tmp_path / "chain")
    address = broker.address(f"deltas-{uuid.uuid4().hex}")
    work = tmp_path / "work"
    work.mkdir()
    arguments = [small.path, "--deltas", address, "--poll-deltas-s", "3600", *with_admin(work)]
    cache = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    with open_sink(address) as sink:
        sink.publish(chain.folder / "0.delta")
        with running(*arguments, folder=work, environment=cache) as server:
            assert_has(server, chain, 1)
            for number in range(1, 5):
                sink.publish(chain.folder / f"{number}.delta")
                until(lambda number=number: stream_of(server).last == f"{number}.delta")
                assert_has(server, chain, number + 1)
            assert server.stop()[0] == 0


def test_a_compacted_chain_is_one_delta_for_a_server_that_starts(
    small: Exported, broker: Broker, tmp_path: Path
) -> None:
    chain = random_chain(small, tmp_path / "chain")
    address = broker.address(f"deltas-{uuid.uuid4().hex}")
    compact([chain.folder / f"{number}.delta" for number in range(10)], tmp_path / "ten.delta")
    with open_sink(address) as sink:
        for name in ("2", "1", "3", "9", "10"):
            sink.publish(chain.folder / f"{name}.delta")
        sink.publish(tmp_path / "ten.delta")
    with running(*following(small.path, address, tmp_path), folder=tmp_path) as server:
        assert_has(server, chain, 11)
        assert stream_of(server).state == "following"
        assert server.total("recsys_deltas_applied_total") == 2
        assert server.stop()[0] == 0
