"""The reference engine: the same steps as the native one, in Python, written for readability.

The path of a request, module by module: ``port`` takes the call; ``protocols`` parses the message; ``gateway`` routes
it; ``request_check`` checks it against the model; ``batching`` queues it until an ``executor`` takes its batch;
``collate`` collates the batch; and ``protocols`` writes the answer.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from recsys.artifact.load import LoadedArtifact, load_artifact
from recsys.errors import TargetError
from serve.config.models import ModelSettings
from serve.engine.interface import EngineCounts, HostCall, ModelInfo, PortSettings, Submitted
from serve.engine.records import Observer
from serve.engine.reference.executor import ServedModel
from serve.engine.reference.freed_memory import ReturnsMemory
from serve.engine.reference.gateway import Gateway
from serve.engine.reference.port import Port
from serve.engine.reference.protocols.open_inference import InferRequest
from serve.engine.reference.protocols.recsys_v1 import PredictRequest
from serve.engine.reference.servable import ReferenceServable
from serve.engine.routes import RouteTable

_log = logging.getLogger("serve")
# Grace period, once every request is answered, for sending the last answers and for streams to end.
_GRACE_S = 1.0

Load = Callable[[Path, ModelSettings], tuple[ServedModel, ModelInfo]]
"""Loads a model; blocks."""


class ReferenceEngine:
    """See ``serve.engine.interface.Engine``. Belongs to the event loop that it is made in.

    Args:
        observer: takes records of requests.
        load: loads models.
    """

    kind = "reference"

    def __init__(self, observer: Observer, load: Load | None = None) -> None:
        self.gateway = Gateway(observer)
        self._load = load or load_model
        self._port: Port | None = None
        self._memory = ReturnsMemory()

    @property
    def is_draining(self) -> bool:
        """See ``Engine``."""
        return self.gateway.is_draining

    @property
    def num_active(self) -> int:
        """See ``Engine``."""
        return self.gateway.num_active

    async def listen(self, port: PortSettings, calls: Mapping[str, HostCall]) -> int:
        """See ``Engine``."""
        self._port = Port(self.gateway, port, calls)
        number = await self._port.start()
        self._memory.start()
        return number

    def listen_http(self, *_: object) -> bool:
        """See ``Engine``."""
        return False

    def open(
        self,
        name: str,
        version: str,
        path: Path,
        settings: ModelSettings,
        warm_up: Iterable[bytes] = (),
    ) -> ReferenceServable:
        """See ``Engine``."""
        model, info = self._load(path, settings)
        servable = ReferenceServable(
            model, replace(info, name=name, version=version), settings, self.gateway.deliver
        )
        servable.open(warm_up)
        return servable

    def publish(self, table: RouteTable) -> None:
        """See ``Engine``."""
        self.gateway.publish(table)

    def withdraw(self, model: str) -> None:
        """See ``Engine``."""
        self.gateway.withdraw(model)

    async def submit(self, submitted: Submitted) -> bytes:
        """See ``Engine``."""
        kind = PredictRequest if submitted.form == "recsys" else InferRequest
        try:
            request = kind.parse(submitted.message)
        except Exception as error:
            self.gateway.refused(error, submitted.protocol)
            raise
        request.protocol = submitted.protocol
        request.client = submitted.client
        request.drew_version = submitted.drew_version
        request.expect_within(submitted.remaining_s)
        self.gateway.read_headers(request, submitted.headers)
        return await self.gateway.predict(request)

    def set_health(self, service: str, is_serving: bool) -> None:
        """See ``Engine``."""
        if self._port is not None:
            self._port.set_health(service, is_serving)

    def counts(self) -> EngineCounts:
        """See ``Engine``."""
        return EngineCounts(unrouted=self.gateway.unrouted())

    def take_records(self) -> None:
        """See ``Engine``."""
        self.gateway.answers.flush()

    def drain(self) -> None:
        """See ``Engine``."""
        self.gateway.is_draining = True
        if self._port is not None:
            self._port.drain()

    async def wait_until_idle(self, timeout_s: float) -> bool:
        """See ``Engine``."""
        try:
            await asyncio.wait_for(self._become_idle(), timeout_s)
        except TimeoutError:
            return self.num_active == 0
        return True

    async def _become_idle(self) -> None:
        """Wait until no request is in progress, including requests that were just arriving."""
        while True:
            await self.gateway.wait_until_idle()
            if self._port is None or await self._port.has_ended(_GRACE_S):
                return
            if self.num_active == 0:
                return

    async def close(self) -> None:
        """See ``Engine``."""
        await self._memory.close()
        if self._port is not None:
            await self._port.close()
        self.gateway.answers.flush()


def load_model(path: Path, settings: ModelSettings) -> tuple[LoadedArtifact, ModelInfo]:
    """Load an artifact.

    Raises:
        ArtifactError: the artifact is damaged, foreign, newer, or has no such target.
        TargetError: the settings name nodes with rows.
    """
    if settings.rows:
        raise TargetError(
            "rows: got nodes, expected none: the reference engine reads all rows from the artifact; leave out rows, "
            "or take --engine native"
        )
    artifact = load_artifact(
        path,
        target=settings.target,
        verify_checksums=settings.verify_checksums,
        memory=settings.rows_memory,
        cuda_graphs=settings.cuda_graphs,
    )
    if settings.context_cache_bytes:
        why = artifact.cache_contexts(settings.context_cache_bytes)
        if why:
            _log.info("target %r: context_cache_bytes is not used: %s", artifact.target_name, why)
    info = ModelInfo.of_manifest(artifact.manifest)
    return artifact, replace(info, target=artifact.target_name, rows_pages=artifact.rows.pages())
