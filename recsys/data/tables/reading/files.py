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

from recsys.data.lines import DataError
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
# Names that begin so are no data: Spark's _SUCCESS, Hadoop's .crc files, unfinished parts.
_HIDDEN = (".", "_")
# What Hive writes for a missing value.
_HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"


def open_files(data: Any) -> list[TableFile]:
    """Open the files of a table.

    A folder's files are those of its subfolders too, in the order of their paths, without hidden and empty ones.
    Folders named ``key=value``, those above too, give a column ``key`` of texts.

    Args:
        data: A file, a folder, a pattern (``clicks/*.csv``), several of them, or a frame of pandas, polars or Arrow.

    Raises:
        DataError: There is no such file, the folder has none, or it is something else.
    """
    if isinstance(data, list | tuple) and data and all(isinstance(part, str | Path) for part in data):
        return [file for part in data for file in open_files(part)]
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
        raise DataError(f"{path}: there is no such file or folder")
    return [_open(path)]


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
    return _Partition(file, keys) if keys else file


def _suffix(path: Path) -> str:
    return (path.with_suffix("") if path.suffix in _COMPRESSED else path).suffix


def _keys(folders: Sequence[str]) -> dict[str, str | None]:
    """Return the values of Hive's folders, ``key=value``."""
    pairs = [folder.split("=", 1) for folder in folders if "=" in folder]
    return {unquote(key): None if value == _HIVE_NULL else unquote(value) for key, value in pairs if key}


class _Partition:
    """A file in folders that give it columns of one value; columns of the file itself go before them."""

    def __init__(self, file: TableFile, keys: Mapping[str, str | None]) -> None:
        self._file = file
        self._keys = {key: value for key, value in keys.items() if key not in file.types}

    @property
    def path(self) -> Path | None:
        return self._file.path

    @property
    def name(self) -> str:
        return self._file.name

    @property
    def kinds(self) -> dict[str, str]:
        return self._file.kinds

    @property
    def types(self) -> dict[str, pa.DataType]:
        return {**self._file.types, **dict.fromkeys(self._keys, pa.string())}

    def pieces(self) -> Iterator[Piece]:
        for piece in self._file.pieces():
            yield replace(piece, read=partial(self._read, piece))

    def _read(self, piece: Piece, columns: Sequence[str]) -> pa.Table:
        own = [name for name in columns if name not in self._keys]
        table = piece.read(own) if own else None
        arrays = [
            pa.repeat(pa.scalar(self._keys[name], pa.string()), piece.num_rows)
            if table is None or name in self._keys
            else table.column(name)
            for name in columns
        ]
        return pa.table(arrays, names=list(columns))
