"""Shadow traffic: answers compared within tolerance, and nothing of it is felt by those that are answered."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from torch import Tensor

from recsys.artifact.load import load_artifact
from recsys.inputs.signature import Output
from serve.client.packing import Context, build_request
from serve.config.models import BatchLimits, ModelSettings, Routing
from serve.engine.interface import Submitted
from serve.engine.records import ShadowPair
from serve.engine.reference.executor import ServedModel
from serve.engine.reference.servable import ReferenceServable
from serve.metrics.counters import ModelCounters
from serve.metrics.registry import Metrics
from serve.models.repository import Repository
from serve.observe.shadow import ABSOLUTE_TOLERANCE, RELATIVE_TOLERANCE, Comparer, same_outputs
from tests.support.serve.managing import EndingModel, Gates, Renamed, World, managing, reached, run
from tests.support.serve.messages.cases import Sample, answer, assert_answers, random_sample
from tests.support.serve.models import SIGNATURE, FailingModel, GatedModel, export_small
from tests.support.serve.repositories import add_version

SAMPLES = [random_sample(SIGNATURE, rows, np.random.default_rng(rows)) for rows in (1, 2, 3, 4, 5, 6)]
SHADOWED = Routing(serve="1", shadow="2", shadow_percent=100)


Outputs = list[tuple[str, list[float]]]


def rows(*outputs: tuple[str, list[float]]) -> Outputs:
    return list(outputs)


def pair_of(expected: Outputs, got: Outputs, num_rows: int = 2) -> ShadowPair:
    def values(outputs: Outputs) -> list[bytes]:
        return [np.array(v, "<f4").tobytes() for _, v in outputs]

    def named(outputs: Outputs) -> tuple[Output, ...]:
        return tuple(Output(name=name, shape=()) for name, _ in outputs)

    return ShadowPair(
        model="m",
        version="1",
        shadow="2",
        request_id="",
        num_rows=num_rows,
        expected=values(expected),
        got=values(got),
        expected_outputs=named(expected),
        got_outputs=named(got),
    )


def same_rows(expected: Outputs, got: Outputs) -> bool:
    return same_outputs(pair_of(expected, got))


NAN, INF = float("nan"), float("inf")
BASE = 2.0
ALLOWED = ABSOLUTE_TOLERANCE + RELATIVE_TOLERANCE * BASE


@pytest.mark.parametrize(
    ("other", "same"),
    [
        pytest.param([BASE, 0.0], True, id="equal"),
        pytest.param([BASE + 0.9 * ALLOWED, 0.0], True, id="within"),
        pytest.param([BASE - 0.9 * ALLOWED, 0.9 * ABSOLUTE_TOLERANCE], True, id="within-below"),
        pytest.param([BASE + 1.1 * ALLOWED, 0.0], False, id="beyond"),
        pytest.param([BASE, 1.1 * ABSOLUTE_TOLERANCE], False, id="beyond-near-zero"),
        pytest.param([BASE, NAN], False, id="nan"),
        pytest.param([INF, 0.0], False, id="infinite"),
    ],
)
def test_values_are_compared_within_tolerance(other: list[float], same: bool) -> None:
    assert same_rows(rows(("score", [BASE, 0.0])), rows(("score", other))) is same


def test_values_that_are_no_numbers_are_the_same_as_themselves() -> None:
    odd = [NAN, INF]
    assert same_rows(rows(("score", odd)), rows(("score", odd)))
    close = np.nextafter(np.float32(1), np.float32(2))
    assert same_rows(rows(("score", [NAN, 1.0])), rows(("score", [NAN, float(close)])))
    assert not same_rows(rows(("score", [INF, 0.0])), rows(("score", [-INF, 0.0])))


def test_outputs_are_matched_by_name_and_must_have_one_shape() -> None:
    a, b = ("a", [1.0, 2.0]), ("b", [3.0, 4.0])
    assert same_rows(rows(a, b), rows(b, a))
    assert not same_rows(rows(a, b), rows(a))
    assert not same_rows(rows(a), rows(("c", [1.0, 2.0])))
    assert not same_rows(rows(a), rows(("a", [1.0])))


def test_integers_are_the_same_if_they_are_equal() -> None:
    def pair(ids: list[int], dtype: str = "int64") -> ShadowPair:
        outputs = (Output(name="ids", shape=(), dtype="int64"),)
        values = np.array(ids, "<i8").tobytes()
        base = np.array([2**53, 7], "<i8").tobytes()
        got = (Output(name="ids", shape=(), dtype=dtype),)
        return replace(
            pair_of([], []), expected=[base], got=[values], expected_outputs=outputs, got_outputs=got
        )

    assert same_outputs(pair([2**53, 7]))
    assert not same_outputs(pair([2**53 + 1, 7]))
    assert not same_outputs(pair([2**53, 7], "float32"))


def test_pairs_beyond_what_may_wait_are_dropped_and_counted() -> None:
    metrics = BlockedMetrics()
    shadow = ModelCounters("m", "2")
    metrics.add(shadow)
    comparer = Comparer(metrics)
    comparer.compare(pair_of(rows(("a", [1.0])), rows(("a", [1.0]))))
    assert metrics.entered.acquire(timeout=60)
    for _ in range(1030):
        comparer.compare(pair_of(rows(("a", [1.0])), rows(("a", [2.0]))))
    assert counted(metrics) == {"dropped": 6}
    metrics.gate.set()
    comparer.close()
    comparer.close()
    assert counted(metrics) == {"same": 1, "different": 1024, "dropped": 6}


class BlockedMetrics(Metrics):
    """Holds the comparer up."""

    def __init__(self) -> None:
        super().__init__()
        self.entered = threading.Semaphore(0)
        self.gate = threading.Event()

    def shadow(self, model: str, version: str, result: str) -> None:
        if result != "dropped":
            self.entered.release()
            assert self.gate.wait(60)
        super().shadow(model, version, result)


def counted(metrics: Metrics, version: str = "2") -> dict[str, int]:
    """What has been counted of the version in the shadow."""
    (totals,) = [totals for totals in metrics.read()[0] if totals.version == version]
    return {result: count for result, count in totals.shadow.items() if count}


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same model with other weights."""
    path = tmp_path_factory.mktemp("other") / "small"
    export_small(path, seed=7)
    return path


