"""Conversion of a request's bytes to arrays, checked against the model's signature.

Shape letters: B rows of a request, F sparse inputs, N number of IDs.

Native ops that validate nothing collate the batch; every request that passes these checks is safe for them. Sparse
inputs are checked together; only if a check fails is the input searched that is wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from recsys.inputs.bag_lengths import why_not_as_many, why_too_many
from recsys.inputs.signature import DenseInput, Signature, SparseInput
from serve.config.models import BatchLimits
from serve.engine.reference.raw_request import RawDenseLike, RawRequestLike, RawSparseLike
from serve.engine.reference.sparse_arrays import SparseArrays, joined, repeated
from serve.engine.reference.texts import ids_of_texts
from serve.errors import RequestError, listed, short
from serve.protocols.calls import check_size

_FLOAT, _LENGTH, _ID = np.dtype("<f4"), np.dtype("<i4"), np.dtype("<i8")
_ONE = np.ones(1, _FLOAT).tobytes()
_DenseArray = npt.NDArray[np.float32]


@dataclass(slots=True, kw_only=True)
class CheckedRequest:
    """A request that fits the signature.

    Attributes:
        num_rows: B.
        dense: float32, in the signature's order: ``[B, width]``, or ``[1, width]`` for the context inputs of
            a request with a ``context``; read-only.
        sparse: the sparse inputs in the signature's order, B bags each; without those in ``context``.
        context: the signature's sparse context inputs in its order, one bag each; None if the request is
            computed row by row.
        spread_bytes: size of inputs that were given once, after their expansion to B rows.
    """

    num_rows: int
    dense: tuple[_DenseArray, ...]
    sparse: SparseArrays
    context: SparseArrays | None = None
    spread_bytes: int = 0

    def copy(self) -> CheckedRequest:
        """Copy the sparse inputs for another model: a model may write to those of its batch."""
        context = None if self.context is None else self.context.copy()
        return replace(self, sparse=self.sparse.copy(), context=context)

    @property
    def num_ids(self) -> int:
        """Number of IDs to look up."""
        return len(self.sparse.values) + (0 if self.context is None else len(self.context.values))


class _Named(Protocol):
    @property
    def name(self) -> str: ...


_InputT = TypeVar("_InputT", bound=_Named)


class RequestChecker:
    """Checks requests for one model. Thread-safe.

    Args:
        signature: signature of the model; an attribute too.
        limits: maximum rows and IDs of one request.
        allow_non_finite: whether to accept NaN and infinities in dense inputs and weights.
    """

    def __init__(self, signature: Signature, limits: BatchLimits, *, allow_non_finite: bool = False) -> None:
        self.signature = signature
        self._limits = limits
        self._allow_non_finite = allow_non_finite
        self._dense_names = [d.name for d in signature.dense]
        self._sparse_names = [s.name for s in signature.sparse]
        self._sparse = SparseChecker(signature, self._sparse_names, limits, finite=not allow_non_finite)

    def first_id(self, checked: CheckedRequest, name: str) -> int | None:
        """Return the first ID of a sparse input; None if it has none, or the model has no such input.

        Args:
            checked: the request, checked by this checker.
            name: the input.
        """
        signature, arrays = self.signature, checked.sparse
        names = self._sparse_names
        if checked.context is not None:
            is_context = name in signature.context
            arrays = checked.context if is_context else checked.sparse
            names = [other for other in names if (other in signature.context) is is_context]
        if name not in names:
            return None
        at = names.index(name)
        return int(arrays.values[sum(arrays.num_ids[:at])]) if arrays.num_ids[at] else None

    def is_like(self, other: RequestChecker) -> bool:
        """Return whether both checkers give the same result for every request."""
        return (
            self.signature == other.signature
            and self._limits == other._limits
            and self._allow_non_finite == other._allow_non_finite
        )

    def check(self, request: RawRequestLike) -> CheckedRequest:
        """Check one request and return its inputs in the signature's order.

        Raises:
            RequestTooLargeError: it has more rows or IDs than one request may have.
            RequestError: anything else is wrong; the message names the field, got and expected.
        """
        num_rows = request.num_rows
        if num_rows < 0:
            raise RequestError(f"num_rows: got {num_rows}, expected 0 or more")
        check_size(self._limits, num_rows, 0)
        if not num_rows and self.signature.without_rows is not None:
            raise RequestError(
                f"num_rows: got 0, expected 1 or more: output {short(self.signature.without_rows.name)} has no batch "
                "dimension"
            )
        if request.context_sparse or request.context_dense:
            return self._check_ranking(request)
        dense = _by_name("dense", self._few_dense(request.dense), self._dense_names)
        sparse = _by_name("sparse", self._few_sparse(request.sparse), self._sparse_names)
        arrays = tuple(
            [
                self._dense("dense", d, m.values, num_rows)
                for d, m in zip(self.signature.dense, dense, strict=True)
            ]
        )
        return CheckedRequest(
            num_rows=num_rows, dense=arrays, sparse=self._sparse.check("sparse", sparse, num_rows)
        )

    def _check_ranking(self, request: RawRequestLike) -> CheckedRequest:
        """Check a request with inputs that have one row for all."""
        num_rows = request.num_rows
        once_dense = self._few_dense(request.context_dense)
        once_sparse = self._few_sparse(request.context_sparse)
        dense = _by_name("dense", [*self._few_dense(request.dense), *once_dense], self._dense_names)
        sparse = _by_name("sparse", [*self._few_sparse(request.sparse), *once_sparse], self._sparse_names)
        shared_dense = {message.name for message in once_dense}
        shared_sparse = {message.name for message in once_sparse}
        arrays = [
            self._dense("context_dense", d, m.values, 1)
            if d.name in shared_dense
            else self._dense("dense", d, m.values, num_rows)
            for d, m in zip(self.signature.dense, dense, strict=True)
        ]
        shared, own = self._parts_of(shared_sparse)
        once = shared.check("context_sparse", [m for m in sparse if m.name in shared_sparse], 1)
        per_row = own.check("sparse", [m for m in sparse if m.name not in shared_sparse], num_rows)
        self._check_same_lengths(shared.names, once, own.names, per_row)
        # The graph computes its context inputs once; other shared inputs are expanded to B rows here.
        context = set(self.signature.context)
        if not context <= shared_dense | shared_sparse:
            context = set()
        widened = [i for i, name in enumerate(self._dense_names) if name in shared_dense - context]
        kept = [i for i, name in enumerate(shared.names) if name in context]
        spread = [i for i, name in enumerate(shared.names) if name not in context]
        num_spread_ids = sum(once.num_ids[i] for i in spread) * num_rows
        spread_bytes = num_spread_ids * _ID.itemsize + sum(arrays[i].nbytes for i in widened) * num_rows
        check_size(
            self._limits,
            num_rows,
            len(per_row.values) + num_spread_ids + sum(once.num_ids[i] for i in kept),
            spread_bytes,
        )
        for i in widened:
            arrays[i] = np.repeat(arrays[i], num_rows, axis=0)
        rows = per_row
        if spread:
            order = [name for name in self._sparse_names if name not in context]
            rows = joined(
                order, own.names, per_row, [shared.names[i] for i in spread], repeated(once, spread, num_rows)
            )
        return CheckedRequest(
            num_rows=num_rows,
            dense=tuple(arrays),
            sparse=rows,
            context=once.only(kept) if context else None,
            spread_bytes=spread_bytes,
        )

    def _check_same_lengths(
        self, shared: Sequence[str], once: SparseArrays, own: Sequence[str], per_row: SparseArrays
    ) -> None:
        """Check inputs that have the lengths of others, where one of the two is given once for all rows."""
        for use in self.signature.sparse:
            other = use.same_lengths_as
            if not other or (use.name in shared) is (other in shared):
                continue
            lengths, others = (
                once.of_input(shared.index(name)) if name in shared else per_row.of_input(own.index(name))
                for name in (use.name, other)
            )
            field = "context_sparse" if use.name in shared else "sparse"
            _refuse(why_not_as_many(f"{field}[{use.name!r}]", lengths, other, others))

    def _few_dense(self, messages: Sequence[RawDenseLike]) -> Sequence[RawDenseLike]:
        """Return at most one more than expected: enough to find an error without scanning millions.

        They are a list because a repeated field creates a new Python object on each access.
        """
        return list(messages[: len(self._dense_names) + 1])

    def _few_sparse(self, messages: Sequence[RawSparseLike]) -> Sequence[RawSparseLike]:
        return list(messages[: len(self._sparse_names) + 1])

    def _parts_of(self, shared: set[str]) -> tuple[SparseChecker, SparseChecker]:
        """Return the checkers of the shared inputs and of the others."""
        finite = not self._allow_non_finite
        once = [name for name in self._sparse_names if name in shared]
        others = [name for name in self._sparse_names if name not in shared]
        return (
            SparseChecker(self.signature, once, self._limits, finite=finite),
            SparseChecker(self.signature, others, self._limits, finite=finite),
        )

    def _dense(self, field: str, dense: DenseInput, data: bytes, num_rows: int) -> _DenseArray:
        expected = num_rows * dense.width * _FLOAT.itemsize
        if len(data) != expected:
            raise RequestError(
                f"{field}[{dense.name!r}].values: got {len(data)} bytes, expected {expected} "
                f"(float32 [{num_rows}, {dense.width}])"
            )
        array = np.frombuffer(data, _FLOAT).reshape(num_rows, dense.width)
        if not self._allow_non_finite and not np.isfinite(array).all():
            bad = np.isinf(array) if dense.missing else ~np.isfinite(array)
            if bad.any():
                row, column = np.argwhere(bad)[0]
                raise RequestError(
                    f"{field}[{dense.name!r}].values: got {array[row, column]} in row {row}, column {column}, "
                    f"expected finite numbers{', or nan for a missing one' if dense.missing else ''}"
                )
        return array


class SparseChecker:
    """Checks some of a model's sparse inputs together. Thread-safe.

    Args:
        signature: signature of the model.
        names: names of its sparse inputs to check, in its order.
        limits: maximum rows and IDs of one request.
        finite: whether weights must be finite.
    """

    def __init__(
        self, signature: Signature, names: Sequence[str], limits: BatchLimits, *, finite: bool
    ) -> None:
        self.names = list(names)
        own = set(names)
        self._uses = [use for use in signature.sparse if use.name in own]
        self._table_names = signature.table_names
        self._limits = limits
        self._finite = finite
        self._is_weighted = signature.is_weighted
        any_id = np.iinfo(np.uint64).max
        limited = [any_id if s.id_limit is None else s.id_limit - 1 for s in self._uses]
        # As unsigned numbers, negative IDs exceed any limit, so one comparison checks both bounds.
        self._largest_ids: npt.NDArray[np.uint64] = np.array(limited, np.uint64)
        self._smallest_largest_id = min(limited, default=any_id)
        at = {name: i for i, name in enumerate(self.names)}
        self._fixed = [(i, use.num_ids) for i, use in enumerate(self._uses) if use.fixed]
        self._most = [(i, use.max_ids) for i, use in enumerate(self._uses) if use.max_ids is not None]
        self._same_lengths = [
            (i, at[use.same_lengths_as]) for i, use in enumerate(self._uses) if use.same_lengths_as in at
        ]

    def check(self, field: str, messages: Sequence[RawSparseLike], num_rows: int) -> SparseArrays:
        """Check the inputs and concatenate them.

        Args:
            field: the request's field, for error texts.
            messages: one per name, in the order of the names.
            num_rows: B.

        Raises:
            RequestTooLargeError: there are more IDs than one request may have.
            RequestError: anything else is wrong.
        """
        lengths_bytes = num_rows * _LENGTH.itemsize
        raw_lengths: list[bytes] = []
        raw_values: list[bytes] = []
        num_ids: list[int] = []
        has_texts = False
        for use, got in zip(self._uses, messages, strict=True):
            # Each access to a message's field copies it, so it is read once.
            lengths_data, values_data = got.lengths, got.values
            count, rest = divmod(len(values_data), _ID.itemsize)
            if len(lengths_data) != lengths_bytes or rest:
                raise _wrong_size(f"{field}[{use.name!r}]", len(lengths_data), len(values_data), num_rows)
            num_texts = len(got.strings)
            if num_texts:
                if count:
                    raise RequestError(
                        f"{field}[{use.name!r}].strings: got {num_texts} texts beside {count} values, "
                        "expected one of the two"
                    )
                count, has_texts = num_texts, True
            if use.weighted or got.weights:
                _check_weights_size(field, use, len(got.weights), count)
            raw_lengths.append(lengths_data)
            raw_values.append(values_data)
            num_ids.append(count)
        check_size(self._limits, num_rows, sum(num_ids))
        lengths = self._lengths(field, b"".join(raw_lengths), num_ids, num_rows)
        if has_texts:
            for i, (use, got) in enumerate(zip(self._uses, messages, strict=True)):
                if got.strings:
                    raw_values[i] = ids_of_texts(field, use, got.strings[:]).astype(_ID, copy=False).tobytes()
        values = _join(raw_values, _ID)
        self._check_ids(field, values, lengths, num_ids)
        weights = self._weights(field, messages, num_ids) if self._is_weighted else None
        return SparseArrays(lengths.reshape(-1), values, weights, num_ids)

    def _lengths(self, field: str, data: bytes, num_ids: list[int], num_rows: int) -> npt.NDArray[np.int64]:
        """Return int64 ``[F, B]``, checked: not negative, and each row sums to its ``num_ids``."""
        sums = np.array(num_ids, np.int64)
        is_free = not self._same_lengths and not self._fixed and not self._most
        if num_rows == 1 and is_free and sums.astype(_LENGTH).tobytes() == data:
            return sums.reshape(-1, 1)  # with one row the lengths are the numbers of IDs
        lengths: npt.NDArray[np.int64] = (
            np.frombuffer(data, _LENGTH).reshape(len(num_ids), num_rows).astype(np.int64)
        )
        if lengths.size and lengths.min() < 0:
            at, row = np.argwhere(lengths < 0)[0]
            raise RequestError(
                f"{field}[{self.names[at]!r}].lengths: got {lengths[at, row]} in row {row}, expected 0 or more"
            )
        wrong = lengths.sum(axis=1) != sums
        if wrong.any():
            at = int(np.argmax(wrong))
            raise RequestError(
                f"{field}[{self.names[at]!r}].values: got {num_ids[at]} IDs, "
                f"expected {lengths[at].sum()} (the sum of its lengths)"
            )
        for i, expected in self._fixed:
            others = lengths[i] != expected
            if others.any():
                row = int(np.argmax(others))
                raise RequestError(
                    f"{field}[{self.names[i]!r}].lengths: got {lengths[i, row]} in row {row}, expected {expected}, as "
                    "many as the model takes"
                )
        for i, most in self._most:
            _refuse(why_too_many(f"{field}[{self.names[i]!r}]", lengths[i], most))
        for i, other in self._same_lengths:
            at_input = f"{field}[{self.names[i]!r}]"
            _refuse(why_not_as_many(at_input, lengths[i], self.names[other], lengths[other]))
        return lengths

    def _check_ids(
        self,
        field: str,
        values: npt.NDArray[np.int64],
        lengths: npt.NDArray[np.int64],
        num_ids: list[int],
    ) -> None:
        ids = values.view(np.uint64)
        if not ids.size or ids.max() <= self._smallest_largest_id:
            return
        bad = ids > np.repeat(self._largest_ids, num_ids)
        if not bad.any():
            return
        at = int(np.argmax(bad))
        row = int(np.searchsorted(lengths.reshape(-1).cumsum(), at, side="right"))
        feature, row = divmod(row, lengths.shape[1])
        use = self._uses[feature]
        tables = ", ".join(self._table_names[t.name] for t in use.tables if t.num_embeddings == use.id_limit)
        raise RequestError(
            f"{field}[{use.name!r}].values: got ID {values[at]} in row {row}, "
            f"expected 0 <= ID < {use.id_limit} (rows of table {tables})"
        )

    def _weights(
        self, field: str, messages: Sequence[RawSparseLike], num_ids: list[int]
    ) -> npt.NDArray[np.float32]:
        parts = [
            m.weights if use.weighted else _ONE * count
            for use, m, count in zip(self._uses, messages, num_ids, strict=True)
        ]
        weights: npt.NDArray[np.float32] = _join(parts, _FLOAT)
        if self._finite and not np.isfinite(weights).all():
            at = int(np.argmax(~np.isfinite(weights)))
            feature = int(np.searchsorted(np.cumsum(num_ids), at, side="right"))
            raise RequestError(
                f"{field}[{self.names[feature]!r}].weights: got {weights[at]} "
                f"at position {at - sum(num_ids[:feature])}, expected finite numbers"
            )
        return weights


def _by_name(kind: str, got: Sequence[_InputT], expected: list[str]) -> Sequence[_InputT]:
    """Return the inputs in the signature's order, each exactly once."""
    names = [message.name for message in got[: len(expected) + 1]]
    if names == expected:
        return got
    if len(got) == len(expected):
        found = dict(zip(names, got, strict=True))
        try:
            return [found[name] for name in expected]
        except KeyError:
            pass  # the code below finds which
    # Among one more than expected, one is unknown or a duplicate, so there is no need to scan millions.
    unknown = [name for name in names if name not in expected]
    if unknown:
        raise RequestError(f"{kind}: got an unknown input {short(unknown[0])}, expected {listed(expected)}")
    doubled = [name for name in names if names.count(name) > 1]
    if doubled:
        raise RequestError(f"{kind}: got {doubled[0]!r} more than once, expected each input once")
    missing = [name for name in expected if name not in names]
    raise RequestError(f"{kind}: missing {listed(missing)}, expected each of the model's inputs once")


