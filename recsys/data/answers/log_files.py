"""The files of an answer log: what they hold together, and their requests, some rows at a time.

Shape letters: R rows, Q requests.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyarrow import parquet

from recsys.base.hashing import hash_texts
from recsys.errors import AnswerLogError
from recsys.inputs.answer_columns import DENSE, HASHES, IDS, TEXTS, AnswerLayout, column_of, layout_of

_BATCH_ROWS = 1 << 15
_REQUEST_COLUMNS = ("time", "request_id", "row", "num_rows")


@dataclass(frozen=True, kw_only=True)
class LogFiles:
    """Files with the same inputs.

    Attributes:
        paths: The files, oldest first.
        layout: What they hold; ``has_ids`` and ``has_texts`` are those of any file.
        num_rows: Rows of all files.
        end_us: The latest time of any row, in microseconds since 1970.
    """

    paths: tuple[Path, ...]
    layout: AnswerLayout
    num_rows: int
    end_us: int


@dataclass(frozen=True)
class Requests:
    """Some whole requests.

    Attributes:
        table: Their rows.
        starts: int64 ``[Q]``: the first row of each.
    """

    table: pa.Table
    starts: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.starts)

    @cached_property
    def lengths(self) -> NDArray[np.int64]:
        """The rows of each, int64 ``[Q]``."""
        return np.diff(np.append(self.starts, self.table.num_rows))

    @cached_property
    def ids(self) -> pa.Array:
        """The request IDs, texts ``[Q]``."""
        return self.table.column("request_id").combine_chunks().take(pa.array(self.starts))

    @cached_property
    def hashes(self) -> NDArray[np.int64]:
        """The hashes of the request IDs, int64 ``[Q]``."""
        return hash_texts(self.ids.to_pylist())

    @cached_property
    def times_us(self) -> NDArray[np.int64]:
        """When they were answered, in microseconds since 1970, int64 ``[Q]``."""
        times: NDArray[np.int64] = self.table.column("time").cast(pa.int64()).to_numpy()
        return times[self.starts]

    @cached_property
    def of_row(self) -> NDArray[np.int64]:
        """The number of each row's request, int64 ``[R]``."""
        return np.repeat(np.arange(len(self)), self.lengths)

    def where(self, chosen: NDArray[np.bool_]) -> Requests:
        """Return some of the requests; ``chosen``: bool ``[Q]``."""
        if chosen.all():
            return self
        table = self.table.filter(pa.array(np.repeat(chosen, self.lengths)))
        lengths = self.lengths[chosen]
        return Requests(table, np.cumsum(lengths) - lengths)

    def input(self, name: str) -> pa.Array:
        """Return a column of an input, with what a request gives once in all of its rows."""
        column = self.table.column(name).combine_chunks()
        if not column.null_count:
            return column
        places = np.arange(self.table.num_rows)
        nulls = column.is_null().to_numpy(zero_copy_only=False)
        places[nulls] = np.repeat(self.starts, self.lengths)[nulls]
        return column.take(pa.array(places))


def open_log(folder: Path, model: str, version: str) -> LogFiles:
    """Look at the whole files of a log.

    Args:
        folder: The log's folder, or one file of it.
        model: The model whose requests are read; empty for the only one.
        version: The version; empty for all.

    Raises:
        AnswerLogError: There is no file, a file is damaged, or files hold several models or different inputs.
    """
    found = sorted(folder.glob("*.parquet")) if folder.is_dir() else [folder] if folder.is_file() else []
    if not found:
        raise AnswerLogError(
            f"--log: got {str(folder)!r} without whole files, expected a folder with *.parquet"
        )
    chosen: list[Path] = []
    layouts: list[AnswerLayout] = []
    models: set[str] = set()
    num_rows, end_us = 0, 0
    for path in found:
        file = _opened(path)
        layout = layout_of(file.metadata.metadata, path.name)
        if not file.metadata.num_rows:
            continue
        names = file.read_row_group(0, columns=["model", "version"]).slice(0, 1).to_pylist()[0]
        if (model and names["model"] != model) or (version and names["version"] != version):
            continue
        models.add(names["model"])
        chosen.append(path)
        layouts.append(layout)
        num_rows += file.metadata.num_rows
        end_us = max(end_us, _latest_us(file))
    if not chosen:
        raise AnswerLogError(f"--log: got no requests of model {model!r}, version {version or 'any'!r}")
    if len(models) > 1:
        raise AnswerLogError(
            f"--log: got requests of the models {', '.join(sorted(models))}, expected one: name it by --model"
        )
    return LogFiles(paths=tuple(chosen), layout=_together(layouts, chosen), num_rows=num_rows, end_us=end_us)


