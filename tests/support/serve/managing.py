"""A manager of real artifacts with a gateway before it, without a port; and ways to hold loading up."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
from torch import Tensor

from recsys.artifact.load import load_artifact
from serve.client.packing import read_response
from serve.config.models import ModelSettings
from serve.config.settings import ServerConfig
from serve.engine.interface import ModelInfo, Submitted
from serve.engine.reference.engine import ReferenceEngine, load_model
from serve.engine.reference.executor import ServedModel
from serve.metrics.registry import Metrics
from serve.models.manager import ModelManager
from serve.models.repository import ModelSource, Repository
from serve.models.status import ModelState
from serve.observe.observers import Observers
from serve.wire import predict_pb2 as wire
from tests.support.serve.messages.cases import Sample, answer, assert_answers, random_sample
from tests.support.serve.models import SIGNATURE, GatedModel
from tests.support.serve.repositories import add_version

SAMPLE = random_sample(SIGNATURE, 3, np.random.default_rng(1))


@dataclass
class Hosting:
    """Loads versions as the server does, and notes it.

    Attributes:
        loads: every version that was opened, in order.
        wrap: for versions that are to misbehave, what is served in place of the artifact.
        gate: loading waits while it is cleared.
        started: released when a load has reached the gate.
    """

    loads: list[str] = field(default_factory=list)
    wrap: dict[str, Callable[[ServedModel], ServedModel]] = field(default_factory=dict)
    gate: threading.Event = field(default_factory=threading.Event)
    started: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))

    def __call__(self, path: Path, settings: ModelSettings) -> tuple[ServedModel, ModelInfo]:
        version = path.stem
        self.loads.append(version)
        self.started.release()
        assert self.gate.wait(60)
        artifact, info = load_model(path, settings)
        return self.wrap.get(version, _as_it_is)(artifact), info


class EndingModel(GatedModel):
    """A gated model that also says when a call has ended.

    Attributes:
        ended: released once for each call that has ended.
    """

    def __init__(self, model: ServedModel) -> None:
        super().__init__(model)
        self.ended = threading.Semaphore(0)

    def forward(self, *inputs: Tensor) -> dict[str, Tensor]:
        outputs = super().forward(*inputs)
        self.ended.release()
        return outputs


class Renamed(GatedModel):
    """The same model with another name for one of its inputs."""

    def __init__(self, model: ServedModel) -> None:
        super().__init__(model)
        first, *others = model.signature.sparse
        self.signature = replace(model.signature, sparse=(replace(first, name="other"), *others))


class Gates:
    """Holds a version's batches up; the version must not be loaded yet.

    Attributes:
        model: the version, once it is loaded.
    """

    def __init__(self, world: World, version: str) -> None:
        self.model: EndingModel
        world.hosting.wrap[version] = self._gated

    def _gated(self, model: ServedModel) -> ServedModel:
        self.model = EndingModel(model)
        return self.model

    def close(self) -> None:
        """From now on batches wait; those of the warm-up are forgotten."""
        self.model.close_gate()
        self.model.ended = threading.Semaphore(0)

    def open(self) -> None:
        """Let them go on."""
        self.model.gate.set()


def _as_it_is(model: ServedModel) -> ServedModel:
    return model


@dataclass
class World:
    """What a test works with."""

    manager: ModelManager
    engine: ReferenceEngine
    hosting: Hosting
    metrics: Metrics
    observers: Observers
    changed: asyncio.Event

    async def predict(
        self, sample: Sample, model: str = "", version: str = ""
    ) -> tuple[str, dict[str, npt.NDArray[np.float32]]]:
        """The version that answered, and what."""
        request = sample.request()
        request.model, request.version = model, version
        data = await self.engine.submit(Submitted(message=request.SerializeToString()))
        response = wire.PredictResponse.FromString(data)
        return response.version, read_response(response)

    def states(self, model: str = "small") -> dict[str, str]:
        """Each version's state."""
        (status,) = [status for status in self.manager.statuses() if status.model == model]
        return {version.version: version.state.value for version in status.versions}

    def serving(self, model: str = "small") -> str:
        """The version that serves."""
        (status,) = [status for status in self.manager.statuses() if status.model == model]
        return status.serving

    async def settle(self) -> None:
        """Until nothing drains any more."""
        while ModelState.DRAINING.value in [
            version.state for status in self.manager.statuses() for version in status.versions
        ]:
            self.changed.clear()
            await self.changed.wait()


class NotingMetrics(Metrics):
    """Says when a version's state has changed."""

    def __init__(self, changed: asyncio.Event, now: Callable[[], float]) -> None:
        super().__init__(now)
        self._changed = changed

    def set_state(self, name: str, version: str, state: str) -> None:
        super().set_state(name, version, state)
        self._changed.set()


@asynccontextmanager
async def managing(
    source: ModelSource,
    settings: ModelSettings | None = None,
    *,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    now: Callable[[], float] = time.time,
) -> AsyncIterator[World]:
    """A manager that has not looked through the source yet; drained at the end."""
    settings = settings or ModelSettings()
    if not settings.num_executors:  # one batch at a time, whatever the machine has
        settings = replace(settings, num_executors=1)
    changed = asyncio.Event()
    metrics = NotingMetrics(changed, now)
    observers = Observers(ServerConfig(), metrics)
    hosting = Hosting()
    hosting.gate.set()
    engine = ReferenceEngine(observers, hosting)
    metrics.watch_engine(engine.counts)
    manager = ModelManager(source, engine, lambda _: settings, metrics, sleep=sleep)
    try:
        yield World(manager, engine, hosting, metrics, observers, changed)
    finally:
        hosting.gate.set()
        assert await manager.close(60)
        await asyncio.to_thread(observers.close)


@asynccontextmanager
async def serving(root: Path, settings: ModelSettings | None = None) -> AsyncIterator[World]:
    """A manager that has looked through the repository."""
    async with managing(Repository(root), settings) as world:
        await world.manager.rescan()
        yield world


async def asserts_answer(world: World, version: str, artifact: Path, asked: str = "") -> None:
    """``SAMPLE`` is answered by this version, and as the artifact does it."""
    got, outputs = await world.predict(SAMPLE, version=asked)
    assert got == version
    assert_answers(outputs, answer(load_artifact(artifact), SAMPLE))


def add_versions(root: Path, artifacts: Mapping[str, Path], *versions: str) -> None:
    """Put versions of the small model into a repository."""
    for version in versions:
        add_version(root, "small", version, artifacts[version])


def run(scenario: Coroutine[object, object, None]) -> None:
    """Run a test on an event loop of its own, and fail it where it hangs."""
    asyncio.run(asyncio.wait_for(scenario, 120))


async def reached(semaphore: threading.Semaphore) -> None:
    """Wait for a thread without holding the event loop up."""
    assert await asyncio.to_thread(semaphore.acquire, timeout=60)
