"""The documents of the repository, taken apart: fenced blocks, commands, flags, links."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = (
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
)

_FENCE = re.compile(r"^( *)```(\w*)[^\n]*\n(.*?)^\1```", re.DOTALL | re.MULTILINE)
_INDENTED = re.compile(r"(?<=\n\n)(?: {4}[^\n]+\n)+")
_CODE = re.compile(r"`([^`\n]+)`")
_COMMAND = re.compile(
    r"^(?:(?:torchrun|python) .*?-m (?P<module>recsys\.\w+|serve\.\w+)|(?P<name>recsys-\w+))(?P<rest> .*|$)"
)
# Words of prose and of other programs, which are no parts of a command.
_END = re.compile(r"\s(?:#|>|&|\||2>)(?:\s|$)")


@dataclass(frozen=True)
class Block:
    """A fenced block.

    Attributes:
        place: for messages, such as ``docs/serve/wire.md:12``.
        language: empty for none.
        text: its content.
    """

    place: str
    language: str
    text: str


@dataclass(frozen=True)
class Command:
    """A command line of ours.

    Attributes:
        place: for messages.
        program: ``recsys-serve``, or a module such as ``recsys.train``.
        words: the arguments.
    """

    place: str
    program: str
    words: tuple[str, ...]


def blocks(page: Path) -> Iterator[Block]:
    """Yield the fenced blocks of a page."""
    text = page.read_text(encoding="utf-8")
    for found in _FENCE.finditer(text):
        yield Block(_place(page, text, found.start()), found[2], found[3])
    for found in _INDENTED.finditer(_FENCE.sub(lambda fence: "\n" * fence[0].count("\n"), text)):
        yield Block(_place(page, text, found.start()), "", found[0])


def commands(page: Path) -> Iterator[Command]:
    """Yield the commands in a page's blocks without a language."""
    for block in blocks(page):
        if block.language not in ("", "bash", "sh"):
            continue
        for line in block.text.replace("\\\n", " ").splitlines():
            found = _COMMAND.match(line.strip())
            if found is None or "──" in line or "serve.client" in line:  # none, or a drawing
                continue
            rest = _END.split(found["rest"])[0]
            yield Command(block.place, found["name"] or found["module"], tuple(shlex.split(rest)))


def code(page: Path) -> Iterator[str]:
    """Yield the inline code of a page."""
    text = _FENCE.sub("", page.read_text(encoding="utf-8"))
    yield from (found[1] for found in _CODE.finditer(text))


def _place(page: Path, text: str, start: int) -> str:
    line = text.count("\n", 0, start) + 1
    return f"{page.relative_to(ROOT)}:{line}"
