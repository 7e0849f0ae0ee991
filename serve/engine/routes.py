"""Route tables: the versions of each model, as plain data that does not change once published."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import xxhash

from serve.errors import ModelNotFoundError, NotReadyError

if TYPE_CHECKING:  # what is routed to needs torch, the settings of a routing do not
    from serve.engine.interface import Servable

# Maximum number of model names in an error text.
_MAX_NAMES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A routing resolved against the versions that are ready; every request is looked up in it.

    Attributes:
        serving: the version that answers by default; empty if it is not ready.
        canary: the version that answers a share; empty for none.
        canary_share: share of the requests, 0 to 1.
        key_feature: the sparse input whose first ID decides who gets the canary; empty for none.
        key_header: the header whose value decides it; empty for none.
        shadow: the version that also computes a share; empty for none.
        shadow_share: share of the requests, 0 to 1.
    """

    serving: str = ""
    canary: str = ""
    canary_share: float = 0.0
    key_feature: str = ""
    key_header: str = ""
    shadow: str = ""
    shadow_share: float = 0.0

    @property
    def is_keyed(self) -> bool:
        """Return whether a key of the request decides who gets the canary."""
        return bool(self.key_feature or self.key_header)

    def pick(self, draw: float) -> tuple[str, str]:
        """Return the version that answers, and the one in the shadow; empty for none.

        One draw decides both: the canary takes the lowest draws, the shadow the highest. So a shadow is
        compared with the serving version, and with the canary only if both shares add up to more than 1.

        Args:
            draw: evenly distributed over [0, 1).
        """
        primary = self.canary if draw < self.canary_share else self.serving
        shadow = self.shadow if draw >= 1 - self.shadow_share else ""
        return primary, "" if shadow == primary else shadow


@dataclass(frozen=True, slots=True)
class Route:
    """The servables for one request.

    Attributes:
        primary: the servable that answers it.
        shadow: the servable that computes it too; None for none.
        key_feature: the sparse input that decides between the versions, where the key was not given; empty for none.
    """

    primary: Servable
    shadow: Servable | None = None
    key_feature: str = ""


def keyed_draw(model: str, key: int) -> float:
    """Return a key's draw, evenly distributed over [0, 1): the same in every process and engine.

    Args:
        model: name of the model, so that models divide their users differently.
        key: an ID, int64, or the hash of a text.
    """
    return (xxhash.xxh64_intdigest(key.to_bytes(8, "little", signed=True) + model.encode()) >> 11) * 2.0**-53


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteTable:
    """The versions of a model that can answer.

    Attributes:
        model: its name.
        plan: chooses the version for requests that name none.
        servables: the versions that are ready.
        loading: versions that will be ready soon.
        pinned: the only version that may answer by default, ready or not; empty for the newest.
        is_unloaded: whether an operator has unloaded the model.
    """

    model: str
    plan: Plan = field(default_factory=Plan)
    servables: Mapping[str, Servable] = field(default_factory=dict)
    loading: frozenset[str] = frozenset()
    pinned: str = ""
    is_unloaded: bool = False

    def route(
        self, version: str, draw: float, *, drew_version: bool = False, key: int | None = None
    ) -> Route:
        """Return the route of a request; see ``Routes.route``."""
        if version:
            named = self.servables.get(version)
            if named is None:
                raise self._lacking(version)
            _, shadow = self.plan.pick(draw)
            return Route(named, self.servables.get(shadow) if drew_version and shadow != version else None)
        plan = self.plan
        if plan.is_keyed:
            # A request without the key is as one outside the canary's share.
            outside = plan.canary_share + draw * (1 - plan.canary_share)
            draw = outside if key is None else keyed_draw(self.model, key)
        primary, shadow = plan.pick(draw)
        servable = self.servables.get(primary)
        if servable is None:
            raise self._not_ready()
        return Route(servable, self.servables.get(shadow), plan.key_feature if key is None else "")

    def _lacking(self, version: str) -> Exception:
        if version in self.loading:
            return NotReadyError(
                f"version {version!r} of model {self.model!r} is being loaded; try again later"
            )
        return ModelNotFoundError(
            f"version: got {version[:64]!r} of model {self.model!r}, expected one that is loaded, or nothing for the "
            "one that serves"
        )

    def _not_ready(self) -> Exception:
        if self.is_unloaded:
            return ModelNotFoundError(
                f"model: got {self.model!r}, which was unloaded, expected one that is loaded"
            )
        if self.pinned in self.loading:
            return self._lacking(self.pinned)
        if self.pinned:
            return NotReadyError(
                f"model {self.model!r} is pinned to version {self.pinned!r}, which is not loaded; load it, or route "
                "the model to another version"
            )
        return NotReadyError(f"model {self.model!r} has no version that is ready; try again later")


class Routes:
    """The route tables of all models, by name. Not thread-safe.

    Attributes:
        has_looked: whether the models are known; until then requests fail with ``NotReadyError``.
        key_headers: the headers that decide who gets a model's canary.
    """

    def __init__(self) -> None:
        self._tables: dict[str, RouteTable] = {}
        self.has_looked = False
        self.key_headers: frozenset[str] = frozenset()

    def publish(self, table: RouteTable) -> None:
        """Replace a model's route table."""
        self._tables[table.model] = table
        self.has_looked = True
        self._note_key_headers()

    def withdraw(self, model: str) -> None:
        """Remove a model; unknown ones are ignored."""
        self._tables.pop(model, None)
        self._note_key_headers()

    def table(self, model: str) -> RouteTable | None:
        """Return the table of a model, or of the only one if ``model`` is empty; None if there is none."""
        if model:
            return self._tables.get(model)
        return next(iter(self._tables.values())) if len(self._tables) == 1 else None

    def tables(self) -> list[RouteTable]:
        """Return all tables."""
        return list(self._tables.values())

    def _note_key_headers(self) -> None:
        self.key_headers = frozenset(table.plan.key_header for table in self._tables.values()) - {""}

    def key_header(self, model: str) -> str:
        """Return the header that decides who gets a model's canary; empty for none."""
        table = self.table(model)
        return "" if table is None else table.plan.key_header

    def route(
        self, model: str, version: str, draw: float, *, drew_version: bool = False, key: int | None = None
    ) -> Route:
        """Return the route of a request.

        Args:
            model: empty for the only one.
            version: empty to let the routing choose; a named version gets no shadow.
            draw: evenly distributed over [0, 1); decides on canary and shadow.
            drew_version: whether the routing chose the version before, so that it may have a shadow.
            key: the request's key where the routing has one, in place of the draw; None if it is not known.

        Raises:
            ModelNotFoundError: The model does not exist, or the version is not loaded.
            NotReadyError: no version of it is ready yet.
        """
        table = self.table(model)
        if table is None:
            raise self.unknown(model)
        return table.route(version, draw, drew_version=drew_version, key=key)

    def unknown(self, model: str) -> Exception:
        """Return the error for an unknown model."""
        if not self.has_looked:
            return NotReadyError("no model is ready yet; try again later")
        names = sorted(self._tables)
        if len(names) == 1:
            expected = f"expected {names[0]!r} (or nothing: there is only one)"
        elif names:
            expected = "expected one of " + ", ".join(repr(name) for name in names[:_MAX_NAMES])
        else:
            expected = "but there is none"
        return ModelNotFoundError(f"model: got {model[:64]!r}, {expected}")
