"""What operators are told about models and their versions."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from serve.config.models import Routing


class ModelState(StrEnum):
    """How far a version is.

    ``AVAILABLE``: in the repository, not in memory. ``LOADING``: being read and warmed up. ``READY``: answers what is
    routed to it. ``DRAINING``: out of the routing, answers what it has accepted. ``FAILED``: could not be loaded.
    """

    AVAILABLE = "available"
    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"
    FAILED = "failed"


@dataclass(frozen=True, kw_only=True)
class ModelVersionStatus:
    """One version.

    Attributes:
        version: its name.
        state: how far it is.
        reason: why it is ``FAILED``; else empty.
        is_unusable: whether that is for what its files or settings are.
        digest: of the artifact's manifest; empty where it is not in memory.
        deltas: names of the delta files that were applied, in this order.
        table_bytes: of its tables' rows; 0 where it is not in memory.
    """

    version: str
    state: ModelState
    reason: str = ""
    is_unusable: bool = False
    digest: str = ""
    deltas: tuple[str, ...] = ()
    table_bytes: int = 0


@dataclass(frozen=True, kw_only=True)
class ModelStatus:
    """One model.

    Attributes:
        model: its name.
        routing: as it was set.
        serving: the version that answers requests which name none, the canary's share apart; empty where none is
            ready.
        versions: those in the repository or in memory, the oldest first.
    """

    model: str
    routing: Routing
    serving: str
    versions: tuple[ModelVersionStatus, ...]
