"""Warnings where a schema has lists and a column has texts, or the other way."""

from __future__ import annotations

import warnings

import pyarrow as pa
import pyarrow.compute as pc

from recsys.data.tables.values.arrow_types import is_list, is_text
from recsys.data.tables.values.cells import are_bracketed
from recsys.errors import DataWarning
from recsys.inputs.schema import TableSpec

#: The number of first texts that are looked at; more than a share of them must be lists.
NUM_TEXTS = 256
_SHARE = 0.5
_SEPARATORS = r"[|;,]"


def warn_of_lists(array: pa.Array, name: str, spec: TableSpec) -> None:
    """Warn of texts that look like lists and are read as one value each, and of lists where a separator is for texts.

    Args:
        array: The column, of a plain type.
        name: Its name.
        spec: The table that its values are looked up in.
    """
    if is_list(array.type) and spec.separator:
        _warn(
            f"column {name!r}: got lists, expected texts with separator = {spec.separator!r}; the values of the "
            "lists are not split"
        )
    elif is_text(array.type) and spec.strings and not spec.separator:
        texts = array[:NUM_TEXTS].drop_null()
        is_separated = pc.match_substring_regex(texts, _SEPARATORS)
        # MEAN is the pooling of lists.
        is_list_text = is_separated if spec.pooling == "MEAN" else pc.and_(is_separated, are_bracketed(texts))
        if (pc.sum(is_list_text).as_py() or 0) > _SHARE * len(texts):
            example = str(texts.filter(is_list_text)[0])[:40]
            _warn(
                f"column {name!r}: got texts such as {example!r}, each of which is read as one value; if they are "
                "lists, a schema's separator splits them"
            )


def _warn(text: str) -> None:
    warnings.warn(text, DataWarning, stacklevel=2)
