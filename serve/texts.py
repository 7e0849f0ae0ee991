"""Parts of error texts: what a client wrote, cut to a length that a text can have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

MAX_CHARS = 64
_MAX_NAMES = 8


def short(value: Any) -> str:
    """A value as it would stand in a program; of long ones the beginning, of objects and lists their type alone."""
    if isinstance(value, str):
        return repr(value if len(value) <= MAX_CHARS else value[: MAX_CHARS - 3] + "...")
    text = repr(value) if isinstance(value, (int, float)) else type(value).__name__
    return text if len(text) <= MAX_CHARS else text[: MAX_CHARS - 3] + "..."


def listed(names: Sequence[str]) -> str:
    """Names: the first of them, and how many more there are."""
    more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
    return (", ".join(map(short, names[:_MAX_NAMES])) or "none") + more
