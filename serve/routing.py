"""Which version of a model answers a request, and which one computes it in the shadow: policy alone."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

LATEST = "latest"


@dataclass(frozen=True, kw_only=True)
class Routing:
    """What an operator asks for.

    Attributes:
        serve: ``latest``, or a version that stays until this is changed.
        canary: a version that answers a share of the requests; empty for none.
        canary_percent: that share, above 0 to 100.
        shadow: a version that computes a share of the requests beside the one that answers; empty for none.
        shadow_percent: that share, above 0 to 100.

    Raises:
        ValueError: a setting is out of its range; the text names it.
    """

    serve: str = LATEST
    canary: str = ""
    canary_percent: float = 0.0
    shadow: str = ""
    shadow_percent: float = 0.0

    def __post_init__(self) -> None:
        if not self.serve:
            raise ValueError("serve: got an empty text, expected latest or a version")
        for name in ("canary", "shadow"):
            version, percent = getattr(self, name), getattr(self, f"{name}_percent")
            if version and not 0 < percent <= 100:
                raise ValueError(f"{name}_percent: got {percent}, expected above 0, up to 100")
            if not version and percent:
                raise ValueError(f"{name}: got no version for {percent} percent of the requests")
            if version and version in (self.serve, LATEST):
                raise ValueError(
                    f"{name}: got {version!r}, expected another version than the one that serves"
                )

    @property
    def named(self) -> frozenset[str]:
        """The versions that it names."""
        return frozenset({self.serve, self.canary, self.shadow} - {"", LATEST})

    def without(self, version: str) -> Routing:
        """The same where neither canary nor shadow is ``version``."""
        canary = "" if self.canary == version else self.canary
        shadow = "" if self.shadow == version else self.shadow
        return Routing(
            serve=self.serve,
            canary=canary,
            canary_percent=self.canary_percent if canary else 0.0,
            shadow=shadow,
            shadow_percent=self.shadow_percent if shadow else 0.0,
        )

    def pinned(self, version: str) -> Routing:
        """The same with ``version`` serving, and neither canary nor shadow."""
        return replace(self.without(version), serve=version)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Routing, resolved against the versions that are ready: what every request is looked up in.

    Attributes:
        serving: answers what nothing else does; empty where it is not ready.
        canary: answers a share; empty for none.
        canary_share: of the requests, 0 to 1.
        shadow: computes a share beside the one that answers; empty for none.
        shadow_share: of the requests, 0 to 1.
    """

    serving: str = ""
    canary: str = ""
    canary_share: float = 0.0
    shadow: str = ""
    shadow_share: float = 0.0

    def pick(self, draw: float) -> tuple[str, str]:
        """The version that answers, and the one in the shadow; empty for none.

        One draw decides both: the canary takes the lowest draws, the shadow the highest. So a shadow is compared with
        the version that serves, and with the canary only where both shares add up to more than all requests.

        Args:
            draw: evenly distributed over [0, 1).
        """
        primary = self.canary if draw < self.canary_share else self.serving
        shadow = self.shadow if draw >= 1 - self.shadow_share else ""
        return primary, "" if shadow == primary else shadow


def plan(routing: Routing, ready: Collection[str]) -> Plan:
    """Resolve a routing.

    ``latest`` is the newest version that is ready, apart from the canary and the shadow: these see their shares and no
    more. Where nothing else is ready, the canary answers all, rather than nobody; a shadow never does. A version that
    is named and not ready is left out; nothing else takes the place of a version that was pinned.

    Args:
        routing: as it was set.
        ready: the versions that are loaded and warm.
    """
    canary = routing.canary if routing.canary in ready else ""
    shadow = routing.shadow if routing.shadow in ready else ""
    if routing.serve == LATEST:
        serving = newest(set(ready) - {routing.canary, routing.shadow}) or canary
    else:
        serving = routing.serve if routing.serve in ready else ""
    return Plan(
        serving=serving,
        canary=canary,
        canary_share=routing.canary_percent / 100 if canary else 0.0,
        shadow=shadow,
        shadow_share=routing.shadow_percent / 100 if shadow else 0.0,
    )


def newest(versions: Collection[str]) -> str:
    """The newest version; empty where there is none."""
    return max(versions, key=version_order, default="")


def version_order(version: str) -> tuple[int, str]:
    """Sorts versions, the oldest first: by number; versions that are no numbers come before, by name."""
    return (int(version), "") if version.isascii() and version.isdecimal() else (-1, version)