@pytest.fixture
def root(tmp_path: Path, artifact_path: Path) -> Path:
    """A repository with one artifact twice."""
    for version in ("1", "2"):
        add_version(tmp_path, "small", version, artifact_path)
    return tmp_path


@asynccontextmanager
async def shadowing(root: Path, settings: ModelSettings | None = None) -> AsyncIterator[World]:
    """A manager that has not looked through the repository yet."""
    async with managing(Repository(root), settings or ModelSettings(routing=SHADOWED)) as world:
        yield world


async def counts(world: World) -> dict[str, int]:
    """All comparisons, once every copy has been answered and every pair compared."""
    table = world.manager.routes.table("small")
    assert table is not None
    world.engine.withdraw("small")
    shadow = table.servables["2"]
    await asyncio.to_thread(shadow.close)
    await asyncio.to_thread(world.observers.close)
    return counted(world.metrics)


@pytest.mark.parametrize("result", ["same", "different"])
def test_every_answer_is_compared_and_clients_get_the_first(
    tmp_path: Path, artifact_path: Path, other: Path, result: str
) -> None:
    add_version(tmp_path, "small", "1", artifact_path)
    add_version(tmp_path, "small", "2", artifact_path if result == "same" else other)

    async def scenario() -> None:
        async with shadowing(tmp_path) as world:
            await world.manager.rescan()
            first = load_artifact(artifact_path)
            for sample in SAMPLES:
                version, outputs = await world.predict(sample)
                assert version == "1"
                assert_answers(outputs, answer(first, sample))
            assert world.metrics.outcomes()["ok"] == len(SAMPLES)
            assert await counts(world) == {result: len(SAMPLES)}

    run(scenario())


def test_a_slow_shadow_delays_nobody_and_is_compared_later(root: Path) -> None:
    async def scenario() -> None:
        async with shadowing(root) as world:
            gates = Gates(world, "2")
            await world.manager.rescan()
            gates.close()
            for sample in SAMPLES:
                assert (await world.predict(sample))[0] == "1"
            assert counted(world.metrics) == {}
            gates.open()
            assert await counts(world) == {"same": len(SAMPLES)}

    run(scenario())


def test_a_shadow_that_is_faster_than_the_first_waits_for_it(root: Path) -> None:
    async def scenario() -> None:
        async with shadowing(root) as world:
            first, second = Gates(world, "1"), Gates(world, "2")
            await world.manager.rescan()
            first.close()
            second.close()
            waiting = asyncio.create_task(world.predict(SAMPLES[0]))
            await reached(first.model.started)
            await reached(second.model.started)
            second.open()
            await reached(second.model.ended)
            first.open()
            assert (await waiting)[0] == "1"
            assert await counts(world) == {"same": 1}

    run(scenario())


def test_what_a_full_shadow_cannot_take_is_dropped_and_counted(root: Path) -> None:
    limits = BatchLimits(max_request_rows=8, max_queue_rows=8)

    async def scenario() -> None:
        async with shadowing(root, ModelSettings(routing=SHADOWED, limits=limits)) as world:
            gates = Gates(world, "2")
            await world.manager.rescan()
            gates.close()
            await world.predict(SAMPLES[0])
            await reached(gates.model.started)
            for sample in SAMPLES[2:]:  # 3 rows, 4 rows; 5 and 6 rows find no room
                assert (await world.predict(sample))[0] == "1"
            gates.open()
            assert await counts(world) == {"same": 3, "dropped": 2}

    run(scenario())


