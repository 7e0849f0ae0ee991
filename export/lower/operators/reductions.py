"""What is left of a dimension of rows: sums, means, lengths, extremes; and what norms and shares make of it.

Shape letters: B rows, D numbers of a vector.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch

from export.lower.kinds import ElementwiseKind
from export.lower.operators.arithmetic import clamp, clamp_min, computed, div, maximum, mul, only_float32
from export.lower.operators.comparisons import minimum
from export.lower.operators.views import dim_of, narrow, permute, reshaped, squeeze, unsqueeze
from export.lower.strided import by_row, strided, weight_of, with_rows, without_rows
from export.lower.values import Called, Elementwise, NotLoweredError, Value, Weight, operator


def _dims_of(value: Any, dim: Any) -> list[int]:
    over = [dim] if isinstance(dim, int) else list(dim or [])
    found = sorted(dim_of(value, one) for one in over)
    if not found or (found[0] == 0 and strided(value).has_rows):
        raise NotLoweredError("it reduces the rows of a batch to one")
    return found


def _at_end(value: Any, dims: Sequence[int]) -> Value:
    """Return a value with some dimensions behind the others."""
    order = [i for i in range(value.ndim) if i not in dims] + list(dims)
    found: Value = permute(value, order).settled()
    return found


def _reduced(
    kind: ElementwiseKind, value: Any, dim: Any, keepdim: bool, dtype: torch.dtype = torch.float32
) -> Any:
    dims, view = _dims_of(value, dim), strided(value)
    if not view.has_rows:
        return without_rows(_reduced(kind, with_rows(view), [at + 1 for at in dims], keepdim, dtype))
    whole = value.settled()
    first = kind is ElementwiseKind.TOTAL and dims == [1] and len(whole.dims) > 1
    if first:
        # One vector after the other: nothing need be moved.
        found: Any = Elementwise(
            dims=whole.dims[1:], space=whole.space, dtype=dtype, kind=ElementwiseKind.SUM, operands=[whole],
            count=whole.dims[0],
        )  # fmt: skip
    else:
        moved = _at_end(whole, dims)
        kept = moved.dims[: len(moved.dims) - len(dims)]
        found = Elementwise(
            dims=kept, space=moved.space, dtype=dtype, kind=kind, operands=[moved],
            count=moved.width // max(prod(kept), 1),
        )  # fmt: skip
    for at in dims if keepdim else []:
        found = unsqueeze(found, at)
    return found


@operator("sum", views=True)
def sum_of(value: Any, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Any:
    """Return sums over dimensions of a row."""
    only_float32(dtype)
    dtype = torch.float32 if value.dtype is torch.float32 else torch.int64
    return _reduced(ElementwiseKind.TOTAL, value, dim, keepdim, dtype)


@operator("mean", views=True)
def mean(value: Any, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Any:
    """Return means over dimensions of a row."""
    only_float32(dtype)
    count = prod(value.shape[d] for d in _dims_of(value, dim))
    return div(sum_of(value, dim, keepdim), count)


@operator("norm", "vector_norm", views=True)
def norm(
    value: Any, p: Any = 2, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Any:
    """Return the Euclidean lengths of vectors."""
    only_float32(dtype)
    if p not in (2, "fro", None):
        raise NotLoweredError("a norm of another kind than the Euclidean")
    return _reduced(ElementwiseKind.NORM, value, dim, keepdim)


@operator("normalize", views=True)
def normalize(value: Any, p: float = 2.0, dim: int = 1, eps: float = 1e-12, out: None = None) -> Any:
    """Return vectors of length 1."""
    del out
    return div(value, clamp_min(norm(value, p, dim, True), eps))


@operator("cosine_similarity", views=True)
def cosine_similarity(x1: Any, x2: Any, dim: int = 1, eps: float = 1e-8) -> Any:
    """Return the products of vectors that are made as long as 1."""
    return sum_of(mul(normalize(x1, 2.0, dim, eps), normalize(x2, 2.0, dim, eps)), dim)


@operator("softmax", views=True)
def softmax(value: Any, dim: Any = None, _stacklevel: int = 3, dtype: torch.dtype | None = None) -> Any:
    """Return the shares of numbers of a dimension."""
    only_float32(dtype)
    (at,) = _dims_of(value, dim)
    view = strided(value)
    if not view.has_rows:
        return without_rows(softmax(with_rows(view), at + 1))
    moved = _at_end(value, [at])
    found = Elementwise(
        dims=moved.dims, space=moved.space, kind=ElementwiseKind.SOFTMAX, operands=[moved],
        count=prod(moved.dims[:-1]),
    )  # fmt: skip
    order = [i for i in range(value.ndim) if i != at]
    return permute(found, [order.index(i) if i != at else value.ndim - 1 for i in range(value.ndim)])


@operator("layer_norm", views=True)
@by_row
def layer_norm(
    value: Value, normalized_shape: Sequence[int], weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> Any:
    """Return normalized vectors."""
    dim = prod(normalized_shape)
    if tuple(normalized_shape) != value.dims[len(value.dims) - len(normalized_shape) :]:
        raise NotLoweredError("a layer norm over other dimensions than the last")
    if value.width == dim:
        found: Any = computed(ElementwiseKind.STANDARDIZE, reshaped(value, (dim,)), eps)
        found = found if weight is None else mul(found, weight_of(weight, value.space))
        return reshaped(found if bias is None else found + weight_of(bias, value.space), value.dims)
    operands = [value, *(_each(one, dim, number, value) for one, number in ((weight, 1.0), (bias, 0.0)))]
    return Elementwise(
        dims=value.dims, space=value.space, kind=ElementwiseKind.LAYER_NORM, operands=operands, factor=eps
    )


@operator("batch_norm")
def batch_norm(value: Value, running_mean: Any, running_var: Any, *rest: Any, **options: Any) -> Any:
    """Return columns normalized by the numbers that training has counted."""
    given = {
        **dict(zip(("weight", "bias", "training", "momentum", "eps"), rest, strict=False)),
        **options,
    }
    weight, bias = given.get("weight"), given.get("bias")
    if given.get("training") or running_mean is None or running_var is None or len(rest) > len(given):
        raise NotLoweredError("batch norm by the numbers of a batch")
    if not value.dims or any(
        one.numel() != value.dims[0] for one in (running_mean, running_var, weight, bias) if one is not None
    ):
        raise NotLoweredError("batch norm over other columns than its weights")
    found: Any = Elementwise(
        dims=value.dims, space=value.space, kind=ElementwiseKind.NORMALIZE, factor=given.get("eps", 1e-5),
        operands=[value, weight_of(running_mean, value.space), weight_of(running_var, value.space)],
    )  # fmt: skip
    found = found if weight is None else mul(found, _of_columns(weight, value))
    return found if bias is None else found + _of_columns(bias, value)


def _of_columns(weight: Any, value: Value) -> Any:
    """Return a number for each number of the columns that it stands for."""
    found: Any = weight_of(weight, value.space)
    for _ in value.dims[1:]:
        found = unsqueeze(found, -1)
    return found


def _each(weight: Any, dim: int, number: float, value: Value) -> Weight:
    """Return a number for each of a vector's."""
    return weight_of(torch.full((dim,), number) if weight is None else weight, value.space)


