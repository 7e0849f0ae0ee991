"""Repositories of models on the disk, put together from real artifacts."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from recsys.artifact.manifest_file import MANIFEST_NAME


def add_version(root: Path, model: str, version: str, artifact: Path) -> Path:
    """Put an artifact into a repository, its manifest last. Files are linked, not copied: do not write to them."""
    path = root / model / version
    path.mkdir(parents=True)
    for file in sorted(artifact.iterdir(), key=lambda file: file.name == MANIFEST_NAME):
        os.link(file, path / file.name)
    return path


def break_version(path: Path) -> None:
    """Cut the rows of an artifact short. The linked original stays whole."""
    rows = path / "rows.bin"
    data = rows.read_bytes()
    rows.unlink()
    rows.write_bytes(data[:-1])


def repair_version(path: Path, artifact: Path) -> None:
    """Put the whole rows back."""
    rows = path / "rows.bin"
    rows.unlink()
    shutil.copyfile(artifact / "rows.bin", rows)
