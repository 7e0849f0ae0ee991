"""Addresses of streams: a path, ``s3://bucket/folder`` and others of fsspec, ``kafka://host:port/topic?option=value``.

They are checked without a connection, without torch, and without the packages that open them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from recsys.base.cli import near_misses
from recsys.base.machine import install_command
from recsys.base.remote import AddressError, RemoteAddress, is_address, missing_package, parse_address

_KAFKA = "kafka://"
_BROKER = re.compile(r"(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9_.-]+):([0-9]{1,5})")
# What Kafka takes.
_TOPIC = re.compile(r"[A-Za-z0-9_.-]{1,249}")
#: Messages of a delta have at most as many bytes of it; a reader refuses larger ones.
MAX_CHUNK_BYTES = 64 << 20


@dataclass(frozen=True, kw_only=True)
class KafkaAddress:
    """A topic of Kafka.

    Attributes:
        brokers: ``host:port``, with commas between.
        topic: the topic.
        config: a file of librdkafka's properties, ``name=value`` in each line, such as those of SASL and TLS; None for
            none.
        chunk_bytes: bytes of a delta in one message.
        timeout_s: seconds that the brokers may be silent.
    """

    brokers: str
    topic: str
    config: Path | None = field(default=None, repr=False)
    # A topic takes messages of 1,000,012 bytes unless it says otherwise.
    chunk_bytes: int = 768 << 10
    timeout_s: float = 10.0


#: Where a stream of deltas is.
StreamAddress = Path | RemoteAddress | KafkaAddress


def parse_stream_address(address: str | Path) -> StreamAddress:
    """Return what an address names.

    Raises:
        AddressError: It is no path and no address of a kind of stream that there is.
    """
    if not is_address(address):
        return Path(address)
    text = str(address)
    if text.startswith(_KAFKA):
        return _kafka(text.removeprefix(_KAFKA))
    try:
        return parse_address(text)
    except AddressError as error:
        raise AddressError(f"{error}; kafka://host:port/topic is a stream, too") from None


def missing_for(address: StreamAddress) -> str | None:
    """Return which package a stream lacks, with the command that installs it; None if nothing is missing."""
    if isinstance(address, RemoteAddress):
        return missing_package(address)
    if isinstance(address, KafkaAddress):
        try:
            import confluent_kafka  # noqa: F401
        except ImportError:
            return f"kafka:// needs the package confluent-kafka: {install_command(extra='kafka')}"
    return None


def _kafka(text: str) -> KafkaAddress:
    place, _, query = text.partition("?")
    brokers, _, topic = place.partition("/")
    # Whoever puts a password there finds it in no log.
    shown = "kafka://***" if "@" in text else f"kafka://{place[:200]}"
    for broker in brokers.split(","):
        found = _BROKER.fullmatch(broker)
        if not found or not 0 < int(found[2]) < 65536:
            raise AddressError(
                f"got {shown!r}, expected kafka://host:port[,host:port]/topic without names and passwords: those go "
                "into a file, ?config=FILE"
            )
    if not _TOPIC.fullmatch(topic) or topic in {".", ".."}:
        raise AddressError(f"got {shown!r}, expected a topic of letters, digits and _ - . after the brokers")
    options: dict[str, Any] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name not in _OPTIONS:
            raise AddressError(
                f"{shown}: got option {name[:40]!r}, expected one of {', '.join(_OPTIONS)}"
                f"{near_misses(name, _OPTIONS)}; other properties go into the file of config"
            )
        parse, expected = _OPTIONS[name]
        try:
            options[name] = parse(value)
        except ValueError:
            raise AddressError(f"{shown}: {name}: got {value[:40]!r}, expected {expected}") from None
    return KafkaAddress(brokers=brokers, topic=topic, **options)


def _chunk_bytes(text: str) -> int:
    value = int(text)
    if not 1024 <= value <= MAX_CHUNK_BYTES:
        raise ValueError
    return value


def _timeout_s(text: str) -> float:
    value = float(text)
    if not 0 < value <= 3600 or math.isnan(value):
        raise ValueError
    return value


def _file(text: str) -> Path:
    if not text:
        raise ValueError
    return Path(text)


_OPTIONS: Mapping[str, tuple[Callable[[str], Any], str]] = {
    "config": (_file, "a file"),
    "chunk_bytes": (_chunk_bytes, f"a whole number from 1024 to {MAX_CHUNK_BYTES}"),
    "timeout_s": (_timeout_s, "seconds, more than 0 and at most 3600"),
}
