"""Conversion of a request's sparse inputs from bytes to checked arrays.

Shape letters: B rows of a request, F sparse inputs, N number of IDs.

The checks cover all inputs of a request at once; only if one fails do they search for the input.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from recsys.inputs.signature import Signature, SparseInput
from serve.config.models import BatchLimits
from serve.engine.reference.requests import RawSparseLike
from serve.engine.reference.texts import ids_of_texts
from serve.errors import RequestError

_FLOAT, _LENGTH, _ID = np.dtype("<f4"), np.dtype("<i4"), np.dtype("<i8")
_ONE = np.ones(1, _FLOAT).tobytes()


@dataclass(slots=True)
class SparseArrays:
    """F inputs of B bags each, key-major.

    Attributes:
        lengths: int64 ``[F * B]``.
        values: int64 ``[N]``, in the order of ``lengths``.
        weights: float32 ``[N]``, if the signature is weighted; 1.0 for the IDs of unweighted inputs.
        num_ids: number of IDs of each input.
    """

    lengths: npt.NDArray[np.int64]
    values: npt.NDArray[np.int64]
    weights: npt.NDArray[np.float32] | None
    num_ids: list[int]

    def copy(self) -> SparseArrays:
        """Return a copy."""
        weights = None if self.weights is None else self.weights.copy()
        return SparseArrays(self.lengths.copy(), self.values.copy(), weights, self.num_ids)

    def of_input(self, i: int) -> npt.NDArray[np.int64]:
        """Return the lengths of the input at a position, ``[B]``."""
        num_bags = len(self.lengths) // len(self.num_ids)
        return self.lengths[i * num_bags : (i + 1) * num_bags]

    def only(self, inputs: Sequence[int]) -> SparseArrays:
        """Return the inputs at these positions, in this order."""
        if len(inputs) == len(self.num_ids):
            return self
        return _of_parts([_part(self, i) for i in inputs], self.weights is not None)


_Part = tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.float32] | None]


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
        self._uses = [use for use in signature.sparse if use.name in set(names)]
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
        self._limits.check_request(num_rows, sum(num_ids))
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
        if num_rows == 1 and not self._same_lengths and sums.astype(_LENGTH).tobytes() == data:
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
        for i, other in self._same_lengths:
            check_same_lengths(f"{field}[{self.names[i]!r}]", lengths[i], self.names[other], lengths[other])
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


def check_same_lengths(
    at: str, lengths: npt.NDArray[np.int64], other_name: str, others: npt.NDArray[np.int64]
) -> None:
    """Check that an input has as many IDs as another one, row by row.

    Args:
        at: the input, for error texts.
        lengths: its lengths, ``[B]``, or ``[1]`` of an input that is given once.
        other_name: the other input.
        others: its lengths, ``[B]`` or ``[1]``.

    Raises:
        RequestError: it has not.
    """
    differ = np.atleast_1d(lengths != others)
    if differ.any():
        row = int(np.argmax(differ))
        got, expected = (int(of[row if len(of) > 1 else 0]) for of in (lengths, others))
        raise RequestError(
            f"{at}.lengths: got {got} in row {row}, expected {expected}, as many as {other_name!r} has there"
        )


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


def repeated(arrays: SparseArrays, inputs: Sequence[int], num_rows: int) -> SparseArrays:
    """Repeat inputs of one bag each to ``num_rows`` equal bags."""
    parts: list[_Part] = []
    for i in inputs:
        lengths, values, weights = _part(arrays, i)
        parts.append(
            (
                np.repeat(lengths, num_rows),
                np.tile(values, num_rows),
                None if weights is None else np.tile(weights, num_rows),
            )
        )
    return _of_parts(parts, arrays.weights is not None)


def joined(
    order: Sequence[str],
    names: Sequence[str],
    arrays: SparseArrays,
    other_names: Sequence[str],
    others: SparseArrays,
) -> SparseArrays:
    """Merge the inputs of both, which have the same number of bags, in a given order of their names."""
    parts = {name: _part(arrays, i) for i, name in enumerate(names)}
    parts.update((name, _part(others, i)) for i, name in enumerate(other_names))
    return _of_parts([parts[name] for name in order], arrays.weights is not None)


def _part(arrays: SparseArrays, i: int) -> _Part:
    num_bags = len(arrays.lengths) // len(arrays.num_ids)
    start = sum(arrays.num_ids[:i])
    ids = slice(start, start + arrays.num_ids[i])
    return (
        arrays.lengths[i * num_bags : (i + 1) * num_bags],
        arrays.values[ids],
        None if arrays.weights is None else arrays.weights[ids],
    )


def _of_parts(parts: Sequence[_Part], weighted: bool) -> SparseArrays:
    no_ids = np.empty(0, np.int64)
    weights = [part[2] for part in parts if part[2] is not None]
    return SparseArrays(
        np.concatenate([no_ids, *(part[0] for part in parts)]),
        np.concatenate([no_ids, *(part[1] for part in parts)]),
        np.concatenate([np.empty(0, np.float32), *weights]) if weighted else None,
        [len(part[1]) for part in parts],
    )


def _join(parts: Sequence[bytes], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Concatenate the parts into one writable array (tensors need writable memory)."""
    return np.frombuffer(bytearray(b"").join(parts), dtype)
