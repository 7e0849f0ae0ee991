"""Some rows of a model's training table, as clients send them: kept in checkpoints and artifacts.

Exports are verified on them, and tools show them as examples of requests.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from recsys.base.json_checks import json_field, whole, wrong
from recsys.inputs.signature import DenseInput, Signature, SparseInput

T = TypeVar("T")
#: Where a model holds its ``ExampleRows``, and the field of checkpoints.
EXAMPLE_ROWS = "example_rows"
#: The same of its ``recsys.inputs.sketch.DataSketch``; manifests have the field too.
DATA_SKETCH = "data_sketch"


@dataclass(frozen=True, kw_only=True)
class ExampleRows:
    """Rows by column.

    Attributes:
        num_rows: Number of rows.
        dense: By column a number for each row, None for a missing one.
        sparse: By feature a bag for each row: IDs, or texts where clients send texts.
    """

    num_rows: int
    dense: Mapping[str, list[float | None]]
    sparse: Mapping[str, list[list[int] | list[str]]]
    #: In words what they are.
    origin = "held-out rows of the training"

    def first(self, num_rows: int) -> ExampleRows:
        """Return the first rows."""
        return ExampleRows(
            num_rows=min(self.num_rows, num_rows),
            dense={name: column[:num_rows] for name, column in self.dense.items()},
            sparse={name: bags[:num_rows] for name, bags in self.sparse.items()},
        )

    def to_json(self) -> dict[str, Any]:
        """Return plain data that ``from_json`` reads back."""
        return {"num_rows": self.num_rows, "dense": dict(self.dense), "sparse": dict(self.sparse)}

    @classmethod
    def from_json(cls, data: Any) -> ExampleRows:
        """Read untrusted data in the format of ``to_json``.

        Raises:
            ManifestError: A field is wrong; the message names it.
        """
        num_rows = whole(data, "num_rows", "examples", least=1)
        columns: dict[str, dict[str, list[Any]]] = {}
        for kind, is_value in (("dense", _is_number), ("sparse", _is_bag)):
            columns[kind] = held = json_field(data, kind, "examples")
            if not isinstance(held, dict):
                raise wrong("examples", kind, held, "an object")
            for name, values in held.items():
                if not isinstance(values, list) or len(values) != num_rows:
                    raise wrong(f"examples.{kind}", str(name), values, f"a list of {num_rows} rows")
                for value in values:
                    if not is_value(value):
                        expected = "numbers" if kind == "dense" else "lists of IDs or of texts"
                        raise wrong(f"examples.{kind}", str(name), value, expected)
        return cls(num_rows=num_rows, dense=columns["dense"], sparse=columns["sparse"])

    def request(self, signature: Signature) -> dict[str, Any] | None:
        """Return the rows as a request in JSON; None if a model with this signature takes other columns."""
        if any(not self._has_dense(dense) for dense in signature.dense):
            return None
        if any(not self._has_sparse(sparse) for sparse in signature.sparse):
            return None
        dense = {
            one.name: [list(row) for row in zip(*(self.dense[name] for name in one.columns), strict=True)]
            for one in signature.dense
        }
        return {"dense": dense, "sparse": {one.name: self.sparse[one.name] for one in signature.sparse}}

    def _has_dense(self, dense: DenseInput) -> bool:
        columns = [self.dense.get(name) for name in dense.columns]
        return bool(columns) and all(
            column is not None and (dense.missing or None not in column) for column in columns
        )

    def _has_sparse(self, sparse: SparseInput) -> bool:
        if sparse.weighted or sparse.name not in self.sparse:
            return False
        has_texts = any(isinstance(value, str) for bag in self.sparse[sparse.name] for value in bag)
        return bool(sparse.strings) or not has_texts


def example_rows_of(model: object) -> ExampleRows | None:
    """Return the rows that a model holds; None without any."""
    found = getattr(model, EXAMPLE_ROWS, None)
    return found if isinstance(found, ExampleRows) else None


def held_by(source: object, target: T) -> T:
    """Return the target, which now holds the rows and the sketch of the source, such as the model it is a part of."""
    for name in (EXAMPLE_ROWS, DATA_SKETCH):
        if hasattr(source, name):
            setattr(target, name, getattr(source, name))
    return target


def hold_example_rows(model: object, data: Any) -> None:
    """Let a model hold the rows that a checkpoint has, in the format of ``ExampleRows.to_json``; nothing for None.

    Raises:
        ManifestError: They are damaged.
    """
    if data is not None:
        setattr(model, EXAMPLE_ROWS, ExampleRows.from_json(data))


def _is_number(value: Any) -> bool:
    return value is None or (type(value) in (int, float) and math.isfinite(value))


def _is_bag(value: Any) -> bool:
    if not isinstance(value, list):
        return False
    kinds = {type(item) for item in value}
    return not kinds or kinds == {str} or (kinds == {int} and all(-(2**63) <= item < 2**63 for item in value))
