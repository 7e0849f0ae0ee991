"""A training, its publisher and a server that follows it are killed at random points, and go on.

``RECSYS_KILLED_DELTAS=500`` publishes that many deltas over each transport, and kills once for each tenth of them.
"""

from __future__ import annotations

import os
import random
import re
import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from export.config import ExportConfig
from export.pipeline import export_model
from export.publish.process import follow
from recsys.artifact.delta.apply import apply, prepare
from recsys.artifact.load import load_artifact
from recsys.streams.interface import DeltaSource, next_delta
from recsys.streams.opening import open_source
from tests.conformance.support.harness import ENGINE, ServerUnderTest, running, with_admin
from tests.conformance.versions.deltas.test_delta_streams import stream_of
from tests.conformance.versions.deltas.test_mapping_deltas import sample
from tests.export.delta.test_mappings import assert_same
from tests.export.publish.test_publisher import until
from tests.support.fork_server import PROGRAMS, Forked
from tests.support.models.managed import Managed
from tests.support.serve.messages.cases import Sample, answer
from tests.support.services.kafka import kafka
from tests.support.services.object_store import bucket, object_store

__all__ = ["bucket", "kafka", "object_store"]
NUM_DELTAS = int(os.environ.get("RECSYS_KILLED_DELTAS", "0"))
pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.timeout(300 + 4 * NUM_DELTAS)]

TRANSPORTS = ["folder", "kafka", "s3"] if NUM_DELTAS else ["folder" if ENGINE == "native" else "kafka"]
_DELTAS_PER_KILL = 10
_VICTIMS = ("training", "publisher", "server")
# A delta is made in a part of this.
_MOST_S = 0.2
_TIMEOUT_S = 120


@dataclass(kw_only=True)
class World:
    """Processes that follow each other, each of which may be killed.

    Attributes:
        folder: holds the artifact, and what processes leave.
        address: of the deltas.
        source: looks into them.
        request: what the server is asked after each kill.
        answers: what it answered.
    """

    folder: Path
    address: str
    source: DeltaSource
    request: Sample
    answers: list[dict[str, np.ndarray]] = field(default_factory=list)
    _open: ExitStack = field(default_factory=ExitStack)

    def __enter__(self) -> World:
        self.start_training()
        self.start_server()
        return self

    def __exit__(self, *_: object) -> None:
        self.training.kill()
        self.training.__exit__(None, None, None)
        self._open.close()
        self.source.close()

    @property
    def _pause(self) -> Path:
        return self.folder / "pause"

    def start_training(self) -> None:
        """Start the training, or go on with it."""
        words = ["-m", "tests.support.children.publishing", str(self.folder), self.address]
        with (self.folder / "training.log").open("a") as log:
            self.training = Forked(
                words,
                cwd=Path.cwd(),
                environment={**os.environ, "TMPDIR": str(self.folder / "tmp")},
                streams=(log.fileno(), log.fileno()),
                imported=PROGRAMS,
            )

    def start_server(self) -> None:
        """Start the server with an empty log."""
        (self.folder / "server.log").unlink(missing_ok=True)
        following = [
            "--deltas",
            self.address,
            "--poll-deltas-s",
            "0.05",
            "--delta-cache",
            self.folder / "cache",
        ]
        self.server: ServerUnderTest = self._open.enter_context(
            running(self.folder / "artifact", *following, *with_admin(self.folder), folder=self.folder)
        )

    def num_deltas(self) -> int:
        """The number of deltas so far."""
        return len(self.source.scan())

    def wait_for(self, num: int) -> None:
        """Wait for so many deltas."""
        self._pause.unlink(missing_ok=True)
        deadline = time.monotonic() + _TIMEOUT_S
        while self.num_deltas() < num:
            log = (self.folder / "training.log").read_text()
            assert self.training.poll() is None, log
            assert time.monotonic() < deadline, log
            time.sleep(0.01)

    def ask(self) -> None:
        """Note what the server answers."""
        self.answers.append(dict(self.server.client().predict(self.request.dense, self.request.sparse, {})))

    def kill(self, victim: str) -> None:
        """End a process at once, and start it again."""
        if victim == "publisher":
            os.kill(int((self.folder / "publisher.pid").read_text()), signal.SIGKILL)
        elif victim == "training":
            self.training.kill()
            self.training.__exit__(None, None, None)
            self.start_training()
        else:
            self.assert_each_cause_is_said_once()
            self.server.signal(signal.SIGKILL)
            if NUM_DELTAS:
                # The broker keeps five megabytes of deltas, which a slow machine makes while servers start.
                self._pause.touch()
            self.server.process.wait()
            self._open.close()
            self.start_server()

    def assert_each_cause_is_said_once(self) -> None:
        """No line of the server's log is there twice."""
        lines = [re.sub(r"^[-\d:T., +]+", "", line) for line in self.server.log.read_text().splitlines()]
        said = Counter(line for line in lines if "WARNING" in line or "ERROR" in line)
        assert all(count == 1 for count in said.values()), said

    def finish(self) -> None:
        """Let the training come to its end, and the server to that of the deltas."""
        (self.folder / "stop").touch()
        assert self.training.wait(_TIMEOUT_S) == 0, (self.folder / "training.log").read_text()
        last = self.source.scan()[-1]
        until(lambda: stream_of(self.server).last == last.name, _TIMEOUT_S)
        self.ask()