@dataclass(frozen=True)
class _Extremes:
    """What ``max`` and ``min`` return of a dimension; no step tells where the numbers were."""

    values: Any

    def __getitem__(self, index: int) -> Any:
        if index != 0:
            raise NotLoweredError("it asks where the largest numbers are")
        return self.values


def _of_dim(pick: Callable[[Any, Any], Any], value: Any, dim: Any, keepdim: bool) -> Any:
    """Return what is picked of the numbers of a dimension: the one half beside the other, again and again."""
    if not isinstance(dim, int):
        raise NotLoweredError("it reduces several dimensions")
    view, at = strided(value), dim_of(value, dim)
    if not view.has_rows:
        return without_rows(_of_dim(pick, with_rows(view), at + 1, keepdim))
    if at == 0:
        raise NotLoweredError("it reduces the rows of a batch to one")
    size = int(value.shape[at])
    while size > 1:
        half = (size + 1) // 2
        # Where the number is odd, the middle one is on both sides.
        value = pick(narrow(value, at, 0, half), narrow(value, at, size - half, half))
        size = half
    return value if keepdim else squeeze(value, at)


@operator("amax", views=True)
def amax(value: Any, dim: Any = None, keepdim: bool = False) -> Any:
    """Return the largest numbers of a dimension."""
    return _of_dim(maximum, value, dim, keepdim)


@operator("amin", views=True)
def amin(value: Any, dim: Any = None, keepdim: bool = False) -> Any:
    """Return the smallest numbers of a dimension."""
    return _of_dim(minimum, value, dim, keepdim)


@operator("max", views=True)
def largest(value: Any, dim: Any = None, keepdim: bool = False) -> Any:
    """Return the larger numbers of two, or the largest ones of a dimension."""
    return maximum(value, dim) if isinstance(dim, Called) else _Extremes(amax(value, dim, keepdim))


@operator("min", views=True)
def smallest(value: Any, dim: Any = None, keepdim: bool = False) -> Any:
    """Return the smaller numbers of two, or the smallest ones of a dimension."""
    return minimum(value, dim) if isinstance(dim, Called) else _Extremes(amin(value, dim, keepdim))


@operator("relu6", views=True)
def relu6(value: Any, inplace: bool = False) -> Any:
    """Return numbers between 0 and 6."""
    return hardtanh(value, 0.0, 6.0, inplace)


@operator("hardtanh", views=True)
def hardtanh(value: Any, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False) -> Any:
    """Return numbers within bounds."""
    del inplace
    return clamp(value, min_val, max_val)
