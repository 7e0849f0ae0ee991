"""Attention: products of queries and keys, their shares, and sums of values by them.

Shape letters: B rows, H heads, S places, D numbers of a head.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch

from export.lower.kinds import ElementwiseKind
from export.lower.operators.arithmetic import add, mul, where
from export.lower.operators.forms import matmul
from export.lower.operators.layers import linear
from export.lower.operators.reductions import mean, softmax
from export.lower.operators.views import permute, reshaped, select, transpose, unsqueeze
from export.lower.strided import strided
from export.lower.values import Elementwise, Expand, NotLoweredError, Value, operator


@operator("scaled_dot_product_attention", views=True)
def attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    *rest: Any,
    **options: Any,
) -> Any:
    """Return what each query takes of the values."""
    is_causal = rest[0] if rest else options.get("is_causal", False)
    if dropout_p != 0 or options.get("enable_gqa", False):
        raise NotLoweredError("attention in training mode, or by groups of heads")
    if is_causal:
        sizes = (query.shape[-2], key.shape[-2])
        attn_mask = torch.ones(*sizes, dtype=torch.bool).tril()
    weights = _weights(query, key, attn_mask, options.get("scale"))
    return matmul(weights, value)


def _weights(query: Any, key: Any, mask: Any, scale: float | None) -> Any:
    """Return the shares of the values; zeros where a mask leaves none."""
    dim = query.shape[-1]
    scores = mul(matmul(query, transpose(key, -1, -2)), 1 / math.sqrt(dim) if scale is None else scale)
    if mask is None:
        return softmax(scores, -1)
    is_choice = mask.dtype is torch.bool
    scores = where(mask, scores, -math.inf) if is_choice else add(scores, mask)
    shares = softmax(scores, -1)
    assert isinstance(shares, Elementwise)
    shares.kind = ElementwiseKind.SOFTMAX_OR_ZEROS
    return shares


@operator("multi_head_attention_forward", views=True)
def multi_head_attention(
    query: Any, key: Any, value: Any, embed_dim_to_check: int, num_heads: int, *rest: Any, **options: Any
) -> tuple[Any, Any]:
    """Return what ``nn.MultiheadAttention`` does for places in front, ``[S, B, D]``, and the shares."""
    in_weight, in_bias, bias_k, bias_v, add_zero, dropout, out_weight, out_bias = rest[:8]
    names = ("training", "key_padding_mask", "need_weights", "attn_mask", "use_separate_proj_weight")
    given = {**dict(zip(names, rest[8:], strict=False)), **options}
    is_plain = (
        bias_k is None and bias_v is None and not add_zero and not given.get("use_separate_proj_weight")
    )
    if not is_plain or (given.get("training", True) and dropout):
        raise NotLoweredError(
            "attention in training mode, with biases of keys, or with weights for each input"
        )
    dim, size = embed_dim_to_check, query.shape[0]
    made: dict[int, Any] = {}
    parts = []
    for i, one in enumerate((query, key, value)):
        if id(one) not in made:
            # What it has no need of is computed too: the weights of all are one.
            all_parts = _projected(one, in_weight, in_bias)
            made[id(one)] = reshaped(all_parts, (one.shape[0], 3, num_heads, dim // num_heads))
        parts.append(permute(select(made[id(one)], 2, i), 0, 2, 1, 3))
    shares = _weights(parts[0], parts[1], _mask_of(given), None)
    seen = reshaped(permute(matmul(shares, parts[2]), 0, 2, 1, 3), (size, dim))
    out = transpose(linear(seen.settled(), out_weight, out_bias), 0, 1)
    if not given.get("need_weights", True):
        return out, None
    return out, mean(shares, 1) if given.get("average_attn_weights", True) else shares


def _projected(places: Any, weight: Any, bias: Any) -> Value:
    """Return a layer over places in front, ``[S, B, D]``, as ``[B, S, out]``: once for each context if it has them."""
    view = strided(places)
    if isinstance(view.value, Expand):
        made = _projected(replace(view, value=view.value.source), weight, bias)
        return Expand(dims=made.dims, dtype=made.dtype, source=made)
    found: Value = linear(transpose(view, 0, 1).settled(), weight, bias)
    return found


def _mask_of(given: dict[str, Any]) -> Any:
    """Return a mask for ``[B, H, S, S]``, the places of queries and those of keys."""
    mask, padding = given.get("attn_mask"), given.get("key_padding_mask")
    if mask is not None and len(mask.shape) > 2:
        raise NotLoweredError("attention with a mask for each head")
    if padding is None:
        return mask
    padding = unsqueeze(unsqueeze(padding, 1), 1)
    return padding if mask is None else add(padding, mask)
