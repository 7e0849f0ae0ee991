"""Layers, and the products of vectors between them.

Shape letters: B rows, V vectors, D embedding dim.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from export.lower.formed import Interleave
from export.lower.kinds import ElementwiseKind, Function
from export.lower.operators.arithmetic import computed
from export.lower.operators.folding import folded, folded_vectors
from export.lower.operators.forms import matmul
from export.lower.operators.mixed import Layer, split_layer
from export.lower.operators.views import permute, reshaped
from export.lower.strided import Strided, by_row, strided
from export.lower.values import (
    Called,
    Columns,
    Join,
    Linear,
    NotLoweredError,
    NumRows,
    Products,
    Value,
    apply,
    operator,
    path_of,
)

# The limits of cpp_client/ops/packed.h, and the most weights that are held twice, plain and packed.
_MOST_INPUTS, _MOST_OUTPUTS, _MOST_WEIGHTS = 1 << 16, 1 << 20, 1 << 24


@dataclass(frozen=True, kw_only=True, eq=False)
class AllProducts(Called):
    """The products of all pairs of a row's vectors, ``[B, V, V]``, or flat ``[B, V * V]``."""

    of: Value
    is_flat: bool = False

    @property
    def shape(self) -> tuple[NumRows | int, ...]:
        """The sizes."""
        num = self.of.dims[0]
        return (NumRows(self.of.space), *((num * num,) if self.is_flat else (num, num)))

    @property
    def dtype(self) -> torch.dtype:
        """The type of the numbers."""
        return torch.float32

    def settled(self) -> Value:
        """Return all products, those of each pair twice."""
        num = self.of.dims[0]
        found = matmul(self.of, permute(self.of, 0, 2, 1))
        whole: Value = (reshaped(found, (num * num,)) if self.is_flat else found).settled()
        return whole

    def __getitem__(self, index: Any) -> Any:
        return _some_products(self, index)

    def __getattr__(self, name: str) -> Any:
        if name in ("reshape", "view", "flatten"):
            return lambda *sizes: _flat_products(self, name, sizes)
        if name == "index_select":
            return lambda dim, index: _products_at(self, dim, index)
        return super().__getattr__(name)


@operator("bmm", "matmul", views=True)
def products(first: Any, second: Any) -> Any:
    """Return the products of matrices; those of a row's vectors with each other are known as such."""
    if isinstance(first, Value) and len(first.dims) == 2 and isinstance(second, Strided):
        turned = strided(permute(first, 0, 2, 1))
        if (turned.value, turned.offset, turned.axes) == (second.value, second.offset, second.axes):
            return AllProducts(of=first)
    return matmul(first, second)


@operator("rmatmul", views=True)
def reversed_products(second: Any, first: Any) -> Any:
    """Return the products of matrices, the second one first."""
    return matmul(first, second)


def _flat_products(products: AllProducts, name: str, sizes: tuple[Any, ...]) -> Any:
    num = products.of.dims[0] ** 2
    given = sizes[0] if len(sizes) == 1 and isinstance(sizes[0], (tuple, list)) else sizes
    rows = NumRows(products.of.space)
    is_flat = tuple(given) in (
        [(1,), (1, 2), (1, -1)] if name == "flatten" else [(-1, num), (rows, num), (rows, -1)]
    )
    if not is_flat:
        return apply(name, products.settled(), *sizes)
    return AllProducts(of=products.of, is_flat=True)


def _products_at(products: AllProducts, dim: int, index: Any) -> Any:
    num = products.of.dims[0]
    above = torch.triu_indices(num, num, 1)
    is_above = isinstance(index, Tensor) and torch.equal(index, above[0] * num + above[1])
    if not products.is_flat or dim not in (1, -1) or not is_above or num < 2:
        return apply("index_select", products.settled(), dim, index)
    return Products(dims=(num * (num - 1) // 2,), space=products.of.space, source=products.of)


def _some_products(products: AllProducts, index: Any) -> Any:
    is_chosen = isinstance(index, tuple) and index[0] == slice(None) and isinstance(index[1], Tensor)
    if is_chosen and len(index) == 3 and isinstance(index[2], Tensor) and not products.is_flat:
        flat = AllProducts(of=products.of, is_flat=True)
        return _products_at(flat, 1, index[1] * products.of.dims[0] + index[2])
    if is_chosen and len(index) == 2:
        return _products_at(products, 1, index[1])
    return apply("getitem", products.settled(), index)


@operator("linear", views=True)
@by_row
def linear(value: Any, weight: Any, bias: Any = None) -> Value:
    """Return a linear layer's output."""
    path, bias_path = path_of(weight), path_of(bias)
    if not isinstance(value, Value) or path is None or (bias is not None and bias_path is None):
        raise NotLoweredError("a linear layer's weights are computed")
    if not value.dims or weight.dim() != 2 or value.dims[-1] != weight.shape[1]:
        raise NotLoweredError("a linear layer over other numbers than its weights")
    num_outputs, num_inputs = weight.shape
    fits = 1 <= num_inputs <= _MOST_INPUTS and 1 <= num_outputs <= _MOST_OUTPUTS
    if not fits or weight.numel() > _MOST_WEIGHTS:
        raise NotLoweredError(f"a linear layer of {num_outputs} by {num_inputs}")
    if any(one is not None and one.dtype is not torch.float32 for one in (weight, bias)):
        raise NotLoweredError("a linear layer whose weights are not float32")
    if not all(bool(one.isfinite().all()) for one in (weight, bias) if one is not None):
        raise NotLoweredError("a linear layer whose weights are not finite")
    split = split_layer(Layer(path, bias_path, num_outputs), value)
    if split is not None:
        return split
    columns: Columns = ()
    if isinstance(value, Join) and len(value.dims) == 1:
        value, columns = folded(value)
    elif isinstance(value, Interleave) and value.at == len(value.dims) - 1:
        value, columns = folded_vectors(value)
    return Linear(
        dims=(*value.dims[:-1], num_outputs), space=value.space, source=value, weight=path, bias=bias_path,
        columns=columns,
    )  # fmt: skip


@operator("gelu", views=True)
def gelu(value: Any, approximate: str = "none") -> Any:
    """Return numbers times the normal distribution up to them."""
    kind = ElementwiseKind.GELU if approximate == "none" else ElementwiseKind.GELU_TANH
    return computed(kind, value)


#: Whole numbers stay whole.
_OF_ANY_TYPE = (ElementwiseKind.RELU, ElementwiseKind.ABSOLUTE)


def _add_function(kind: ElementwiseKind, function: Function) -> None:
    """Let a function of torch be a step of a kind."""
    names = [] if function.argument is None else [function.argument]

    @operator(*function.names, views=True)
    def compute(value: Any, *args: Any, inplace: bool = False, **given: Any) -> Any:
        del inplace
        given |= dict(zip(names, args, strict=False))
        factor = given.pop(names[0], function.default) if names else None
        if given:
            raise NotLoweredError(f"it gives {function.names[0]} {sorted(given)}")
        dtype = value.dtype if kind in _OF_ANY_TYPE else torch.float32
        return computed(kind, value, None if factor is None else float(factor), dtype)


for _kind in ElementwiseKind:
    if _kind.function is not None:
        _add_function(_kind, _kind.function)
