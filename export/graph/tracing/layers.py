"""Layers of torch whose own code decides by what a batch holds, or runs another layer, as the tracer calls them.

Shape letters: B batch, L places of a row, D size of a state.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, fx, nn

_ENCODER_ARGUMENTS = ("src", "mask", "src_key_padding_mask", "is_causal")


def own_call(layer: nn.Module) -> Callable[..., Any] | None:
    """Return what is called for a layer whose forward no graph can hold; None for all others."""
    if isinstance(layer, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
        return layer.module  # type: ignore[no-any-return]
    if isinstance(layer, nn.TransformerEncoder) and getattr(layer, "use_nested_tensor", False):
        return lambda *args, **kwargs: _encoded(layer, args, kwargs)
    return None


def _encoded(encoder: nn.TransformerEncoder, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return what an encoder returns, without the nested tensors by which it skips padding, ``[B, L, D]``.

    They fail on a batch of padding alone, and end the process under TorchScript. They leave zeros where padding is on
    the right; such padding gets zeros here too, row by row.
    """
    given = {**dict(zip(_ENCODER_ARGUMENTS, args, strict=False)), **kwargs}
    found, mask, padding = given["src"], given.get("mask"), given.get("src_key_padding_mask")
    is_causal = given.get("is_causal")
    if is_causal is None:
        is_causal = isinstance(mask, Tensor) and _is_causal(mask)
    for layer in encoder.layers:
        found = layer(found, src_mask=mask, is_causal=is_causal, src_key_padding_mask=padding)
    if isinstance(padding, (Tensor, fx.Proxy)) and mask is None:
        # A mask of floats has 0 where a place is read.
        is_padding: Any = padding != 0
        is_between = (is_padding[:, :-1] & ~is_padding[:, 1:]).any(dim=1, keepdim=True)
        found = found.masked_fill((is_padding & ~is_between).unsqueeze(2), 0.0)
    return found if encoder.norm is None else encoder.norm(found)


def _is_causal(mask: Tensor) -> bool:
    causal = nn.Transformer.generate_square_subsequent_mask(mask.size(0), dtype=mask.dtype)
    return mask.dim() == 2 and mask.shape == causal.shape and bool((mask == causal).all())
