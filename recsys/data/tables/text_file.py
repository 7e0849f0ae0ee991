"""CSV and TSV files as pieces: blocks of whole lines that are found once and parsed when they are read.

Columns are texts; their use decides how they are converted. Compressed files are read from front to back, anew
for each epoch. Files of some published data sets have no header; they are known by their first line.
"""

from __future__ import annotations

import csv
import re
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import csv as arrow_csv

from recsys.data.lines import DataError
from recsys.data.tables.pieces import Piece

_BLOCK_BYTES = 16 << 20
_SEPARATORS = ",\t;|"
_SUFFIXES = {".csv": "", ".tsv": "\t", ".tab": "\t"}
_COMPRESSED = (".gz", ".bz2", ".zst")


def is_text_file(path: Path) -> bool:
    """Return whether a file's name is that of a CSV or TSV file, compressed or not."""
    name = path.with_suffix("") if path.suffix in _COMPRESSED else path
    return name.suffix in _SUFFIXES


@dataclass(frozen=True, kw_only=True)
class _Header:
    """The columns of a file.

    Attributes:
        names: The columns' names; empty texts are fields that hold nothing.
        separator: One character.
        num_bytes: Of the header line; 0 if there is none.
    """

    names: Sequence[str]
    separator: str
    num_bytes: int = 0


_RATING = ("userId", "movieId", "rating", "timestamp")
# Published files without a header line, by what their first line looks like.
_PUBLISHED = {
    # Criteo's display advertising challenge (train.txt) and terabyte logs (day_0).
    re.compile(r"[01](\t-?\d*){13}(\t([0-9a-f]{8})?){26}"): _Header(
        names=("label", *(f"I{i}" for i in range(1, 14)), *(f"C{i}" for i in range(1, 27))), separator="\t"
    ),
    # MovieLens-100k's u.data.
    re.compile(r"\d+\t\d+\t[1-5]\t\d{9,10}"): _Header(names=_RATING, separator="\t"),
    # MovieLens-1M's and -10M's ratings.dat; two colons enclose an empty field.
    re.compile(r"\d+::\d+::[0-5](\.5)?::\d{9,10}"): _Header(
        names=[part for name in _RATING for part in (name, "")][:-1], separator=":"
    ),
}