def test_what_a_context_grows_to_counts_in_the_shadows_queue(root: Path) -> None:
    sample = SAMPLES[3]
    sparse, weights = dict(sample.sparse), dict(sample.weights)
    context = Context(sparse={"user": [[1, 2, 3] * 100]})
    del sparse["user"]
    request = build_request(sample.dense, sparse, weights, context=context)

    async def scenario() -> None:
        async with shadowing(root) as world:
            gates = Gates(world, "2")
            await world.manager.rescan()
            gates.close()
            await world.predict(SAMPLES[0])
            await reached(gates.model.started)
            await world.engine.submit(Submitted(message=request.SerializeToString()))
            (shadow,) = [totals for totals in world.metrics.read()[0] if totals.version == "2"]
            assert shadow.pending.bytes == 300 * sample.num_rows * 8 > request.ByteSize()
            gates.open()
            assert await counts(world) == {"same": 2}

    run(scenario())


def test_a_shadow_that_fails_is_counted_and_nothing_else(root: Path) -> None:
    async def scenario() -> None:
        async with shadowing(root) as world:
            bad = Sample(1, SAMPLES[0].dense, {**SAMPLES[0].sparse, "item": [[777_000]]}, SAMPLES[0].weights)
            world.hosting.wrap["2"] = lambda model: FailingModel(model, bad_id=777_000)
            await world.manager.rescan()
            assert (await world.predict(bad))[0] == "1"
            assert world.metrics.outcomes()["failed"] == 0
            assert await counts(world) == {"failed": 1}

    run(scenario())


def test_the_event_loop_checks_a_request_once_where_both_versions_check_alike(root: Path) -> None:
    async def scenario() -> None:
        async with shadowing(root) as world:
            await world.manager.rescan()
            shadow = world.manager.route("small", "", 0.5).shadow
            assert shadow is not None
            assert isinstance(shadow, ReferenceServable)
            shadow.checker.check = None  # type: ignore[method-assign, assignment]
            await world.predict(SAMPLES[0])
            assert await counts(world) == {"same": 1}

    run(scenario())


class Scribbler(EndingModel):
    """Writes zeros over its inputs once it has computed."""

    def forward(self, *inputs: Tensor) -> dict[str, Tensor]:
        outputs = GatedModel.forward(self, *inputs)
        for tensor in inputs:
            tensor.zero_()
        self.ended.release()
        return outputs


def test_what_a_shadow_does_to_its_inputs_changes_no_answer(root: Path, artifact_path: Path) -> None:
    async def scenario() -> None:
        async with shadowing(root) as world:
            first = Gates(world, "1")
            scribblers: list[Scribbler] = []

            def scribbling(model: ServedModel) -> ServedModel:
                scribblers.append(Scribbler(model))
                return scribblers[0]

            world.hosting.wrap["2"] = scribbling
            await world.manager.rescan()
            first.close()
            scribblers[0].ended = threading.Semaphore(0)
            waiting = asyncio.create_task(world.predict(SAMPLES[1]))
            await reached(first.model.started)
            await reached(scribblers[0].ended)
            first.open()
            assert_answers((await waiting)[1], answer(load_artifact(artifact_path), SAMPLES[1]))
            assert await counts(world) == {"same": 1}

    run(scenario())


def test_a_request_that_is_wrong_for_the_shadow_is_counted_and_answered(root: Path) -> None:
    async def scenario() -> None:
        async with shadowing(root) as world:
            world.hosting.wrap["2"] = Renamed
            await world.manager.rescan()
            assert (await world.predict(SAMPLES[0]))[0] == "1"
            assert world.metrics.outcomes()["invalid"] == 0
            assert await counts(world) == {"failed": 1}

    run(scenario())


def test_the_shadows_own_requests_go_first(root: Path) -> None:
    """Requests that name the shadow's version are not kept waiting by copies."""

    async def scenario() -> None:
        limits = BatchLimits(max_batch_rows=6)
        async with shadowing(root, ModelSettings(routing=SHADOWED, limits=limits)) as world:
            gates = Gates(world, "2")
            await world.manager.rescan()
            gates.close()
            await world.predict(SAMPLES[0])
            await reached(gates.model.started)
            await world.predict(SAMPLES[3])  # 4 rows as a copy
            own = asyncio.create_task(world.predict(SAMPLES[4], version="2"))  # 5 rows
            await asyncio.sleep(0)
            gates.open()
            assert (await own)[0] == "2"
            assert await counts(world) == {"same": 2}
            assert gates.model.batches == [1, 5, 4]

    run(scenario())
