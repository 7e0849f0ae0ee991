"""The Criteo display advertising data: a label, 13 whole numbers, 26 categories a line.

Reads the two common forms: the TSV as published (no header,
https://www.kaggle.com/c/criteo-display-ad-challenge) and CSV with the header ``label,I1..I13,C1..C26``.
Fields may be empty. Files are read block by block, never whole.

Shape letters: N number of examples.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from recsys.train.data.examples import Bags, Dataset, Examples, Ints, TableSpec, held_out_rows
from recsys.train.data.lines import DataError, malformed, numbered_lines

DENSE_NAMES = tuple(f"I{i}" for i in range(1, 14))
SPARSE_NAMES = tuple(f"C{i}" for i in range(1, 27))
_HEADER = ",".join(("label", *DENSE_NAMES, *SPARSE_NAMES))
_NUM_FIELDS = 1 + len(DENSE_NAMES) + len(SPARSE_NAMES)
_BLOCK_ROWS = 65_536
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
        DataError: The file is missing or has fewer than two lines of data. Malformed lines raise it when they
            are read.
        ValueError: ``hash_rows`` is below 1.
    """
    if hash_rows < 1:
        raise ValueError(f"hash_rows: got {hash_rows}, expected at least 1")
    num_rows = sum(1 for _ in islice(_data_lines(path), limit_rows))
    if num_rows < 2:
        raise DataError(f"{path.name}: got {num_rows} lines of data, expected at least 2")
    num_train = num_rows - held_out_rows(num_rows)
    return Dataset(
        name="criteo",
        dense_names=DENSE_NAMES,
        tables=tuple(
            TableSpec(name=name, num_embeddings=hash_rows, feature_names=(name,)) for name in SPARSE_NAMES
        ),
        num_train_rows=num_train,
        num_held_out_rows=num_rows - num_train,
        train=partial(_blocks, path, hash_rows, 0, num_train),
        held_out=partial(_blocks, path, hash_rows, num_train, num_rows),
        reference=lambda: None,
    )


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
        labels=np.array(labels, dtype=np.float32),
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
