"""Crossed features: their schema entry, and the IDs of combinations.

Shape letters: N number of combinations.

Training data, exported graphs and tests cross IDs alike, so the definition never changes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from recsys.base.hashing import Int64s, mix_ids
from recsys.base.json_checks import count, known_fields, text, wrong
from recsys.errors import SchemaError
from recsys.inputs.columns import TableSpec, texts_of


@dataclass(frozen=True, kw_only=True)
class CrossSpec:
    """A table whose rows are read by the combination of several features' values.

    The crossed feature has the table's name. A row has one value of each feature, or the combination is missing.

    Attributes:
        name: The name of the feature and of its table.
        feature_names: The sparse features that are crossed, two or more, in the order in which they are mixed.
        num_embeddings: The table's rows, which combinations share by their hash.
    """

    name: str
    feature_names: tuple[str, ...]
    num_embeddings: int

    def to_json(self) -> dict[str, Any]:
        """Return plain data that ``cross_of`` reads back."""
        return {"name": self.name, "features": list(self.feature_names), "rows": self.num_embeddings}


def crossed_features(crosses: Iterable[CrossSpec]) -> list[str]:
    """Return the features that crosses combine, each once."""
    return list(dict.fromkeys(name for cross in crosses for name in cross.feature_names))


def cross_of(data: Any, at: str) -> CrossSpec:
    """Return a cross from untrusted data.

    Raises:
        ManifestError: A field is wrong; the message names it.
    """
    known_fields(data, at, {"name", "features", "rows"})
    names = texts_of(data, "features", at)
    if len(names) < 2 or len(set(names)) != len(names):
        raise wrong(at, "features", list(names), "two or more different sparse features")
    return CrossSpec(name=text(data, "name", at), feature_names=names, num_embeddings=count(data, "rows", at))


def check_crosses(crosses: Sequence[CrossSpec], tables: Sequence[TableSpec]) -> None:
    """Check that crosses are of a schema's features that have one value in a row.

    Raises:
        SchemaError: A feature is unknown, or has a separator.
    """
    table_of: Mapping[str, TableSpec] = {name: table for table in tables for name in table.feature_names}
    for cross in crosses:
        for name in cross.feature_names:
            if name not in table_of:
                raise SchemaError(
                    f"schema.crosses: {cross.name!r} got the feature {name!r}, expected some of the sparse features "
                    f"{list(table_of)}: give the column a table"
                )
            if table_of[name].separator:
                raise SchemaError(
                    f"schema.crosses: {cross.name!r} got the feature {name!r}, whose table has a separator, expected "
                    "features of one value in a row"
                )


def crosses_within(crosses: Sequence[CrossSpec], features: Collection[str]) -> tuple[CrossSpec, ...]:
    """Return the crosses of these features alone."""
    return tuple(cross for cross in crosses if set(cross.feature_names) <= set(features))


def rows_of_combinations(ids: Sequence[Int64s], num_rows: int) -> Int64s:
    """Return the rows of combinations, int64 ``[N]``, ``0 <= row < num_rows``.

    The first feature's IDs are mixed (``recsys.base.hashing.mix_ids``); each next one's are combined with what is
    there by exclusive or, and the result is mixed; the row is the last result modulo the rows.
    ``recsys.modules.crosses`` computes the same of tensors.

    Args:
        ids: The raw IDs of each feature, any int64, ``[N]`` each.
        num_rows: The table's rows.
    """
    return mixed_combinations(ids) % num_rows


def mixed_combinations(ids: Sequence[Int64s]) -> Int64s:
    """Return the number of each combination, int64 ``[N]``, 0 or more, as ``rows_of_combinations`` defines it.

    Args:
        ids: As there.
    """
    mixed = mix_ids(ids[0])
    for others in ids[1:]:
        mixed = mix_ids(mixed ^ others)
    return mixed
