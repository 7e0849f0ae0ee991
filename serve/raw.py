"""A request as every protocol brings it: named inputs as bytes, nothing of it checked yet.

A parsed ``recsys.v1.PredictRequest`` fits these types as it is; the other protocols make ``RawRequest``s.

Shape letters: B rows of a request, N number of IDs of one input.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol


class RawDenseLike(Protocol):
    """``values``: little-endian float32, row-major ``[B, width]``."""

    @property
    def name(self) -> str: ...

    @property
    def values(self) -> bytes: ...


class RawSparseLike(Protocol):
    """``lengths``: little-endian int32 ``[B]``; ``values``: int64 ``[N]``; ``weights``: float32 ``[N]``, or empty."""

    @property
    def name(self) -> str: ...

    @property
    def lengths(self) -> bytes: ...

    @property
    def values(self) -> bytes: ...

    @property
    def weights(self) -> bytes: ...


class RawRequestLike(Protocol):
    """The rows to score. Context inputs have one row, which stands for all B."""

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


@dataclass(slots=True, kw_only=True)
class RawRequest:
    """One request."""

    num_rows: int
    dense: Sequence[RawDense] = field(default_factory=list)
    sparse: Sequence[RawSparse] = field(default_factory=list)
    context_dense: Sequence[RawDense] = field(default_factory=list)
    context_sparse: Sequence[RawSparse] = field(default_factory=list)
