"""The version that pyproject.toml states is the one that other files repeat."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("file", "pattern"),
    [("CITATION.cff", r"^version: (.+)$"), ("cpp_client/CMakeLists.txt", r"^project\(recsys VERSION (\S+) ")],
)
def test_files_that_repeat_the_version(file: str, pattern: str) -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert re.findall(pattern, (ROOT / file).read_text(), re.MULTILINE) == [version]
