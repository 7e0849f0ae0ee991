"""The messages of a delta in a topic: one for each chunk of the file, in headers what the chunk belongs to.

The key is ``ARTIFACT/BASE/INDEX``: where the topic is compacted, a newer delta with the same base replaces an older
one, so that a compacted chain replaces its first delta. The value is the chunk. All headers are texts:

===================  ====================================================================================
``recsys-delta``     the version of this format, 1
``id``               the first 32 digits of the SHA-256 of the file, in hexadecimal digits as all digests
``name``             the file's name
``artifact``         digest of the artifact that the delta was made for
``base``             the state of the rows before it
``digest``           the state of the rows after it
``created_s``        when it was made, in seconds since the epoch; 0 if not known
``num_bytes``        bytes of the file
``chunk_bytes``      bytes of each chunk but the last
``index``            number of the chunk, from 0
``sha256``           of the value
===================  ====================================================================================
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from recsys.artifact.delta.file import DeltaFile
from recsys.artifact.loaded_rows import DIGEST_DIGITS
from recsys.streams.address import MAX_CHUNK_BYTES

T = TypeVar("T")
VERSION = "1"
_MARK = "recsys-delta"
_ID_DIGITS = 32
_MAX_NUM_BYTES = 1 << 42
# So that the chunks of one delta can be noted in memory.
_MAX_NUM_CHUNKS = 1 << 20
_READ_BYTES = 1 << 20
# The end of the year 9999.
_MAX_SECONDS = 253402300800
_MAX_NAME = 200
_NAME = re.compile(r"[A-Za-z0-9_.=+-]{1,200}")
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_.=+-]")

Headers = Sequence[tuple[str, bytes | str | None]]


class MessageError(ValueError):
    """A message is not a chunk of a delta, or is damaged."""


class ForeignMessageError(MessageError):
    """A message was not written by this project, or by a newer release."""


@dataclass(frozen=True, kw_only=True)
class DeltaParts:
    """How a delta is cut into messages: the fields that they share.

    Attributes:
        id: digest of the file.
        name: its name.
        artifact: digest of its artifact.
        base: the state before it.
        digest: the state after it.
        created_s: when it was made; 0 if not known.
        num_bytes: bytes of the file.
        chunk_bytes: bytes of each chunk but the last.
    """

    id: str
    name: str
    artifact: str
    base: str
    digest: str
    created_s: float
    num_bytes: int
    chunk_bytes: int

    @property
    def num_chunks(self) -> int:
        """The number of its messages."""
        return -(-self.num_bytes // self.chunk_bytes)

    def bytes_of(self, index: int) -> int:
        """Return the bytes of a chunk."""
        return min(self.chunk_bytes, self.num_bytes - index * self.chunk_bytes)


def parts_of(path: Path, chunk_bytes: int) -> DeltaParts:
    """Return how a finished delta is cut.

    Raises:
        ArtifactError: it is no whole delta.
    """
    with DeltaFile(path) as file:
        header, digest = file.header, file.digest
    whole = hashlib.sha256()
    with path.open("rb") as data:
        while block := data.read(_READ_BYTES):
            whole.update(block)
        num_bytes = data.tell()
    return DeltaParts(
        id=whole.hexdigest()[:_ID_DIGITS],
        name=_NOT_IN_NAMES.sub("_", path.name)[-_MAX_NAME:],
        artifact=header.artifact,
        base=header.base,
        digest=digest,
        created_s=header.created_s,
        num_bytes=num_bytes,
        chunk_bytes=chunk_bytes,
    )


def chunks_of(path: Path, parts: DeltaParts) -> Iterator[tuple[str, bytes, list[tuple[str, bytes]]]]:
    """Yield the key, the value and the headers of each message of a delta."""
    shared = [(_MARK, VERSION), *((name, _text(value)) for name, value in vars(parts).items())]
    with path.open("rb") as file:
        for index in range(parts.num_chunks):
            chunk = file.read(parts.chunk_bytes)
            own = [("index", str(index)), ("sha256", hashlib.sha256(chunk).hexdigest())]
            headers = [(name, value.encode()) for name, value in (*shared, *own)]
            yield f"{parts.artifact}/{parts.base}/{index}", chunk, headers


def read_message(value: bytes | None, headers: Headers | None) -> tuple[DeltaParts, int]:
    """Read an untrusted message.

    Returns:
        The delta that it belongs to, and the number of its chunk.

    Raises:
        ForeignMessageError: it is not of this format.
        MessageError: it is damaged; the text names the header.
    """
    found: dict[str, str] = {}
    for name, data in headers or ():
        try:
            found[name] = data.decode() if isinstance(data, bytes) else str(data)
        except UnicodeDecodeError:
            raise MessageError(f"header {name[:40]!r}: got bytes that are no text") from None
    if _MARK not in found:
        raise ForeignMessageError(f"it has no header {_MARK!r}")
    if found[_MARK] != VERSION:
        raise ForeignMessageError(
            f"header {_MARK!r}: got {found[_MARK][:20]!r}, expected {VERSION!r}; a newer release wrote it: update"
        )
    read = _Reader(found)
    num_bytes = read.whole("num_bytes", 1, _MAX_NUM_BYTES)
    parts = DeltaParts(
        id=read.digits("id", _ID_DIGITS),
        name=read.name(),
        artifact=read.digits("artifact", DIGEST_DIGITS),
        base=read.digits("base", DIGEST_DIGITS),
        digest=read.digits("digest", DIGEST_DIGITS),
        created_s=read.seconds("created_s"),
        num_bytes=num_bytes,
        chunk_bytes=read.whole("chunk_bytes", max(1, -(-num_bytes // _MAX_NUM_CHUNKS)), MAX_CHUNK_BYTES),
    )
    index = read.whole("index", 0, parts.num_chunks - 1)
    chunk = value or b""
    if len(chunk) != parts.bytes_of(index):
        raise MessageError(f"value: got {len(chunk)} bytes, expected {parts.bytes_of(index)}")
    if hashlib.sha256(chunk).hexdigest() != found.get("sha256"):
        raise MessageError("value: its checksum does not match; it was changed or damaged")
    return parts, index


def _text(value: object) -> str:
    return repr(value) if isinstance(value, float) else str(value)


class _Reader:
    """Reads headers, and names those that are wrong."""

    def __init__(self, found: dict[str, str]) -> None:
        self._found = found

    def whole(self, name: str, least: int, most: int) -> int:
        text = self._found.get(name, "")
        value = int(text) if text.isascii() and text.isdigit() and len(text) < 20 else -1
        return self._checked(name, value, least <= value <= most, f"a whole number from {least} to {most}")

    def digits(self, name: str, num_digits: int) -> str:
        value = self._found.get(name, "")
        is_right = re.fullmatch(rf"[0-9a-f]{{{num_digits}}}", value) is not None
        return self._checked(name, value, is_right, f"{num_digits} hexadecimal digits")

    def name(self) -> str:
        value = self._found.get("name", "")
        return self._checked("name", value, _NAME.fullmatch(value) is not None, "the name of a file")

    def seconds(self, name: str) -> float:
        try:
            value = float(self._found.get(name, ""))
        except ValueError:
            value = math.nan
        return self._checked(name, value, 0 <= value <= _MAX_SECONDS, "seconds since the epoch")

    def _checked(self, name: str, value: T, is_right: bool, expected: str) -> T:
        if not is_right:
            raise MessageError(
                f"header {name!r}: got {self._found.get(name, '')[:60]!r}, expected {expected}"
            )
        return value
