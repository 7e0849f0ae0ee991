"""Arrow columns as arrays, with every value checked.

Shape letters: N number of examples.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recsys.train.data.examples import Bags, Ints, TableSpec
from recsys.train.data.lines import DataError


def load_pyarrow() -> Any:
    """Return the package, with the submodules used here.

    Raises:
        DataError: It is not installed.
    """
    try:
        import pyarrow
        import pyarrow.compute
        import pyarrow.parquet
    except ImportError:
        raise DataError(
            "data parquet: pyarrow is not installed: pip install 'recsys-serving[parquet]'"
        ) from None
    return pyarrow


def is_whole(kind: Any) -> bool:
    """Return whether an Arrow type holds whole numbers that fit an int64."""
    types = load_pyarrow().types
    return bool(types.is_integer(kind) and not types.is_uint64(kind))


def is_number(kind: Any) -> bool:
    """Return whether an Arrow type converts to float: whole numbers, floats, bool."""
    types = load_pyarrow().types
    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind))


def is_list(kind: Any) -> bool:
    """Return whether it holds lists of any length."""
    types = load_pyarrow().types
    return bool(types.is_list(kind) or types.is_large_list(kind))


class Columns:
    """An Arrow table's columns as arrays; wrong values raise a DataError that names their row in the file, from 0.

    Args:
        table: The Arrow table.
        path: The path of its file.
        rows: The number in the file of each row of the table.
    """

    def __init__(self, table: Any, path: Path, rows: Ints) -> None:
        self._table = table
        self._path = path
        self._rows = rows

    def labels(self, name: str) -> NDArray[np.float32]:
        """Return a column of zeros and ones."""
        labels = self._numbers(name)
        self._expect((labels == 0) | (labels == 1), name, labels, "0 or 1")
        return labels.astype(np.float32)

    def dense(self, name: str) -> NDArray[np.float32]:
        """Return a column of finite numbers."""
        numbers = self._numbers(name)
        with np.errstate(over="ignore"):
            floats = numbers.astype(np.float32)
        self._expect(np.isfinite(floats), name, numbers, "a finite float32")
        return floats

    def bags(self, name: str, spec: TableSpec, *, hashed: bool) -> Bags:
        """Return a column of IDs or lists of IDs, for a table.

        Args:
            name: The column.
            spec: The table.
            hashed: Whether IDs are taken modulo the table's rows.
        """
        pc = load_pyarrow().compute
        column = self._table.column(name)
        if is_list(column.type):
            lengths = pc.fill_null(pc.list_value_length(column), 0).to_numpy().astype(np.int64)
            values = pc.list_flatten(column)
            owners = np.repeat(np.arange(len(lengths)), lengths)
            self._expect(values.is_valid().to_numpy(), name, "a null", "none within a list", owners)
        else:
            lengths = column.is_valid().to_numpy().astype(np.int64)
            values = column.drop_null()
            owners = np.flatnonzero(lengths)
        ids = values.to_numpy().astype(np.int64)
        if not hashed:
            num_rows = spec.num_embeddings
            expected = f"an ID of 0 to {num_rows - 1} (table {spec.name!r} has {num_rows} rows)"
            self._expect((ids >= 0) & (ids < num_rows), name, ids, expected, owners)
        return Bags(ids % spec.num_embeddings, np.concatenate(([0], np.cumsum(lengths))))

    def _numbers(self, name: str) -> NDArray[np.float64]:
        column = self._table.column(name)
        self._expect(column.is_valid().to_numpy(), name, "a null", "a number")
        numbers: NDArray[np.float64] = column.to_numpy().astype(np.float64)
        return numbers

    def _expect(
        self,
        good: NDArray[np.bool_],
        name: str,
        got: NDArray[Any] | str,
        expected: str,
        owners: Ints | None = None,
    ) -> None:
        """Raise for the first bad value; ``owners`` is the row of each value if that is not its position."""
        bad = np.flatnonzero(~good)
        if len(bad):
            row = int(bad[0] if owners is None else owners[bad[0]])
            found = got if isinstance(got, str) else str(got[bad[0]])
            raise DataError(
                f"{self._path.name}, row {self._rows[row]}: column {name!r}: got {found}, expected {expected}"
            )
