"""Reading text files line by line, with errors that name file and line."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

_NUM_SHOWN = 12
_NAME_LENGTH = 40
_ERROR_LENGTH = 120
_MAX_LINE_BYTES = 16 << 20


class DataError(ValueError):
    """A data file is missing or malformed; the message names the file, and the line if there is one."""


def short_name(name: str) -> str:
    """Return a name for a message, shortened if it is long."""
    return name if len(name) <= _NAME_LENGTH else f"{name[: _NAME_LENGTH - 1]}…"


def counted(number: int, noun: str) -> str:
    """Return a number of things in words: ``1 table``, ``2 tables``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def shown_names(names: Iterable[str]) -> str:
    """Return some names for a message: the first ones, each shortened."""
    first = list(islice(names, _NUM_SHOWN + 1))
    shown = ", ".join(repr(short_name(name)) for name in first[:_NUM_SHOWN])
    return shown + (", …" if len(first) > _NUM_SHOWN else "")


def shown_error(error: Exception) -> str:
    """Return a library's error for a message: its beginning, in one line."""
    return " ".join(str(error).split())[:_ERROR_LENGTH]


def malformed(path: Path, line: int, what: str) -> DataError:
    """Return the error for a malformed line."""
    return DataError(f"{path.name}, line {line}: {what}")


def numbered_lines(path: Path, encoding: str = "utf-8") -> Iterator[tuple[int, str]]:
    """Yield each line with its number, from 1, without empty lines. The file is read lazily.

    Raises:
        DataError: The file does not exist, or a line is not in the encoding.
    """
    if not path.is_file():
        raise DataError(f"{path}: no such file")
    number = 0
    with path.open("rb") as file:
        for number, raw in enumerate(iter(lambda: file.readline(_MAX_LINE_BYTES), b""), start=1):
            if len(raw) == _MAX_LINE_BYTES:
                raise malformed(
                    path, number, f"got more than {_MAX_LINE_BYTES >> 20} MiB, expected a line end (LF)"
                )
            try:
                line = raw.decode(encoding).rstrip("\r\n")
            except UnicodeDecodeError as error:
                raise malformed(path, number, f"not {encoding} text ({error.reason})") from None
            if line:
                yield number, line


def split_lines(
    path: Path, separator: str, num_fields: int, *, encoding: str = "utf-8", header: bool = False
) -> Iterator[tuple[int, list[str]]]:
    """Yield each line's number and its fields.

    Args:
        path: The file.
        separator: Between fields.
        num_fields: How many fields each line must have.
        encoding: The encoding of the file.
        header: Whether the first line is a header, which is skipped.

    Raises:
        DataError: As ``numbered_lines``, or a line has another number of fields.
    """
    for number, line in numbered_lines(path, encoding):
        if header and number == 1:
            continue
        fields = line.split(separator)
        if len(fields) != num_fields:
            raise malformed(
                path, number, f"got {len(fields)} fields, expected {num_fields} separated by {separator!r}"
            )
        yield number, fields


def whole_number(text: str, path: Path, line: int, name: str) -> int:
    """Return a whole number of at least 0 and below 2^63, also written as a float (``881250949.0``).

    Raises:
        DataError: The text is not such a number.
    """
    try:
        value = float(text) if "." in text else int(text)
        number = int(value)
    except (ValueError, OverflowError):
        number = value = -1
    if number != value or not 0 <= number < 2**63:
        raise malformed(path, line, f"{name}: got {text[:40]!r}, expected a whole number of at least 0")
    return number
