"""A sample of a table's rows, from all of its files."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import pyarrow as pa

from recsys.data.lines import DataError, shown_error
from recsys.data.progress import shown
from recsys.data.tables.reading.pieces import TableFile, spread
from recsys.data.tables.values.arrow_types import is_list, is_number, is_text, plain_table

# Files share the sample as if there were no more of them; more are read if these have too few rows.
_NUM_SHARES = 16


def sample_rows(files: Sequence[TableFile], num_rows: int) -> pa.Table:
    """Return up to ``num_rows`` rows of files that are spread over all of them, in their order.

    Text files give their first rows, files of columns rows of several parts. Columns that only some files have are null
    in the others.

    Raises:
        DataError: There are no rows, a file cannot be read, or a column has types that do not go together.
    """
    share = -(-num_rows // min(len(files), _NUM_SHARES))
    parts: dict[int, pa.Table] = {}
    left = num_rows
    with shown("sampling") as update:
        for number in spread(len(files)):
            found = files[number].sample(min(share, left))
            if found:
                parts[number] = _joined([plain_table(part) for part in found])
                left -= parts[number].num_rows
            update(1 - left / num_rows, f"{num_rows - left:,} rows")
            if not left:
                break
    if not parts:
        raise DataError("data: got no rows, expected at least 2")
    return _joined([parts[number] for number in sorted(parts)])


def _joined(tables: Sequence[pa.Table]) -> pa.Table:
    """Return the rows of tables; a column may have several types.

    Whole numbers beside texts are texts, and truth values beside numbers are numbers: each file is read so too.
    """
    try:
        return pa.concat_tables(tables, promote_options="permissive")
    except pa.ArrowException:
        pass
    try:
        for name in tables[0].column_names:
            kinds = {table.column(name).type for table in tables if name in table.column_names}
            common = common_type(kinds)
            if common is not None:
                tables = [_with_type(table, name, common) for table in tables]
        return pa.concat_tables(tables, promote_options="permissive")
    except pa.ArrowException as error:
        raise DataError(
            f"data: parts have columns of one name and other types ({shown_error(error)})"
        ) from None


def common_type(kinds: Collection[pa.DataType]) -> pa.DataType | None:
    """Return a type for a column that has several types in parts of a table; None if it has one, or there is none."""
    known = {kind for kind in kinds if not pa.types.is_null(kind)}
    if len(known) < 2:
        return None
    if all(is_list(kind) for kind in known) and len({kind.value_type for kind in known}) == 1:
        return pa.large_list(next(iter(known)).value_type)
    if all(is_number(kind) for kind in known):
        return (
            pa.int64()
            if all(pa.types.is_integer(kind) or pa.types.is_boolean(kind) for kind in known)
            else pa.float64()
        )
    if all(is_text(kind) or pa.types.is_integer(kind) for kind in known):
        return pa.large_string()
    return None


def _with_type(table: pa.Table, name: str, kind: pa.DataType) -> pa.Table:
    place = table.column_names.index(name)
    return table.set_column(place, name, table.column(place).cast(kind, safe=kind != pa.float64()))
