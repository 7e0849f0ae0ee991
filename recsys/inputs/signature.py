"""The signature of a model: the contract between exporter, artifact, server and clients.

Shape letters: B rows of a batch, F sparse inputs, N number of IDs.

The exported ``forward`` takes, in this order,

* one float32 tensor ``[B, width]`` for each of ``Signature.dense``;
* ``lengths``, int64 ``[F * B]``, key-major: all B lengths of the first of ``Signature.sparse``, then the next;
* ``values``, int64 ``[N]``, the IDs in the same order, ``N = lengths.sum()``;
* ``weights``, float32 ``[N]``, only if ``Signature.is_weighted``; one weight per ID, and 1.0 (not read) for
  the IDs of unweighted sparse inputs;

and returns one float32 or int64 tensor, ``[B, *shape]`` unless ``Output.batch_dims`` says otherwise, for each of
``Signature.outputs``, by name.

A model whose ``Signature.context`` is not empty has a second form, ``forward_ranking``, for Q contexts (such
as the users of Q requests) and B rows (the candidates of all requests). It takes, in this order,

* one float32 tensor for each of ``Signature.dense``: ``[Q, width]`` for an input of the context, ``[B, width]`` for
  another;
* ``context_lengths`` int64 ``[Fc * Q]`` and ``context_values`` int64 ``[Nc]`` of the Fc sparse inputs of the context
  (``Signature.context_sparse``), and ``context_weights`` float32 ``[Nc]`` where ``Signature.is_weighted``;
* ``lengths`` int64 ``[Fr * B]`` and ``values`` int64 ``[N]`` of the Fr others (``Signature.row_sparse``), and
  ``weights`` float32 ``[N]`` where ``Signature.is_weighted``;
* ``row_context`` int64 ``[B]``: for each row the number of its context, ``0 <= number < Q``;

and returns the outputs of ``forward`` for the B rows, each with its context's features. All arguments are
present even if Fc or Fr is 0; they are then empty.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Annotated, Any

from recsys.base.hashing import STRING_HASHES
from recsys.base.json_checks import ALWAYS, choice, one_of, read_record, record_to_json, texts, whole, wrong
from recsys.base.table_names import short_names
from recsys.errors import ManifestError

#: What may stand in a batch: rows of any requests, or those of one request.
BATCHES = ("rows", "request")
#: The types of outputs: ``int64`` holds every integer and bool of a model.
FLOAT32, INT64 = "float32", "int64"
OUTPUT_DTYPES = (FLOAT32, INT64)
#: The batch dimensions of most outputs.
ROWS_FIRST = (0,)
#: How rows become answers of a bag.
POOLINGS = ("sum", "mean", "none")
# As tables have them around values of lists, and around lists (recsys/data/tables/values/cells.py).
_BLANKS = b" \t\r\n"
_BRACKETS = (b"[]", b"{}", b"()")


class IdPolicy(StrEnum):
    """The treatment of an ID outside ``0 <= id < num_embeddings``, or of every ID where IDs are not rows."""

    REJECT = "reject"  # the request is refused with an error
    HASH = "hash"  # the ID is taken modulo the number of rows
    ZERO = "zero"  # the ID reads a row of zeros (it still counts in a MEAN)
    MAPPED = "mapped"  # IDs are raw int64s; the model maps those it knows to their rows, all others to the last row
    FMIX64 = "fmix64"  # every ID, any int64, is mixed (``recsys.base.hashing.mix_ids``), then taken modulo the rows

    @property
    def takes_rows(self) -> bool:
        """Whether an ID in ``0 <= id < num_embeddings`` is the row that it reads."""
        return self not in (IdPolicy.MAPPED, IdPolicy.FMIX64)


def value_of(text: bytes, separator: str) -> bytes | None:
    """Return the value that a text is where tables hold lists as texts; None for a list of several.

    Blanks around a value are no part of it, and brackets stand around lists.

    Args:
        text: The text.
        separator: Between the values; empty where tables hold no such lists.
    """
    if not separator:
        return text
    value = text.strip(_BLANKS)
    is_bracketed = len(value) > 1 and value[:1] + value[-1:] in _BRACKETS
    return None if is_bracketed or separator.encode() in value else value


def _numbers(data: Any, key: str, at: str) -> tuple[int, ...]:
    """Return a list of whole numbers."""
    numbers = data[key]
    if not isinstance(numbers, list) or not all(type(number) is int for number in numbers):
        raise wrong(at, key, numbers, "a list of whole numbers")
    return tuple(numbers)


def _columns(data: Any, key: str, at: str) -> tuple[str, ...]:
    """Return the columns of a dense input."""
    names, width = texts(data, key, at), data["width"]
    if len(names) != width or len(set(names)) != len(names):
        raise ManifestError(
            f"{at}.columns: got {list(names[:8])}, expected as many different names as the width, {width}"
        )
    return names


@dataclass(frozen=True, kw_only=True)
class DenseInput:
    """A float32 input ``[B, width]``.

    Attributes:
        name: The input's name.
        width: Numbers per row.
        missing: Whether NaN stands for a missing number, which the model fills.
        columns: The names of a row's numbers, in their order; empty if they are not known.
    """

    name: str
    width: int
    missing: bool = False
    columns: Annotated[tuple[str, ...], _columns] = ()


@dataclass(frozen=True, kw_only=True)
class TableUse:
    """A table that a sparse input is looked up in."""

    name: str
    num_embeddings: int
    id_policy: Annotated[IdPolicy, ALWAYS] = IdPolicy.REJECT


@dataclass(frozen=True, kw_only=True)
class SparseInput:
    """A jagged input of int64 IDs, ``B`` bags of any length.

    Attributes:
        name: The feature's name.
        pooling: ``sum``, ``mean``, or ``none`` for sequences.
        weighted: Whether each ID comes with a float32 weight.
        tables: The tables in which the feature is looked up (usually one).
        strings: The hash that turns a text into an ID, one of ``recsys.base.hashing.STRING_HASHES``; empty for an input
            whose texts are decimal int64 numbers.
        num_ids: IDs in each bag of a row that the model takes. None where made rows with bags of any size do.
        fixed: Whether servers refuse bags with another number of IDs than ``num_ids``.
        max_ids: The most IDs of a bag: servers refuse more. None where bags have any size.
        same_lengths_as: The input, before this one, whose bags have as many IDs as this one's, row by row, because the
            model puts the IDs of both side by side; empty where lengths may differ.
        separator: What stands between the values of the lists that tables of the training hold as texts; empty where
            they hold none. A request gives each value as a text of its own.
    """

    name: str
    pooling: Annotated[str, one_of(POOLINGS)]
    weighted: Annotated[bool, ALWAYS] = False
    tables: tuple[TableUse, ...]
    strings: Annotated[str, one_of(STRING_HASHES)] = ""
    num_ids: Annotated[int | None, whole] = None
    fixed: bool = False
    max_ids: Annotated[int | None, whole] = None
    same_lengths_as: str = ""
    separator: str = ""

    @property
    def id_limit(self) -> int | None:
        """IDs must be in ``[0, id_limit)``; None if every table's policy takes any ID."""
        limits = [t.num_embeddings for t in self.tables if t.id_policy is IdPolicy.REJECT]
        return min(limits, default=None)

    def value_of(self, text: bytes) -> bytes | None:
        """Return the value that a request's text is, as training reads tables; None for a list of several."""
        return value_of(text, self.separator)

    @property
    def row_limit(self) -> int | None:
        """IDs in ``[0, row_limit)`` are rows of every table whose IDs are rows; None if no table's are."""
        limits = [t.num_embeddings for t in self.tables if t.id_policy.takes_rows]
        return min(limits, default=None)


