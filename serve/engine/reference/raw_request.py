"""A request's named inputs as bytes that nobody has checked, whatever its protocol.

Shape letters: B rows of a request, N number of IDs of one input.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from serve.wire import predict_pb2 as wire


class RawDenseLike(Protocol):
    """``values``: little-endian float32, row-major ``[B, width]``."""

    @property
    def name(self) -> str: ...

    @property
    def values(self) -> bytes: ...


class RawSparseLike(Protocol):
    """One sparse input.

    ``lengths``: little-endian int32 ``[B]``; ``values``: int64 ``[N]``, or ``strings`` in their place: N texts;
    ``weights``: float32 ``[N]``, or empty.
    """

    @property
    def name(self) -> str: ...

    @property
    def lengths(self) -> bytes: ...

    @property
    def values(self) -> bytes: ...

    @property
    def weights(self) -> bytes: ...

    @property
    def strings(self) -> Sequence[bytes]: ...


class RawRequestLike(Protocol):
    """Named inputs as unchecked bytes. Context inputs have one row for all B.

    A parsed ``recsys.v1.PredictRequest`` is one; the other protocols make ``RawRequest``s.
    """

    @property
    def num_rows(self) -> int: ...

    @property
    def dense(self) -> Sequence[RawDenseLike]: ...

    @property
    def sparse(self) -> Sequence[RawSparseLike]: ...

    @property
    def context_dense(self) -> Sequence[RawDenseLike]: ...

    @property
    def context_sparse(self) -> Sequence[RawSparseLike]: ...


@dataclass(slots=True)
class RawDense:
    """One dense input."""

    name: str
    values: bytes


@dataclass(slots=True)
class RawSparse:
    """One sparse input."""

    name: str
    lengths: bytes
    values: bytes
    weights: bytes = b""
    strings: Sequence[bytes] = ()


@dataclass(slots=True, kw_only=True)
class RawRequest:
    """The inputs of one request."""

    num_rows: int
    dense: Sequence[RawDense] = field(default_factory=list)
    sparse: Sequence[RawSparse] = field(default_factory=list)
    context_dense: Sequence[RawDense] = field(default_factory=list)
    context_sparse: Sequence[RawSparse] = field(default_factory=list)


def serialized(raw: RawRequestLike) -> bytes:
    """Return a request's inputs as a ``recsys.v1.PredictRequest``, without model, version and request ID."""
    message = wire.PredictRequest(num_rows=raw.num_rows)
    for dense, messages in ((raw.dense, message.dense), (raw.context_dense, message.context_dense)):
        for one in dense:
            messages.add(name=one.name, values=one.values)
    for sparse, inputs in ((raw.sparse, message.sparse), (raw.context_sparse, message.context_sparse)):
        for use in sparse:
            inputs.add(
                name=use.name,
                lengths=use.lengths,
                values=use.values,
                weights=use.weights,
                strings=use.strings,
            )
    data: bytes = message.SerializeToString()
    return data
