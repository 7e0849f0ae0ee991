"""Files of columns: Parquet, ORC, and Arrow's IPC format, which is Feather's."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import parquet

from recsys.data.lines import DataError, shown_error
from recsys.data.tables.reading.pieces import Piece, TableFile, spread, types_of
from recsys.data.tables.values.arrow_types import is_text

# How the formats begin.
_MAGIC = {b"PAR1": "Parquet", b"ORC": "ORC", b"ARROW1": "Arrow"}
# Parts that share a sample; more are read if these have too few rows.
_NUM_SAMPLED = 4


def format_of(head: bytes) -> str:
    """Return the format of a file by its first bytes; empty for others."""
    return next((name for magic, name in _MAGIC.items() if head.startswith(magic)), "")


class ArrowFile(TableFile):
    """One file; a piece is a row group (Parquet), a stripe (ORC) or a record batch (Arrow).

    Args:
        path: The file.
        format_name: One of those that ``format_of`` returns.
        name: The file's name in messages; None for that of the path.

    Raises:
        DataError: It is not such a file, or two of its columns have one name.
    """

    def __init__(self, path: Path, format_name: str = "Parquet", name: str | None = None) -> None:
        self.path = path
        self.name = path.name if name is None else name
        kinds: dict[str, Callable[[Path], _Open]] = {"Parquet": _Parquet, "ORC": _Orc, "Arrow": _Arrow}
        self._open = partial(kinds[format_name], path)
        self._part = {"Parquet": "row group", "ORC": "stripe", "Arrow": "record batch"}[format_name]
        try:
            opened = self._open()
            schema, self._num_rows = opened.schema, opened.num_rows()
        except (pa.ArrowException, OSError) as error:
            article = "a" if format_name == "Parquet" else "an"
            raise DataError(f"{self.name}: not {article} {format_name} file ({shown_error(error)})") from None
        self.types = types_of(schema, self.name)

    def pieces(self) -> Iterator[Piece]:
        """Yield a piece per part of the file that is not empty."""
        first = 0
        for number, num_rows in enumerate(self._num_rows):
            if num_rows:
                yield Piece(
                    num_rows=num_rows,
                    read=partial(self._read, number),
                    place=partial(self._place, first),
                    share=(number + 1) / len(self._num_rows),
                )
            first += num_rows

    def sample(self, num_rows: int) -> list[pa.Table]:
        """Return the first rows of several parts, those from the first to the last."""
        full = [number for number, rows in enumerate(self._num_rows) if rows]
        share = -(-num_rows // min(len(full), _NUM_SAMPLED)) if full else 0
        columns, left = list(self.types), num_rows
        parts: list[pa.Table] = []
        for place in spread(len(full)):
            if not left:
                break
            number = full[place]
            parts.append(self._read(number, columns, min(share, left, self._num_rows[number])))
            left -= parts[-1].num_rows
        return parts

    def _place(self, first: int, row: int) -> str:
        return f"{self.name}, row {first + row}"

    def _read(self, number: int, columns: Sequence[str], num_rows: int | None = None) -> pa.Table:
        try:
            table = self._open().read(number, list(columns), num_rows)
        except (pa.ArrowException, OSError) as error:
            raise DataError(
                f"{self.name}, {self._part} {number}: cannot be read ({shown_error(error)})"
            ) from None
        return table.select(list(columns))


class _Open:
    """An open file."""

    schema: pa.Schema

    def num_rows(self) -> list[int]:
        """Return the rows of each part."""
        raise NotImplementedError

    def read(self, number: int, columns: list[str], num_rows: int | None = None) -> pa.Table:
        """Return some columns of a part's first rows, or of all, in any order."""
        raise NotImplementedError


class _Parquet(_Open):
    # Arrow looks each text of a dictionary up in one of its own, which is slower than copying rows of different texts.
    _MOST_DICTIONARY_BYTES = 4

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = parquet.ParquetFile(path)
        self.schema = self._file.schema_arrow

    def num_rows(self) -> list[int]:
        metadata = self._file.metadata
        return [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)]

    def read(self, number: int, columns: list[str], num_rows: int | None = None) -> pa.Table:
        if num_rows is None:
            return self._all(number, columns)
        # The other rows are not decoded, and not held in memory behind a slice.
        batches, left = [], num_rows
        for batch in self._file.iter_batches(num_rows, row_groups=[number], columns=columns):
            batches.append(batch.slice(0, left))
            left -= len(batches[-1])
            if not left:
                break
        return pa.Table.from_batches(batches)

    def _all(self, number: int, columns: list[str]) -> pa.Table:
        encoded = self._encoded(number, columns)
        file = self._file
        if encoded:
            file = parquet.ParquetFile(self._path, metadata=file.metadata, read_dictionary=encoded)
        return file.read_row_group(number, columns=columns)

    def _encoded(self, number: int, columns: list[str]) -> list[str]:
        """Return the columns of texts whose dictionary in the file is small compared with the rows."""
        texts = {field.name for field in self.schema if is_text(field.type)}.intersection(columns)
        group = self._file.metadata.row_group(number)
        found = []
        for i in range(group.num_columns) if texts else ():
            chunk = group.column(i)
            if chunk.path_in_schema in texts and chunk.has_dictionary_page:
                num_bytes = chunk.data_page_offset - chunk.dictionary_page_offset
                if 0 < num_bytes <= self._MOST_DICTIONARY_BYTES * chunk.num_values:
                    found.append(chunk.path_in_schema)
        return found


class _Orc(_Open):
    def __init__(self, path: Path) -> None:
        from pyarrow import orc  # not part of all builds of pyarrow

        self._file: Any = orc.ORCFile(path)
        self.schema = self._file.schema

    def num_rows(self) -> list[int]:
        first = self.schema.names[:1]
        return [self._file.read_stripe(i, first).num_rows for i in range(self._file.nstripes)]

    def read(self, number: int, columns: list[str], num_rows: int | None = None) -> pa.Table:
        return pa.Table.from_batches([self._file.read_stripe(number, columns)]).slice(0, num_rows)


class _Arrow(_Open):
    def __init__(self, path: Path) -> None:
        self._file = pa.ipc.open_file(pa.memory_map(str(path)))
        self.schema = self._file.schema

    def num_rows(self) -> list[int]:
        return [self._file.get_batch(i).num_rows for i in range(self._file.num_record_batches)]

    def read(self, number: int, columns: list[str], num_rows: int | None = None) -> pa.Table:
        return pa.Table.from_batches([self._file.get_batch(number)]).select(columns).slice(0, num_rows)