class TextFile:
    """One file with a header line, or one of a published data set that has none.

    Args:
        path: The file; ``.gz``, ``.bz2`` and ``.zst`` are decompressed.

    Attributes:
        types: The columns' Arrow types: all are texts.

    Raises:
        DataError: The file is missing, empty, not UTF-8, or has no header.
    """

    def __init__(self, path: Path) -> None:
        if not path.is_file():
            raise DataError(f"{path}: there is no such file")
        self.path = path
        self._stream = _Stream(path)
        self._header = self._read_header()
        names = [name for name in self._header.names if name]
        self.types: dict[str, pa.DataType] = dict.fromkeys(names, pa.string())

    def _read_header(self) -> _Header:
        first = self._stream.at(0, 1 << 20).split(b"\n", 1)[0]
        try:
            line = first.decode("utf-8-sig").rstrip("\r")
        except UnicodeDecodeError as error:
            raise DataError(f"{self.path.name}, line 1: not UTF-8 text ({error.reason})") from None
        if not line.strip():
            raise DataError(f"{self.path.name}, line 1: got an empty line, expected the columns' names")
        for pattern, header in _PUBLISHED.items():
            if pattern.fullmatch(line):
                return header
        stem = self.path.with_suffix("") if self.path.suffix in _COMPRESSED else self.path
        separator = _SUFFIXES.get(stem.suffix) or max(_SEPARATORS, key=line.count)
        names = [name.strip() for name in next(csv.reader([line], delimiter=separator))]
        self._check_names(names)
        return _Header(names=names, separator=separator, num_bytes=len(first) + 1)

    def _check_names(self, names: Sequence[str]) -> None:
        doubled = sorted({name for name in names if names.count(name) > 1})
        if all(_looks_like_data(name) for name in names) or "" in doubled:
            raise DataError(
                f"{self.path.name}, line 1: got {','.join(names)[:80]!r}, which looks like data, expected a line with "
                "the columns' names"
            )
        if doubled:
            raise DataError(f"{self.path.name}, line 1: column {doubled[0]!r} is named more than once")

    def pieces(self) -> Iterator[Piece]:
        """Yield the pieces in order; every line is parsed once, to count the rows and find malformed ones.

        Raises:
            DataError: A line has another number of fields.
        """
        first_row, offset = 0, self._header.num_bytes
        for block in self._blocks(offset):
            num_rows = self._parse(block, None, first_row).num_rows
            if num_rows:
                read = partial(self._read, offset, len(block), first_row)
                place = partial(self._place, first_row)
                yield Piece(num_rows=num_rows, read=read, place=place)
            first_row += num_rows
            offset += len(block)

    def _place(self, first_row: int, row: int) -> str:
        """Return the place of a row of a piece; lines are counted as if none were empty or had line breaks."""
        return f"{self.path.name}, line {first_row + row + (2 if self._header.num_bytes else 1)}"

    def _blocks(self, start: int) -> Iterator[bytes]:
        """Yield whole lines; a line break within quotes ends none."""
        rest, offset = b"", start
        while chunk := self._stream.at(offset, _BLOCK_BYTES):
            offset += len(chunk)
            rest += chunk
            end = _end_of_lines(rest)
            if end:
                yield rest[:end]
                rest = rest[end:]
        if rest:
            yield rest

    def _read(self, offset: int, num_bytes: int, first_row: int, columns: Sequence[str]) -> pa.Table:
        return self._parse(self._stream.at(offset, num_bytes), columns, first_row)

    def _parse(self, block: bytes, columns: Sequence[str] | None, first_row: int) -> pa.Table:
        try:
            return self._parsed(block, columns, use_threads=True)
        except pa.ArrowInvalid:
            pass
        wrong: list[Any] = []

        def keep(row: Any) -> str:
            wrong.append(row)
            return "error"

        try:
            return self._parsed(block, columns, use_threads=False, invalid_row_handler=keep)
        except pa.ArrowInvalid as error:
            if not wrong:
                raise DataError(f"{self._place(first_row, 0)} or after: {str(error)[:160]}") from None
            row = wrong[0]
            place = self._place(first_row, (row.number or 1) - 1)
            raise DataError(
                f"{place}: got {row.actual_columns} fields, expected {row.expected_columns} separated by "
                f"{self._header.separator!r}"
            ) from None

    def _parsed(
        self, block: bytes, columns: Sequence[str] | None, *, use_threads: bool, **parse: Any
    ) -> pa.Table:
        return arrow_csv.read_csv(
            pa.BufferReader(block),
            read_options=arrow_csv.ReadOptions(
                column_names=[name or f"\0{i}" for i, name in enumerate(self._header.names)],
                use_threads=use_threads,
                block_size=max(len(block), 1),
            ),
            parse_options=arrow_csv.ParseOptions(
                delimiter=self._header.separator, newlines_in_values=True, **parse
            ),
            convert_options=arrow_csv.ConvertOptions(
                column_types=self.types,
                include_columns=None if columns is None else list(columns),
                strings_can_be_null=True,
                quoted_strings_can_be_null=True,
                null_values=[""],
            ),
        )


def _looks_like_data(name: str) -> bool:
    try:
        float(name)
    except ValueError:
        return name == ""
    return True


def _end_of_lines(data: bytes) -> int:
    """Return where the last line that is not within quotes ends; 0 if there is none."""
    end = len(data)
    while end := data.rfind(b"\n", 0, end) + 1:
        if data.count(b'"', 0, end) % 2 == 0:
            return end
        end -= 1
    return 0


class _Stream:
    """A file's bytes at any place; a compressed file is decompressed up to it. Thread-safe."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._file: Any = None
        self._offset = 0

    def at(self, offset: int, num_bytes: int) -> bytes:
        """Return the bytes from an offset on; fewer at the end of the file."""
        try:
            if self._path.suffix not in _COMPRESSED:
                with self._path.open("rb") as file:
                    file.seek(offset)
                    return file.read(num_bytes)
            with self._lock:
                return self._decompressed(offset, num_bytes)
        except (OSError, EOFError, pa.ArrowException) as error:
            raise DataError(f"{self._path.name}: cannot be read ({str(error)[:120]})") from None

    def _decompressed(self, offset: int, num_bytes: int) -> bytes:
        if self._file is None or offset < self._offset:
            self.close()
            self._file = pa.input_stream(str(self._path), compression="detect")
        while self._offset < offset:
            skipped = self._file.read(min(offset - self._offset, _BLOCK_BYTES))
            if not skipped:
                return b""
            self._offset += len(skipped)
        data: bytes = self._file.read(num_bytes)
        self._offset += len(data)
        return data

    def close(self) -> None:
        """Close the stream of a compressed file."""
        if self._file is not None:
            self._file.close()
        self._file, self._offset = None, 0
