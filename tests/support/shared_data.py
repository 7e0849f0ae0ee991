"""Where the real data lies that some tests use: beside the repository, or in RECSYS_DATA_DIR."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


def data_file(name: str) -> Path:
    """The file; the test skips where it is missing."""
    default = Path(__file__).resolve().parents[3] / "shared" / "data"
    path = Path(os.environ.get("RECSYS_DATA_DIR", default)) / name
    if not path.is_file():
        pytest.skip(f"{name} is not in RECSYS_DATA_DIR or ../shared/data")
    return path
