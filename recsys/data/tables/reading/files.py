"""Finding and opening the files of a table."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa

from recsys.data.lines import DataError, shown_names
from recsys.data.progress import shown
from recsys.data.tables.reading.arrow_files import ArrowFile, format_of
from recsys.data.tables.reading.byte_stream import first_bytes
from recsys.data.tables.reading.json_file import JsonFile
from recsys.data.tables.reading.pieces import Frame, Piece, TableFile
from recsys.data.tables.text_file import TextFile

_ARROW = {
    ".parquet": "Parquet",
    ".pq": "Parquet",
    ".orc": "ORC",
    ".feather": "Arrow",
    ".arrow": "Arrow",
    ".ipc": "Arrow",
}
_TEXTS = {".csv": "", ".tsv": "\t", ".tab": "\t", ".inter": "\t"}
_JSON = (".json", ".jsonl", ".ndjson")
_COMPRESSED = (".gz", ".bz2", ".zst", ".lz4")
# Names that begin with these are not data: Spark's _SUCCESS, Hadoop's .crc files, unfinished parts.
_HIDDEN = (".", "_")
# What Hive writes for a missing value.
_HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"
# Parts of one table share more than this of the columns of the one that has fewer.
_MOST_OTHERS = 0.75


def open_files(data: Any) -> list[TableFile]:
    """Open the files of a table.

    A folder's files are those of its subfolders too, in the order of their paths, without hidden and empty ones.
    Folders named ``key=value``, those above too, give a column ``key`` of texts.

    Several files have the same columns: those that one lacks are null in it.

    Args:
        data: A file, a folder, a pattern (``clicks/*.csv``), several of them, or a frame of pandas, polars or Arrow.

    Raises:
        DataError: The file does not exist, the folder has none, it is something else, or files are several tables.
    """
    files = _opened(data)
    _check_one_table(files)
    return _as_one_table(files)


def _opened(data: Any) -> list[TableFile]:
    if isinstance(data, list | tuple) and data and all(isinstance(part, str | Path) for part in data):
        return [file for part in data for file in _opened(part)]
    if not isinstance(data, str | Path):
        return [Frame(data)]
    path = Path(data)
    if path.is_dir():
        return _open_folder(path)
    if is_pattern(data):
        found = [Path(name) for name in sorted(glob.glob(str(data), recursive=True))]  # noqa: PTH207 - absolute patterns too
        if not found:
            raise DataError(f"{data}: got no files of such names")
        return [file for name in found for file in (_open_folder(name) if name.is_dir() else [_open(name)])]
    if not path.is_file():
        raise DataError(f"{path}: no such file or folder")
    return [_open(path)]


def _check_one_table(files: Sequence[TableFile]) -> None:
    """Check that files are parts of one table: a later part may have more columns or fewer, and a few others.

    Raises:
        DataError: They are several tables, such as clicks and users.
    """
    first = files[0]
    for file in files[1:]:
        shared = first.types.keys() & file.types.keys()
        smaller = min(len(first.types), len(file.types))
        if len(shared) <= _MOST_OTHERS * smaller:
            raise DataError(
                f"data: got several tables: {first.name} has the columns {shown_names(first.types)}, {file.name} has "
                f"{shown_names(file.types)}; expected one table, or parts of one: give a file, or a pattern such as "
                "'log_*.csv'"
            )


def is_pattern(path: str | Path) -> bool:
    """Return whether a path is a pattern of names, and none itself."""
    return any(letter in str(path) for letter in "*?[") and not Path(path).exists()


def listed(files: Sequence[TableFile]) -> Iterator[Piece]:
    """Yield the pieces of files in order, and show the progress."""
    num_rows = 0
    with shown("reading") as update:
        for number, file in enumerate(files):
            for piece in file.pieces():
                num_rows += piece.num_rows
                update((number + piece.share) / len(files), f"{num_rows:,} rows")
                yield piece


def _open_folder(folder: Path) -> list[TableFile]:
    visible = sorted(_visible(folder, set()))
    found = [path for path in visible if _suffix(path) in (*_ARROW, *_TEXTS, *_JSON)]
    full = [path for path in found if path.stat().st_size]
    if not full:
        what = f"{len(found)} empty files" if found else "no files"
        raise DataError(
            f"{folder}: got {what} that end in .parquet, .csv, .tsv, .jsonl, .orc, .feather or .csv.gz, expected some"
        )
    return [_open(path, folder) for path in full]


def _visible(folder: Path, above: set[str]) -> Iterator[Path]:
    """Yield the files of a folder and its subfolders; a link to a folder above is passed over."""
    real = os.path.realpath(folder)
    if real in above:
        return
    try:
        entries = list(folder.iterdir())
    except OSError as error:
        raise DataError(f"{folder}: cannot be read ({error.strerror})") from None
    for entry in entries:
        if not entry.name.startswith(_HIDDEN):
            if entry.is_dir():
                yield from _visible(entry, {*above, real})
            elif entry.is_file():
                yield entry


def _open(path: Path, folder: Path | None = None) -> TableFile:
    name = path.name if folder is None else path.relative_to(folder).as_posix()
    head = first_bytes(path, 64)
    suffix = _suffix(path)
    file: TableFile
    arrow_format = format_of(head) or _ARROW.get(suffix)
    if arrow_format:
        file = ArrowFile(path, arrow_format, name)
    elif suffix in _JSON or head.lstrip(b"\xef\xbb\xbf \r\n\t").startswith(b"{"):
        file = JsonFile(path, name)
    else:
        file = TextFile(path, _TEXTS.get(suffix, ""), name)
    keys = _keys(path.parts[:-1])
    return _WithConstants(file, keys) if keys else file


def _suffix(path: Path) -> str:
    return (path.with_suffix("") if path.suffix in _COMPRESSED else path).suffix


def _keys(folders: Sequence[str]) -> dict[str, pa.Scalar]:
    """Return the values of Hive's folders, ``key=value``, as texts."""
    pairs = [folder.split("=", 1) for folder in folders if "=" in folder]
    texts = {unquote(key): None if value == _HIVE_NULL else unquote(value) for key, value in pairs if key}
    return {key: pa.scalar(text, pa.string()) for key, text in texts.items()}


class _WithConstants(TableFile):
    """A file and some columns more.

    Args:
        file: The file.
        values: The columns' values by name; columns of the file itself go before them.
    """

    def __init__(self, file: TableFile, values: Mapping[str, pa.Scalar]) -> None:
        self.file = file
        self.path, self.name, self.kinds = file.path, file.name, file.kinds
        self._values = {name: value for name, value in values.items() if name not in file.types}
        self.types = {**file.types, **{name: value.type for name, value in self._values.items()}}

    def pieces(self) -> Iterator[Piece]:
        """Yield the pieces in order."""
        for piece in self.file.pieces():
            yield replace(piece, read=partial(self._read, piece))

    def sample(self, num_rows: int) -> list[pa.Table]:
        """Return some rows."""
        columns = list(self.types)
        return [self._with_values(part, part.num_rows, columns) for part in self.file.sample(num_rows)]

    def _read(self, piece: Piece, columns: Sequence[str]) -> pa.Table:
        own = [name for name in columns if name not in self._values]
        return self._with_values(piece.read(own) if own else None, piece.num_rows, columns)

    def _with_values(self, table: pa.Table | None, num_rows: int, columns: Sequence[str]) -> pa.Table:
        arrays = [
            pa.repeat(self._values[name], num_rows)
            if table is None or name in self._values
            else table.column(name)
            for name in columns
        ]
        return pa.table(arrays, names=list(columns))


def _as_one_table(files: Sequence[TableFile]) -> list[TableFile]:
    """Return files that are parts of one table, all with the same columns: those that one lacks are null in it."""
    names = dict.fromkeys(name for file in files for name in file.types)
    missing = pa.scalar(None)
    return [
        file if len(file.types) == len(names) else _WithConstants(file, dict.fromkeys(names, missing))
        for file in files
    ]
