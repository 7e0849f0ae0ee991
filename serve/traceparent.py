"""The W3C ``traceparent`` header (Trace Context, level 1), read without the OpenTelemetry packages."""

from __future__ import annotations

import re
from typing import NamedTuple

# version, trace ID, parent span ID, flags; versions above 00 may add fields behind, ff is forbidden.
_PATTERN = re.compile(r"(?!ff)([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(?:-.*)?", re.ASCII)
_MAX_CHARS = 256
_SAMPLED = 0x01


class TraceParent(NamedTuple):
    """Who asks, as far as traces are concerned."""

    trace_id: int
    span_id: int
    is_sampled: bool


def read_traceparent(header: str) -> TraceParent | None:
    """What the header says; None where there is none, or it breaks the standard (which then asks to ignore it)."""
    if not header or len(header) > _MAX_CHARS:
        return None
    match = _PATTERN.fullmatch(header)
    if match is None or (match[1] == "00" and len(header) != 55):
        return None
    trace_id, span_id = int(match[2], 16), int(match[3], 16)
    if not trace_id or not span_id:
        return None
    return TraceParent(trace_id, span_id, bool(int(match[4], 16) & _SAMPLED))


def trace_id_of(header: str) -> str:
    """The trace ID, 32 hexadecimal digits; empty where the header gives none."""
    parent = read_traceparent(header)
    return "" if parent is None else f"{parent.trace_id:032x}"
