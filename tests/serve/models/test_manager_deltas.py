"""Deltas of versions that are being served: in order, between batches, and still there after a rollback."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from torch import Tensor

from recsys.artifact.delta import apply as delta
from recsys.artifact.load import LoadedArtifact, load_artifact
from serve.config.models import ModelSettings
from serve.engine.reference.executor import ServedModel
from serve.engine.reference.servable import ReferenceServable
from serve.errors import ModelChangeError, ModelNotFoundError, RequestError
from serve.metrics.counters import ModelTotals
from serve.models.repository import Repository
from serve.rpc.metadata import servable_metadata
from tests.recsys.artifact.delta.deltas import write_delta
from tests.support.serve.managing import Gates, World, managing, reached, run
from tests.support.serve.messages.cases import answer, assert_answers, random_sample
from tests.support.serve.models import SIGNATURE
from tests.support.serve.repositories import add_version

SAMPLE = random_sample(SIGNATURE, 6, np.random.default_rng(3), max_ids=8)
ALL_USERS, ALL_TAGS = list(range(50)), list(range(20))
Answers = Sequence[Mapping[str, npt.NDArray[np.float32]]]


class Series:
    """An artifact in a repository, with deltas one after the other.

    Attributes:
        root: of the repository.
        answers: to the sample, by the number of deltas that were applied.
    """

    def __init__(self, root: Path, artifact: Path, num_deltas: int) -> None:
        self.root = root
        add_version(root, "small", "1", artifact)
        folder = root / "small" / "deltas"
        folder.mkdir()
        loaded: LoadedArtifact = load_artifact(artifact)
        self.answers = [answer(loaded, SAMPLE)]
        for i in range(num_deltas):
            path = folder / f"{i}.delta"
            write_delta(path, loaded.rows, {"plain.users": ALL_USERS, "weighted.tags": ALL_TAGS}, seed=i)
            delta.apply(delta.prepare(loaded.rows, path))
            self.answers.append(answer(loaded, SAMPLE))
            assert not np.allclose(self.answers[-1]["score"], self.answers[-2]["score"], rtol=1e-2)


@pytest.fixture
def series(tmp_path: Path, artifact_path: Path) -> Series:
    return Series(tmp_path / "models", artifact_path, 3)


async def asserts_deltas(world: World, series: Series, num_deltas: int) -> None:
    """The version serves with so many deltas, says so, and counts as many as any other that serves with these."""
    _, outputs = await world.predict(SAMPLE)
    assert_answers(outputs, series.answers[num_deltas])
    servable = world.manager.route("small", "", 0.5).primary
    names = [f"{i}.delta" for i in range(num_deltas)]
    assert world.manager.statuses()[0].versions[0].deltas == tuple(names)
    assert list(servable_metadata(servable, 1024).deltas) == names
    assert totals_of(world).deltas_applied == num_deltas


def totals_of(world: World) -> ModelTotals:
    """The numbers of version 1."""
    (totals,) = [totals for totals in world.metrics.read()[0] if totals.version == "1"]
    return totals


def test_deltas_are_applied_in_order_and_told(series: Series) -> None:
    async def scenario() -> None:
        async with managing(Repository(series.root)) as world:
            await world.manager.rescan()
            await asserts_deltas(world, series, 0)
            for i in range(3):
                status = await world.manager.apply_delta("small", "" if i else "1", f"{i}.delta")
                assert status.deltas[-1] == f"{i}.delta"
                await asserts_deltas(world, series, i + 1)
            totals = totals_of(world)
            assert (totals.deltas_applied, totals.deltas_failed) == (3, 0)

    run(scenario())


def test_deltas_that_come_at_once_are_applied_one_after_the_other(series: Series) -> None:
    async def scenario() -> None:
        async with managing(Repository(series.root), ModelSettings(num_executors=2)) as world:
            await world.manager.rescan()
            await asyncio.gather(*(world.manager.apply_delta("small", "", f"{i}.delta") for i in range(3)))
            await asserts_deltas(world, series, 3)

    run(scenario())


def test_every_answer_is_from_before_or_after(series: Series) -> None:
    """All outputs of a row, and all rows of a request, have seen the same rows of tables."""

    async def scenario() -> None:
        async with managing(Repository(series.root), ModelSettings(num_executors=2)) as world:
            await world.manager.rescan()
            done = asyncio.Event()
            seen: list[int] = []

            async def ask() -> None:
                while not done.is_set():
                    _, outputs = await world.predict(SAMPLE)
                    fits = [
                        i
                        for i, expected in enumerate(series.answers)
                        if all(np.allclose(outputs[n], expected[n], rtol=1e-4, atol=1e-5) for n in expected)
                    ]
                    assert len(fits) == 1
                    seen.append(fits[0])

            asking = [asyncio.create_task(ask()) for _ in range(4)]
            for i in range(3):
                await world.predict(SAMPLE)
                await world.manager.apply_delta("small", "", f"{i}.delta")
            await world.predict(SAMPLE)
            done.set()
            await asyncio.gather(*asking)
            assert {0, 3} <= set(seen)

    run(scenario())


class HeldArtifact(LoadedArtifact):
    """An artifact whose batches wait at a gate.

    Attributes:
        gate: batches pass while it is set.
        started: released for each batch that has reached the gate.
    """

    gate = threading.Event()
    started = threading.Semaphore(0)

    def forward(self, *inputs: Tensor) -> dict[str, Tensor]:
        self.started.release()
        assert self.gate.wait(60)
        return super().forward(*inputs)


def test_a_delta_waits_for_the_batch_that_runs(series: Series) -> None:
    async def scenario() -> None:
        async with managing(Repository(series.root)) as world:

            def held(model: ServedModel) -> ServedModel:
                assert isinstance(model, LoadedArtifact)
                return HeldArtifact(**{f.name: getattr(model, f.name) for f in dataclasses.fields(model)})

            world.hosting.wrap["1"] = held
            HeldArtifact.gate.set()
            await world.manager.rescan()
            HeldArtifact.gate.clear()
            HeldArtifact.started = threading.Semaphore(0)
            running = asyncio.create_task(world.predict(SAMPLE))
            await reached(HeldArtifact.started)
            servable = world.manager.route("small", "", 0.5).primary
            assert isinstance(servable, ReferenceServable)
            executor = servable.executor
            asked, really = threading.Semaphore(0), executor.run_between_batches

            def noted(function: Callable[[], None]) -> None:
                asked.release()
                really(function)

            executor.run_between_batches = noted  # type: ignore[method-assign]
            changing = asyncio.create_task(world.manager.apply_delta("small", "", "0.delta"))
            await reached(asked)
            assert world.manager.statuses()[0].versions[0].deltas == ()
            HeldArtifact.gate.set()
            assert_answers((await running)[1], series.answers[0])
            await changing
            await asserts_deltas(world, series, 1)

    run(scenario())


def test_a_delta_that_does_not_fit_changes_nothing(series: Series, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with managing(Repository(series.root)) as world:
            await world.manager.rescan()
            with pytest.raises(
                ModelChangeError, match=r"delta '1.delta' cannot be applied: delta.base: got "
            ):
                await world.manager.apply_delta("small", "", "1.delta")
            (record,) = [record for record in caplog.records if record.levelname == "ERROR"]
            assert record.exc_info is None
            assert "version 1: delta 1.delta cannot be applied: delta.base: got " in record.getMessage()
            await asserts_deltas(world, series, 0)
            await world.manager.apply_delta("small", "", "0.delta")
            with pytest.raises(ModelChangeError, match=r"delta\.base"):
                await world.manager.apply_delta("small", "", "0.delta")
            await asserts_deltas(world, series, 1)
            totals = totals_of(world)
            assert (totals.deltas_applied, totals.deltas_failed) == (1, 2)

    run(scenario())


def test_a_damaged_delta_is_refused_without_a_path(series: Series) -> None:
    async def scenario() -> None:
        damaged = series.root / "small" / "deltas" / "damaged"
        damaged.write_bytes((series.root / "small" / "deltas" / "0.delta").read_bytes()[:-7])
        async with managing(Repository(series.root)) as world:
            await world.manager.rescan()
            with pytest.raises(ModelChangeError, match="delta 'damaged' cannot be applied") as refused:
                await world.manager.apply_delta("small", "", "damaged")
            assert str(series.root) not in str(refused.value)
            await asserts_deltas(world, series, 0)

    run(scenario())


def test_what_is_no_delta_or_no_version_is_said(series: Series, artifact_path: Path) -> None:
    async def scenario() -> None:
        add_version(series.root, "small", "2", artifact_path)
        async with managing(Repository(series.root)) as world:
            await world.manager.rescan()
            manager = world.manager
            with pytest.raises(ModelNotFoundError, match="delta: got 'nothing', expected a file"):
                await manager.apply_delta("small", "", "nothing")
            with pytest.raises(RequestError, match="without folders"):
                await manager.apply_delta("small", "", "../1/manifest.json")
            with pytest.raises(ModelNotFoundError, match="version: got '7'"):
                await manager.apply_delta("small", "7", "0.delta")
            with pytest.raises(ModelChangeError, match="version '1' of model 'small' is not ready"):
                await manager.apply_delta("small", "1", "0.delta")

    run(scenario())


def test_only_artifacts_take_deltas(series: Series) -> None:
    async def scenario() -> None:
        async with managing(Repository(series.root)) as world:
            Gates(world, "1")
            await world.manager.rescan()
            with pytest.raises(ModelChangeError, match="only artifacts take deltas"):
                await world.manager.apply_delta("small", "", "0.delta")

    run(scenario())


def test_a_delta_that_leaves_dense_weights_behind_is_applied_with_a_warning(
    tmp_path: Path, artifact_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        series = Series(tmp_path / "models", artifact_path, 1)
        rows = load_artifact(artifact_path).rows
        tables_only = series.root / "small" / "deltas" / "tables_only.delta"
        write_delta(tables_only, rows, {"plain.users": ALL_USERS}, num_dense_left=3)
        async with managing(Repository(series.root)) as world:
            await world.manager.rescan()
            await world.manager.apply_delta("small", "", "0.delta")
            assert [r for r in caplog.records if r.levelname == "WARNING"] == []
            await world.manager.unload("small")
            await world.manager.load("small")
            await world.manager.apply_delta("small", "", "tables_only.delta")
            (warning,) = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
            assert "version 1: delta tables_only.delta leaves 3 dense weights" in warning

    run(scenario())


@pytest.mark.parametrize("keep_previous", [True, False])
def test_a_rollback_brings_the_deltas_back(series: Series, artifact_path: Path, keep_previous: bool) -> None:
    """Also where the version was read from the disk again."""

    async def scenario() -> None:
        async with managing(Repository(series.root), ModelSettings(keep_previous=keep_previous)) as world:
            await world.manager.rescan()
            await world.manager.apply_delta("small", "", "0.delta")
            await world.manager.apply_delta("small", "", "1.delta")
            add_version(series.root, "small", "2", artifact_path)
            await world.manager.rescan()
            await world.settle()
            await world.manager.rollback("small")
            assert world.hosting.loads == (["1", "2"] if keep_previous else ["1", "2", "1"])
            await asserts_deltas(world, series, 2)
            await world.manager.apply_delta("small", "", "2.delta")
            await asserts_deltas(world, series, 3)

    run(scenario())


def test_a_rollback_without_the_deltas_is_none(series: Series, artifact_path: Path) -> None:
    async def scenario() -> None:
        async with managing(Repository(series.root), ModelSettings(keep_previous=False)) as world:
            await world.manager.rescan()
            await world.manager.apply_delta("small", "", "0.delta")
            add_version(series.root, "small", "2", artifact_path)
            await world.manager.rescan()
            await world.settle()
            (series.root / "small" / "deltas" / "0.delta").unlink()
            with pytest.raises(ModelChangeError, match="cannot be loaded: delta: got "):
                await world.manager.rollback("small")
            assert world.serving() == "2"
            await world.manager.unload("small", "1")
            await world.manager.rollback("small")
            await asserts_deltas(world, series, 0)

    run(scenario())


def test_who_unloads_and_loads_a_version_gets_it_as_it_was_exported(series: Series) -> None:
    async def scenario() -> None:
        async with managing(Repository(series.root)) as world:
            await world.manager.rescan()
            await world.manager.apply_delta("small", "", "0.delta")
            await world.manager.unload("small")
            await world.manager.load("small")
            await asserts_deltas(world, series, 0)

    run(scenario())
