"""Small deltas without rows, in a chain of an artifact."""

from __future__ import annotations

from pathlib import Path

from recsys.artifact.delta.file import DeltaFile, DeltaWriter
from recsys.artifact.delta.header import DeltaHeader

ARTIFACT, OTHER = "0123456789ab", "ba9876543210"


def write(
    path: Path,
    created_s: float = 100.0,
    base: str = ARTIFACT,
    *,
    artifact: str = ARTIFACT,
    num_bytes: int = 0,
) -> str:
    """Write a delta, larger by so many bytes; return its digest."""
    header = DeltaHeader(model="m" * (1 + num_bytes), artifact=artifact, base=base, created_s=created_s)
    DeltaWriter(path, header).finish()
    with DeltaFile(path) as file:
        return file.digest


def write_chain(folder: Path, num_deltas: int, num_bytes: int = 0) -> list[Path]:
    """Write deltas, each after the one before."""
    base, paths = ARTIFACT, []
    for number in range(num_deltas):
        paths.append(folder / f"{number}.delta")
        base = write(paths[-1], 100.0 + number, base, num_bytes=num_bytes)
    return paths