@pytest.fixture(params=TRANSPORTS)
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    """A training that publishes, and a server."""
    address = str(tmp_path / "deltas")
    if request.param == "kafka":
        address = request.getfixturevalue("kafka").address(f"killed-{tmp_path.name}")
    elif request.param == "s3":
        address = f"s3://{request.getfixturevalue('bucket')}/deltas"
    (tmp_path / "tmp").mkdir()
    export_model(Managed().eval(), tmp_path / "artifact", ExportConfig(name="m"))
    source = open_source(address, tmp_path / "cache of the test")
    source.expect(load_artifact(tmp_path / "artifact").rows.digest)
    with World(folder=tmp_path, address=address, source=source, request=sample()) as world:
        yield world


def test_what_is_killed_goes_on(world: World) -> None:
    draw = random.Random(NUM_DELTAS)
    victims = [*_VICTIMS] if not NUM_DELTAS else draw.choices(_VICTIMS, k=NUM_DELTAS // _DELTAS_PER_KILL)
    draw.shuffle(victims)
    num = 0
    for victim in victims:
        num = max(num, world.num_deltas()) + (draw.randrange(2 * _DELTAS_PER_KILL) if NUM_DELTAS else 2)
        world.wait_for(num)
        world.ask()
        time.sleep(draw.uniform(0, _MOST_S))
        world.kill(victim)
    world.wait_for(max(num + 1, NUM_DELTAS))
    world.finish()
    world.assert_each_cause_is_said_once()
    left = [path.name for path in (world.folder / "tmp").iterdir() if path.suffix != ".lock"]
    assert not left

    # Each answer is that of one state, in their order, and the last that of a fresh export.
    states = states_of(world)
    at = [fitting(states, found) for found in world.answers]
    assert all(at)
    fresh = load_artifact(world.folder / "fresh")
    followed = load_artifact(world.folder / "artifact")
    assert follow(world.source, followed.rows) == len(states) - 1
    assert_same(followed, fresh)
    expected = answer(fresh, world.request)
    for name, values in world.answers[-1].items():
        np.testing.assert_array_equal(values, expected[name], err_msg=name)


def states_of(world: World) -> list[dict[str, np.ndarray]]:
    """What the model answers before any delta, and after each of the chain."""
    loaded = load_artifact(world.folder / "artifact")
    rows = loaded.rows
    found, passed = world.source.scan(), {rows.digest}
    answers = [answer(loaded, world.request)]
    while (delta := next_delta(found, rows.digest, rows.state, passed)) is not None:
        apply(prepare(rows, world.source.fetch(delta)))
        passed.add(rows.state)
        answers.append(answer(loaded, world.request))
    return answers


def fitting(states: list[dict[str, np.ndarray]], found: dict[str, np.ndarray]) -> list[int]:
    """The numbers of the states that an answer fits, bit for bit."""
    return [
        number
        for number, expected in enumerate(states)
        if all(np.array_equal(found[name], expected[name]) for name in expected)
    ]
