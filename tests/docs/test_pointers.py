"""Pages, anchors, files and modules that pages, comments and messages name are there."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.docs.pages import PAGES, ROOT

_ROOMS = (
    "recsys",
    "export",
    "serve",
    "tests",
    "benchmarks",
    "examples",
    "cpp_client",
    "deploy",
    "docs",
    "protos",
)
_SUFFIXES = {
    ".md",
    ".py",
    ".h",
    ".cpp",
    ".cmake",
    ".txt",
    ".toml",
    ".yaml",
    ".yml",
    ".json",
    ".proto",
    ".sh",
    "",
}
_GENERATED = {"build", "__pycache__", "node_modules"}
_FENCE = re.compile(r"^( *)```.*?^\1```", re.DOTALL | re.MULTILINE)
_HEADING = re.compile(r"^#+ +(.*)$", re.MULTILINE)
_LINK = re.compile(r"\]\(([^)\s#:]*)(#[^)\s]*)?\)")
# A pattern that begins with its text is found several times as fast as one that begins with what must not precede it.
_PAGE = re.compile(r"(docs/(?<![\w/.-]docs/)[\w/]+\.md)(#[\w-]+)?")
_FILES = tuple(
    re.compile(
        rf"({room}/(?<![\w/.<>{{}}~-]{room}/)[\w./-]+\.(?:py|h|cpp|md|toml|yaml|proto|sh|svg))\b(?![/(*])"
    )
    for room in _ROOMS
)
_MODULE = re.compile(r"`((?:recsys|export|serve|tests|benchmarks)(?:\.\w+)+)(?:\(\))?`")
# In comments of C++, from its own folder.
_COMMENT = re.compile(r"^\s*//.*", re.MULTILINE)
_SOURCE = re.compile(r"(?<![\w/.<-])([a-z]\w*/[\w./-]+\.(?:h|cpp))\b")
# Where files lie that are named without these folders: C++ names headers and tests, the site its pages.
_BASES = (".", "cpp_client", "cpp_client/include", "docs")
# Packages of the wire, loggers, files, native modules that may not be built.
_NO_MODULE = re.compile(
    r"recsys\.v1\b|serve\.(?:admin|capture|requests)$|\.(?:py|toml|json)$|\._(?:engine|ops|sender)$"
)


def _files() -> Iterator[Path]:
    yield from (path for path in ROOT.iterdir() if path.is_file() and path.suffix in _SUFFIXES)
    for room in _ROOMS:
        for folder, folders, names in os.walk(ROOT / room):
            folders[:] = [name for name in folders if name not in _GENERATED and not name.startswith(".")]
            yield from (path for name in names if (path := Path(folder, name)).suffix in _SUFFIXES)


TEXTS = {
    path: path.read_text(encoding="utf-8", errors="replace") for path in _files() if path != Path(__file__)
}


@cache
def anchors(page: Path) -> frozenset[str]:
    """Return the anchors of a page's headings, as GitHub and the site make them."""
    text = _FENCE.sub("", page.read_text(encoding="utf-8"))
    headings = (re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading) for heading in _HEADING.findall(text))
    return frozenset(
        re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings
    )


def wrong(pointers: Iterator[tuple[Path, Path, str]]) -> list[str]:
    """Return the pointers, each with its place, to files or anchors that are not there."""
    return sorted(
        {
            f"{place.relative_to(ROOT)}: {os.path.relpath(page, ROOT)}{anchor}"
            for place, page, anchor in pointers
            if not page.exists() or (anchor and anchor[1:] not in anchors(page))
        }
    )


def test_links_between_pages_lead_to_headings() -> None:
    links = (
        (page, page.parent / link[1] if link[1] else page, link[2] or "")
        for page in PAGES
        for link in _LINK.finditer(_FENCE.sub("", TEXTS[page]))
    )
    assert not wrong(links)


def test_pages_that_files_name_are_there() -> None:
    named = (
        (path, ROOT / found[1], found[2] or "")
        for path, text in TEXTS.items()
        for found in _PAGE.finditer(text)
    )
    assert not wrong(named)


def test_files_that_files_name_are_there() -> None:
    missing = {
        f"{path.relative_to(ROOT)}: {found[1]}"
        for path, text in TEXTS.items()
        for pattern in _FILES
        for found in pattern.finditer(text)
        if not found[1].startswith("recsys/v1/")  # generated
        and not any((ROOT / base / found[1]).exists() for base in _BASES)
    }
    assert not sorted(missing)


def test_sources_that_comments_of_the_native_code_name_are_there() -> None:
    folder = ROOT / "cpp_client"
    rooms = {path.name for path in folder.iterdir() if path.is_dir()}
    missing = {
        f"{path.relative_to(ROOT)}: {found}"
        for path, text in TEXTS.items()
        if path.is_relative_to(folder) and path.suffix in (".h", ".cpp")
        for comment in _COMMENT.findall(text)
        for found in _SOURCE.findall(comment)
        if found.split("/")[0] in rooms and not (folder / found).exists()
    }
    assert not sorted(missing)


def _exists(name: str) -> bool:
    """Whether a dotted name is a module, or a module's text has its next part."""
    place = ROOT
    for part in name.split("."):
        if (place / part).is_dir():
            place /= part
        elif (place / f"{part}.py").exists():
            place /= f"{part}.py"
        else:
            source = place if place.suffix else place / "__init__.py"
            return source in TEXTS and re.search(rf"\b{part}\b", TEXTS[source]) is not None
    return True


def test_modules_that_files_name_are_there() -> None:
    missing = {
        f"{path.relative_to(ROOT)}: {found[1]}"
        for path, text in TEXTS.items()
        if path.name != "CHANGELOG.md"  # it names modules of earlier releases
        for found in _MODULE.finditer(text)
        if not _NO_MODULE.search(found[1]) and not _exists(found[1])
    }
    assert not sorted(missing)