def _refuse(why: str) -> None:
    if why:
        raise RequestError(why)


def _wrong_size(at: str, lengths_bytes: int, values_bytes: int, num_rows: int) -> RequestError:
    expected = num_rows * _LENGTH.itemsize
    if lengths_bytes != expected:
        return RequestError(
            f"{at}.lengths: got {lengths_bytes} bytes, expected {expected} (int32 [{num_rows}])"
        )
    return RequestError(f"{at}.values: got {values_bytes} bytes, expected a multiple of 8 (int64 IDs)")


def _check_weights_size(field: str, use: SparseInput, num_bytes: int, num_ids: int) -> None:
    if not use.weighted and num_bytes:
        raise RequestError(
            f"{field}[{use.name!r}].weights: got {num_bytes} bytes, expected none: the input is not weighted"
        )
    if use.weighted and num_bytes != num_ids * _FLOAT.itemsize:
        raise RequestError(
            f"{field}[{use.name!r}].weights: got {num_bytes} bytes, "
            f"expected {num_ids * _FLOAT.itemsize} (float32, one for each of {num_ids} IDs)"
        )


def _join(parts: Sequence[bytes], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Concatenate the parts into one writable array (tensors need writable memory)."""
    return np.frombuffer(bytearray(b"").join(parts), dtype)
