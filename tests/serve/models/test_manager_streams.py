"""Versions that follow a folder of deltas: at the start, from poll to poll, and through changes of versions."""

from __future__ import annotations

import asyncio
import logging
import shutil
from pathlib import Path

import numpy as np
import pytest

from recsys.artifact.delta import apply as delta
from recsys.artifact.load import load_artifact
from serve.config.models import ModelSettings, Routing
from serve.errors import ModelChangeError
from serve.metrics.streams import StreamState, StreamStatus
from serve.models.repository import Repository
from tests.recsys.artifact.delta.deltas import write_delta
from tests.support.serve.managing import World, managing, run
from tests.support.serve.messages.cases import answer, assert_answers, random_sample
from tests.support.serve.models import SIGNATURE, export_small
from tests.support.serve.repositories import add_version

SAMPLE = random_sample(SIGNATURE, 6, np.random.default_rng(3), max_ids=8)
CHANGES = {"plain.users": list(range(50)), "weighted.tags": list(range(20))}


class Stream:
    """A repository, deltas of an artifact, and the folder into which the test puts them.

    Attributes:
        root: of the repository.
        folder: that the server follows.
        answers: to the sample, by the number of deltas that were applied.
    """

    def __init__(self, root: Path, artifact: Path, num_deltas: int = 3, seed: int = 0) -> None:
        self.root, self.folder, self.made = root / "models", root / "stream", root / f"made-{seed}"
        self.folder.mkdir(exist_ok=True)
        self.made.mkdir()
        self.seed = seed
        loaded = load_artifact(artifact)
        self.answers = [answer(loaded, SAMPLE)]
        for i in range(num_deltas):
            path = self.made / f"{seed}-{i}.delta"
            write_delta(path, loaded.rows, CHANGES, seed=seed + i)
            delta.apply(delta.prepare(loaded.rows, path))
            self.answers.append(answer(loaded, SAMPLE))

    def name(self, number: int) -> str:
        return f"{self.seed}-{number}.delta"

    def put(self, *numbers: int) -> None:
        """Move deltas into the folder, as the exporter does."""
        for number in numbers:
            partial = self.folder / f".{self.name(number)}.partial"
            shutil.copyfile(self.made / self.name(number), partial)
            partial.rename(self.folder / self.name(number))

    @property
    def settings(self) -> ModelSettings:
        """The test polls by hand."""
        return ModelSettings(deltas=self.folder, poll_deltas_s=1e6)


@pytest.fixture
def stream(tmp_path: Path, artifact_path: Path) -> Stream:
    made = Stream(tmp_path, artifact_path)
    add_version(made.root, "small", "1", artifact_path)
    return made


def status_of(world: World, version: str = "1") -> StreamStatus:
    (status,) = [s for s in world.manager.statuses()[0].versions if s.version == version]
    assert status.stream is not None
    return status.stream


async def asserts(
    world: World, stream: Stream, num_deltas: int, state: StreamState = StreamState.FOLLOWING
) -> None:
    """So many deltas are applied, and the stream is in this state, wherever it is shown."""
    version, outputs = await world.predict(SAMPLE)
    assert_answers(outputs, stream.answers[num_deltas])
    status = status_of(world, version)
    assert status.state is state, status
    assert bool(status.reason) == (state is not StreamState.FOLLOWING)
    assert status.last == (stream.name(num_deltas - 1) if num_deltas else "")
    labels = {"model": "small", "version": version}
    value = world.metrics.registry.get_sample_value
    for one in StreamState:
        shown = value("recsys_delta_stream_state", {**labels, "state": one.value})
        assert shown == (one is state)
    assert value("recsys_deltas_applied_total", labels) == num_deltas
    assert value("recsys_deltas_pending", labels) == status.num_pending


def errors(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]


def test_what_the_folder_holds_is_applied_before_the_version_is_ready(stream: Stream) -> None:
    async def scenario() -> None:
        stream.put(1, 0)
        async with managing(Repository(stream.root), stream.settings) as world:
            await world.manager.rescan()
            await asserts(world, stream, 2)
            servable = world.manager.route("small", "", 0.5).primary
            assert servable.deltas == ["0-0.delta", "0-1.delta"]

    run(scenario())


