"""JSON for people: what is short stands on one line, and long lists may be shortened."""

from __future__ import annotations

import json
from typing import Any

_WIDTH = 100
_INDENT = "  "
# Items of a shortened list: so many of the first, then the last.
_NUM_FIRST = 8


def json_text(value: Any, most_items: int | None = None) -> str:
    """Return a value as JSON in lines of up to 100 characters.

    Args:
        value: Plain data.
        most_items: Longer lists are shortened to their first items and the last, with the number of those left out
            in between; the text is no longer JSON then. None shortens nothing.
    """
    return _text(value, "", most_items)


def _text(value: Any, indent: str, most_items: int | None) -> str:
    if isinstance(value, dict) and value:
        items = [(f"{json.dumps(name)}: ", item) for name, item in value.items()]
        opening, closing = "{", "}"
    elif isinstance(value, list) and value:
        items = [("", item) for item in value]
        opening, closing = "[", "]"
    else:
        return json.dumps(value)
    texts = [name + _text(item, indent + _INDENT, most_items) for name, item in items]
    if isinstance(value, list) and most_items is not None and len(texts) > most_items:
        texts = [*texts[:_NUM_FIRST], f"… {len(texts) - _NUM_FIRST - 1} more …", texts[-1]]
    line = opening + ", ".join(texts) + closing
    # Objects in objects keep their lines, so that inputs stand below each other.
    nested = isinstance(value, dict) and any(isinstance(item, dict) and item for item in value.values())
    if not nested and "\n" not in line and len(indent) + len(line) <= _WIDTH:
        return line
    inner = indent + _INDENT
    if any("\n" in text for text in texts) or not all(_is_plain(item) for _, item in items):
        lines = [inner + text for text in texts]
    else:
        lines = _filled(texts, inner)
    return opening + "\n" + ",\n".join(lines) + "\n" + indent + closing


def _is_plain(value: Any) -> bool:
    return not isinstance(value, dict | list)


def _filled(texts: list[str], indent: str) -> list[str]:
    """Return the texts in as few lines as the width allows."""
    lines: list[str] = []
    for text in texts:
        if lines and len(lines[-1]) + len(text) + 3 <= _WIDTH:
            lines[-1] += ", " + text
        else:
            lines.append(indent + text)
    return lines
