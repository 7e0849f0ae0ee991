"""The bytes of a text file at any place, decompressed where its content says that it is compressed."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pyarrow as pa

from recsys.data.lines import DataError, shown_error

_SKIPPED_BYTES = 16 << 20
_COMPRESSIONS = {b"\x1f\x8b": "gzip", b"BZh": "bz2", b"\x28\xb5\x2f\xfd": "zstd", b"\x04\x22\x4d\x18": "lz4"}
# How files that are not text begin.
_OTHERS = {
    b"PK\x03\x04": "a zip or xlsx file; unpack it, or save it as CSV, first",
    b"\xfd7zXZ": "an xz file; unpack it first",
    b"\xd0\xcf\x11\xe0": "a file of Excel; save it as CSV first",
    b"SQLite format 3": "a database of SQLite; save the table as CSV first",
    b"\x89HDF": "an HDF5 file; save the table as Parquet first",
    b"\x93NUMPY": "a NumPy array; save it as Parquet first",
    b"\x80\x04": "a pickle; save the frame as Parquet first",
    b"\x80\x05": "a pickle; save the frame as Parquet first",
    b"\xff\xfe": "UTF-16 text; save it as UTF-8 first (iconv -f UTF-16 -t UTF-8)",
    b"\xfe\xff": "UTF-16 text; save it as UTF-8 first (iconv -f UTF-16 -t UTF-8)",
}


def first_bytes(path: Path, num_bytes: int) -> bytes:
    """Return how a file begins, as it is on disk.

    Raises:
        DataError: The file cannot be read.
    """
    try:
        with path.open("rb") as file:
            return file.read(num_bytes)
    except OSError as error:
        raise DataError(f"{path.name}: cannot be read ({error.strerror})") from None


def first_not_utf8(data: bytes) -> tuple[int, str] | None:
    """Return the place of the first bytes that are not UTF-8, and the reason; None if there are none."""
    if data.isascii():
        return None
    try:
        data.decode()
    except UnicodeDecodeError as error:
        return error.start, error.reason
    return None


class ByteStream:
    """A file's bytes. Thread-safe.

    A compressed file is read from front to back, and from the front again for bytes before the last ones.

    Raises:
        DataError: It cannot be read, or is a file of another kind.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._file: Any = None
        self._raw: Any = None
        self._offset = 0
        head = first_bytes(path, 16)
        for magic, kind in _OTHERS.items():
            if head.startswith(magic):
                raise DataError(f"{path.name}: got {kind}")
        self._compression = next(
            (name for magic, name in _COMPRESSIONS.items() if head.startswith(magic)), None
        )
        self._size = max(path.stat().st_size, 1)

    def at(self, offset: int, num_bytes: int) -> bytes:
        """Return the bytes from an offset on; fewer at the end of the file."""
        try:
            if self._compression is None:
                with self._path.open("rb") as file:
                    file.seek(offset)
                    return file.read(num_bytes)
            with self._lock:
                return self._decompressed(offset, num_bytes)
        except (OSError, EOFError, pa.ArrowException) as error:
            raise DataError(f"{self._path.name}: cannot be read ({shown_error(error)})") from None

    def share(self, offset: int) -> float:
        """Return how much of the file lies before an offset, 0 to 1; of a compressed one, how much has been read."""
        if self._compression is None:
            return min(offset / self._size, 1.0)
        with self._lock:
            return 0.0 if self._raw is None else min(self._raw.tell() / self._size, 1.0)

    def _decompressed(self, offset: int, num_bytes: int) -> bytes:
        if self._file is None or offset < self._offset:
            self._close()
            self._raw = pa.OSFile(str(self._path))
            self._file = pa.CompressedInputStream(self._raw, self._compression)
        while self._offset < offset:
            skipped = self._file.read(min(offset - self._offset, _SKIPPED_BYTES))
            if not skipped:
                return b""
            self._offset += len(skipped)
        data: bytes = self._file.read(num_bytes)
        self._offset += len(data)
        return data

    def _close(self) -> None:
        for file in (self._file, self._raw):
            if file is not None:
                file.close()
        self._file, self._raw, self._offset = None, None, 0
