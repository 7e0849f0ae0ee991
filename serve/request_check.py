"""From the wire's bytes to arrays, each checked against the model's signature.

Shape letters: B rows of a request, F sparse inputs, N number of IDs of a request.

The batch is put together by native ops that validate nothing: whatever leaves this file is safe for them.
The checks look at all inputs of a request at once; only where one fails do they go and find which.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from recsys.signature import DenseInput, Signature, SparseInput
from serve.batching import BatchLimits
from serve.errors import RequestError
from serve.wire import predict_pb2 as wire

# Longer request IDs would only serve to fill the log.
MAX_REQUEST_ID_BYTES = 128
_FLOAT, _LENGTH, _ID = np.dtype("<f4"), np.dtype("<i4"), np.dtype("<i8")
_ONE = np.ones(1, _FLOAT).tobytes()


@dataclass(slots=True, kw_only=True)
class CheckedRequest:
    """A request that fits the signature.

    Attributes:
        num_rows: B.
        dense: float32 ``[B, width]`` for each dense input, in the signature's order; read-only.
        lengths: int64 ``[F * B]``, key-major in the signature's order.
        values: int64 ``[N]``, in the order of ``lengths``.
        weights: float32 ``[N]``, where the signature is weighted; 1.0 for the IDs of unweighted inputs.
    """

    num_rows: int
    dense: tuple[npt.NDArray[np.float32], ...]
    lengths: npt.NDArray[np.int64]
    values: npt.NDArray[np.int64]
    weights: npt.NDArray[np.float32] | None


class _Named(Protocol):
    @property
    def name(self) -> str: ...


_InputT = TypeVar("_InputT", bound=_Named)


class RequestChecker:
    """Checks requests for one model. Thread-safe: it holds nothing of a request.

    Args:
        signature: what the model takes.
        limits: the most rows and IDs of one request.
        allow_non_finite: whether NaN and infinities pass in dense inputs and weights.
    """

    def __init__(self, signature: Signature, limits: BatchLimits, *, allow_non_finite: bool = False) -> None:
        self._signature = signature
        self._limits = limits
        self._allow_non_finite = allow_non_finite
        self._is_weighted = signature.is_weighted
        self._dense_names = [d.name for d in signature.dense]
        self._sparse_names = [s.name for s in signature.sparse]
        any_id = np.iinfo(np.uint64).max
        limited = [any_id if s.id_limit is None else s.id_limit - 1 for s in signature.sparse]
        # As unsigned numbers, negative IDs are larger than any limit: one comparison checks both ends.
        self._largest_ids: npt.NDArray[np.uint64] = np.array(limited, np.uint64)
        self._smallest_largest_id = min(limited, default=any_id)

    def check(self, request: wire.PredictRequest) -> CheckedRequest:
        """Check one request and lay its inputs out in the signature's order.

        Raises:
            RequestTooLargeError: it has more rows or IDs than one request may have.
            RequestError: anything else is wrong; the text names the field, what it holds and what it should.
        """
        num_rows = request.num_rows
        if num_rows < 0:
            raise RequestError(f"num_rows: got {num_rows}, expected 0 or more")
        self._limits.check_request(num_rows, 0)
        if len(request.request_id.encode()) > MAX_REQUEST_ID_BYTES:
            raise RequestError(
                f"request_id: got {len(request.request_id.encode())} bytes, "
                f"expected at most {MAX_REQUEST_ID_BYTES}"
            )
        dense = _by_name("dense", request.dense, self._dense_names)
        sparse = _by_name("sparse", request.sparse, self._sparse_names)
        arrays = tuple(
            self._dense(d, m.values, num_rows) for d, m in zip(self._signature.dense, dense, strict=True)
        )
        num_ids = self._check_sizes(sparse, num_rows)
        lengths = self._lengths(sparse, num_ids, num_rows)
        values = _join([m.values for m in sparse], _ID)
        self._check_ids(values, lengths, num_ids)
        weights = self._weights(sparse, num_ids) if self._is_weighted else None
        return CheckedRequest(
            num_rows=num_rows, dense=arrays, lengths=lengths.reshape(-1), values=values, weights=weights
        )

    def _dense(self, dense: DenseInput, data: bytes, num_rows: int) -> npt.NDArray[np.float32]:
        expected = num_rows * dense.width * _FLOAT.itemsize
        if len(data) != expected:
            raise RequestError(
                f"dense[{dense.name!r}].values: got {len(data)} bytes, expected {expected} "
                f"(float32 [{num_rows}, {dense.width}])"
            )
        array = np.frombuffer(data, _FLOAT).reshape(num_rows, dense.width)
        if not self._allow_non_finite and not np.isfinite(array).all():
            row, column = np.argwhere(~np.isfinite(array))[0]
            raise RequestError(
                f"dense[{dense.name!r}].values: got {array[row, column]} in row {row}, column {column}, "
                "expected finite numbers"
            )
        return array

    def _check_sizes(self, sparse: Sequence[wire.SparseInput], num_rows: int) -> list[int]:
        """Check what shows in byte counts alone; returns the number of IDs of each sparse input."""
        num_ids = []
        lengths_bytes = num_rows * _LENGTH.itemsize
        for use, got in zip(self._signature.sparse, sparse, strict=True):
            if len(got.lengths) != lengths_bytes:
                raise RequestError(
                    f"sparse[{use.name!r}].lengths: got {len(got.lengths)} bytes, "
                    f"expected {lengths_bytes} (int32 [{num_rows}])"
                )
            count, rest = divmod(len(got.values), _ID.itemsize)
            if rest:
                raise RequestError(
                    f"sparse[{use.name!r}].values: got {len(got.values)} bytes, "
                    "expected a multiple of 8 (int64 IDs)"
                )
            if use.weighted or got.weights:
                self._check_weights_size(use, len(got.weights), count)
            num_ids.append(count)
        self._limits.check_request(num_rows, sum(num_ids))
        return num_ids

    def _check_weights_size(self, use: SparseInput, num_bytes: int, num_ids: int) -> None:
        if not use.weighted and num_bytes:
            raise RequestError(
                f"sparse[{use.name!r}].weights: got {num_bytes} bytes, expected none: the input is not weighted"
            )
        if use.weighted and num_bytes != num_ids * _FLOAT.itemsize:
            raise RequestError(
                f"sparse[{use.name!r}].weights: got {num_bytes} bytes, "
                f"expected {num_ids * _FLOAT.itemsize} (float32, one for each of {num_ids} IDs)"
            )

    def _lengths(
        self, sparse: Sequence[wire.SparseInput], num_ids: list[int], num_rows: int
    ) -> npt.NDArray[np.int64]:
        """int64 ``[F, B]``, none negative, whose rows sum to ``num_ids``."""
        raw = _join([m.lengths for m in sparse], _LENGTH)
        lengths: npt.NDArray[np.int64] = raw.reshape(len(sparse), num_rows).astype(np.int64)
        if lengths.size and lengths.min() < 0:
            at, row = np.argwhere(lengths < 0)[0]
            raise RequestError(
                f"sparse[{self._sparse_names[at]!r}].lengths: got {lengths[at, row]} in row {row}, "
                "expected 0 or more"
            )
        sums = lengths.sum(axis=1)
        if not np.array_equal(sums, num_ids):
            at = int(np.argmax(sums != num_ids))
            raise RequestError(
                f"sparse[{self._sparse_names[at]!r}].values: got {num_ids[at]} IDs, "
                f"expected {sums[at]} (the sum of its lengths)"
            )
        return lengths

    def _check_ids(
        self, values: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64], num_ids: list[int]
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
        use = self._signature.sparse[feature]
        tables = ", ".join(t.name for t in use.tables if t.num_embeddings == use.id_limit)
        raise RequestError(
            f"sparse[{use.name!r}].values: got ID {values[at]} in row {row}, "
            f"expected 0 <= ID < {use.id_limit} (rows of table {tables})"
        )

    def _weights(self, sparse: Sequence[wire.SparseInput], num_ids: list[int]) -> npt.NDArray[np.float32]:
        uses = self._signature.sparse
        parts = [
            m.weights if use.weighted else _ONE * count
            for use, m, count in zip(uses, sparse, num_ids, strict=True)
        ]
        weights: npt.NDArray[np.float32] = _join(parts, _FLOAT)
        if not self._allow_non_finite and not np.isfinite(weights).all():
            at = int(np.argmax(~np.isfinite(weights)))
            feature = int(np.searchsorted(np.cumsum(num_ids), at, side="right"))
            raise RequestError(
                f"sparse[{uses[feature].name!r}].weights: got {weights[at]} "
                f"at position {at - sum(num_ids[:feature])}, expected finite numbers"
            )
        return weights


def _by_name(kind: str, got: Sequence[_InputT], expected: list[str]) -> list[_InputT]:
    """The inputs in the signature's order, each there exactly once."""
    if len(got) == len(expected):
        found = {message.name: message for message in got}
        try:
            return [found[name] for name in expected]
        except KeyError:
            pass  # what follows says which
    # Among one more than expected, one is unknown or doubled: no need to look through millions.
    names = [message.name for message in got[: len(expected) + 1]]
    unknown = [name for name in names if name not in expected]
    if unknown:
        raise RequestError(f"{kind}: got an unknown input {_short(unknown[0])}, expected {_listed(expected)}")
    doubled = [name for name in names if names.count(name) > 1]
    if doubled:
        raise RequestError(f"{kind}: got {doubled[0]!r} more than once, expected each input once")
    missing = [name for name in expected if name not in names]
    raise RequestError(f"{kind}: missing {_listed(missing)}, expected each of the model's inputs once")


def _short(name: str) -> str:
    return repr(name if len(name) <= 64 else name[:61] + "...")


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - 8} more" if len(names) > 8 else ""
    return (", ".join(repr(name) for name in names[:8]) or "none") + more


def _join(parts: Sequence[bytes], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """One writable array of all parts, one after the other (tensors want writable memory)."""
    return np.frombuffer(bytearray(b"").join(parts), dtype)
