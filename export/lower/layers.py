"""Layers, and the products of vectors between them.

Shape letters: B rows, V vectors, D embedding dim.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from export.lower.arithmetic import add, mul, only_float32
from export.lower.values import (
    Called,
    Elementwise,
    ElementwiseKind,
    Join,
    Linear,
    NotLoweredError,
    NumRows,
    Products,
    Value,
    View,
    operator,
    path_of,
)
from export.lower.views import dim_of, joined, reshaped

# Of plans: cpp_client/ops/packed.h, and the most weights that are held twice, plain and packed.
_MOST_INPUTS, _MOST_OUTPUTS, _MOST_WEIGHTS = 1 << 16, 1 << 20, 1 << 24
# Each vector that is normalized takes two steps.
_MOST_NORMALIZED = 64


@dataclass(frozen=True, kw_only=True)
class Transposed(Called):
    """The vectors of each row with the last two dimensions exchanged."""

    of: Value


@dataclass(frozen=True, kw_only=True)
class AllProducts(Called):
    """The products of all pairs of a row's vectors, ``[B, V, V]``, or flat ``[B, V * V]``."""

    of: Value
    is_flat: bool = False

    def __getitem__(self, index: Any) -> Value:
        return _some_products(self, index)

    def __getattr__(self, name: str) -> Any:
        if name in ("reshape", "view", "flatten"):
            return lambda *sizes: _flat_products(self, name, sizes)
        if name == "index_select":
            return lambda dim, index: _products_at(self, dim, index)
        raise AttributeError(name)


@operator("transpose", "swapaxes")
def transpose(value: Value, dim0: int, dim1: int) -> Transposed:
    """Return vectors with the last two dimensions exchanged."""
    if len(value.dims) != 2 or {dim_of(value, dim0), dim_of(value, dim1)} != {1, 2}:
        raise NotLoweredError("it exchanges dimensions")
    return Transposed(of=value)


@operator("permute")
def permute(value: Value, *dims: Any) -> Transposed:
    """Return vectors with the last two dimensions exchanged."""
    order = dims[0] if len(dims) == 1 else dims
    if tuple(order) != (0, 2, 1):
        raise NotLoweredError("it exchanges dimensions")
    return transpose(value, 1, 2)


@operator("bmm", "matmul")
def bmm(value: Value, other: Any) -> AllProducts:
    """Return the products of all pairs of vectors."""
    if not isinstance(other, Transposed) or other.of is not value:
        raise NotLoweredError("it multiplies matrices")
    return AllProducts(of=value)


def _flat_products(products: AllProducts, name: str, sizes: tuple[Any, ...]) -> AllProducts:
    num = products.of.dims[0] ** 2
    given = sizes[0] if len(sizes) == 1 and isinstance(sizes[0], (tuple, list)) else sizes
    rows = NumRows(products.of.space)
    is_flat = tuple(given) in (
        [(1,), (1, 2), (1, -1)] if name == "flatten" else [(-1, num), (rows, num), (rows, -1)]
    )
    if not is_flat:
        raise NotLoweredError("it reshapes products of vectors")
    return AllProducts(of=products.of, is_flat=True)


