"""The Criteo display advertising data: a label, 13 whole numbers, 26 categories a line.

Reads the two common forms: the TSV as published (no header,
https://www.kaggle.com/c/criteo-display-ad-challenge) and CSV with the header ``label,I1..I13,C1..C26``.
Fields may be empty. Files are read block by block, never whole.

Shape letters: N number of examples.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from recsys.data.examples import Bags, Dataset, Examples, Ints, held_out_rows
from recsys.data.fingerprint import fingerprint
from recsys.data.lines import DataError, malformed, numbered_lines
from recsys.schema import DenseColumn, LabelColumn, Schema, TableSpec

DENSE_NAMES = tuple(f"I{i}" for i in range(1, 14))
SPARSE_NAMES = tuple(f"C{i}" for i in range(1, 27))
_HEADER = ",".join(("label", *DENSE_NAMES, *SPARSE_NAMES))
_NUM_FIELDS = 1 + len(DENSE_NAMES) + len(SPARSE_NAMES)
_BLOCK_ROWS = 65_536
# Lines that are parsed before training begins.
_NUM_CHECKED_LINES = 100
_PACKED = {
    b"\x1f\x8b": "it is a gzip file; expected text: unpack it first, or read it as a table (--data FILE)",
    b"PK\x03\x04": "it is a zip file; expected text: unpack it first",
    b"PAR1": "it is a Parquet file; use --data parquet",
}
_SEPARATORS = {"::": "'::'", "\t": "tabs", ",": "commas", ";": "semicolons", "|": "bars", " ": "blanks"}
_FORM = (
    "expected Criteo's 40 fields (label, I1-I13, C1-C26), separated by tabs without a header, or by commas with the "
    "header label,I1,...,C26; --data parquet takes files of other columns"
)
_MISSING = "00000000"


def criteo(path: Path, hash_rows: int = 100_000, limit_rows: int | None = None) -> Dataset:
    """Return the data set of one file.

    A whole number ``x`` becomes ``log(1 + max(x, 0))``, 0 where the field is empty. A category, 8 hexadecimal
    digits, becomes the ID ``int(category, 16) % hash_rows`` of its own table, an empty bag where the field is
    empty. The last 10 % of the lines, which are in the order of time, are held out.

    Args:
        path: The file.
        hash_rows: Rows of each of the 26 tables.
        limit_rows: Read the first so many lines.

    Raises:
        DataError: The file is missing or not Criteo's, one of its first lines is malformed, or it has fewer than
            two lines of data. Other malformed lines raise it when they are read.
        ValueError: ``hash_rows`` is below 1.
    """
    if hash_rows < 1:
        raise ValueError(f"hash_rows: got {hash_rows}, expected at least 1")
    _check_first_lines(path)
    num_rows = sum(1 for _ in islice(_data_lines(path), limit_rows))
    if num_rows < 2:
        raise DataError(f"{path.name}: got {num_rows} lines of data, expected at least 2")
    num_train = num_rows - held_out_rows(num_rows)
    return Dataset(
        name="criteo",
        schema=Schema(
            labels=(LabelColumn(name="label"),),
            dense=tuple(DenseColumn(name=name) for name in DENSE_NAMES),
            tables=tuple(
                TableSpec(name=name, num_embeddings=hash_rows, feature_names=(name,), ids="hash")
                for name in SPARSE_NAMES
            ),
        ),
        num_train_rows=num_train,
        num_held_out_rows=num_rows - num_train,
        train=partial(_blocks, path, hash_rows, 0, num_train),
        held_out=partial(_blocks, path, hash_rows, num_train, num_rows),
        labels=partial(_label_blocks, path, num_train),
        fingerprint=partial(fingerprint, [path], [hash_rows, limit_rows]),
    )


def _check_first_lines(path: Path) -> None:
    """Parse the first lines, so that a file of another kind is refused before training begins.

    Raises:
        DataError: The file is a folder or not Criteo's, or one of these lines is malformed.
    """
    if path.is_dir():
        names = ", ".join(sorted(file.name for file in path.iterdir() if file.is_file())[:5])
        raise DataError(f"{path.name}: got a folder, expected a file: it holds {names or 'none'}")
    lines = list(islice(_packed_or_lines(path), _NUM_CHECKED_LINES))
    if not lines:
        return
    separator = _separator(path)
    data = lines[1:] if lines[0][1] == _HEADER else lines
    counts = [len(line.split(separator)) for _, line in data]
    if _NUM_FIELDS in counts and not _is_header(lines[0][1].split("\t")):
        _parse(path, separator, data, hash_rows=1)
    elif data:
        raise _not_criteo(path, _kind(lines[0][1]))


def _packed_or_lines(path: Path) -> Iterator[tuple[int, str]]:
    if path.is_file():
        with path.open("rb") as file:
            head = file.read(4)
        for magic, kind in _PACKED.items():
            if head.startswith(magic):
                raise _not_criteo(path, kind)
    return numbered_lines(path)


def _not_criteo(path: Path, kind: str) -> DataError:
    return DataError(f"{path.name} does not look like Criteo's data: {kind}")


def _kind(first: str) -> str:
    """Return what a file looks like by its first line, and what to use instead."""
    if first.startswith("\ufeff"):
        return "it begins with a byte order mark; expected plain UTF-8: remove its first 3 bytes"
    if first.startswith(("{", "[")):
        return f"it has lines of JSON; {_FORM}"
    separator = next((s for s in _SEPARATORS if s in first), None)
    if separator is None:
        return f"it has one field; {_FORM}"
    fields, by = first.split(separator), _SEPARATORS[separator]
    header = (
        f"a header ({', '.join(fields[:5])}{', …' if len(fields) > 5 else ''})" if _is_header(fields) else ""
    )
    found = f"it has {len(fields)} fields separated by {by}"
    if separator in "\t," and len(fields) == _NUM_FIELDS - 1:
        return f"{found}, as Criteo's test.txt without labels; expected train.txt"
    if separator == "\t" and len(fields) == _NUM_FIELDS:
        return f"it has {header} and tabs; expected no header: remove the first line"
    if separator == "," and len(fields) == _NUM_FIELDS:
        return f"{found} and {header or 'no header'}; expected the header {_HEADER} as the first line"
    if separator in ("\t", "::") and len(fields) == 4 and all(field.isdecimal() for field in fields):
        return f"{found}, as MovieLens' ratings; use --data movielens with the folder that holds the file"
    return f"{found}{', and ' + header if header else ''}; {_FORM}"


def _is_header(fields: list[str]) -> bool:
    """Return whether the fields look like names of columns."""
    return len(fields) > 1 and all(re.fullmatch(r"[^\W\d][\w .:-]*", field) for field in fields)


def _data_lines(path: Path) -> Iterator[tuple[int, str]]:
    return ((n, line) for n, line in numbered_lines(path) if n > 1 or line != _HEADER)


def _separator(path: Path) -> str:
    return "," if next(numbered_lines(path), (1, ""))[1] == _HEADER else "\t"


@dataclass(frozen=True)
class _Lines:
    """A block of lines, each with its number."""

    path: Path
    separator: str
    lines: list[tuple[int, str]]
    hash_rows: int

    def __len__(self) -> int:
        return len(self.lines)

    def take(self, rows: Ints) -> Examples:
        return _parse(self.path, self.separator, [self.lines[row] for row in rows.tolist()], self.hash_rows)


def _blocks(path: Path, hash_rows: int, first: int, end: int) -> Iterator[_Lines]:
    separator = _separator(path)
    lines = islice(_data_lines(path), first, end)
    while block := list(islice(lines, _BLOCK_ROWS)):
        yield _Lines(path, separator, block, hash_rows)


def _label_blocks(path: Path, num_train: int) -> Iterator[NDArray[np.float32]]:
    """Yield the labels of the lines to learn from, ``[N, 1]``; the other fields are not checked."""
    separator = _separator(path)
    lines = islice(_data_lines(path), num_train)
    while block := list(islice(lines, _BLOCK_ROWS)):
        texts = [line.split(separator, 1)[0] for _, line in block]
        yield np.array([text == "1" for text in texts], dtype=np.float32).reshape(-1, 1)


def _parse(path: Path, separator: str, lines: list[tuple[int, str]], hash_rows: int) -> Examples:
    labels: list[bool] = []
    numbers: list[list[float]] = []
    known: list[list[bool]] = []
    codes: list[bytes] = []
    for number, line in lines:
        fields = line.split(separator)
        if len(fields) != _NUM_FIELDS:
            form = "commas" if separator == "," else "tabs (or the CSV header as the first line)"
            raise malformed(
                path, number, f"got {len(fields)} fields, expected {_NUM_FIELDS} separated by {form}"
            )
        if fields[0] not in ("0", "1"):
            raise malformed(path, number, f"label: got {fields[0][:40]!r}, expected 0 or 1")
        labels.append(fields[0] == "1")
        numbers.append(_numbers(path, number, fields[1:14]))
        known.append([field != "" for field in fields[14:]])
        codes.append(_codes(path, number, fields[14:]))
    hashes = np.frombuffer(b"".join(codes), dtype=">u4").reshape(-1, len(SPARSE_NAMES)).astype(np.int64)
    ids = np.where(np.array(known, dtype=bool).reshape(hashes.shape), hashes % hash_rows, -1)
    return Examples(
        dense=_log_transform(np.array(numbers, dtype=np.float64).reshape(-1, len(DENSE_NAMES))),
        bags={name: Bags.optional(ids[:, i]) for i, name in enumerate(SPARSE_NAMES)},
        labels=np.array(labels, dtype=np.float32).reshape(-1, 1),
    )


def _log_transform(numbers: NDArray[np.float64]) -> NDArray[np.float32]:
    return np.log1p(np.maximum(numbers, 0)).astype(np.float32)


def _numbers(path: Path, line: int, fields: list[str]) -> list[float]:
    try:
        numbers = [float(field) if field else 0.0 for field in fields]
    except ValueError:
        numbers = []
    # Floats such as "260.0" are accepted, because data frames write integer columns with gaps as floats.
    if not numbers or not all(number.is_integer() for number in numbers):
        wrong = next(i for i, field in enumerate(fields) if not _is_whole(field))
        raise malformed(
            path,
            line,
            f"{DENSE_NAMES[wrong]}: got {fields[wrong][:40]!r}, expected a whole number or nothing",
        )
    return numbers


def _is_whole(field: str) -> bool:
    try:
        return not field or float(field).is_integer()
    except ValueError:
        return False


def _codes(path: Path, line: int, fields: list[str]) -> bytes:
    """Return the categories' 32 bits, four bytes each, most significant first."""
    try:
        codes = [bytes.fromhex(field or _MISSING) for field in fields]
    except ValueError:
        codes = [b""]
    if not all(len(code) == 4 for code in codes) or any(len(field) not in (0, 8) for field in fields):
        wrong = next(i for i, field in enumerate(fields) if not _is_category(field))
        raise malformed(
            path,
            line,
            f"{SPARSE_NAMES[wrong]}: got {fields[wrong][:40]!r}, expected 8 hexadecimal digits or nothing",
        )
    return b"".join(codes)


def _is_category(field: str) -> bool:
    return not field or (len(field) == 8 and all(c in "0123456789abcdefABCDEF" for c in field))
