"""Which columns are labels, and which of their values are positive."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from recsys.data.labels import word_labels
from recsys.data.lines import DataError, shown_names
from recsys.data.tables.columns import Columns
from recsys.data.tables.infer.column import Column, ColumnReport
from recsys.inputs.columns import NUMBER_LOSSES, LabelColumn

_NAMES = (
    *("label", "click", "clicked", "clk", "is_click", "is_clicked", "target"),
    *("conversion", "converted", "is_conversion", "purchase", "purchased"),
    *("liked", "like", "y", "rating", "stars", "overall"),
)
RATINGS = ("rating", "ratings", "stars", "overall", "score")
# A rating of at least this share of the highest one is positive: 4 of 5, 8 of 10.
_LIKED = 0.8
_LARGEST_SCALE = 10
# Positive texts that are shown.
_NUM_WORDS, _WORD_LENGTH = 3, 24
_OUTCOME = re.compile(
    r"(is_|has_|did_|label_|non_?)?(label|target|click|clicked|clk|ctr|conversion|converted|cvr|purchase|purchased|buy|bought|"
    r"like|liked|dislike|follow|followed|comment|commented|share|shared|forward|forwarded|favou?rite|fav|cart|"
    r"add_to_cart|install|installed|hate|long_view|profile_enter|finish|finished|rating|stars|overall)(_flag|_label)?"
)
# What users did after the label: for how long they watched, read or stayed.
_MEASURE = re.compile(
    r"((profile|comment|page|video)_)?(play|played|playing|watch|watched|watching|stay|dwell|read|reading)_?"
    r"(time|times|duration|seconds|ratio|percentage|progress)(_?(ms|s|sec|seconds))?"
)


class NoLabelError(DataError):
    """No column is named as a label.

    Attributes:
        columns: What was found in the columns.
    """

    columns: tuple[ColumnReport, ...] = ()


class LabelValueError(DataError):
    """A value of the sample is not one of a label.

    Attributes:
        label: The label.
    """

    def __init__(self, label: LabelColumn, text: str) -> None:
        super().__init__(text)
        self.label = label


class Label:
    """A label that was found.

    Attributes:
        column: Its entry in the schema.
        values: float32 ``[N]``, zeros and ones or numbers: the labels of the sample's rows.
        reason: Why the column is one, and which of its values are positive.
        text: Its name, with the positive values and their share.

    Raises:
        LabelValueError: A value is wrong or missing.
    """

    def __init__(self, column: Column, entry: LabelColumn, reason: str) -> None:
        self.column = entry
        table = pa.table({column.name: column.array})
        try:
            self.values = Columns(table, lambda row: f"row {row} of the sample").label(entry)
        except DataError as error:
            raise LabelValueError(entry, str(error)) from None
        if entry.is_number:
            self.reason = reason
            self.text = f"{column.name} (a number, {entry.loss}, mean {self.values.mean():.4g})"
            return
        share = f"{self.values.mean():.1%}"
        self.reason = f"{reason}, in {share} of the rows"
        self.text = f"{column.name} ({_positive(column, entry)}, {share})"


def _positive(column: Column, entry: LabelColumn) -> str:
    """Return which values of a label are positive, in short."""
    if entry.at_least is not None:
        return f"at least {entry.at_least:g} = 1"
    texts = list(entry.positive)
    if not texts and column.is_text:
        ones = column.different.filter(pa.array(word_labels(column.different) == 1))
        texts = [
            str(text)[:_WORD_LENGTH] for text in ones if not str(text).strip().replace(".", "").isdigit()
        ]
    more = f" and {len(texts) - _NUM_WORDS} more" if len(texts) > _NUM_WORDS else ""
    return f"{', '.join(texts[:_NUM_WORDS])}{more} = 1" if texts else "1"


def choose_labels(columns: Sequence[Column], names: Sequence[str]) -> list[Label]:
    """Return the labels.

    Args:
        columns: All columns.
        names: The labels' columns, each of which may say what is positive (``rating>=4``, ``action=buy,cart``), or
            that it is a number, with its loss (``price:mse``); found by their names if empty.

    Raises:
        DataError: The column does not exist or none is found, a value is missing, or the values do not say which
            of them are positive.
    """
    if names:
        return [_given(columns, name) for name in names]
    known = {column.low: column for column in reversed(columns)}
    found = [known[name] for name in _NAMES if name in known]
    for column in found:
        if column.is_binary or column.numbers is not None:
            return [_label(column, "named as one")]
    if columns[0].is_binary and not columns[0].num_missing:
        return [_label(columns[0], "two classes in the first column")]
    if found:
        raise _unclear(found[0])
    raise NoLabelError(
        f"label: found none among the columns {shown_names(column.name for column in columns)}; name it with "
        "--label COLUMN, or --label COLUMN=TEXT,TEXT where texts say what is positive; a schema of histories needs "
        "none (recsys-train --objective next-item)"
    )


def is_outcome(column: Column) -> bool:
    """Return whether a column is named as a label or as a measure of what follows, and its values may be so."""
    if _MEASURE.fullmatch(column.low):
        return column.numbers is not None and column.dates is None
    if column.is_list or not _OUTCOME.fullmatch(column.low):
        return False
    numbers = column.numbers
    in_halves = numbers is not None and bool((numbers * 2 == np.floor(numbers * 2)).all())
    is_scale = in_halves and numbers is not None and float(numbers.max()) <= _LARGEST_SCALE
    return column.is_binary or (is_scale and column.low in RATINGS)


def _given(columns: Sequence[Column], text: str) -> Label:
    """Return the label that a user named."""
    by_name = {column.name: column for column in columns}
    if text in by_name:
        return _label(by_name[text], "given as one")
    for loss in NUMBER_LOSSES:
        name = text.removesuffix(f":{loss}")
        if name != text and name in by_name:
            return Label(
                by_name[name], LabelColumn(name=name, loss=loss), f"given as a number, learned by {loss}"
            )
    for sign in (">=", "="):
        name, found, value = text.rpartition(sign)
        if not found or name not in by_name:
            continue
        if sign == "=":
            entry = LabelColumn(name=name, positive=tuple(value.split(",")))
            return Label(by_name[name], entry, f"given as one; 1 where it is {' or '.join(entry.positive)}")
        try:
            at_least = float(value)
        except ValueError:
            raise DataError(f"label: got {text!r}, expected a number behind >=") from None
        entry = LabelColumn(name=name, at_least=at_least)
        return Label(by_name[name], entry, f"given as one; 1 where it is at least {at_least:g}")
    raise DataError(f"label: got {text!r}, expected one of the columns {shown_names(by_name)}")


def _label(column: Column, reason: str) -> Label:
    if column.is_binary:
        return Label(column, LabelColumn(name=column.name), f"{reason}; 1")
    if column.numbers is None or column.is_list:
        raise _unclear(column)
    at_least, why = _threshold(column.low, column.numbers)
    entry = LabelColumn(name=column.name, at_least=at_least)
    return Label(column, entry, f"{reason}; 1 where it is at least {at_least:g} ({why})")


def _threshold(name: str, numbers: NDArray[np.float64]) -> tuple[float, str]:
    """Return the least positive value, which is one of the values but not the least, and the reason."""
    values = np.unique(numbers)
    least, most = float(values[0]), float(values[-1])
    if len(values) == 1:
        return least, "the only value"
    if len(values) == 2:
        return most, "the larger of two values"
    in_halves = bool((values * 2 == np.floor(values * 2)).all())
    is_whole = bool((values == np.floor(values)).all())
    is_scale = in_halves and least > 0 and 3 <= most <= _LARGEST_SCALE
    if least >= 0 and (is_scale or name in RATINGS):
        liked = values[np.searchsorted(values, _LIKED * most - 1e-9)]
        return float(max(liked, values[1])), "a rating: the chance of a high one is learned, not the rating"
    if is_whole and least == 0:
        return float(values[1]), "a count: the chance of any is learned, not the count"
    middle = float(np.sort(numbers)[len(numbers) // 2])
    return max(middle, float(values[1])), "the median: the chance of more is learned, not the number"


def _unclear(column: Column) -> DataError:
    """Return the error for a label whose values do not say which are positive."""
    values = sorted({str(value) for value in column.values[:1000].to_pylist()})[:4]
    if column.name in column.different.to_pylist():
        return DataError(
            f"label: column {column.name!r}: got its own name among the values: the line with the names is there more "
            "than once, as where files were put together"
        )
    example = "1" if "1" in values else values[0] if values else "VALUE"
    return DataError(
        f"label: column {column.name!r}: got values such as {', '.join(map(repr, values)) or 'none'}, expected "
        f"0 and 1, yes and no, true and false, or numbers; --label {column.name}={example!s} says which are positive"
    )
