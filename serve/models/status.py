"""Status of models and versions, for operators."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from serve.config.models import Routing
from serve.metrics.counters import NO_CONTEXT_CACHE, ContextCacheTotals
from serve.metrics.streams import StreamStatus


class ModelState(StrEnum):
    """The state of a version.

    ``AVAILABLE``: in the repository, not in memory. ``LOADING``: being read and warmed up. ``READY``: answers
    routed requests. ``DRAINING``: out of the routing, answers its accepted requests. ``FAILED``: could not be
    loaded.
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
        state: its state.
        reason: why it is ``FAILED``; else empty.
        is_unusable: whether its files or settings are the reason.
        digest: digest of the artifact's manifest; empty if it is not in memory.
        deltas: names of the delta files that were applied, in this order; the last hundred of a stream.
        table_bytes: bytes of its tables' rows; 0 if it is not in memory.
        stream: its stream of deltas; None if it has none, or is not in memory.
        context_cache: what its context cache did; zeros without one, or if it is not in memory.
    """

    version: str
    state: ModelState
    reason: str = ""
    is_unusable: bool = False
    digest: str = ""
    deltas: tuple[str, ...] = ()
    table_bytes: int = 0
    stream: StreamStatus | None = None
    context_cache: ContextCacheTotals = NO_CONTEXT_CACHE


@dataclass(frozen=True, kw_only=True)
class ModelStatus:
    """One model.

    Attributes:
        model: its name.
        routing: the routing as set.
        serving: the version that answers requests that name none, except the canary's share; empty if none is
            ready.
        versions: versions in the repository or in memory, oldest first.
    """

    model: str
    routing: Routing
    serving: str
    versions: tuple[ModelVersionStatus, ...]
