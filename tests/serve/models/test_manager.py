"""Versions come and go under requests: what the repository holds, swaps, failures, the end."""

from __future__ import annotations

import asyncio
import gc
import shutil
import threading
import weakref
from pathlib import Path

import pytest

from recsys.artifact.load import load_artifact
from serve.config.models import ModelSettings, Routing
from serve.engine.reference.servable import ReferenceServable
from serve.errors import DrainingError, ModelChangeError, ModelNotFoundError, NotReadyError
from serve.models.repository import Repository
from tests.support.serve.managing import (
    SAMPLE,
    Gates,
    add_versions,
    asserts_answer,
    managing,
    reached,
    run,
    serving,
)
from tests.support.serve.messages.cases import answer, assert_answers
from tests.support.serve.models import FailingModel
from tests.support.serve.repositories import add_version, break_version, repair_version


def test_the_newest_version_is_loaded_and_no_other(root: Path, artifacts: dict[str, Path]) -> None:
    async def scenario() -> None:
        add_versions(root, artifacts, "2")
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
            assert ready.digest == load_artifact(artifacts["2"]).digest
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
            add_versions(root, artifacts, "2")
            await world.manager.rescan()
            assert world.states() == {"1": "ready", "2": "ready"}
            await asserts_answer(world, "2", artifacts["2"])
            await asserts_answer(world, "1", artifacts["1"], asked="1")
            add_versions(root, artifacts, "3")
            await world.manager.rescan()
            await world.settle()
            assert world.states() == {"1": "available", "2": "ready", "3": "ready"}
            assert world.hosting.loads == ["1", "2", "3"]

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
                add_versions(root, artifacts, version)
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
            add_versions(root, artifacts, "2")
            await world.manager.rescan()
            assert world.states() == {"1": "draining", "2": "ready"}
            assert (await world.predict(SAMPLE))[0] == "2"
            gates.open()
            assert [version for version, _ in await asyncio.gather(*waiting)] == ["1"] * 3
            await world.settle()
            assert world.states() == {"1": "available", "2": "ready"}

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
            add_versions(root, artifacts, "2")
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


@pytest.mark.parametrize("case", ["damaged", "target", "warm-up"])
def test_what_an_operator_has_to_mend_is_one_line_of_the_log_and_the_reason(
    root: Path, tmp_path: Path, case: str, caplog: pytest.LogCaptureFixture
) -> None:
    settings = ModelSettings()
    text = "part 'rows.bin': got "
    if case == "damaged":
        break_version(root / "small" / "1")
    elif case == "target":
        settings, text = ModelSettings(target="cuda:77"), "target: got 'cuda:77', expected one of"
    else:
        (tmp_path / "requests.json").write_text("[{}]" * 20)
        settings = ModelSettings(warm_up=tmp_path / "requests.json")
        text = "warm_up: header: got b'[{}][{}]', expected b'RECSCAP"

    async def scenario() -> None:
        async with managing(Repository(root), settings) as world:
            await world.manager.rescan()
            reason = world.manager.statuses()[0].versions[0].reason
            assert reason.startswith(text)
            (record,) = [r for r in caplog.records if r.levelname == "ERROR"]
            assert record.exc_info is None
            assert record.getMessage() == f"model small, version 1, cannot be loaded: {reason}"

    run(scenario())


def test_a_version_that_fails_to_warm_up_leaves_the_old_one_serving(
    root: Path, artifacts: dict[str, Path]
) -> None:
    async def scenario() -> None:
        async with serving(root) as world:
            world.hosting.wrap["2"] = lambda model: FailingModel(model, bad_id=0)
            add_versions(root, artifacts, "2")
            await world.manager.rescan()
            assert world.states() == {"1": "ready", "2": "failed"}
            reason = world.manager.statuses()[0].versions[1].reason
            assert reason == "the model failed while it was loaded or warmed up; the log says why"
            await asserts_answer(world, "1", artifacts["1"])
            assert world.metrics.read()[1] == {("small", "1"): "ready", ("small", "2"): "failed"}

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


def test_closing_answers_what_was_accepted_and_takes_no_more(root: Path) -> None:
    async def scenario() -> None:
        async with managing(Repository(root)) as world:
            gates = Gates(world, "1")
            await world.manager.rescan()
            gates.close()
            waiting = asyncio.create_task(world.predict(SAMPLE))
            await reached(gates.model.started)
            closing = asyncio.create_task(world.manager.close(0))
            await asyncio.sleep(0)  # it has begun, and no thread of it has
            with pytest.raises(DrainingError):
                await world.predict(SAMPLE)
            assert not await closing
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
            servable = world.manager.route("", "", 0.5).primary
            assert isinstance(servable, ReferenceServable)
            model = servable._model
            assert model is not None
            old = weakref.ref(
                model,
                lambda _: freed_by.append(threading.current_thread()),
            )
            del model
            add_versions(root, artifacts, "2")
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


def test_a_version_that_is_deleted_while_the_folder_is_read_is_passed_over(
    root: Path, artifacts: dict[str, Path]
) -> None:
    class Vanishing(Repository):
        """Its oldest version goes as soon as it has been listed."""

        def versions(self, name: str) -> list[str]:
            found = super().versions(name)
            shutil.rmtree(root / name / found[0], ignore_errors=True)
            return found

    async def scenario() -> None:
        add_versions(root, artifacts, "2")
        async with managing(Vanishing(root)) as world:
            await world.manager.rescan()
            await asserts_answer(world, "2", artifacts["2"])

    run(scenario())
