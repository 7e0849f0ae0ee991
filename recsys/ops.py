"""FBGEMM's operators. Importing this module loads them into ``torch.ops.fbgemm``."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx

from recsys.base.hashing import FMIX64_FACTORS, FMIX64_SHIFT, ID_MASK
from recsys.base.stack import check_stack, unusable_package, without_fbgemm_remarks

check_stack()
try:
    with without_fbgemm_remarks():
        import fbgemm_gpu  # noqa: F401  (registers torch.ops.fbgemm)
except (ImportError, OSError) as error:
    unusable = unusable_package(error)
    if unusable is None:
        raise
    raise unusable from error

fbgemm: Any = torch.ops.fbgemm


def is_traced(*values: object) -> bool:
    """Return whether any of the values is an FX proxy, whose contents and truth value are unknown."""
    return any(isinstance(v, fx.Proxy) for v in values)


def lengths_to_offsets(lengths: Tensor) -> Tensor:
    """Return the offsets ``[n + 1]`` of lengths ``[n]``, with the leading zero and the total, in the same dtype."""
    offsets: Tensor = fbgemm.asynchronous_complete_cumsum(lengths)
    return offsets


def joined(parts: list[Tensor]) -> Tensor:
    """Concatenate the parts; a single part is returned unchanged."""
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def present(tensor: Tensor | None) -> Tensor:
    """Return a value that is declared optional but is present; TorchScript needs the assertion."""
    if isinstance(tensor, fx.Proxy):
        unwrapped: Tensor = tensor.tracer.create_proxy(
            "call_function", torch.jit._unwrap_optional, (tensor,), {}
        )
        return unwrapped
    assert tensor is not None
    return tensor


# Shifts of int64 keep the sign; this mask takes away what they shift in.
_SHIFTED_BITS = 2 ** (64 - FMIX64_SHIFT) - 1
_SIGNED_FACTORS = tuple(factor - 2**64 for factor in FMIX64_FACTORS)


def multiplied_bits(ids: Tensor) -> Tensor:
    """Return ``fmix64`` of each int64 without its last step. The graph holds only plain operators; products wrap."""
    for factor in _SIGNED_FACTORS:
        ids = _shifted_in(ids) * factor
    return ids


def fmix64(ids: Tensor) -> Tensor:
    """Return ``fmix64`` of each int64, as 64 bits of an int64."""
    return _shifted_in(multiplied_bits(ids))


def mixed_ids(ids: Tensor) -> Tensor:
    """Return the mixed IDs, int64 ``[N]``, as ``recsys.base.hashing.mix_ids`` does."""
    return torch.bitwise_and(fmix64(ids), ID_MASK)


def _shifted_in(ids: Tensor) -> Tensor:
    high = torch.bitwise_and(torch.bitwise_right_shift(ids, FMIX64_SHIFT), _SHIFTED_BITS)
    return torch.bitwise_xor(ids, high)
