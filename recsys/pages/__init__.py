"""The common parts of HTML pages: templates, style sheet, hashes for content security policies."""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

_HERE = Path(__file__).parent
_BASE = _HERE / "base.css"


def templates(folder: Path) -> Environment:
    """Return the templates in a folder and the common ``frame.html``. Values are escaped; a missing one is an error."""
    return Environment(
        loader=FileSystemLoader([folder, _HERE]),
        autoescape=True,
        undefined=StrictUndefined,
        keep_trailing_newline=True,
    )


def style(folder: Path) -> Markup:
    """Return the common style sheet, followed by the ``page.css`` of a folder."""
    return Markup("".join(path.read_text(encoding="utf-8") for path in (_BASE, folder / "page.css")))


def script(folder: Path) -> Markup:
    """Return the ``page.js`` of a folder."""
    return Markup((folder / "page.js").read_text(encoding="utf-8"))


def source_hash(text: str) -> str:
    """Return the source expression that permits an inline script or style sheet with exactly this text."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
