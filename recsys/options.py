"""Values of command line options, for argparse's ``type``."""

from __future__ import annotations

import argparse
import re

_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_BINARY_UNITS = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def count(text: str) -> int:
    """A whole number of at least 1."""
    if not re.fullmatch(r"[0-9]{1,18}", text) or int(text) < 1:
        raise argparse.ArgumentTypeError(f"got {text[:80]!r}, expected a whole number of at least 1")
    return int(text)


def counts(text: str) -> tuple[int, ...]:
    """Whole numbers of at least 1, with commas between."""
    return tuple(count(part) for part in text.split(","))


def size(text: str) -> int:
    """Bytes, in decimal or binary units: ``80GB``, ``80G``, ``80GiB``, ``1.5TB``, ``4096``."""
    match = re.fullmatch(r"([0-9]{1,15}(?:\.[0-9]+)?)\s*([KMGT]?)(i?)B?", text.strip(), re.IGNORECASE)
    unit = None if match is None else match[2].upper()
    if match is None or unit is None or (match[3] and not unit):
        raise argparse.ArgumentTypeError(f"got {text[:80]!r}, expected a size such as 80GB or 80GiB")
    return int(float(match[1]) * (_BINARY_UNITS[unit] if match[3] else _UNITS[unit]))
