"""The columns of an answer log: a row for each row of each request that a server answered.

A name has a part before the first point that says what the column holds, so names of inputs cannot clash with others.
What a request gives once for all of its rows (its context) stands in the row of number 0 alone; the others hold null
there. Requests are whole within a file, and their rows are neighbours, so that filling forward gives each row its
context.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from recsys.errors import AnswerLogError, ManifestError
from recsys.inputs.signature import FLOAT32, DenseInput, Output, Signature, SparseInput

#: What a column holds, by the part of its name before the first point.
DENSE, IDS, TEXTS, WEIGHTS, HASHES, OUTPUT = "dense", "ids", "texts", "weights", "hashes", "output"
#: The columns of each request's own data.
REQUEST_FIELDS = (
    pa.field("time", pa.timestamp("us", "UTC"), nullable=False),
    pa.field("request_id", pa.string(), nullable=False),
    pa.field("row", pa.int32(), nullable=False),
    pa.field("num_rows", pa.int32(), nullable=False),
    pa.field("model", pa.string(), nullable=False),
    pa.field("version", pa.string(), nullable=False),
    pa.field("protocol", pa.string(), nullable=False),
)
_ABOUT = b"recsys_answers"
_FORMAT = 1


def column_of(kind: str, name: str) -> str:
    """Return the column of an input or output."""
    return f"{kind}.{name}"


@dataclass(frozen=True, kw_only=True)
class AnswerLayout:
    """What a file of an answer log holds.

    Attributes:
        signature: The model's inputs and outputs, those that are left out included.
        left_out: Names of inputs and outputs without a column.
        hashed: Names of sparse inputs whose IDs and texts are keyed hashes.
        has_ids: Names of sparse inputs that some request gave as IDs; set once a file is whole.
        has_texts: Those that some request gave as texts.
    """

    signature: Signature
    left_out: frozenset[str] = frozenset()
    hashed: frozenset[str] = frozenset()
    has_ids: frozenset[str] = field(default=frozenset())
    has_texts: frozenset[str] = field(default=frozenset())

    @property
    def dense(self) -> tuple[DenseInput, ...]:
        """The dense inputs that have columns."""
        return tuple(one for one in self.signature.dense if one.name not in self.left_out)

    @property
    def sparse(self) -> tuple[SparseInput, ...]:
        """The sparse inputs that have columns."""
        return tuple(one for one in self.signature.sparse if one.name not in self.left_out)

    @property
    def outputs(self) -> tuple[Output, ...]:
        """The outputs that have columns."""
        return tuple(one for one in self.signature.outputs if one.name not in self.left_out)

    def of_signature(self) -> AnswerLayout:
        """Return the layout without names that the signature does not have."""
        sparse = {one.name for one in self.signature.sparse}
        others = {one.name for one in self.signature.dense} | {one.name for one in self.signature.outputs}
        return replace(self, left_out=self.left_out & (sparse | others), hashed=self.hashed & sparse)

    def schema(self) -> pa.Schema:
        """Return the columns of the file, without metadata."""
        fields: list[Any] = [*REQUEST_FIELDS]
        for dense in self.dense:
            fields.append(pa.field(column_of(DENSE, dense.name), _dense_type(dense)))
        for sparse in self.sparse:
            if sparse.name in self.hashed:
                fields.append(pa.field(column_of(HASHES, sparse.name), pa.list_(pa.int64())))
            else:
                fields.append(pa.field(column_of(IDS, sparse.name), pa.list_(pa.int64())))
                if sparse.strings:
                    fields.append(pa.field(column_of(TEXTS, sparse.name), pa.list_(pa.string())))
            if sparse.weighted:
                fields.append(pa.field(column_of(WEIGHTS, sparse.name), pa.list_(pa.float32())))
        for output in self.outputs:
            fields.append(pa.field(column_of(OUTPUT, output.name), _output_type(output)))
        return pa.schema(fields)

    def metadata(self) -> dict[bytes, bytes]:
        """Return what a whole file says of itself; ``layout_of`` reads it."""
        about = {
            "format": _FORMAT,
            "signature": self.signature.to_json(),
            "left_out": sorted(self.left_out),
            "hashed": sorted(self.hashed),
            "has_ids": sorted(self.has_ids),
            "has_texts": sorted(self.has_texts),
        }
        return {_ABOUT: json.dumps(about).encode()}


def layout_of(metadata: Mapping[bytes, bytes] | None, file: str) -> AnswerLayout:
    """Read what a file says of itself.

    Args:
        metadata: Of the Parquet file.
        file: Its name, for errors.

    Raises:
        AnswerLogError: It is no file of an answer log, or a later release wrote it.
    """
    text = (metadata or {}).get(_ABOUT)
    if text is None:
        raise AnswerLogError(f"{file}: got a Parquet file of other things, expected one of an answer log")
    try:
        about: dict[str, Any] = json.loads(text)
        number = about["format"]
        if number != _FORMAT:
            raise AnswerLogError(
                f"{file}: got format {number}, expected {_FORMAT}: use the release that wrote it"
            )
        return AnswerLayout(
            signature=Signature.from_json(about["signature"]),
            **{name: _names(about[name]) for name in ("left_out", "hashed", "has_ids", "has_texts")},
        )
    except (ValueError, KeyError, TypeError, ManifestError) as error:
        if isinstance(error, AnswerLogError):
            raise
        raise AnswerLogError(f"{file}: its description is damaged: {error}") from None


def _names(names: Collection[Any]) -> frozenset[str]:
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise TypeError(f"got {names!r}, expected names")
    return frozenset(names)


def _dense_type(dense: DenseInput) -> pa.DataType:
    return pa.float32() if dense.width == 1 else pa.list_(pa.float32())


def _output_type(output: Output) -> pa.DataType:
    number = pa.float32() if output.dtype == FLOAT32 else pa.int64()
    return number if is_number(output) else pa.list_(number)


def is_number(output: Output) -> bool:
    """Return whether an output is one number for each row; a column of lists holds others, row-major."""
    return output.shape == () and output.batch_dims == (0,)
