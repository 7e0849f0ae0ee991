"""Addresses of streams: a path, ``s3://bucket/folder`` and others of fsspec, ``kafka://host:port/topic?option=value``.

They are checked without a connection and without torch.
"""

from __future__ import annotations

from pathlib import Path

_MARK = "://"


def scheme_of(address: str | Path) -> str:
    """Return the scheme of an address; empty for a path."""
    scheme, mark, _ = str(address).partition(_MARK)
    return scheme if mark and not isinstance(address, Path) else ""
