"""Open a stream of deltas by its address."""

from __future__ import annotations

from pathlib import Path

from recsys.streams.address import scheme_of
from recsys.streams.folder import FolderSink, FolderSource
from recsys.streams.interface import DeltaSink, DeltaSource


def open_source(address: str | Path) -> DeltaSource:
    """Open a stream to read deltas from. Nothing is connected yet.

    Args:
        address: a folder.

    Raises:
        ValueError: the address is wrong.
    """
    return FolderSource(_folder(address))


def open_sink(address: str | Path) -> DeltaSink:
    """Open a stream to publish deltas to. Nothing is connected yet.

    Args:
        address: as for ``open_source``.

    Raises:
        ValueError: the address is wrong.
    """
    return FolderSink(_folder(address))


def _folder(address: str | Path) -> Path:
    scheme = scheme_of(address)
    if scheme:
        raise ValueError(f"deltas: got an address that begins with {scheme[:16]}://, expected a folder")
    return Path(address)
