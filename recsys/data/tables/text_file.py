"""CSV and TSV files as pieces: blocks of whole rows that are found once and parsed when they are read.

Columns are texts; their use decides how they are converted. Arrow counts and parses the rows. Compressed files are
read from front to back, once for each epoch.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv as arrow_csv

from recsys.base.machine import num_processors
from recsys.data.lines import DataError, shown_error
from recsys.data.tables.reading.byte_stream import ByteStream, first_not_utf8
from recsys.data.tables.reading.csv_rows import WRONG_QUOTES, CsvRows
from recsys.data.tables.reading.headers import Header, read_header, separator_of
from recsys.data.tables.reading.pieces import Piece, TableFile, first_rows

_BLOCK_BYTES = 16 << 20
#: Longer rows are errors: most are a quoted field without an end.
_MAX_ROW_BYTES = 16 << 20
_MAX_HEADER_BYTES = 16 << 20
# Dumps of Postgres, MySQL and Hive write the second.
_NULLS = ["", "\\N"]
# The first line that tells Excel the separator.
_SEPARATOR_LINE = re.compile(rb'(?:\xef\xbb\xbf)?"?sep=([,;|\t])"?\r?\n')
_SEQUENCES = {"token_seq": pa.string(), "float_seq": pa.float64()}


class TextFile(TableFile):
    """One file with a header line, or one of a published data set that has none.

    All columns are texts, or lists where the header says so (RecBole's types).

    Args:
        path: The file, compressed or not.
        separator: That of its name; empty to find it.
        name: The file's name in messages; None for that of the path.
        header: The columns; None to find them.

    Raises:
        DataError: The file is missing, empty, not UTF-8, or has no header.
    """

    def __init__(
        self, path: Path, separator: str = "", name: str | None = None, header: Header | None = None
    ) -> None:
        if not path.is_file():
            raise DataError(f"{path}: no such file")
        self.path = path
        self.name = path.name if name is None else name
        self._stream = ByteStream(path)
        self._header = self._read_header(separator) if header is None else header
        self._num_header_lines = CsvRows(self._stream.at(0, self._header.num_bytes), "\0").num_lines
        self.kinds = self._header.kinds
        self.types = {
            column: pa.list_(_SEQUENCES[self.kinds[column]])
            if self.kinds.get(column) in _SEQUENCES
            else pa.string()
            for column in self._header.names
            if column
        }

    def _read_header(self, separator: str) -> Header:
        num_bytes = 1 << 16
        line = _SEPARATOR_LINE.match(self._stream.at(0, 16))
        start = line.end() if line else 0
        separator = line[1].decode() if line else separator
        while True:
            head = self._stream.at(start, num_bytes)
            first = CsvRows(head, "\0").first().data.decode(errors="replace")
            row = CsvRows(head, separator or separator_of(first)).first().data
            if len(row) < len(head) or len(head) < num_bytes:
                break
            if num_bytes >= _MAX_HEADER_BYTES:
                raise DataError(
                    f"{self.name}, line 1: got more than {num_bytes >> 20} MiB without a line end, expected the "
                    "columns' names"
                )
            num_bytes = min(num_bytes * 4, _MAX_HEADER_BYTES)
        header = read_header(row, separator, self.name)
        return replace(header, num_bytes=start + header.num_bytes)

    def pieces(self) -> Iterator[Piece]:
        """Yield the pieces in order; every row is parsed once, to count them and find malformed ones.

        Raises:
            DataError: A row has another number of fields, is not UTF-8, or too long, or a quoted field has no end.
        """
        for block, table in in_order(self._blocks(), partial(self._checked, columns=None)):
            num_bytes = len(block.rows.data)
            if table.num_rows:
                yield Piece(
                    num_rows=table.num_rows,
                    read=partial(self._read, block.offset, num_bytes, block.line, table.num_rows),
                    place=partial(self._place, block.offset, num_bytes, block.line),
                    share=self._stream.share(block.offset + num_bytes),
                )

    def sample(self, num_rows: int) -> list[pa.Table]:
        """Return the first rows; each block is read and parsed once.

        Raises:
            DataError: As ``pieces``.
        """
        parse = partial(self._checked, columns=list(self.types))
        blocks, left = self._blocks(), num_rows
        parts: list[pa.Table] = []
        while left > 0 and (more := [table for _, table in in_order(_with_lines(blocks, left), parse)]):
            parts += more
            left -= sum(table.num_rows for table in more)
        return first_rows(parts, num_rows)

    def _checked(self, block: _Block, columns: Sequence[str] | None) -> pa.Table:
        """Return some columns; None for any, if only the rows matter."""
        self._check(block.rows, block.line)
        if columns is None:
            return self._parse(block.rows.data, None, block.line)
        return self._table(block.rows.data, columns, block.line)

    def _rows(self, data: bytes) -> CsvRows:
        return CsvRows(data, self._header.separator)

    def _at(self, line: int) -> str:
        return f"{self.name}, line {line}"

    def _place(self, offset: int, num_bytes: int, line: int, row: int) -> str:
        """Return the place of a row of a piece."""
        return self._at(line + self._rows(self._stream.at(offset, num_bytes)).line_of(row))

    def _blocks(self) -> Iterator[_Block]:
        """Yield whole rows."""
        rest, start, line = b"", self._header.num_bytes, 1 + self._num_header_lines
        while chunk := self._stream.at(start + len(rest), _BLOCK_BYTES):
            rows = self._rows(rest + chunk)
            end = rows.end()
            if end:
                block = _Block(offset=start, line=line, rows=rows.upto(end))
                line += block.rows.num_lines
                start += end
                yield block
            rest = rows.data[end:]
            if len(rest) > max(_MAX_ROW_BYTES, _BLOCK_BYTES):
                self._check(self._rows(rest), line)
                raise DataError(
                    f"{self._at(line)}: got a row of more than {_MAX_ROW_BYTES >> 20} MiB, expected a line end"
                )
        if rest:
            yield _Block(offset=start, line=line, rows=self._rows(rest))

    def _check(self, rows: CsvRows, line: int) -> None:
        """Check that the rows are texts, and that their quotes are those of fields."""
        wrong = first_not_utf8(rows.data)
        if wrong is not None:
            raise DataError(f"{self._at(line + rows.line_at(wrong[0]))}: not UTF-8 text ({wrong[1]})")
        if rows.are_plain:
            return
        quote = rows.wrong_quote()
        if quote is not None:
            raise DataError(f"{self._at(line + rows.line_at(quote[1]))}: {WRONG_QUOTES[quote[0]]}")

    def _read(
        self, offset: int, num_bytes: int, line: int, num_rows: int, columns: Sequence[str]
    ) -> pa.Table:
        table = self._table(self._stream.at(offset, num_bytes), columns, line)
        if table.num_rows != num_rows:
            raise DataError(
                f"{self._at(line)} or after: got {table.num_rows} rows where there were {num_rows}; the file has "
                "changed"
            )
        return table

    def _table(self, block: bytes, columns: Sequence[str], line: int) -> pa.Table:
        """Return some columns of a block, lists where the header says so."""
        table = self._parse(block, columns, line)
        for number, name in enumerate(columns):
            kind = _SEQUENCES.get(self.kinds.get(name, ""))
            if kind is not None:
                table = table.set_column(number, name, self._lists(table.column(name), kind, name, line))
        return table

    def _lists(self, texts: pa.ChunkedArray, kind: pa.DataType, name: str, line: int) -> pa.ChunkedArray:
        """Return the parts of texts between blanks."""
        try:
            return pc.split_pattern(texts, " ").cast(pa.list_(kind))
        except pa.ArrowInvalid as error:
            raise DataError(f"{self._at(line)} or after: column {name!r}: {shown_error(error)}") from None

    def _parse(self, block: bytes, columns: Sequence[str] | None, line: int) -> pa.Table:
        """Return some columns; None for any, if only the rows matter."""
        try:
            return self._parsed(block, columns)
        except pa.ArrowInvalid as error:
            rows = self._rows(block)
            num_fields, expected = rows.num_fields(), len(self._header.names)
            for row in (num_fields != expected).nonzero()[0][:1].tolist():
                raise DataError(
                    f"{self._at(line + rows.line_of(row))}: got {num_fields[row]} fields, expected {expected} "
                    f"separated by {self._header.separator!r}"
                ) from None
            raise DataError(f"{self._at(line)} or after: {shown_error(error)}") from None

    def _parsed(self, block: bytes, columns: Sequence[str] | None) -> pa.Table:
        names = [name or f"\0{i}" for i, name in enumerate(self._header.names)]
        read = names[:1] if columns is None else list(columns)
        return arrow_csv.read_csv(
            pa.BufferReader(block),
            # Arrow's threads may still run when the process ends, which aborts it.
            read_options=arrow_csv.ReadOptions(
                column_names=names, block_size=max(len(block), 1), use_threads=False
            ),
            parse_options=arrow_csv.ParseOptions(
                delimiter=self._header.separator, newlines_in_values=b'"' in block
            ),
            convert_options=arrow_csv.ConvertOptions(
                column_types=dict.fromkeys(read, pa.string()),
                include_columns=read,
                strings_can_be_null=True,
                quoted_strings_can_be_null=True,
                null_values=_NULLS,
            ),
        )


@dataclass(frozen=True, kw_only=True)
class _Block:
    """Whole rows.

    Attributes:
        offset: Their first byte in the file.
        line: The number of their first line.
        rows: Their text.
    """

    offset: int
    line: int
    rows: CsvRows


def _with_lines(blocks: Iterator[_Block], num_lines: int) -> Iterator[_Block]:
    """Yield blocks until they have ``num_lines`` lines; a row has at least one."""
    for block in blocks:
        yield block
        num_lines -= block.rows.num_lines
        if num_lines <= 0:
            break


T = TypeVar("T")
R = TypeVar("R")


def in_order(items: Iterable[T], work: Callable[[T], R]) -> Iterator[tuple[T, R]]:
    """Yield each item with what ``work`` makes of it; threads work on as many items as there are processors.

    An error of an item, or of the iteration, is raised after the results of the items before it.
    """
    waiting: deque[tuple[T, Future[R]]] = deque()
    num_threads = num_processors()
    error: Exception | None = None
    left = iter(items)
    with ThreadPoolExecutor(num_threads) as threads:
        while error is None:
            try:
                item = next(left)
            except StopIteration:
                break
            except Exception as found:  # raised below
                error = found
                break
            waiting.append((item, threads.submit(work, item)))
            if len(waiting) > num_threads:
                item, result = waiting.popleft()
                yield item, result.result()
        while waiting:
            item, result = waiting.popleft()
            yield item, result.result()
    if error is not None:
        raise error
