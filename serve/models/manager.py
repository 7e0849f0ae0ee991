"""The model manager: all models of a server, and the changes that operators make at run time.

Changes of one model run one after the other, and run to their end even if the caller is cancelled. Requests
never see a partial change: they are looked up in a route table that is replaced as a whole
(serve/engine/routes.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from serve.config.models import ModelSettings, Routing
from serve.engine.interface import Engine
from serve.engine.routes import Route, Routes, RouteTable
from serve.errors import (
    DrainingError,
    ModelChangeError,
    ModelNotFoundError,
    NotReadyError,
    UnusableModelsError,
)
from serve.metrics.registry import Metrics
from serve.models.model import ManagedModel
from serve.models.repository import ModelSource
from serve.models.routing_file import RoutingFile, RoutingFileError, text_of
from serve.models.status import ModelStatus, ModelVersionStatus
from serve.models.version import ServerContext
from serve.threads import in_thread

T = TypeVar("T")
_log = logging.getLogger("serve")
# Maximum number of model names in an error text.
_MAX_NAMES = 8
# Grace period for running changes when the server stops.
_LAST_WORDS_S = 1.0


class ModelManager:
    """Loads, routes to and unloads models. All methods belong to one event loop.

    Args:
        source: the source of the models.
        engine: opens versions, and answers by the route tables that are published to it.
        settings_of: returns the settings of a model.
        metrics: exposes loaded versions and their states.
        changed: called whenever the set of answering versions has changed.
        sleep: waits for seconds, between polls of streams of deltas.

    Attributes:
        kept: keeps the routings that operators set; may be replaced before the first scan.
        routes: the route tables.
    """

    def __init__(
        self,
        source: ModelSource,
        engine: Engine,
        settings_of: Callable[[str], ModelSettings],
        metrics: Metrics,
        changed: Callable[[], None] = lambda: None,
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._source = source
        self._settings_of = self._routing_from = settings_of
        self._changed = changed
        self._engine = engine
        self._context = ServerContext(source=source, engine=engine, metrics=metrics, publish=self._publish)
        self._models: dict[str, ManagedModel] = {}
        self.routes = Routes()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._sleep = sleep
        self.kept = RoutingFile(None)
        # The routings of the settings, as they were last read.
        self._given: dict[str, Routing] = {}
        self._following: dict[str, asyncio.Task[None]] = {}
        self._has_started = False
        self._is_closed = False

    def route(self, model: str, version: str, draw: float) -> Route:
        """Return the route of a request.

        Args:
            model: empty for the only one.
            version: empty to let the routing choose; a named version gets no shadow.
            draw: evenly distributed over [0, 1); decides on canary and shadow.

        Raises:
            ModelNotFoundError: The model does not exist, or the version is not loaded.
            NotReadyError: no version of it is ready yet.
        """
        return self.routes.route(model, version, draw)

    def is_ready(self, model: str = "") -> bool:
        """Return whether a version of the model serves.

        Without a model: whether the first scan of the repository has ended and at least one model serves. A
        new or broken model does not make a server unready that answers for others.
        """
        if model:
            table = self.routes.table(model)
            return table is not None and bool(table.plan.serving)
        return self._has_started and any(table.plan.serving for table in self.routes.tables())

    def check_serving(self, *, every: bool) -> None:
        """Check that models have versions that answer.

        Args:
            every: whether every model must, or one is enough.

        Raises:
            UnusableModelsError: too few have one, each because of its files or settings; the message says
                which and why.
            NotReadyError: too few have one for other reasons, or there is no model.
        """
        statuses = self.statuses()
        if not statuses:
            raise NotReadyError("there is no model to serve")
        lacking = [status for status in statuses if not status.serving]
        if len(lacking) == len(statuses) or (every and lacking):
            failed = [
                (status.model, version) for status in lacking for version in status.versions if version.reason
            ]
            reasons = [f"{model} {version.version}: {version.reason}" for model, version in failed]
            names = ", ".join(repr(status.model) for status in lacking[:_MAX_NAMES])
            is_unusable = bool(failed) and all(version.is_unusable for _, version in failed)
            raise (UnusableModelsError if is_unusable else NotReadyError)(
                f"no version could be made ready of {names}: " + ("; ".join(reasons) or "there is none")
            )

    def statuses(self) -> list[ModelStatus]:
        """Return the status of every model, by name."""
        return [self._models[name].status() for name in sorted(self._models)]

    async def load(self, name: str, version: str = "") -> ModelVersionStatus:
        """Load a version, warm it up, and add it to the routing. Other versions keep serving during the load.

        A version that the routing does not need stays in memory until it is unloaded; requests may name it.

        Args:
            name: the model.
            version: empty for the newest in the repository.

        Raises:
            ModelNotFoundError: The model or version does not exist.
            ModelChangeError: the version cannot be loaded.
        """
        model = await self._model(name)
        return await self._change(model, lambda: model.load(version))

    async def unload(self, name: str, version: str = "") -> None:
        """Remove a version from the routing, answer its accepted requests, and free its memory.

        Only an operator's request loads it again, without its deltas.

        Args:
            name: the model.
            version: empty for all; the model then stops answering.

        Raises:
            ModelNotFoundError: The model or version does not exist.
            ModelChangeError: the routing is pinned to the version.
        """
        model = self._known(name)
        await self._change(model, lambda: model.unload(version))
        await self._keep(model)

    async def set_routing(self, name: str, routing: Routing) -> ModelStatus:
        """Load the versions that a routing needs, then switch to it in one step.

        Raises:
            ModelNotFoundError: The model does not exist, or the routing names a version that does not exist.
            ModelChangeError: a version that it needs cannot be loaded, or the routing cannot be kept; nothing is
                changed.
        """
        model = await self._model(name)
        num_rollbacks = model.num_rollbacks

        async def change() -> None:
            try:
                await in_thread(self.kept.check, "routing-file")
            except RoutingFileError as error:
                raise ModelChangeError(str(error)) from None
            await model.set_routing(routing, num_rollbacks)
            await self._keep(model)

        await self._change(model, change)
        return model.status()

    async def reroute(self, settings_of: Callable[[str], ModelSettings]) -> None:
        """Switch to the routings of settings that were read again, where they differ from the ones read before.

        A routing that operators set holds for as long as the settings give the same one as before. A routing that
        cannot be switched to is reported in the log, and tried again the next time.

        Args:
            settings_of: returns the settings of a model; all but the routing is ignored.
        """
        self._routing_from = settings_of
        for model in [*self._models.values()]:
            given = settings_of(model.name).routing
            if given == self._given[model.name]:
                routing = model.status().routing
                if routing != given:
                    _log.info(
                        "model %s: routing: %s, as operators set it, not %s as in the settings, which have not changed",
                        model.name,
                        text_of(routing),
                        text_of(given),
                    )
                continue
            try:
                num_rollbacks = model.num_rollbacks
                await self._change(model, partial(model.set_routing, given, num_rollbacks))
            except DrainingError:
                return
            except (ModelChangeError, ModelNotFoundError, OSError) as error:
                _log.error(
                    "model %s: routing: cannot switch to %s as the settings say: %s",
                    model.name,
                    text_of(given),
                    error,
                )
                continue
            self._given[model.name] = given
            # First, so that a server that is ended after the line does not come back with the routing of before.
            await self._keep(model)
            _log.info("model %s: routing: %s, as in the settings", model.name, text_of(given))

    async def rollback(self, name: str) -> ModelStatus:
        """Return to the routing and the version before the last change. A second rollback undoes the first.

        The version is pinned: no newer one takes over until ``set_routing`` sets ``latest``. If the version
        is in memory, the rollback waits for no other change; a running ``set_routing`` then fails.

        Raises:
            ModelNotFoundError: The model or its previous version does not exist.
            ModelChangeError: there was no change, or the version cannot be loaded; nothing is changed.
        """
        model = self._known(name)
        if self._is_closed or not model.lock.locked() or not model.rollback_at_once():
            await self._change(model, model.rollback)
        await self._keep(model)
        return model.status()

    async def apply_delta(self, name: str, version: str, file_name: str) -> ModelVersionStatus:
        """Replace rows of a loaded version in place, between batches.

        Args:
            name: the model.
            version: empty for the one that serves.
            file_name: name of a file in the model's folder of deltas.

        Raises:
            ModelNotFoundError: The model, version or file does not exist.
            ModelChangeError: the version is not ready, or the delta does not fit it; nothing is changed.
            RequestError: ``file_name`` is not a plain file name.
        """
        model = self._known(name)
        return await self._change(model, lambda: model.apply_delta(version, file_name))

    async def poll_deltas(self, name: str, *, is_due: bool = True) -> None:
        """Look through a model's stream of deltas, and apply those whose turn it is.

        The stream is read beside other changes of the model; only a delta that fits waits for them.

        Args:
            name: the model.
            is_due: whether the interval between polls has passed, and not just something arrived.

        Raises:
            ModelNotFoundError: The model does not exist.
            DrainingError: the server is stopping.
        """
        model = self._known(name)
        found = await model.scan_deltas()
        if not isinstance(found, OSError):
            while model.has_delta(found):
                await self._change(model, partial(model.take_delta, found))
        model.settle_deltas(found, is_due=is_due)

    async def rescan(self) -> None:
        """Scan the repository for models and versions, and load what each model's routing needs.

        Models that cannot be read or loaded are reported in the log and in the statuses; all others go on.
        """
        try:
            names = await in_thread(self._source.names, "manage")
        except OSError as error:
            _log.error("the repository cannot be read: %s; what is loaded goes on serving", error)
            return
        finally:
            self.routes.has_looked = True
        models = {name: self._added(name) for name in names} | self._models
        await asyncio.gather(*(self._rescan(model) for model in models.values()))
        if not self._has_started:
            self._has_started = True
            self._changed()

    async def check_files(self) -> None:
        """Unload versions whose files were written to and hold other rows: each of their batches would be refused."""
        for model in [*self._models.values()]:
            spoiled = await model.spoiled()
            if spoiled:
                with contextlib.suppress(DrainingError):
                    await self._change(model, partial(model.drop, spoiled))

    async def close(self, timeout_s: float) -> bool:
        """Refuse further requests, answer all accepted ones, and free all memory.

        A version that is still loading has accepted nothing; it is abandoned after a short grace period.

        Returns:
            Whether all accepted requests were answered in time.
        """
        self._is_closed = True
        self._engine.drain()
        for following in self._following.values():
            following.cancel()
        self._tasks.update(self._following.values())
        draining = {task for model in self._models.values() for task in model.close()}
        if draining:
            await asyncio.wait(draining, timeout=timeout_s)
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=_LAST_WORDS_S)
        return all(task.done() for task in draining)

    async def _rescan(self, model: ManagedModel) -> None:
        try:
            await self._change(model, model.rescan)
        except OSError as error:
            _log.error("model %s: its folder cannot be read: %s", model.name, error)
        except DrainingError:
            return
        if model.is_gone and not model.lock.locked() and self._models.get(model.name) is model:
            del self._models[model.name]
            if model.name in self._following:
                self._following.pop(model.name).cancel()
            self.routes.withdraw(model.name)
            self._engine.withdraw(model.name)
            self._changed()

    async def _keep(self, model: ManagedModel) -> None:
        """Keep a model's routing; where that fails, the routing holds until the server ends."""
        given = self._given[model.name]
        try:
            await in_thread(lambda: self.kept.keep(model.name, model.status().routing, given), "routing-file")
        except RoutingFileError as error:
            _log.error("model %s: its routing will not survive a restart: %s", model.name, error)

    async def _change(self, model: ManagedModel, change: Callable[[], Awaitable[T]]) -> T:
        """Run a change after all earlier ones; it continues if the caller is cancelled."""

        async def locked() -> T:
            async with model.lock:
                if self._is_closed:
                    raise DrainingError("the server is stopping")
                return await change()

        return await self._to_its_end(locked())

    async def _to_its_end(self, change: Coroutine[Any, Any, T]) -> T:
        task = asyncio.create_task(change)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return await asyncio.shield(task)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # Else asyncio logs it if the caller was cancelled.

    async def _model(self, name: str) -> ManagedModel:
        """Return a model, also one that was added to the repository since the last scan."""
        if name not in self._models and name in await in_thread(self._source.names, "manage"):
            return self._added(name)
        return self._known(name)

    def _added(self, name: str) -> ManagedModel:
        if name not in self._models:
            given = self._given[name] = self._routing_from(name).routing
            settings = replace(self._settings_of(name), routing=self.kept.routing_of(name, given))
            self._models[name] = ManagedModel(name, settings, self._context)
            if settings.deltas is not None:
                self._following[name] = asyncio.create_task(
                    self._follow(self._models[name], settings.poll_deltas_s)
                )
            self._publish(RouteTable(model=name))
        return self._models[name]

    async def _follow(self, model: ManagedModel, every_s: float) -> None:
        """Poll a model's stream of deltas, also when something arrives, until the model is gone or the server stops."""
        arrived = asyncio.Event()
        model.on_arrival(partial(_set_from_thread, asyncio.get_running_loop(), arrived))
        due = asyncio.ensure_future(self._sleep(every_s))
        try:
            while True:
                arrival = asyncio.ensure_future(arrived.wait())
                await asyncio.wait((due, arrival), return_when=asyncio.FIRST_COMPLETED)
                arrival.cancel()
                arrived.clear()
                is_due = due.done()
                try:
                    await self.poll_deltas(model.name, is_due=is_due)
                except (DrainingError, ModelNotFoundError):
                    return
                except Exception:
                    _log.exception("model %s: its stream of deltas could not be looked through", model.name)
                if is_due:
                    due = asyncio.ensure_future(self._sleep(every_s))
        finally:
            due.cancel()
            await model.close_deltas()

    def _known(self, name: str) -> ManagedModel:
        if name not in self._models:
            raise self.routes.unknown(name)
        return self._models[name]

    def _publish(self, table: RouteTable) -> None:
        self.routes.publish(table)
        self._engine.publish(table)
        self._changed()


def _set_from_thread(loop: asyncio.AbstractEventLoop, event: asyncio.Event) -> None:
    with contextlib.suppress(RuntimeError):  # the loop is closed
        loop.call_soon_threadsafe(event.set)
