"""From the routing that operators ask for to the versions that answer."""

from __future__ import annotations

from collections.abc import Collection

from serve.config.models import LATEST, Routing
from serve.engine.routes import Plan


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
