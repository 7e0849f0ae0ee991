"""Files with an object of JSON a line, as pieces: blocks of whole lines, parsed when they are read."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyarrow import json as arrow_json

from recsys.data.lines import DataError, shown_error
from recsys.data.tables.reading.byte_stream import ByteStream, first_not_utf8
from recsys.data.tables.reading.pieces import Piece, TableFile, types_of

_BLOCK_BYTES = 16 << 20
_MAX_LINE_BYTES = 16 << 20
_ROW = re.compile(r" in row (\d+)$")


class JsonFile(TableFile):
    """One file of JSON lines, compressed or not.

    The types are those that Arrow gives the keys of the first block's objects. Later keys are no columns, and a later
    block may have other numbers.

    Args:
        path: The file.
        name: The file's name in messages; None for that of the path.

    Raises:
        DataError: The first lines are not objects.
    """

    def __init__(self, path: Path, name: str | None = None) -> None:
        self.path = path
        self.name = path.name if name is None else name
        self._stream = ByteStream(path)
        first = next(self._blocks(), b"{}")
        if first.lstrip().startswith(b"["):
            raise DataError(
                f"{self.name}, line 1: got a list of JSON, expected an object a line (jq -c '.[]' makes them)"
            )
        self.types = types_of(self._parse(first, None, 1).schema, self.name)

    def pieces(self) -> Iterator[Piece]:
        """Yield the pieces in order; every line is parsed once, to count them and find malformed ones.

        Raises:
            DataError: A line is not an object, or too long.
        """
        offset, line = 0, 1
        for block in self._blocks():
            num_rows = self._parse(block, [], line).num_rows
            if num_rows:
                yield Piece(
                    num_rows=num_rows,
                    read=partial(self._read, offset, len(block), line),
                    place=partial(self._place, offset, len(block), line),
                    share=self._stream.share(offset + len(block)),
                )
            offset += len(block)
            line += block.count(b"\n")

    def _blocks(self) -> Iterator[bytes]:
        """Yield whole lines."""
        rest, offset = b"", 0
        while chunk := self._stream.at(offset, _BLOCK_BYTES):
            offset += len(chunk)
            data = rest + chunk
            end = data.rfind(b"\n") + 1
            if end:
                yield data[:end]
            rest = data[end:]
            if len(rest) > _MAX_LINE_BYTES:
                raise DataError(f"{self.name}: got a line of more than {_MAX_LINE_BYTES >> 20} MiB")
        if rest:
            yield rest

    def _place(self, offset: int, num_bytes: int, line: int, row: int) -> str:
        """Return the place of a row of a piece."""
        return f"{self.name}, line {line + _line_of(self._stream.at(offset, num_bytes), row)}"

    def _read(self, offset: int, num_bytes: int, line: int, columns: Sequence[str]) -> pa.Table:
        return self._parse(self._stream.at(offset, num_bytes), columns, line)

    def _parse(self, block: bytes, columns: Sequence[str] | None, line: int) -> pa.Table:
        """Return some columns; None for all that are found."""
        wrong = first_not_utf8(block)
        if wrong is not None:
            number = line + block.count(b"\n", 0, wrong[0])
            raise DataError(f"{self.name}, line {number}: not UTF-8 text ({wrong[1]})")
        try:
            if columns is None:
                return self._parsed(block, None)
            # A column of nulls keeps the rows where no other one does.
            fields = [pa.field("\0", pa.null()), *(pa.field(name, self.types[name]) for name in columns)]
            try:
                return self._parsed(block, pa.schema(fields)).select(list(columns) or ["\0"])
            except pa.ArrowInvalid:
                table = self._parsed(block, None)  # other numbers than those of the first block
                for name in columns:
                    if name not in table.column_names:
                        table = table.append_column(name, pa.nulls(table.num_rows, self.types[name]))
                return table.select(list(columns)) if columns else table
        except pa.ArrowInvalid as error:
            text = shown_error(error).removeprefix("JSON parse error: ")
            row = _ROW.search(text)
            place = f"line {line + _line_of(block, int(row[1]))}" if row else f"line {line} or after"
            raise DataError(f"{self.name}, {place}: not an object of JSON ({_ROW.sub('', text)})") from None

    def _parsed(self, block: bytes, schema: pa.Schema | None) -> pa.Table:
        return arrow_json.read_json(
            pa.BufferReader(block),
            read_options=arrow_json.ReadOptions(block_size=max(len(block), 1), use_threads=False),
            parse_options=arrow_json.ParseOptions(
                explicit_schema=schema, unexpected_field_behavior="infer" if schema is None else "ignore"
            ),
        )


def _line_of(block: bytes, row: int) -> int:
    """Return the number of lines before a row; blank lines do not count."""
    is_row = np.array([bool(line.strip()) for line in block.split(b"\n")])
    rows = np.flatnonzero(is_row)
    return int(rows[row]) if row < len(rows) else len(is_row) - 1