def test_new_deltas_are_applied_at_the_next_poll_in_order(stream: Stream) -> None:
    async def scenario() -> None:
        async with managing(Repository(stream.root), stream.settings) as world:
            await world.manager.rescan()
            await asserts(world, stream, 0)
            for i in range(3):
                stream.put(i)
                await asserts(world, stream, i)
                await world.manager.poll_deltas("small")
                await asserts(world, stream, i + 1)

    run(scenario())


def test_the_folder_is_polled_at_the_interval(stream: Stream) -> None:
    async def scenario() -> None:
        slept: asyncio.Queue[float] = asyncio.Queue()
        wake = asyncio.Semaphore(0)

        async def sleep(seconds: float) -> None:
            slept.put_nowait(seconds)
            await wake.acquire()

        settings = ModelSettings(deltas=stream.folder, poll_deltas_s=7.5)
        async with managing(Repository(stream.root), settings, sleep=sleep) as world:
            await world.manager.rescan()
            assert await slept.get() == 7.5
            for i in range(3):
                stream.put(i)
                wake.release()
                assert await slept.get() == 7.5  # the poll is over
                await asserts(world, stream, i + 1)

    run(scenario())


def test_a_gap_stops_the_stream_until_the_missing_delta_comes(
    stream: Stream, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        stream.put(0, 2)
        async with managing(Repository(stream.root), stream.settings) as world:
            await world.manager.rescan()
            await asserts(world, stream, 1)
            for _ in range(3):
                await world.manager.poll_deltas("small")
                await asserts(world, stream, 1, StreamState.GAP)
            (line,) = errors(caplog)
            assert (
                "model small, version 1: its deltas are no longer followed: delta 0-2.delta follows" in line
            )
            stream.put(1)
            await world.manager.poll_deltas("small")
            await asserts(world, stream, 3)
            assert len(errors(caplog)) == 1

    run(scenario())


def test_a_damaged_delta_stops_the_stream_until_it_is_replaced(
    stream: Stream, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        stream.put(0, 1, 2)
        damaged = bytearray((stream.folder / "0-1.delta").read_bytes())
        damaged[100] ^= 1  # a byte of a row: the header is right
        (stream.folder / "0-1.delta").write_bytes(damaged)
        async with managing(Repository(stream.root), stream.settings) as world:
            await world.manager.rescan()
            for _ in range(3):
                await asserts(world, stream, 1, StreamState.DAMAGED)
                await world.manager.poll_deltas("small")
            (line,) = errors(caplog)
            assert "delta 0-1.delta cannot be applied" in line
            assert str(stream.folder) not in line
            failed = world.metrics.registry.get_sample_value(
                "recsys_deltas_failed_total", {"model": "small", "version": "1"}
            )
            assert failed == 1
            stream.put(1)
            await world.manager.poll_deltas("small")
            await asserts(world, stream, 3)

    run(scenario())


def test_a_file_that_is_cut_off_stops_the_stream_once_it_does_not_grow(stream: Stream) -> None:
    async def scenario() -> None:
        async with managing(Repository(stream.root), stream.settings) as world:
            await world.manager.rescan()
            whole = (stream.made / "0-0.delta").read_bytes()
            for size in (0, 40, 400):
                (stream.folder / "0-0.delta").write_bytes(whole[:size])
                await world.manager.poll_deltas("small")
                await asserts(world, stream, 0)
            await world.manager.poll_deltas("small")
            await asserts(world, stream, 0, StreamState.DAMAGED)
            (stream.folder / "0-0.delta").write_bytes(whole)
            await world.manager.poll_deltas("small")
            await asserts(world, stream, 1)

    run(scenario())


def test_deltas_of_another_artifact_stop_the_stream_until_its_version_comes(
    stream: Stream, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        export_small(tmp_path / "next", seed=5)
        later = Stream(tmp_path, tmp_path / "next", 2, seed=50)
        stream.put(0)
        async with managing(Repository(stream.root), stream.settings) as world:
            await world.manager.rescan()
            later.put(0)
            await world.manager.poll_deltas("small")
            await asserts(world, stream, 1)
            await world.manager.poll_deltas("small")
            await asserts(world, stream, 1, StreamState.FOREIGN)
            assert len(errors(caplog)) == 1
            add_version(stream.root, "small", "2", tmp_path / "next")
            await world.manager.rescan()
            assert world.serving() == "2"
            await asserts(world, later, 1)
            later.put(1)
            await world.manager.poll_deltas("small")
            await asserts(world, later, 2)
            # The version that is kept for a rollback goes on with its own.
            stream.put(1)
            await world.manager.poll_deltas("small")
            await world.manager.rollback("small")
            await asserts(world, stream, 2)

    run(scenario())


def test_a_server_that_starts_again_applies_the_whole_chain(stream: Stream) -> None:
    async def scenario() -> None:
        for num_deltas in range(1, 4):
            stream.put(num_deltas - 1)
            async with managing(Repository(stream.root), stream.settings) as world:
                await world.manager.rescan()
                await asserts(world, stream, num_deltas)

    run(scenario())


def test_a_version_that_is_loaded_again_catches_up(stream: Stream) -> None:
    async def scenario() -> None:
        stream.put(0)
        async with managing(Repository(stream.root), stream.settings) as world:
            await world.manager.rescan()
            await world.manager.unload("small")
            stream.put(1)
            await world.manager.poll_deltas("small")
            await world.manager.load("small")
            await asserts(world, stream, 2)

    run(scenario())


def test_canary_and_serving_version_follow_their_own_deltas(stream: Stream, tmp_path: Path) -> None:
    async def scenario() -> None:
        export_small(tmp_path / "next", seed=5)
        later = Stream(tmp_path, tmp_path / "next", 2, seed=50)
        add_version(stream.root, "small", "2", tmp_path / "next")
        stream.put(0)
        later.put(0, 1)
        settings = ModelSettings(
            deltas=stream.folder,
            poll_deltas_s=1e6,
            routing=Routing(serve="1", canary="2", canary_percent=10),
        )
        async with managing(Repository(stream.root), settings) as world:
            await world.manager.rescan()
            for _ in range(3):
                await world.manager.poll_deltas("small")
            assert [(status_of(world, v).state.value, status_of(world, v).last) for v in ("1", "2")] == [
                ("following", "0-0.delta"),
                ("following", "50-1.delta"),
            ]
            _, outputs = await world.predict(SAMPLE, version="2")
            assert_answers(outputs, later.answers[2])

    run(scenario())


def test_operators_apply_no_deltas_beside_a_stream(stream: Stream) -> None:
    async def scenario() -> None:
        async with managing(Repository(stream.root), stream.settings) as world:
            await world.manager.rescan()
            with pytest.raises(ModelChangeError, match="takes its deltas from a stream of its own"):
                await world.manager.apply_delta("small", "", "0.delta")
            await asserts(world, stream, 0)

    run(scenario())


def test_a_folder_that_cannot_be_read_is_tried_again(
    stream: Stream, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        stream.folder.rmdir()
        stream.folder.touch()
        async with managing(Repository(stream.root), stream.settings) as world:
            await world.manager.rescan()
            await world.manager.poll_deltas("small")
            await asserts(world, stream, 0, StreamState.FAILED)
            (line,) = errors(caplog)
            assert "the stream of deltas: it cannot be read (NotADirectoryError)" in line
            stream.folder.unlink()
            stream.folder.mkdir()
            stream.put(0)
            await world.manager.poll_deltas("small")
            await asserts(world, stream, 1)

    run(scenario())


def test_the_lag_is_the_age_of_the_last_applied_delta(stream: Stream) -> None:
    async def scenario() -> None:
        stream.put(0)
        created_s = (stream.folder / "0-0.delta").stat().st_mtime  # its header says no time
        async with managing(Repository(stream.root), stream.settings, now=lambda: created_s + 42) as world:
            await world.manager.rescan()
            labels = {"model": "small", "version": "1"}
            value = world.metrics.registry.get_sample_value
            assert value("recsys_delta_lag_seconds", labels) == pytest.approx(42, abs=1e-3)
            shown = value("recsys_delta_created_timestamp_seconds", labels)
            assert shown == pytest.approx(created_s, abs=1e-3)
            await world.manager.unload("small")
            assert value("recsys_delta_lag_seconds", labels) is None

    run(scenario())