@dataclass(frozen=True, kw_only=True)
class Output:
    """An output, ``[B, *shape]`` for most.

    Attributes:
        name: The output's name.
        shape: Without the batch dimensions; ``()`` for one number per row.
        dtype: One of ``OUTPUT_DTYPES``.
        batch_dims: The dimensions of size B, ascending: ``(0, 1)`` for ``[B, B]``, none for an output that has no rows.
            Others than ``(0,)`` only where a batch is one request.
    """

    name: str
    shape: tuple[int, ...]
    dtype: Annotated[str, one_of(OUTPUT_DTYPES)] = FLOAT32
    batch_dims: Annotated[tuple[int, ...], _numbers] = ROWS_FIRST

    @property
    def is_integer(self) -> bool:
        """Whether its numbers are int64."""
        return self.dtype == INT64

    def dims(self, num_rows: int) -> tuple[int, ...]:
        """Return the whole shape for a number of rows."""
        sizes = iter(self.shape)
        num_dims = len(self.shape) + len(self.batch_dims)
        return tuple(num_rows if dim in self.batch_dims else next(sizes) for dim in range(num_dims))

    def num_bytes(self, num_rows: int) -> int:
        """Return the bytes of its numbers for a number of rows."""
        return math.prod(self.dims(num_rows)) * (8 if self.is_integer else 4)