def _products_at(products: AllProducts, dim: int, index: Any) -> Value:
    num = products.of.dims[0]
    above = torch.triu_indices(num, num, 1)
    is_above = isinstance(index, Tensor) and torch.equal(index, above[0] * num + above[1])
    if not products.is_flat or dim not in (1, -1) or not is_above or num < 2:
        raise NotLoweredError("it takes other products of vectors than those of all pairs")
    return Products(dims=(num * (num - 1) // 2,), space=products.of.space, source=products.of)


def _some_products(products: AllProducts, index: Any) -> Value:
    if not isinstance(index, tuple) or index[0] != slice(None) or not isinstance(index[1], Tensor):
        raise NotLoweredError("it takes other products of vectors than those of all pairs")
    if len(index) == 3 and isinstance(index[2], Tensor) and not products.is_flat:
        flat = AllProducts(of=products.of, is_flat=True)
        return _products_at(flat, 1, index[1] * products.of.dims[0] + index[2])
    if len(index) == 2:
        return _products_at(products, 1, index[1])
    raise NotLoweredError("it takes other products of vectors than those of all pairs")


@operator("linear")
def linear(value: Value, weight: Any, bias: Any = None) -> Value:
    """Return a linear layer's output."""
    path, bias_path = path_of(weight), path_of(bias)
    if not isinstance(value, Value) or path is None or (bias is not None and bias_path is None):
        raise NotLoweredError("a linear layer's weights are computed")
    if len(value.dims) != 1 or weight.dim() != 2 or value.dims[0] != weight.shape[1]:
        raise NotLoweredError("a linear layer over several vectors of a row")
    num_outputs, num_inputs = weight.shape
    fits = 1 <= num_inputs <= _MOST_INPUTS and 1 <= num_outputs <= _MOST_OUTPUTS
    if not fits or weight.numel() > _MOST_WEIGHTS:
        raise NotLoweredError(f"a linear layer of {num_outputs} by {num_inputs}")
    if any(one is not None and one.dtype is not torch.float32 for one in (weight, bias)):
        raise NotLoweredError("a linear layer whose weights are not float32")
    if not all(bool(one.isfinite().all()) for one in (weight, bias) if one is not None):
        raise NotLoweredError("a linear layer whose weights are not finite")
    if isinstance(value, Join) and any(_is_sum_of_parts(part.value, value) for part in value.parts):
        # Loaders of TorchScript fold the sum into the layer's weights, which is faster.
        raise NotLoweredError("a linear layer over vectors and their sums")
    return Linear(dims=(num_outputs,), space=value.space, source=value, weight=path, bias=bias_path)


def _is_sum_of_parts(value: Value, join: Join) -> bool:
    is_sum = isinstance(value, Elementwise) and value.kind in (ElementwiseKind.ADD, ElementwiseKind.SUBTRACT)
    parts = {id(part.value) for part in join.parts}
    return is_sum and all(id(source) in parts for source in value.sources)


@operator("layer_norm")
def layer_norm(
    value: Value, normalized_shape: Sequence[int], weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> Value:
    """Return normalized vectors."""
    dim = value.dims[-1] if value.dims else 0
    if tuple(normalized_shape) != (dim,) or not dim or value.width // dim > _MOST_NORMALIZED:
        raise NotLoweredError("a layer norm over several dimensions")
    normalized = []
    for i in range(value.width // dim):
        vector: Value = View(dims=(dim,), space=value.space, source=value, offset=i * dim)
        if value.width == dim:
            vector = value
        found: Value = Elementwise(
            dims=(dim,), space=value.space, kind=ElementwiseKind.STANDARDIZE, operands=[vector], factor=eps
        )
        if weight is not None:
            found = mul(found, weight)
        normalized.append(found if bias is None else add(found, bias))
    whole = normalized[0] if len(normalized) == 1 else joined(normalized, (value.width,))
    return reshaped(whole, value.dims)


@operator("relu")
def relu(value: Value, inplace: bool = False) -> Value:
    """Return the numbers above 0, and 0."""
    del inplace
    return Elementwise(dims=value.dims, space=value.space, kind=ElementwiseKind.RELU, operands=[value])


@operator("sigmoid")
def sigmoid(value: Value) -> Value:
    """Return the logistic function of numbers."""
    return Elementwise(dims=value.dims, space=value.space, kind=ElementwiseKind.SIGMOID, operands=[value])


@operator("softmax")
def softmax(value: Value, dim: Any = None, _stacklevel: int = 3, dtype: torch.dtype | None = None) -> Value:
    """Return the shares of a row's numbers."""
    only_float32(dtype)
    if len(value.dims) != 1 or dim is None or dim_of(value, dim) != 1:
        raise NotLoweredError("a softmax over some of a row's numbers")
    return Elementwise(dims=value.dims, space=value.space, kind=ElementwiseKind.SOFTMAX, operands=[value])
