"""One model: its versions and its routing.

A new version is loaded and warmed up while the current one serves. Then the model's route table is replaced
in one step; versions that the routing no longer needs are drained, and their memory is freed.

All methods belong to the event loop. Those that make changes must not overlap; ``ModelManager`` serializes
them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from recsys.artifact.loaded_rows import artifact_digest
from recsys.artifact.manifest import Manifest
from recsys.errors import ArtifactError
from recsys.streams.interface import StreamedDelta
from recsys.streams.opening import open_source
from serve.config.models import LATEST, ModelSettings, Routing
from serve.engine.routes import Plan, RouteTable
from serve.errors import ModelChangeError, ModelNotFoundError
from serve.models.following import Following
from serve.models.repository import Fingerprint
from serve.models.routing import key_error, newest, plan, version_order
from serve.models.status import ModelState, ModelStatus, ModelVersionStatus
from serve.models.version import ManagedVersion, ServerContext
from serve.threads import in_thread

_log = logging.getLogger("serve")

Files = Mapping[str, Fingerprint]


@dataclass(frozen=True)
class _Point:
    """The state that a rollback restores."""

    routing: Routing
    serving: str


class ManagedModel:
    """See the module.

    Args:
        name: name of the model.
        settings: its settings, with the initial routing.
        context: objects shared with other models.

    Attributes:
        lock: held during a change.
        num_rollbacks: number of rollbacks that did not wait for the lock.
    """

    def __init__(self, name: str, settings: ModelSettings, context: ServerContext) -> None:
        self.name = name
        self.lock = asyncio.Lock()
        self._settings = settings
        self._context = context
        self._versions: dict[str, ManagedVersion] = {}
        self._routing = settings.routing
        self._table = RouteTable(model=name)
        self._point = _Point(self._routing, "")
        self._previous: _Point | None = None
        self.num_rollbacks = 0
        self._is_unloaded = False
        self._is_closed = False
        self._following: Following | None = None
        if settings.deltas is not None:
            cache = None if settings.delta_cache is None else settings.delta_cache / name
            source = open_source(settings.deltas, cache, cache_bytes=settings.delta_cache_bytes)
            self._following = Following(source)
        # The files of each version when its manifest was read.
        self._read: dict[str, Fingerprint] = {}

    @property
    def is_gone(self) -> bool:
        """Whether no version is in memory, and none was in the repository at the last scan."""
        return not self._versions

    def status(self) -> ModelStatus:
        """Return the status for operators."""
        versions = sorted(self._versions.values(), key=lambda version: version_order(version.name))
        return ModelStatus(
            model=self.name,
            routing=self._routing,
            serving=self._table.plan.serving,
            versions=tuple(version.status() for version in versions),
        )

    async def rescan(self) -> None:
        """Scan the repository, and load what the routing needs, except unchanged versions that failed."""
        on_disk = await self._look()
        for version in [*self._versions.values()]:
            if version.name not in on_disk and version.state in (ModelState.AVAILABLE, ModelState.FAILED):
                self._forget(version)
        if self._is_unloaded or self._is_closed:
            return
        try:
            for name in sorted(self._routing.named, key=version_order):
                if name in on_disk and self._versions[name].may_be_tried(on_disk[name]):
                    await self._try(name)
            gone = self._gone(on_disk)
            await self._bring_latest(self._routing, on_disk, gone)
        finally:
            self._publish(leaving=self._leaving(on_disk))

    async def spoiled(self) -> list[ManagedVersion]:
        """Return the versions whose files were written to since they were loaded, and hold other rows now."""
        return [version for version in [*self._versions.values()] if await version.is_spoiled()]

    async def drop(self, spoiled: Sequence[ManagedVersion]) -> None:
        """Let versions whose rows have changed answer no more, and load another where the routing is ``latest``."""
        on_disk = await self._look()
        dropped = [version for version in spoiled if version.is_ready]
        for version in dropped:
            version.spoil(on_disk.get(version.name, ()))
        self._publish()
        for version in dropped:
            version.drain()
        try:
            await self._bring_latest(self._routing, on_disk)
        finally:
            self._publish()

    async def load(self, name: str) -> ModelVersionStatus:
        """Load a version; the newest if ``name`` is empty. It stays, even if the routing does not need it.

        Raises:
            ModelNotFoundError: The version does not exist.
            ModelChangeError: it cannot be loaded.
        """
        name = name or newest(await self._look())
        if not name:
            raise ModelNotFoundError(
                f"model: got {self.name!r}, expected one with versions in the repository"
            )
        try:
            version = await self._ensure(name)
            self._is_unloaded = False
            version.is_kept = name not in {self._plan().serving, *self._routing.named}
        finally:
            self._publish()
        return version.status()

    async def unload(self, name: str) -> None:
        """Remove a version from the routing and from memory; all versions if ``name`` is empty.

        Raises:
            ModelNotFoundError: The version does not exist.
            ModelChangeError: the routing is pinned to it.
        """
        if name and name == self._routing.serve:
            raise ModelChangeError(
                f"version {name!r} is the one that the routing of model {self.name!r} serves: set another routing "
                "first, or unload the whole model"
            )
        versions = [self._known(name)] if name else [*self._versions.values()]
        for version in versions:
            version.is_kept = False
            version.is_held_back = bool(name)
            version.forget_deltas()
        if name:
            self._routing = self._routing.without(name)
        else:
            self._is_unloaded, self._previous = True, None
        self._publish(leaving={version.name for version in versions})
        await asyncio.gather(*(version.draining for version in versions if version.draining))

    async def set_routing(self, routing: Routing, num_rollbacks: int) -> None:
        """Load the versions that a routing needs, then switch to it in one step.

        Args:
            routing: the new one.
            num_rollbacks: the attribute's value when the routing was asked for.

        Raises:
            ModelNotFoundError: it names a version that does not exist.
            ModelChangeError: a version that it needs cannot be loaded, or has no such ``canary_key``. Nothing is
                changed.
        """
        try:
            for name in sorted(routing.named, key=version_order):
                await self._ensure(name)
            await self._bring_latest(routing, await self._look())
            if self.num_rollbacks != num_rollbacks:
                raise ModelChangeError(
                    f"model {self.name!r} was rolled back meanwhile; set the routing again if wanted"
                )
            serving = plan(routing, self._ready()).serving
            if not serving:
                raise ModelChangeError(f"model {self.name!r} has no version that can be loaded")
            servable = self._versions[serving].servable
            error = key_error(routing.key_feature, servable.signature) if servable else ""
            if error:
                raise ModelChangeError(error)
            self._routing, self._is_unloaded = routing, False
        finally:
            self._publish()

    async def rollback(self) -> None:
        """Return to the previous routing and version, pinned, so that no newer one takes over.

        Raises:
            ModelNotFoundError: the version is neither in memory nor in the repository.
            ModelChangeError: there was no change, or the version cannot be loaded. Nothing is changed.
        """
        routing = self._routing_before()
        try:
            await self._ensure(routing.serve)
            for name in sorted(routing.named - {routing.serve}):
                await self._try(name)  # A missing canary must not prevent the rollback.
            self._routing, self._is_unloaded = routing, False
        finally:
            self._publish()

    def rollback_at_once(self) -> bool:
        """Roll back during another change, which may take long to load; that change then leaves the routing.

        Returns:
            False if the version is not in memory any more.
        """
        routing = self._routing_before()
        if not routing.named <= self._ready():
            return False
        self.num_rollbacks += 1
        self._routing = routing
        self._publish(lets_go=False)  # The other change unloads versions when it ends.
        return True

    async def apply_delta(self, name: str, file_name: str) -> ModelVersionStatus:
        """Replace rows of a version; of the serving one if ``name`` is empty. No batch sees a partial delta.

        Raises:
            ModelNotFoundError: The version or file does not exist.
            ModelChangeError: the version is not ready, or the delta does not fit it. Nothing is changed.
        """
        version = self._known(name or self._table.plan.serving)
        await version.apply_delta(file_name)
        return version.status()

    async def scan_deltas(self) -> Sequence[StreamedDelta] | OSError:
        """Return the deltas of its stream, or why it cannot be read."""
        assert self._following is not None
        try:
            return await in_thread(self._following.scan, f"deltas-{self.name}")
        except OSError as error:
            return error

    def has_delta(self, found: Sequence[StreamedDelta]) -> bool:
        """Return whether one of these is the next delta of a version's stream."""
        return any(version.has_delta(found) for version in self._versions.values())

    async def take_delta(self, found: Sequence[StreamedDelta]) -> None:
        """Apply the next delta of each version's stream."""
        for version in [*self._versions.values()]:
            await version.take_delta(found)

    def on_arrival(self, wake: Callable[[], None]) -> None:
        """Have ``wake`` called, from any thread, when something has arrived in its stream of deltas."""
        if self._following is not None:
            self._following.on_arrival(wake)

    def settle_deltas(self, found: Sequence[StreamedDelta] | OSError, *, is_due: bool) -> None:
        """Set the state of each version's stream at the end of a poll; see ``DeltaStream.settle``."""
        for version in self._versions.values():
            version.settle_deltas(found, is_due=is_due)

    async def close_deltas(self) -> None:
        """End the connections of its stream of deltas."""
        if self._following is not None:
            await in_thread(self._following.close, f"deltas-{self.name}")

    def close(self) -> list[asyncio.Task[None]]:
        """Refuse further requests. The returned tasks end when all accepted requests are answered."""
        self._is_closed = True
        for version in self._versions.values():
            version.close()
        return [version.draining for version in self._versions.values() if version.draining]

    async def _look(self) -> Files:
        """Return the versions in the repository, with their files."""
        source = self._context.source

        def look() -> Files:
            found = {}
            for name in source.versions(self.name):
                with contextlib.suppress(ModelNotFoundError):  # deleted in between
                    found[name] = source.files(self.name, name)
                    self._note_artifact(name, found[name])
            return found

        on_disk = await in_thread(look, f"manage-{self.name}")
        for name in on_disk:
            self._version(name)
        return on_disk

    def _note_artifact(self, name: str, files: Fingerprint) -> None:
        """Note which artifact a version is, to know its deltas. An artifact that cannot be read has none."""
        if self._following is not None and self._read.get(name) != files:
            self._read[name] = files
            with contextlib.suppress(ArtifactError, OSError):
                manifest = self._context.source.manifest_bytes(self.name, name)
                self._following.expect(artifact_digest(Manifest.loads(manifest)))

    def _version(self, name: str) -> ManagedVersion:
        if name not in self._versions:
            self._versions[name] = ManagedVersion(
                self.name, name, self._settings, self._context, self._following
            )
        return self._versions[name]

    def _known(self, name: str) -> ManagedVersion:
        if name not in self._versions:
            raise ModelNotFoundError(f"version: got {name[:64]!r}, expected one of model {self.name!r}")
        return self._versions[name]

    def _routing_before(self) -> Routing:
        if self._previous is None:
            raise ModelChangeError(f"model {self.name!r} has had no other routing or version to go back to")
        return self._previous.routing.pinned(self._previous.serving)

    def _forget(self, version: ManagedVersion) -> None:
        del self._versions[version.name]
        self._context.metrics.set_state(self.name, version.name, ModelState.AVAILABLE.value)

    def _ready(self) -> set[str]:
        return {version.name for version in self._versions.values() if version.is_ready}

    def _gone(self, on_disk: Files) -> set[str]:
        """Return the loaded versions that are to leave because they were removed from the source; not a pinned one."""
        is_removed = self._context.source.is_removed
        missing = self._ready() - {*on_disk, self._routing.serve}
        return {name for name in missing if is_removed(self.name, name)}

    def _leaving(self, on_disk: Files) -> set[str]:
        """Return the versions of ``_gone`` without which the model still answers, or all if the model is gone."""
        gone = self._gone(on_disk)
        left = self._ready() - gone - {self._routing.canary, self._routing.shadow}
        if gone and on_disk and not left:
            _log.error(
                "model %s: no version that is left in the repository can be loaded: version %s goes on serving",
                self.name,
                self._table.plan.serving,
            )
            gone.discard(self._table.plan.serving)
        for name in sorted(gone, key=version_order):
            _log.info("model %s, version %s is no longer in the repository, and leaves", self.name, name)
        return gone

    async def _bring_latest(self, routing: Routing, on_disk: Files, gone: Collection[str] = ()) -> None:
        """Make the newest version ready that is not gone; if it fails, the one before it, and so on."""
        if routing.serve != LATEST:
            return
        apart = {routing.canary, routing.shadow, *gone}
        names = {name for name in on_disk if self._versions[name].may_be_tried(on_disk[name])} - apart
        while not self._is_closed:
            best = newest(names | self._ready() - apart)
            if not best or await self._try(best):
                return
            names.discard(best)

    async def _try(self, name: str) -> bool:
        """Try to load a version. Its state and the log report a failure."""
        try:
            await self._load(name)
        except (ModelChangeError, ModelNotFoundError):
            return False
        return True

    async def _ensure(self, name: str) -> ManagedVersion:
        """Load a version for an operator."""
        version = await self._load(name)
        version.is_held_back = False
        return version

    async def _load(self, name: str) -> ManagedVersion:
        version = self._version(name)
        self._publish_table(replace(self._table, loading=frozenset({name}) - self._ready()))
        try:
            await version.load()
        except ModelNotFoundError:
            self._forget(version)
            raise
        return version

    def _plan(self) -> Plan:
        return plan(self._routing, set() if self._is_unloaded else self._ready())

    def _report_key(self, table: RouteTable) -> None:
        """Log that requests cannot have the key of the routing: nobody gets the canary."""
        serving = table.servables.get(table.plan.serving)
        if serving is not None:
            error = key_error(table.plan.key_feature, serving.signature)
            if error:
                _log.error("model %s: %s; version %s answers all", self.name, error, table.plan.serving)

    def _needed(self, chosen: Plan) -> set[str]:
        """Return the versions that the routing keeps in memory."""
        needed = {chosen.serving, *self._routing.named}
        if self._previous is not None and self._settings.keep_previous:
            needed.add(self._previous.serving)
        return needed

    def _publish(self, leaving: Collection[str] = (), *, lets_go: bool = True) -> None:
        """Publish a route table with the ready versions in one step, and unload versions that nothing needs.

        Args:
            leaving: versions to unload in any case.
            lets_go: whether to unload others that nothing needs too.
        """
        leave = [
            version for version in self._versions.values() if version.is_ready and version.name in leaving
        ]
        for version in leave:
            version.leave()
        chosen = self._plan()
        point = _Point(self._routing, chosen.serving)
        if self._point.serving and point.serving and point != self._point:
            self._previous = self._point
        self._point = point
        needed = self._needed(chosen)
        for version in self._versions.values():
            if lets_go and version.is_ready and not version.is_kept and version.name not in needed:
                version.leave()
                leave.append(version)
        servables = {v.name: v.servable for v in self._versions.values() if v.is_ready and v.servable}
        self._publish_table(
            RouteTable(
                model=self.name,
                plan=chosen,
                servables=servables,
                pinned="" if self._routing.serve == LATEST else self._routing.serve,
                is_unloaded=self._is_unloaded,
            )
        )
        for version in leave:
            version.drain()

    def _publish_table(self, table: RouteTable) -> None:
        if table != self._table:
            if table.plan != self._table.plan:
                self._report_key(table)
            self._table = table
            self._context.publish(table)