def requests_of(files: LogFiles, columns: Sequence[str]) -> Iterator[Requests]:
    """Yield all requests, some whole ones at a time.

    Args:
        files: The files.
        columns: Columns to read besides those of the requests.
    """
    wanted = [*_REQUEST_COLUMNS, *columns]
    for path in files.paths:
        file = _opened(path)
        known = set(file.schema_arrow.names)
        rest: pa.Table | None = None
        try:
            for batch in file.iter_batches(_BATCH_ROWS, columns=[name for name in wanted if name in known]):
                table = pa.Table.from_batches([batch])
                table = table if rest is None else pa.concat_tables([rest, table]).combine_chunks()
                starts = np.flatnonzero(table.column("row").to_numpy() == 0)
                if not len(starts) or starts[0] != 0:
                    raise AnswerLogError(f"{path.name}: got a row whose request does not begin with row 0")
                last = int(starts[-1])
                rest = table.slice(last)
                if last:
                    yield Requests(table.slice(0, last), starts[:-1])
        except (pa.ArrowInvalid, OSError) as error:
            raise AnswerLogError(f"{path.name}: damaged: {error}") from None
        if rest is not None:
            yield Requests(rest, np.zeros(1, np.int64))


def input_columns(layout: AnswerLayout) -> list[str]:
    """Return the columns of inputs, which a table is made of; weights are none of them."""
    columns = [column_of(DENSE, one.name) for one in layout.dense]
    for sparse in layout.sparse:
        if sparse.name in layout.hashed:
            columns.append(column_of(HASHES, sparse.name))
            continue
        columns.append(column_of(IDS, sparse.name))
        if sparse.strings:
            columns.append(column_of(TEXTS, sparse.name))
    return columns


def text_of(requests: Requests, name: str) -> pa.Array:
    """Return the only value of a sparse input in each row as text, ``[R]``; null where there are none or several.

    The input has texts, IDs or both, and no hashes.
    """
    found: Any = None
    for kind in (TEXTS, IDS):
        column = column_of(kind, name)
        if column not in requests.table.column_names:
            continue
        lists = requests.input(column)
        is_one = pc.equal(pc.list_value_length(lists), 1)
        value = pc.list_element(pc.if_else(is_one, lists, pa.scalar(_ONE[kind], lists.type)), 0)
        texts = pc.if_else(is_one, value.cast(pa.string()), pa.scalar(None, pa.string()))
        found = texts if found is None else pc.coalesce(found, texts)
    return found


_ONE: dict[str, list[Any]] = {IDS: [0], TEXTS: [""]}


def _opened(path: Path) -> parquet.ParquetFile:
    try:
        return parquet.ParquetFile(path)
    except (pa.ArrowInvalid, OSError) as error:
        raise AnswerLogError(f"{path.name}: not readable as Parquet: {error}") from None


def _latest_us(file: parquet.ParquetFile) -> int:
    place = file.schema_arrow.names.index("time")  # no column before it is nested
    groups = [
        file.metadata.row_group(i).column(place).statistics for i in range(file.metadata.num_row_groups)
    ]
    if all(one is not None and one.has_min_max for one in groups):
        return max((int(one.max_raw) for one in groups), default=0)
    times = file.read(columns=["time"]).column("time").cast(pa.int64())
    return int(pc.max(times).as_py())


def _together(layouts: Sequence[AnswerLayout], paths: Sequence[Path]) -> AnswerLayout:
    first = layouts[0]
    for layout, path in zip(layouts, paths, strict=True):
        same = (layout.dense, layout.hashed & {s.name for s in layout.sparse})
        if same != (first.dense, first.hashed & {s.name for s in first.sparse}) or _sent(layout) != _sent(
            first
        ):
            raise AnswerLogError(
                f"--log: got other inputs in {path.name} than in {paths[0].name}: expected those of one version; name "
                "it by --version"
            )
    return AnswerLayout(
        signature=layouts[-1].signature,
        left_out=first.left_out,
        hashed=first.hashed,
        has_ids=frozenset().union(*(layout.has_ids for layout in layouts)),
        has_texts=frozenset().union(*(layout.has_texts for layout in layouts)),
    )


def _sent(layout: AnswerLayout) -> list[tuple[str, str]]:
    return [(one.name, one.strings) for one in layout.sparse]
