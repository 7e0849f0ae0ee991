"""FBGEMM's operators. Importing this module loads them into ``torch.ops.fbgemm``."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx

from recsys.machine import unusable_package

try:
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
