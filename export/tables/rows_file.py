"""Writing the rows: table by table, a few rows at a time, with a digest for each block.

Shape letters: R rows.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from torch import Tensor

from export.tables.mapped import release
from export.tables.tables import StoredModel
from recsys.base.files import reserve, write_all_at
from recsys.errors import ExportError
from recsys.rows.layout import BlobLayout
from recsys.rows.quantize import QuantizationError, Writer, store_table


class RowsWriter:
    """A writer of a rows file.

    Rows of one block must come in order, as from ``store_table``, because digests are updated while writing:
    nothing is read back, and only the current rows are in memory.
    """

    def __init__(self, path: Path, layout: BlobLayout) -> None:
        self._layout = layout
        self._file = path.open("wb", buffering=0)
        reserve(self._file.fileno(), layout.num_bytes)
        self._digests = [hashlib.sha256() for _ in layout.blocks]
        self._ends = [block.offset_bytes + block.num_bytes for block in layout.blocks]
        self._next = [block.offset_bytes for block in layout.blocks]

    def writer(self, table: str) -> Writer:
        """Return a function that writes rows of one table's blocks."""
        mine = [i for i, block in enumerate(self._layout.blocks) if block.table == table]

        def write(offset: int, rows: Tensor) -> None:
            # A complete block may end where the next one starts.
            at = next(i for i in mine if self._next[i] == offset < self._ends[i])
            data = rows.flatten().numpy().data
            self._digests[at].update(data)
            write_all_at(self._file.fileno(), data, offset)
            self._next[at] += len(data)

        return write

    def finish(self) -> tuple[str, ...]:
        """Close the file and return the digest of each block."""
        assert self._next == self._ends
        os.fsync(self._file.fileno())
        # The verification reads a few rows. Otherwise cached neighbouring pages would be mapped with them
        # and count as the export's memory.
        _drop_cached(self._file.fileno())
        self._file.close()
        return tuple(digest.hexdigest() for digest in self._digests)

    def close(self) -> None:
        """Close the file, finished or not."""
        self._file.close()


def drop_cached(path: Path) -> None:
    """Drop the pages of a file that is on disk from the system's cache, unless they are mapped.

    The verification reads single pages. As long as these are cached, a server that maps the file gets no huge pages.
    """
    with path.open("rb") as file:
        _drop_cached(file.fileno())


def _drop_cached(descriptor: int) -> None:
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)


@contextmanager
def _closing(rows: RowsWriter) -> Iterator[RowsWriter]:
    try:
        yield rows
    finally:
        rows.close()


def write_rows(
    path: Path, stored: StoredModel, weights: Mapping[str, Tensor], progress: Callable[[str, int, int], None]
) -> tuple[tuple[str, ...], dict[str, QuantizationError]]:
    """Quantize all tables into a file.

    Args:
        path: The file.
        stored: The tables as they are stored.
        weights: The float weight ``[R, D]`` of each table, by table path.
        progress: Called with the step's name, the rows done and the rows to do.

    Returns:
        The digest of each block, and the quantization error of each table.

    Raises:
        ExportError: A table cannot be stored; the message names the table and the row.
        OSError: The file cannot be written.
    """
    errors = {}
    total = sum(table.num_embeddings for table in stored.stored.values())
    done = 0

    def on_rows(count: int) -> None:
        nonlocal done
        done += count
        progress("quantize", done, total)

    with _closing(RowsWriter(path, stored.layout)) as rows:
        for name, table in stored.stored.items():
            try:
                errors[name] = store_table(weights[name], table, stored.layout, rows.writer(name), on_rows)
            except ValueError as error:
                raise ExportError(str(error)) from None
            release(weights[name])
        return rows.finish(), errors
