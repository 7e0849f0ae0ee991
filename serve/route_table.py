"""What every request of a model is looked up in. A table never changes: a new one takes its place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from serve.errors import ModelNotFoundError, NotReadyError
from serve.hosted import HostedModel
from serve.routing import Plan
from serve.shadow import Shadow


@dataclass(frozen=True, slots=True)
class Route:
    """Where one request goes.

    Attributes:
        primary: answers it.
        shadow: computes it too; None for none.
    """

    primary: HostedModel
    shadow: Shadow | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteTable:
    """The versions of a model that answer.

    Attributes:
        model: its name.
        plan: which version answers requests that name none.
        hosted: the versions that are ready.
        shadow: the version in the shadow; None for none.
        loading: versions that will be ready soon.
        is_unloaded: whether an operator has taken the model out of memory.
    """

    model: str
    plan: Plan = field(default_factory=Plan)
    hosted: Mapping[str, HostedModel] = field(default_factory=dict)
    shadow: Shadow | None = None
    loading: frozenset[str] = frozenset()
    is_unloaded: bool = False

    def route(self, version: str, draw: float) -> Route:
        """Where a request goes; see ``ModelManager.route``."""
        if version:
            named = self.hosted.get(version)
            if named is None:
                raise self._lacking(version)
            return Route(named)
        primary, shadow = self.plan.pick(draw)
        hosted = self.hosted.get(primary)
        if hosted is None:
            raise self._not_ready()
        return Route(hosted, self.shadow if shadow else None)

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
        return NotReadyError(f"model {self.model!r} has no version that is ready; try again later")
