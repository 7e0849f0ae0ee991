"""Operators load and unload while others do, and while requests come."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from serve.config.models import ModelSettings, Routing
from serve.errors import ModelChangeError, ModelNotFoundError, NotReadyError
from serve.models.repository import Repository
from serve.models.status import ModelState
from tests.support.serve.managing import (
    SAMPLE,
    Gates,
    World,
    add_versions,
    asserts_answer,
    managing,
    reached,
    run,
    serving,
)
from tests.support.serve.models import FailingModel


def num_ok(world: World, version: str) -> float | None:
    """Requests that a version has answered, as its series has it."""
    labels = {"model": "small", "version": version, "outcome": "ok"}
    return world.metrics.registry.get_sample_value("recsys_requests_total", labels)


def test_a_version_that_drains_is_loaded_again_once_it_has_left(
    root: Path, artifacts: dict[str, Path]
) -> None:
    async def scenario() -> None:
        async with managing(Repository(root), ModelSettings(keep_previous=False)) as world:
            gates = Gates(world, "1")
            await world.manager.rescan()
            gates.close()
            waiting = asyncio.create_task(world.predict(SAMPLE))
            await reached(gates.model.started)
            add_versions(root, artifacts, "2")
            await world.manager.rescan()
            del world.hosting.wrap["1"]
            again = asyncio.create_task(world.manager.load("small", "1"))
            await asyncio.sleep(0)
            await asserts_answer(world, "2", artifacts["2"])
            assert world.states() == {"1": "draining", "2": "ready"}
            assert world.hosting.loads == ["1", "2"]
            gates.open()
            assert (await again).state is ModelState.READY
            assert (await waiting)[0] == "1"
            await world.settle()
            assert world.states() == {"1": "ready", "2": "ready"}
            await asserts_answer(world, "1", artifacts["1"], asked="1")
            assert num_ok(world, "1") == 1  # that of before went with its series

    run(scenario())


def test_a_version_that_was_loaded_on_purpose_outlives_the_one_before(
    root: Path, artifacts: dict[str, Path]
) -> None:
    async def scenario() -> None:
        async with serving(root) as world:
            add_versions(root, artifacts, "2")
            await world.manager.rescan()
            await world.manager.load("small", "1")
            add_versions(root, artifacts, "3")
            await world.manager.rescan()
            assert world.states() == dict.fromkeys("123", "ready")

    run(scenario())


def test_a_version_that_an_operator_loads_stays(root: Path, artifacts: dict[str, Path]) -> None:
    async def scenario() -> None:
        add_versions(root, artifacts, "2", "3")
        async with serving(root) as world:
            status = await world.manager.load("small", "1")
            assert (status.version, status.state) == ("1", ModelState.READY)
            assert world.serving() == "3"
            await world.manager.rescan()
            assert world.states() == {"1": "ready", "2": "available", "3": "ready"}
            await asserts_answer(world, "1", artifacts["1"], asked="1")
            await world.manager.unload("small", "1")
            assert world.states()["1"] == "available"

    run(scenario())


def test_load_without_a_version_takes_the_newest(root: Path, artifacts: dict[str, Path]) -> None:
    async def scenario() -> None:
        async with serving(root) as world:
            add_versions(root, artifacts, "2")
            assert (await world.manager.load("small")).version == "2"
            assert world.serving() == "2"
            await world.manager.load("small")
            assert world.hosting.loads == ["1", "2"]

    run(scenario())


def test_unloading_what_serves_brings_the_one_before_back(root: Path, artifacts: dict[str, Path]) -> None:
    async def scenario() -> None:
        async with serving(root) as world:
            add_versions(root, artifacts, "2")
            await world.manager.rescan()
            await world.manager.unload("small", "2")
            await world.manager.rescan()
            assert world.states() == {"1": "ready", "2": "available"}
            await asserts_answer(world, "1", artifacts["1"])
            assert (await world.manager.load("small", "2")).state is ModelState.READY
            assert world.serving() == "2"

    run(scenario())


def test_unloading_a_model_takes_it_out_until_it_is_loaded_again(
    root: Path, artifacts: dict[str, Path]
) -> None:
    async def scenario() -> None:
        async with serving(root) as world:
            add_versions(root, artifacts, "2")
            await world.manager.rescan()
            await world.manager.unload("small")
            await world.manager.rescan()
            assert world.states() == {"1": "available", "2": "available"}
            with pytest.raises(ModelNotFoundError, match="'small', which was unloaded"):
                await world.predict(SAMPLE)
            assert world.metrics.read() == ([], {})
            await world.manager.load("small")
            await asserts_answer(world, "2", artifacts["2"])
            assert num_ok(world, "2") == 1
            await world.manager.set_routing("small", Routing(serve="1"))
            await world.manager.unload("small")
            await world.manager.load("small")
            with pytest.raises(
                NotReadyError, match="'small' is pinned to version '1', which is not loaded; load"
            ):
                await world.predict(SAMPLE)

    run(scenario())


def test_what_is_not_there_is_said(root: Path) -> None:
    async def scenario() -> None:
        async with serving(root) as world:
            manager = world.manager
            for change in (
                manager.load("other"),
                manager.unload("other"),
                manager.rollback("other"),
                manager.set_routing("other", Routing()),
                manager.apply_delta("other", "", "a"),
            ):
                with pytest.raises(
                    ModelNotFoundError, match=r"model: got 'other', expected 'small' \(or nothing"
                ):
                    await change
            for versioned in (manager.load("small", "7"), manager.unload("small", "7")):
                with pytest.raises(ModelNotFoundError, match="version: got '7'"):
                    await versioned
            with pytest.raises(ModelNotFoundError, match="model: got 'other'"):
                manager.route("other", "", 0.5)
            assert world.states() == {"1": "ready"}

    run(scenario())


def test_while_a_version_is_loaded_the_old_one_serves(root: Path, artifacts: dict[str, Path]) -> None:
    async def scenario() -> None:
        async with serving(root) as world:
            await reached(world.hosting.started)
            world.hosting.gate.clear()
            add_versions(root, artifacts, "2")
            loading = asyncio.create_task(world.manager.load("small", "2"))
            await reached(world.hosting.started)
            assert world.states() == {"1": "ready", "2": "loading"}
            await asserts_answer(world, "1", artifacts["1"])
            with pytest.raises(NotReadyError, match="version '2' of model 'small' is being loaded"):
                world.manager.route("small", "2", 0.5)
            loading.cancel()
            with pytest.raises(asyncio.CancelledError):
                await loading
            world.hosting.gate.set()
            await world.manager.load("small", "2")
            assert world.hosting.loads == ["1", "2"]
            assert world.serving() == "2"

    run(scenario())


def test_changes_that_come_at_once_are_made_one_after_the_other(
    root: Path, artifacts: dict[str, Path]
) -> None:
    async def scenario() -> None:
        add_versions(root, artifacts, "2", "3", "4")
        async with serving(root) as world:
            manager = world.manager
            done = asyncio.Event()
            wrong: list[str] = []

            async def ask() -> None:
                while not done.is_set():
                    try:
                        await world.predict(SAMPLE)
                    except (NotReadyError, ModelNotFoundError) as error:
                        wrong.append(str(error))
                        await asyncio.sleep(0.001)

            asking = asyncio.create_task(ask())
            changes = [
                manager.load("small", "2"),
                manager.rescan(),
                manager.set_routing("small", Routing(serve="2", canary="3", canary_percent=50)),
                manager.unload("small", "1"),
                manager.rollback("small"),
                manager.rescan(),
                manager.load("small", "1"),
                manager.unload("small", "2"),
                manager.set_routing("small", Routing(serve="3", shadow="1", shadow_percent=100)),
                manager.load("small", "4"),
                manager.rollback("small"),
                manager.rollback("small"),
            ]
            results = await asyncio.gather(*changes, return_exceptions=True)
            done.set()
            await asking
            await world.settle()
            assert [
                r for r in results if isinstance(r, Exception) and not isinstance(r, ModelChangeError)
            ] == []
            assert wrong == []
            assert world.serving() == "3"
            assert world.manager.route("small", "", 0.5).shadow is not None

    run(scenario())


def test_a_version_that_failed_and_is_loaded_again_counts(root: Path, artifacts: dict[str, Path]) -> None:
    async def scenario() -> None:
        async with serving(root) as world:
            add_versions(root, artifacts, "2")
            world.hosting.wrap["2"] = lambda model: FailingModel(model, bad_id=0)
            await world.manager.rescan()
            assert world.states()["2"] == "failed"
            assert num_ok(world, "2") is None
            del world.hosting.wrap["2"]
            await world.manager.load("small", "2")
            await asserts_answer(world, "2", artifacts["2"])
            assert num_ok(world, "2") == 1

    run(scenario())
