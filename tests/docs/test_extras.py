"""What files say on installing is true: extras are those of pyproject.toml, and no package index has the project."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXTRAS = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])
# Such as '.[cpu,otel]', EXTRAS=cpu, extras such as "cpu,otel", the extra `rest`, (extra: torchrec).
_FORMS = (
    re.compile(r"(?:recsys-serving|\.)\[([a-z]{2}[a-z0-9,-]*)\]"),
    re.compile(r"\bEXTRAS=([a-z]{2}[a-z0-9,-]*)"),
    re.compile(r"\b[Ee]xtras[^.\n]{0,40} such as [`\"']([a-z]{2}[a-z0-9,-]*)[`\"']"),
    re.compile(r"\bextra:? [`\"']+([a-z][a-z0-9-]*)[`\"']"),
    re.compile(r"(?:\(extra:|\bthe extra) ([a-z][a-z0-9-]*)\b(?= is|[).,\"'])"),
)
_SUFFIXES = {".md", ".py", ".sh", ".toml", ".yaml", ".yml", ""}


def _files() -> Iterator[Path]:
    for path in sorted(ROOT.iterdir()):
        if path.is_file():
            yield path
        elif not path.name.startswith(".") and path.name not in {"build", "dist", "demo"}:
            yield from (
                file for file in path.rglob("*") if file.is_file() and "__pycache__" not in file.parts
            )


def named(text: str) -> list[str]:
    """Return the extras that a text names."""
    return [extra for form in _FORMS for found in form.finditer(text) for extra in found[1].split(",")]


@pytest.mark.parametrize(
    ("text", "extras"),
    [
        ("pip install '.[cpu,otel]'", ["cpu", "otel"]),
        ('RUN pip install ".[${EXTRAS}]"\nARG EXTRAS=cpu', ["cpu"]),
        ('# Extras of the package, such as "cpu,otel".', ["cpu", "otel"]),
        ("`--http-port` and the extra `rest`: the REST form", ["rest"]),
        ("(extra `tensorboard`) writes", ["tensorboard"]),
        ("pyre-extensions is not installed (extra: torchrec)", ["torchrec"]),
        ('reason="the extra otel is not installed"', ["otel"]),
        ("pip install 'recsys-serving[parquet]'", ["parquet"]),
        ("pip install '.[cpu-torch213,otel]'", ["cpu-torch213", "otel"]),
        ("among its extra files; an extra bucket.", []),
    ],
)
def test_every_form_is_read(text: str, extras: list[str]) -> None:
    assert named(text) == extras


def test_extras_that_files_name_are_there() -> None:
    unknown = {
        (str(path.relative_to(ROOT)), extra)
        for path in _files()
        if path.suffix in _SUFFIXES and path != Path(__file__)
        for extra in named(path.read_text(errors="replace"))
        if extra not in EXTRAS
    }
    assert not unknown


def test_nothing_says_that_a_package_index_has_the_project() -> None:
    wrong = [
        str(path.relative_to(ROOT))
        for path in _files()
        if path.suffix in _SUFFIXES and path != Path(__file__)
        if re.search(r"pip install [^\n]*recsys-serving\b", path.read_text(errors="replace"))
    ]
    assert not wrong
