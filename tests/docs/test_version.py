"""The version that pyproject.toml states is the one that other files repeat."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]


@pytest.mark.parametrize(
    ("file", "pattern"),
    [
        ("CITATION.cff", r"^version: (.+)$"),
        ("deploy/container/Dockerfile", r"-t recsys-serve:(\S+)"),
        ("docs/operate/kubernetes.md", r"-t recsys-serve:(\S+)"),
    ],
)
def test_files_that_repeat_the_version(file: str, pattern: str) -> None:
    assert re.findall(pattern, (ROOT / file).read_text(), re.MULTILINE) == [VERSION]


def test_the_changelog_has_the_version_with_the_date_of_its_release() -> None:
    headings = re.findall(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    released = next(heading for heading in headings if heading != "Unreleased")
    cited = re.findall(r"^date-released: (.+)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)
    assert [released] == [f"{VERSION} - {date}" for date in cited]
