"""Shapes of common results for tensors of symbolic sizes, without running anything: torch takes long to tell them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx, nn

from export.graph.modules import has_hooks

# What they return has the shape and the type of what they get.
_POINTWISE = (nn.ReLU, nn.Sigmoid, nn.Tanh, nn.GELU, nn.SiLU, nn.LeakyReLU, nn.ELU, nn.Softplus)


def result_of(layer: nn.Module, x: Any) -> Tensor | None:
    """Return a tensor like a layer's result; None if the layer must be run, as where it may not take ``x``."""
    if _is_changed(layer) or not isinstance(x, Tensor) or x.dtype is not torch.float32 or not x.dim():
        return None
    if type(layer) in _POINTWISE and not getattr(layer, "inplace", False):
        return torch.empty_like(x)
    if type(layer) is nn.Linear and _has_width(x, layer.in_features) and layer.weight.dtype is x.dtype:
        return x.new_empty((*x.shape[:-1], layer.out_features))
    if type(layer) is nn.LayerNorm and _is_normalized(layer, x):
        return x.new_empty(x.shape)
    return None


def size_of(root: nn.Module, node: fx.Node, dim: int) -> int | None:
    """Return the size of a dimension that a node itself tells; None if only its inputs do."""
    if node.op == "call_module" and dim == -1:
        layer = root.get_submodule(str(node.target))
        if type(layer) is nn.Linear and not _is_changed(layer):
            return layer.out_features
    if node.target is torch.ops.fbgemm.jagged_to_padded_dense and dim == 1 and len(node.args) > 2:
        most = node.args[2]
        if isinstance(most, (list, tuple)) and len(most) == 1 and isinstance(most[0], int):
            return most[0]
    return None


def _is_changed(layer: nn.Module) -> bool:
    """Return whether a layer may return what its type does not."""
    return "forward" in vars(layer) or has_hooks(layer)


def _has_width(x: Tensor, width: int) -> bool:
    size = x.shape[-1]
    return isinstance(size, int) and size == width


def _is_normalized(layer: nn.LayerNorm, x: Tensor) -> bool:
    """Return whether a layer norms the last dimension of a tensor, in the tensor's type."""
    [width, *more] = layer.normalized_shape
    is_same_type = layer.weight is None or layer.weight.dtype is x.dtype
    return not more and _has_width(x, width) and is_same_type
