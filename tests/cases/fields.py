"""What tests compare of errors that two implementations raise: the field, not the words."""

from __future__ import annotations

import re

_QUOTED = re.compile(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\"""", re.DOTALL)
_PLAIN = re.compile(r"'[\w.\- ]*'", re.ASCII)


def field_of(text: str) -> str:
    """Return the field that an error's text names.

    Names in it that are not plain are left out: engines escape only plain ones alike.
    """
    plain = _QUOTED.sub(lambda found: found[0] if _PLAIN.fullmatch(found[0]) else "''", text)
    return plain.partition(": ")[0]
