"""Open a stream of deltas by its address."""

from __future__ import annotations

import os
from pathlib import Path

from recsys.base.remote import AddressError, RemoteAddress, RemoteFolder
from recsys.streams.address import StreamAddress, missing_for, parse_stream_address
from recsys.streams.bucket import BucketSink, BucketSource
from recsys.streams.cache import DeltaCache
from recsys.streams.folder import FolderSink, FolderSource
from recsys.streams.interface import DeltaSink, DeltaSource

#: Bytes that the downloaded deltas of one stream may take.
CACHE_BYTES = 8 << 30


def open_source(
    address: str | Path, cache: Path | None = None, *, cache_bytes: int = CACHE_BYTES
) -> DeltaSource:
    """Open a stream to read deltas from. Nothing is connected yet.

    Args:
        address: a folder; ``s3://``, ``gs://``, ``az://`` or ``memory://``; or ``kafka://host:port/topic``.
        cache: a folder for downloaded deltas, one for each stream; None for one in the user's cache.
        cache_bytes: bytes of its files at most.

    Raises:
        AddressError: the address is wrong, or a package is not installed.
    """
    parsed = _usable(address)
    if isinstance(parsed, Path):
        return FolderSource(parsed)
    deltas = DeltaCache(cache or default_cache(parsed), cache_bytes)
    if isinstance(parsed, RemoteAddress):
        return BucketSource(RemoteFolder(parsed), deltas)
    from recsys.streams.kafka.source import KafkaSource

    return KafkaSource(parsed, deltas)


def open_sink(address: str | Path) -> DeltaSink:
    """Open a stream to publish deltas to. Nothing is connected yet.

    Args:
        address: as for ``open_source``.

    Raises:
        AddressError: the address is wrong, or a package is not installed.
    """
    parsed = _usable(address)
    if isinstance(parsed, Path):
        return FolderSink(parsed)
    if isinstance(parsed, RemoteAddress):
        return BucketSink(RemoteFolder(parsed))
    from recsys.streams.kafka.sink import KafkaSink

    return KafkaSink(parsed)


def default_cache(address: StreamAddress) -> Path:
    """Return the folder for downloaded deltas of a stream in the user's cache."""
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser())
    name = address.topic if not isinstance(address, Path | RemoteAddress) else address.name
    return root / "recsys-serving" / "deltas" / name


def _usable(address: str | Path) -> StreamAddress:
    parsed = parse_stream_address(address)
    missing = missing_for(parsed)
    if missing is not None:
        raise AddressError(missing)
    return parsed
