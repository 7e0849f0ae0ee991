"""The common parts of HTML pages: templates, style sheet, hashes for content security policies."""

from __future__ import annotations

import base64
import hashlib
import re
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

_HERE = Path(__file__).parent
_BASE = _HERE / "base.css"
_WHOLE_CHARS = 20
# Entities, which have none of these characters, stay whole.
_PART_END = re.compile(r"([_./:])(?=[^_./:])")


def templates(folder: Path) -> Environment:
    """Return the templates in a folder and the common ``frame.html``. Values are escaped; a missing one is an error."""
    made = Environment(
        loader=FileSystemLoader([folder, _HERE]),
        autoescape=True,
        undefined=StrictUndefined,
        keep_trailing_newline=True,
    )
    made.filters["breakable"] = breakable
    return made


def breakable(name: str) -> Markup:
    """Return a name whose line may break after its ``_``, ``.``, ``/`` and ``:`` if it is long."""
    text = str(escape(name))
    return Markup(_PART_END.sub(r"\1<wbr>", text) if len(name) > _WHOLE_CHARS else text)


def style(folder: Path) -> Markup:
    """Return the common style sheet, followed by the ``page.css`` of a folder."""
    return Markup("".join(path.read_text(encoding="utf-8") for path in (_BASE, folder / "page.css")))


def script(folder: Path) -> Markup:
    """Return the ``page.js`` of a folder."""
    return Markup((folder / "page.js").read_text(encoding="utf-8"))


def source_hash(text: str) -> str:
    """Return the source expression that permits an inline script or style sheet with exactly this text."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
