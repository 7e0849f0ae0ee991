"""The tables of settings on the site's page docs/serve/configuration.md, made from the dataclasses.

MkDocs loads this file as a hook (``mkdocs.yml``).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from recsys.options.kinds import SWITCH
from serve.config.options import NONE, Section, Setting, sections

PAGE = Path(__file__).resolve().parents[3] / "docs" / "serve" / "configuration.md"
MARK = "<!-- settings -->"
_REQUIRED = "needed"


def tables() -> str:
    """Return all settings as Markdown."""
    return "\n".join(line for section in sections() for line in _table(section))


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Put the tables into the page that has the mark."""
    return markdown.replace(MARK, tables()) if page.file.src_uri == "serve/configuration.md" else markdown


def _table(section: Section) -> Iterator[str]:
    name = ".".join(section.path)
    yield f"### `[{name}]`\n" if name else "### Top of the file\n"
    off = " Off where none of it is given." if section.is_optional else ""
    yield f"{section.about}{off}\n"
    yield "| key | flag | default | what it is |"
    yield "|---|---|---|---|"
    for option in section.options:
        about = option.about.replace("``", "`").replace("None", f"`{NONE}`").replace("|", "\\|")
        yield f"| `{option.path[-1]}` | `{_flag(option)}` | {_default(option)} | {about} |"
    yield ""


def _flag(option: Setting) -> str:
    if option.kind is SWITCH and option.default is True:
        return "--no-" + option.name.removeprefix("--")
    return option.name


def _default(option: Setting) -> str:
    default = option.default
    if default is dataclasses.MISSING:
        return _REQUIRED
    if default in ("", ()):
        return "empty"
    if isinstance(default, bool):
        return str(default).lower()
    if isinstance(default, (int, float)):
        text = str(default) if default < 10_000 else f"{default:,}".replace(",", " ")
        return text.removesuffix(".0")
    return NONE if default is None else str(default)
