"""Parts of error texts: what somebody wrote, cut to a length that a text can have, and what was probably meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from typing import Any

MAX_CHARS = 64
_MAX_NAMES = 8
# Of difflib's ratio, from 0 to 1: what is near at all, and what is about as near as the nearest.
_NEAR, _AS_NEAR = 0.6, 0.05


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


def near_misses(name: str, known: Iterable[str]) -> str:
    """``; did you mean …?``, or nothing where nothing known is near."""
    matcher = difflib.SequenceMatcher(b=name)
    ratios: dict[str, float] = {}
    for candidate in known:
        matcher.set_seq1(candidate)
        ratios[candidate] = matcher.ratio()
    best = max(ratios.values(), default=0.0)
    near = [candidate for candidate, ratio in ratios.items() if ratio >= max(_NEAR, best - _AS_NEAR)]
    return f"; did you mean {' or '.join(sorted(near))}?" if near else ""
