"""Where requests go: rollbacks, canaries, shadows, pinned versions."""

from __future__ import annotations

import asyncio
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from serve.config.models import ModelSettings, Routing
from serve.errors import ModelChangeError, ModelNotFoundError
from tests.support.serve.managing import (
    SAMPLE,
    Renamed,
    add_versions,
    asserts_answer,
    reached,
    run,
    serving,
)
from tests.support.serve.repositories import break_version


def test_without_keep_previous_the_old_version_leaves(root: Path, artifacts: dict[str, Path]) -> None:
    async def scenario() -> None:
        async with serving(root, ModelSettings(keep_previous=False)) as world:
            add_versions(root, artifacts, "2")
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


def test_a_key_that_requests_cannot_have_is_refused_or_reported(
    root: Path, artifacts: dict[str, Path], caplog: pytest.LogCaptureFixture
) -> None:
    wrong = Routing(serve="1", canary="2", canary_percent=10, canary_key="feature:usr")
    text = "routing.canary_key: got 'feature:usr', expected a sparse input of the model: 'user'"

    async def scenario() -> None:
        add_versions(root, artifacts, "2")
        async with serving(root, ModelSettings(routing=wrong)) as world:
            assert world.serving() == "1"
            (record,) = [record for record in caplog.records if "canary_key" in record.message]
            assert text in record.message
            assert record.message.endswith("version 1 answers all")
            with pytest.raises(ModelChangeError, match=text):
                await world.manager.set_routing("small", wrong)
            right = replace(wrong, canary_key="feature:user")
            assert (await world.manager.set_routing("small", right)).routing == right
            with pytest.raises(ModelChangeError, match=text):
                await world.manager.set_routing("small", wrong)
            assert world.manager.statuses()[0].routing == right

    run(scenario())


def test_a_version_may_have_another_signature(root: Path, artifacts: dict[str, Path]) -> None:
    """Requests are checked against the version that they go to."""

    async def scenario() -> None:
        async with serving(root) as world:
            world.hosting.wrap["2"] = Renamed
            add_versions(root, artifacts, "2")
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
            add_versions(root, artifacts, "2")
            await world.manager.rescan()
            status = await world.manager.rollback("small")
            assert (status.serving, status.routing) == ("1", Routing(serve="1"))
            assert world.hosting.loads == ["1", "2"]
            await asserts_answer(world, "1", artifacts["1"])
            add_versions(root, artifacts, "3")
            await world.manager.rescan()
            assert world.serving() == "1"
            assert (await world.manager.rollback("small")).serving == "2"
            assert world.hosting.loads == ["1", "2"]
            assert (await world.manager.set_routing("small", Routing())).serving == "3"

    run(scenario())


def test_a_rollback_waits_for_no_version_that_is_being_loaded(root: Path, artifacts: dict[str, Path]) -> None:
    async def scenario() -> None:
        async with serving(root) as world:
            add_versions(root, artifacts, "2")
            await world.manager.rescan()
            add_versions(root, artifacts, "3", "4")
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
            add_versions(root, artifacts, "2")
            await world.manager.rescan()
            add_versions(root, artifacts, "3")
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


def test_a_rollback_to_what_is_gone_changes_nothing(root: Path, artifacts: dict[str, Path]) -> None:
    async def scenario() -> None:
        async with serving(root, ModelSettings(keep_previous=False)) as world:
            add_versions(root, artifacts, "2")
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
        add_versions(root, artifacts, "2", "3")
        async with serving(root) as world:
            routing = Routing(serve="1", canary="2", canary_percent=10, shadow="3", shadow_percent=20)
            await world.manager.set_routing("small", routing)
            assert world.states() == dict.fromkeys("123", "ready")
            routes = [world.manager.route("small", "", draw) for draw in (0.05, 0.5, 0.9)]
            assert [route.primary.info.version for route in routes] == ["2", "1", "1"]
            assert [route.shadow.info.version if route.shadow else None for route in routes] == [
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
            assert world.manager.route("small", "", 0.05).primary.info.version == "1"

    run(scenario())


def test_a_routing_whose_version_is_broken_changes_nothing(root: Path, artifacts: dict[str, Path]) -> None:
    async def scenario() -> None:
        async with serving(root, ModelSettings(routing=Routing(serve="1"))) as world:
            add_versions(root, artifacts, "2", "3")
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
        add_versions(root, artifacts, "2", "3")
        routing = Routing(serve="1", shadow="2", shadow_percent=50)
        async with serving(root, ModelSettings(routing=routing)) as world:
            assert world.states() == {"1": "ready", "2": "ready", "3": "available"}
            assert world.serving() == "1"

    run(scenario())


def test_the_version_that_the_routing_is_pinned_to_cannot_be_unloaded(root: Path) -> None:
    async def scenario() -> None:
        async with serving(root, ModelSettings(routing=Routing(serve="1"))) as world:
            with pytest.raises(ModelChangeError, match="set another routing first"):
                await world.manager.unload("small", "1")
            assert world.states() == {"1": "ready"}

    run(scenario())
