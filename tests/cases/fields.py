"""What tests compare of errors that two implementations raise: the field, not the words."""

from __future__ import annotations

import re

_QUOTED = re.compile(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\"""", re.DOTALL)
_PLAIN = re.compile(r"'[\w.\- ]*'", re.ASCII)


def field_of(text: str) -> str:
    """Return the field that an error's text names."""
    return text.partition(": ")[0]


def plain_field_of(text: str) -> str:
    """Return the field of a text without names that are not plain: the engines escape those in ways of their own."""
    plain = _QUOTED.sub(lambda found: found[0] if _PLAIN.fullmatch(found[0]) else "''", text)
    return field_of(plain)
