"""The lists of rooms on the site's page docs/develop/architecture.md, made from the docstrings of packages.

MkDocs loads this file as a hook (``mkdocs.yml``).
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
MARK = re.compile(r"<!-- rooms of (\w+) -->")


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Put the lists where a page has their marks."""
    return MARK.sub(lambda found: "\n".join(rooms(ROOT / found[1])), markdown)


def rooms(package: Path) -> Iterator[str]:
    """Yield a line of Markdown for each package in a package, in the order of the layers, and for those inside."""
    order = _layers(package.name)
    found = sorted(
        (path for path in package.iterdir() if (path / "__init__.py").exists()),
        key=lambda path: (order.index(path.name) if path.name in order else len(order), path.name),
    )
    for room in found:
        yield f"* `{room.name}/`: {_summary(room)}"
        for inside in sorted(path.parent for path in room.glob("*/__init__.py")):
            yield f"    * `{inside.name}/`: {_summary(inside)}"


def _layers(package: str) -> list[str]:
    """Return the names of rooms from the top down, as the contract for imports lists them."""
    linter = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]
    layers = (
        layer
        for contract in linter["contracts"]
        if package in contract.get("containers", ())
        for layer in contract["layers"]
    )
    return [name.split(".")[0] for layer in layers for name in layer.split(" : ")]


def _summary(package: Path) -> str:
    """Return the first paragraph of a package's docstring."""
    text = ast.get_docstring(ast.parse((package / "__init__.py").read_text(encoding="utf-8"))) or ""
    return " ".join(text.split("\n\n")[0].split()).replace("``", "`")
