"""What tests compare of errors that two implementations raise: the field, not the words."""

from __future__ import annotations


def field_of(text: str) -> str:
    """Return the field that an error's text names."""
    return text.partition(": ")[0]
