"""Resolution of an operator's routing to the versions that answer."""

from __future__ import annotations

from collections.abc import Collection

from recsys.inputs.signature import Signature
from serve.config.models import LATEST, Routing
from serve.engine.routes import Plan
from serve.errors import listed


def plan(routing: Routing, ready: Collection[str]) -> Plan:
    """Resolve a routing.

    ``latest`` is the newest ready version other than the canary and the shadow, which get only their shares.
    If nothing else is ready, the canary answers all requests; a shadow never does. A named version that is
    not ready is left out, and no other version replaces a pinned one.

    Args:
        routing: the routing as set.
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
        key_feature=routing.key_feature if canary else "",
        key_header=routing.key_header if canary else "",
        shadow=shadow,
        shadow_share=routing.shadow_percent / 100 if shadow else 0.0,
    )


def key_error(feature: str, signature: Signature) -> str:
    """Return why a sparse input cannot decide who gets a model's canary; empty if it can, or is empty."""
    names = [sparse.name for sparse in signature.sparse]
    if not feature or feature in names:
        return ""
    return (
        f"routing.canary_key: got 'feature:{feature}', expected a sparse input of the model: {listed(names)}"
    )


def newest(versions: Collection[str]) -> str:
    """Return the newest version; empty if there is none."""
    return max(versions, key=version_order, default="")


def version_order(version: str) -> tuple[int, str]:
    """Return a sort key, oldest first: by number; versions that are not numbers come before, by name."""
    return (int(version), "") if version.isascii() and version.isdecimal() else (-1, version)
