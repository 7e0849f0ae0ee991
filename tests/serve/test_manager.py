"""Versions come and go under requests: swaps, failures, rollbacks, routing, unloading."""

from __future__ import annotations

import asyncio
import gc
import shutil
import threading
import weakref
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest

from recsys.artifact import load_artifact
from serve.config import ModelSettings
from serve.errors import DrainingError, ModelChangeError, ModelNotFoundError, NotReadyError
from serve.repository import Repository, SingleArtifact
from serve.routing import Routing
from serve.status import ModelState
from tests.serve.cases import answer, assert_answers, random_sample
from tests.serve.managing import Gates, Renamed, World, managing, reached, run
from tests.serve.models import SIGNATURE, FailingModel, export_small
from tests.serve.repositories import add_version, break_version, repair_version

SAMPLE = random_sample(SIGNATURE, 3, np.random.default_rng(1))


@pytest.fixture(scope="module")
def artifacts(artifact_path: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Versions 1 to 4 of one model, each with weights of its own."""
    folder = tmp_path_factory.mktemp("versions")
    paths = {"1": artifact_path}
    for seed in (2, 3, 4):
        paths[str(seed)] = folder / str(seed)
        export_small(folder / str(seed), seed)
    return paths


@pytest.fixture
def root(tmp_path: Path, artifacts: dict[str, Path]) -> Path:
    """A repository with the first version."""
    add_version(tmp_path / "models", "small", "1", artifacts["1"])
    return tmp_path / "models"


def add(root: Path, artifacts: dict[str, Path], *versions: str) -> None:
    for version in versions:
        add_version(root, "small", version, artifacts[version])


@asynccontextmanager
async def serving(root: Path, settings: ModelSettings | None = None) -> AsyncIterator[World]:
    """A manager that has looked through the repository."""
    async with managing(Repository(root), settings) as world:
        await world.manager.rescan()
        yield world


async def asserts_answer(world: World, version: str, artifact: Path, asked: str = "") -> None:
    got, outputs = await world.predict(SAMPLE, version=asked)
    assert got == version
    assert_answers(outputs, answer(load_artifact(artifact), SAMPLE))


def test_the_newest_version_is_loaded_and_no_other(root: Path, artifacts: dict[str, Path]) -> None:
    async def scenario() -> None:
        add(root, artifacts, "2")
        async with managing(Repository(root)) as world:
            with pytest.raises(NotReadyError):
                world.manager.route("", "", 0.5)
            await world.manager.rescan()
            assert world.states() == {"1": "available", "2": "ready"}
            await asserts_answer(world, "2", artifacts["2"])
            with pytest.raises(
                ModelNotFoundError, match="version: got '1' of model 'small', expected one that is"
            ):
                world.manager.route("small", "1", 0.5)
            (status,) = world.manager.statuses()
            assert (status.model, status.routing, status.serving) == ("small", Routing(), "2")
            ready = status.versions[1]
            assert ready.digest == SingleArtifact(artifacts["2"]).version
            assert ready.table_bytes > 0
            assert status.versions[0].digest == ""

    run(scenario())


def test_a_server_is_ready_once_all_was_looked_through_and_something_serves(
    root: Path, artifacts: dict[str, Path]
) -> None:
    async def scenario() -> None:
        broken = add_version(root, "broken", "1", artifacts["2"])
        break_version(broken)
        async with managing(Repository(root)) as world:
            world.hosting.gate.clear()
            rescan = asyncio.create_task(world.manager.rescan())
            await reached(world.hosting.started)
            world.hosting.gate.set()
            while not world.manager.is_ready("small"):
                world.changed.clear()
                await world.changed.wait()
                assert not world.manager.is_ready()
            await rescan
            assert world.manager.is_ready()
            assert not world.manager.is_ready("broken")
            assert not world.manager.is_ready("nothing")
            await world.manager.unload("small")
            assert not world.manager.is_ready()

    run(scenario())


def test_a_new_version_takes_over_and_the_one_before_stays_for_a_rollback(
    root: Path, artifacts: dict[str, Path]
) -> None:
    async def scenario() -> None:
        async with serving(root) as world:
            add(root, artifacts, "2")
            await world.manager.rescan()
            assert world.states() == {"1": "ready", "2": "ready"}
            await asserts_answer(world, "2", artifacts["2"])
            await asserts_answer(world, "1", artifacts["1"], asked="1")
            add(root, artifacts, "3")
            await world.manager.rescan()
            await world.settle()
            assert world.states() == {"1": "available", "2": "ready", "3": "ready"}
            assert world.hosting.loads == ["1", "2", "3"]

    run(scenario())


def test_without_keep_previous_the_old_version_leaves(root: Path, artifacts: dict[str, Path]) -> None:
    async def scenario() -> None:
        async with serving(root, ModelSettings(keep_previous=False)) as world:
            add(root, artifacts, "2")
            await world.manager.rescan()
            await world.settle()
            assert world.states() == {"1": "available", "2": "ready"}
            status = await world.manager.rollback("small")
            await world.settle()
            assert (status.serving, status.routing.serve) == ("1", "1")
            assert world.states() == {"1": "ready", "2": "available"}
            assert world.hosting.loads == ["1", "2", "1"]
            await asserts_answer(world, "1", artifacts["1"])

    run(scenario())


def test_no_request_is_lost_or_wrong_while_versions_change(root: Path, artifacts: dict[str, Path]) -> None:
    async def scenario() -> None:
        expected = {version: answer(load_artifact(path), SAMPLE) for version, path in artifacts.items()}
        async with serving(root, ModelSettings(keep_previous=False)) as world:
            seen: list[str] = []
            done = asyncio.Event()

            async def ask() -> None:
                while not done.is_set():
                    version, outputs = await world.predict(SAMPLE)
                    assert_answers(outputs, expected[version])
                    seen.append(version)

            asking = [asyncio.create_task(ask()) for _ in range(8)]
            for version in ("2", "3", "4"):
                add(root, artifacts, version)
                await world.manager.rescan()
            await world.manager.rollback("small")
            await world.settle()
            done.set()
            await asyncio.gather(*asking)
            assert seen[0] == "1"
            assert {"1", "2", "3", "4"} >= set(seen) >= {"1", "4"}
            assert world.metrics.outcomes()["ok"] == len(seen) == world.metrics.outcomes()["accepted"]

    run(scenario())


def test_requests_that_an_old_version_has_accepted_are_answered_by_it(
    root: Path, artifacts: dict[str, Path]
) -> None:
    async def scenario() -> None:
        async with managing(Repository(root), ModelSettings(keep_previous=False)) as world:
            gates = Gates(world, "1")
            await world.manager.rescan()
            gates.close()
            waiting = [asyncio.create_task(world.predict(SAMPLE)) for _ in range(3)]
            await reached(gates.model.started)
            add(root, artifacts, "2")
            await world.manager.rescan()
            assert world.states() == {"1": "draining", "2": "ready"}
            assert (await world.predict(SAMPLE))[0] == "2"
            gates.open()
            assert [version for version, _ in await asyncio.gather(*waiting)] == ["1"] * 3
            await world.settle()
            assert world.states() == {"1": "available", "2": "ready"}

    run(scenario())


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
            add(root, artifacts, "2")
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

    run(scenario())


@pytest.mark.parametrize("initially", [True, False])
def test_a_broken_version_leaves_the_old_one_serving(
    root: Path, artifacts: dict[str, Path], initially: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Also where the server starts with it: the next older version serves."""

    async def scenario() -> None:
        async with managing(Repository(root)) as world:
            if not initially:
                await world.manager.rescan()
            add(root, artifacts, "2")
            break_version(root / "small" / "2")
            for _ in range(3):
                await world.manager.rescan()
            assert sorted(world.hosting.loads) == ["1", "2"]
            assert world.states() == {"1": "ready", "2": "failed"}
            failed = world.manager.statuses()[0].versions[1]
            assert "rows.bin" in failed.reason
            assert "bytes" in failed.reason
            assert str(root) not in failed.reason
            await asserts_answer(world, "1", artifacts["1"])
            assert "version 2, cannot be loaded" in caplog.text
            with pytest.raises(
                ModelChangeError, match=r"version '2' of model 'small' cannot be loaded: .*rows.bin"
            ):
                await world.manager.load("small", "2")
            repair_version(root / "small" / "2", artifacts["2"])
            await world.manager.rescan()
            assert world.states() == {"1": "ready", "2": "ready"}
            assert world.manager.statuses()[0].versions[1].reason == ""
            await asserts_answer(world, "2", artifacts["2"])

    run(scenario())


def test_a_version_that_fails_to_warm_up_leaves_the_old_one_serving(
    root: Path, artifacts: dict[str, Path]
) -> None:
    async def scenario() -> None:
        async with serving(root) as world:
            world.hosting.wrap["2"] = lambda model: FailingModel(model, bad_id=0)
            add(root, artifacts, "2")
            await world.manager.rescan()
            assert world.states() == {"1": "ready", "2": "failed"}
            reason = world.manager.statuses()[0].versions[1].reason
            assert reason == "the model failed while it was loaded or warmed up; the log says why"
            await asserts_answer(world, "1", artifacts["1"])
            assert world.metrics.read()[1] == {("small", "1"): "ready", ("small", "2"): "failed"}

    run(scenario())


def test_a_version_may_have_another_signature(root: Path, artifacts: dict[str, Path]) -> None:
    """Requests are checked against the version that they go to."""

    async def scenario() -> None:
        async with serving(root) as world:
            world.hosting.wrap["2"] = Renamed
            add(root, artifacts, "2")
            await world.manager.rescan()
            assert world.serving() == "2"
            with pytest.raises(ValueError, match="other"):
                await world.predict(SAMPLE)
            await asserts_answer(world, "1", artifacts["1"], asked="1")

    run(scenario())


def test_a_rollback_is_instant_and_stays(root: Path, artifacts: dict[str, Path]) -> None:
    async def scenario() -> None:
        async with serving(root) as world:
            with pytest.raises(ModelChangeError, match="has had no other routing or version to go back to"):
                await world.manager.rollback("small")
            add(root, artifacts, "2")
            await world.manager.rescan()
            status = await world.manager.rollback("small")
            assert (status.serving, status.routing) == ("1", Routing(serve="1"))
            assert world.hosting.loads == ["1", "2"]
            await asserts_answer(world, "1", artifacts["1"])
            add(root, artifacts, "3")
            await world.manager.rescan()
            assert world.serving() == "1"
            assert (await world.manager.rollback("small")).serving == "2"
            assert world.hosting.loads == ["1", "2"]
            assert (await world.manager.set_routing("small", Routing())).serving == "3"

    run(scenario())


def test_a_rollback_waits_for_no_version_that_is_being_loaded(root: Path, artifacts: dict[str, Path]) -> None:
    async def scenario() -> None:
        async with serving(root) as world:
            add(root, artifacts, "2")
            await world.manager.rescan()
            add(root, artifacts, "3", "4")
            for _ in range(2):
                await reached(world.hosting.started)
            world.hosting.gate.clear()
            change = asyncio.create_task(world.manager.rescan())
            await reached(world.hosting.started)
            assert world.states()["4"] == "loading"
            status = await world.manager.rollback("small")
            assert (status.serving, status.routing) == ("1", Routing(serve="1"))
            await asserts_answer(world, "1", artifacts["1"])
            world.hosting.gate.set()
            await change
            await world.settle()
            assert world.serving() == "1"
            assert world.states() == {"1": "ready", "2": "ready", "3": "available", "4": "available"}

    run(scenario())


def test_a_routing_on_its_way_does_not_undo_a_rollback(root: Path, artifacts: dict[str, Path]) -> None:
    async def scenario() -> None:
        async with serving(root) as world:
            add(root, artifacts, "2")
            await world.manager.rescan()
            add(root, artifacts, "3")
            for _ in range(2):
                await reached(world.hosting.started)
            world.hosting.gate.clear()
            changes = [
                asyncio.create_task(world.manager.set_routing("small", Routing(serve=version)))
                for version in ("3", "2")
            ]
            await reached(world.hosting.started)
            assert (await world.manager.rollback("small")).serving == "1"
            world.hosting.gate.set()
            for change in changes:
                with pytest.raises(ModelChangeError, match="was rolled back meanwhile"):
                    await change
            await world.settle()
            assert world.serving() == "1"
            assert world.states() == {"1": "ready", "2": "ready", "3": "available"}

    run(scenario())


def test_a_version_that_was_loaded_on_purpose_outlives_the_one_before(
    root: Path, artifacts: dict[str, Path]
) -> None:
    async def scenario() -> None:
        async with serving(root) as world:
            add(root, artifacts, "2")
            await world.manager.rescan()
            await world.manager.load("small", "1")
            add(root, artifacts, "3")
            await world.manager.rescan()
            assert world.states() == dict.fromkeys("123", "ready")

    run(scenario())


def test_a_rollback_to_what_is_gone_changes_nothing(root: Path, artifacts: dict[str, Path]) -> None:
    async def scenario() -> None:
        async with serving(root, ModelSettings(keep_previous=False)) as world:
            add(root, artifacts, "2")
            await world.manager.rescan()
            await world.settle()
            shutil.rmtree(root / "small" / "1")
            with pytest.raises(ModelNotFoundError):
                await world.manager.rollback("small")
            assert world.serving() == "2"
            assert world.manager.statuses()[0].routing == Routing()
            await asserts_answer(world, "2", artifacts["2"])

    run(scenario())


def test_canary_and_shadow_are_loaded_and_routed_to(root: Path, artifacts: dict[str, Path]) -> None:
    async def scenario() -> None:
        add(root, artifacts, "2", "3")
        async with serving(root) as world:
            routing = Routing(serve="1", canary="2", canary_percent=10, shadow="3", shadow_percent=20)
            await world.manager.set_routing("small", routing)
            assert world.states() == dict.fromkeys("123", "ready")
            routes = [world.manager.route("small", "", draw) for draw in (0.05, 0.5, 0.9)]
            assert [route.primary.version for route in routes] == ["2", "1", "1"]
            assert [route.shadow.hosted.version if route.shadow else None for route in routes] == [
                None,
                None,
                "3",
            ]
            assert world.manager.route("small", "3", 0.9).shadow is None
            with pytest.raises(ModelNotFoundError):
                await world.manager.set_routing("small", Routing(serve="9"))
            assert world.manager.statuses()[0].routing == routing
            await world.manager.unload("small", "2")
            assert world.manager.statuses()[0].routing == routing.without("2")
            assert world.manager.route("small", "", 0.05).primary.version == "1"

    run(scenario())


def test_a_routing_whose_version_is_broken_changes_nothing(root: Path, artifacts: dict[str, Path]) -> None:
    async def scenario() -> None:
        async with serving(root, ModelSettings(routing=Routing(serve="1"))) as world:
            add(root, artifacts, "2", "3")
            break_version(root / "small" / "3")
            with pytest.raises(ModelChangeError, match="version '3'"):
                await world.manager.set_routing("small", Routing(serve="2", canary="3", canary_percent=5))
            await world.settle()
            assert world.manager.statuses()[0].routing == Routing(serve="1")
            assert world.states() == {"1": "ready", "2": "available", "3": "failed"}
            with pytest.raises(ModelChangeError, match="has had no other"):
                await world.manager.rollback("small")

    run(scenario())


def test_a_pinned_routing_of_the_settings_loads_that_version(root: Path, artifacts: dict[str, Path]) -> None:
    async def scenario() -> None:
        add(root, artifacts, "2", "3")
        routing = Routing(serve="1", shadow="2", shadow_percent=50)
        async with serving(root, ModelSettings(routing=routing)) as world:
            assert world.states() == {"1": "ready", "2": "ready", "3": "available"}
            assert world.serving() == "1"

    run(scenario())


def test_a_version_that_an_operator_loads_stays(root: Path, artifacts: dict[str, Path]) -> None:
    async def scenario() -> None:
        add(root, artifacts, "2", "3")
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
            add(root, artifacts, "2")
            assert (await world.manager.load("small")).version == "2"
            assert world.serving() == "2"
            await world.manager.load("small")
            assert world.hosting.loads == ["1", "2"]

    run(scenario())


def test_unloading_what_serves_brings_the_one_before_back(root: Path, artifacts: dict[str, Path]) -> None:
    async def scenario() -> None:
        async with serving(root) as world:
            add(root, artifacts, "2")
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
            add(root, artifacts, "2")
            await world.manager.rescan()
            await world.manager.unload("small")
            await world.manager.rescan()
            assert world.states() == {"1": "available", "2": "available"}
            with pytest.raises(ModelNotFoundError, match="'small', which was unloaded"):
                await world.predict(SAMPLE)
            assert world.metrics.read() == ([], {})
            await world.manager.load("small")
            await asserts_answer(world, "2", artifacts["2"])

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


def test_the_version_that_the_routing_is_pinned_to_cannot_be_unloaded(root: Path) -> None:
    async def scenario() -> None:
        async with serving(root, ModelSettings(routing=Routing(serve="1"))) as world:
            with pytest.raises(ModelChangeError, match="set another routing first"):
                await world.manager.unload("small", "1")
            assert world.states() == {"1": "ready"}

    run(scenario())


def test_a_version_deleted_from_the_disk_keeps_serving(root: Path, artifacts: dict[str, Path]) -> None:
    async def scenario() -> None:
        async with serving(root) as world:
            shutil.rmtree(root / "small")
            await world.manager.rescan()
            await asserts_answer(world, "1", artifacts["1"])
            shutil.rmtree(root)
            await world.manager.rescan()
            await asserts_answer(world, "1", artifacts["1"])
            root.mkdir()
            await world.manager.unload("small")
            await world.manager.rescan()
            assert world.manager.statuses() == []
            with pytest.raises(ModelNotFoundError, match="but there is none"):
                world.manager.route("small", "", 0.5)

    run(scenario())


def test_several_models_are_told_apart_by_name(root: Path, artifacts: dict[str, Path]) -> None:
    async def scenario() -> None:
        async with serving(root) as world:
            add_version(root, "large", "3", artifacts["3"])
            await world.manager.rescan()
            assert [status.model for status in world.manager.statuses()] == ["large", "small"]
            assert (await world.predict(SAMPLE, "large"))[0] == "3"
            assert (await world.predict(SAMPLE, "small"))[0] == "1"
            with pytest.raises(ModelNotFoundError, match="model: got '', expected one of 'large', 'small'"):
                await world.predict(SAMPLE)

    run(scenario())


def test_a_folder_without_versions_is_no_model(root: Path) -> None:
    async def scenario() -> None:
        (root / "empty" / "deltas").mkdir(parents=True)
        async with serving(root) as world:
            assert [status.model for status in world.manager.statuses()] == ["small"]
            assert world.manager.is_ready()
            with pytest.raises(ModelNotFoundError, match="expected one with versions"):
                await world.manager.load("empty")

    run(scenario())


def test_while_a_version_is_loaded_the_old_one_serves(root: Path, artifacts: dict[str, Path]) -> None:
    async def scenario() -> None:
        async with serving(root) as world:
            await reached(world.hosting.started)
            world.hosting.gate.clear()
            add(root, artifacts, "2")
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
        add(root, artifacts, "2", "3", "4")
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


def test_closing_answers_what_was_accepted_and_takes_no_more(root: Path) -> None:
    async def scenario() -> None:
        async with managing(Repository(root)) as world:
            gates = Gates(world, "1")
            await world.manager.rescan()
            gates.close()
            waiting = asyncio.create_task(world.predict(SAMPLE))
            await reached(gates.model.started)
            assert not await world.manager.close(0.01)
            with pytest.raises(DrainingError):
                await world.predict(SAMPLE)
            with pytest.raises(DrainingError):
                await world.manager.load("small", "1")
            gates.open()
            assert await world.manager.close(60)
            assert (await waiting)[0] == "1"

    run(scenario())


def test_a_version_that_is_being_loaded_when_the_server_stops_is_closed_too(root: Path) -> None:
    async def scenario() -> None:
        async with managing(Repository(root)) as world:
            world.hosting.gate.clear()
            loading = asyncio.create_task(world.manager.load("small", "1"))
            await reached(world.hosting.started)
            assert await world.manager.close(0.01)
            world.hosting.gate.set()
            with pytest.raises(DrainingError):
                await loading
            assert world.states() == {"1": "available"}

    run(scenario())


def test_a_version_that_left_holds_no_memory(root: Path, artifacts: dict[str, Path]) -> None:
    async def scenario() -> None:
        async with serving(root, ModelSettings(keep_previous=False)) as world:
            await world.predict(SAMPLE)
            freed_by: list[threading.Thread] = []
            old = weakref.ref(
                world.manager.route("", "", 0.5).primary,
                lambda _: freed_by.append(threading.current_thread()),
            )
            add(root, artifacts, "2")
            gc.disable()
            try:
                await world.manager.rescan()
                await world.settle()
                assert old() is None
                # Giving many pages back takes a while: not on the event loop.
                assert freed_by[0] is not threading.current_thread()
            finally:
                gc.enable()

    run(scenario())
