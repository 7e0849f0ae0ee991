"""What the columns of a table were taken for, in two lines."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from pathlib import Path

from recsys.data.lines import counted, short_name
from recsys.data.tables.infer.table import Inferred

_NUM_NAMES = 8
# Reasons are given where few columns are left out.
_NUM_REASONS = 2


def column_lines(inferred: Inferred, data: object) -> tuple[str, ...]:
    """Return what the columns were taken for, and what was left out.

    Args:
        inferred: What was inferred.
        data: The table; a path is shown in the command that shows why.
    """
    schema = inferred.schema
    uses = [f"label {text}" for text in inferred.label_texts]
    uses += [
        f"{use} {short_name(name)}"
        for use, name in (("time", schema.time), ("weight", schema.weight))
        if name
    ]
    uses += [f"{len(schema.dense)} dense: {_some(schema.dense_names)}"] if schema.dense else []
    tables = [table.name for table in schema.tables]
    uses.append(f"{counted(len(tables), 'table')}: {_some(tables)}")
    left_out = [column for column in inferred.columns if column.use == "ignored"]
    is_path = isinstance(data, str | Path)
    hints = [f"recsys-data inspect {shlex.quote(str(data))} shows why"] if is_path else []
    if not left_out:
        return "; ".join(uses), *hints
    if len(left_out) <= _NUM_REASONS:
        names = ", ".join(f"{short_name(column.name)} ({column.reason})" for column in left_out)
    else:
        names = f"{len(left_out)} columns: {_some(column.name for column in left_out)}"
    return "; ".join(uses), "; ".join([f"left out: {names}", *hints])


def _some(names: Iterable[str]) -> str:
    """Return names, the first of many only."""
    short = [short_name(name) for name in names]
    more = len(short) - _NUM_NAMES
    # A number of one takes as much space as the name.
    return ", ".join(short) if more <= 1 else f"{', '.join(short[:_NUM_NAMES])} and {more} more"