@dataclass(frozen=True, kw_only=True)
class Signature:
    """A model's inputs and outputs, in the order in which ``forward`` takes and returns them.

    Attributes:
        dense: Dense inputs.
        sparse: Sparse inputs.
        outputs: Outputs.
        context: The names of the dense and sparse inputs that a ranking request contains once for all rows;
            empty if the model has no ranking form.
        by_request: Whether a batch is one request, because its rows may depend on each other. Such a request is never
            put together with others, nor split. In JSON it is ``"batch": "request"``.
    """

    dense: tuple[DenseInput, ...]
    sparse: tuple[SparseInput, ...]
    outputs: tuple[Output, ...]
    context: tuple[str, ...] = ()
    by_request: bool = False

    @cached_property
    def bounds_lengths(self) -> bool:
        """Whether bags of some inputs must have as many IDs as those of another, or at most so many."""
        return any(s.same_lengths_as or s.max_ids is not None for s in self.sparse)

    @cached_property
    def table_names(self) -> dict[str, str]:
        """The names of all tables as people read them, by name."""
        return short_names(table.name for sparse in self.sparse for table in sparse.tables)

    @property
    def is_weighted(self) -> bool:
        """Whether ``forward`` takes ``weights``."""
        return any(s.weighted for s in self.sparse)

    @property
    def without_rows(self) -> Output | None:
        """The first output without a batch dimension, which no batch without rows tells; None for most models."""
        return next((output for output in self.outputs if not output.batch_dims), None)

    @property
    def has_integers(self) -> bool:
        """Whether any output is int64."""
        return any(output.is_integer for output in self.outputs)

    @property
    def context_sparse(self) -> tuple[SparseInput, ...]:
        """The sparse inputs of the context, in the order of ``sparse``."""
        return tuple(s for s in self.sparse if s.name in self.context)

    @property
    def row_sparse(self) -> tuple[SparseInput, ...]:
        """The sparse inputs that are not of the context, in the order of ``sparse``."""
        return tuple(s for s in self.sparse if s.name not in self.context)

    def to_json(self) -> dict[str, Any]:
        """Return plain data that ``from_json`` reads back."""
        data = record_to_json(self)
        return {**data, "batch": "request"} if data.pop("by_request", False) else data

    @classmethod
    def from_json(cls, data: Any) -> Signature:
        """Read untrusted data in the format of ``to_json``.

        Raises:
            ManifestError: A field is wrong; the message names it, what was found and what was expected.
        """
        has_batch = isinstance(data, dict) and "batch" in data
        by_request = has_batch and choice(data, "batch", "signature", BATCHES) == "request"
        signature = read_record(cls, data, "signature", by_request=by_request)
        inputs = [dense.name for dense in signature.dense] + [sparse.name for sparse in signature.sparse]
        for what, names in (
            ("dense and sparse", inputs),
            ("outputs", [output.name for output in signature.outputs]),
        ):
            if len(set(names)) != len(names):
                raise ManifestError(f"signature: {what} names are not unique: {names}")
        if not signature.outputs or not inputs:
            raise ManifestError("signature: got no inputs or no outputs, expected at least one of each")
        for i, output in enumerate(signature.outputs):
            _check_batch_dims(output, f"signature.outputs[{i}]", by_request=by_request)
        _check_same_lengths(signature.sparse)
        _check_context(signature.context, inputs)
        return signature


def _check_same_lengths(sparse: Sequence[SparseInput]) -> None:
    """Check that inputs have the lengths of earlier ones, which have none of others."""
    free: dict[str, int | None] = {}
    for i, use in enumerate(sparse):
        at = f"signature.sparse[{i}]"
        if use.fixed and use.num_ids is None:
            raise wrong(at, "fixed", True, "num_ids beside it")
        if not use.same_lengths_as:
            free[use.name] = use.num_ids
        elif use.same_lengths_as not in free:
            raise wrong(
                at, "same_lengths_as", use.same_lengths_as, f"one of the inputs before it: {list(free)[:8]}"
            )
        elif use.num_ids != free[use.same_lengths_as]:
            raise wrong(at, "num_ids", use.num_ids, f"that of {use.same_lengths_as!r}")


def _check_batch_dims(output: Output, at: str, *, by_request: bool) -> None:
    dims, num_dims = output.batch_dims, len(output.shape) + len(output.batch_dims)
    if not num_dims or any(not 0 <= dim < num_dims for dim in dims) or list(dims) != sorted(set(dims)):
        raise wrong(at, "batch_dims", list(dims), f"different dimensions of {num_dims}, ascending")
    if dims != ROWS_FIRST and not by_request:
        raise wrong(at, "batch_dims", list(dims), "[0], because a batch holds rows of any requests")


def _check_context(context: Sequence[str], inputs: Sequence[str]) -> None:
    for i, name in enumerate(context):
        if name not in inputs:
            raise ManifestError(
                f"signature.context[{i}]: got {name[:80]!r}, expected a dense or sparse input, one of "
                f"{sorted(inputs)[:8]}"
            )
    if len(set(context)) != len(context):
        raise ManifestError(f"signature.context: names are not unique: {list(context)}")
