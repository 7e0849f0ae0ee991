"""Which columns are labels, and which of their values are positive."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from recsys.data.lines import DataError
from recsys.data.tables.infer.column import Column
from recsys.schema import LabelColumn

_LABELS = (
    *(
        "label",
        "click",
        "clicked",
        "is_click",
        "is_clicked",
        "target",
        "conversion",
        "converted",
        "is_conversion",
    ),
    *("purchase", "purchased", "liked", "like", "y", "rating"),
)
_LIKED = 4.0  # a rating of at least this is a click, on a scale up to 5


def choose_labels(columns: Sequence[Column], names: Sequence[str]) -> list[LabelColumn]:
    """Return the labels.

    Args:
        columns: All columns.
        names: The labels' columns; found by their names if empty.

    Raises:
        DataError: There is no such column or none is found, or it has no numbers.
    """
    by_name = {column.name: column for column in columns}
    unknown = [name for name in names if name not in by_name]
    if unknown:
        raise DataError(f"label: got {unknown[0]!r}, expected one of the columns {list(by_name)[:20]}")
    if not names:
        known = {column.low: column for column in reversed(columns)}
        found = [known[name] for name in _LABELS if name in known and known[name].numbers is not None]
        names = [found[0].name] if found else [columns[0].name] if columns[0].is_binary else []
    if not names:
        raise DataError(
            f"label: found none among the columns {list(by_name)[:20]}; name it with --label COLUMN"
        )
    return [_label(by_name[name]) for name in names]


def _label(column: Column) -> LabelColumn:
    if column.is_binary:
        return LabelColumn(name=column.name)
    if column.numbers is None:
        raise DataError(f"label: column {column.name!r}: got texts, expected 0 and 1, or numbers")
    middle = (
        _LIKED if column.numbers.min() >= 0 and column.numbers.max() <= 5 else float(np.mean(column.numbers))
    )
    return LabelColumn(name=column.name, at_least=middle)
