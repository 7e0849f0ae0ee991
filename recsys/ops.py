"""The one place that loads FBGEMM's operators, so that ``torch.ops.fbgemm`` is filled wherever it is used."""

from __future__ import annotations

from typing import Any

import fbgemm_gpu  # noqa: F401  (registers torch.ops.fbgemm)
import torch
from torch import Tensor, fx

fbgemm: Any = torch.ops.fbgemm


def is_traced(*values: object) -> bool:
    """Whether any of the values is an FX proxy: its contents, and with them its truth, are unknown."""
    return any(isinstance(v, fx.Proxy) for v in values)


def lengths_to_offsets(lengths: Tensor) -> Tensor:
    """``[n]`` lengths to ``[n + 1]`` offsets of the same dtype, the leading zero and the total included."""
    offsets: Tensor = fbgemm.asynchronous_complete_cumsum(lengths)
    return offsets


def joined(parts: list[Tensor]) -> Tensor:
    """The parts one after the other; the only part as it is."""
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def present(tensor: Tensor | None) -> Tensor:
    """What an operator is declared to return optionally and does return here; TorchScript wants to be told."""
    if isinstance(tensor, fx.Proxy):
        unwrapped: Tensor = tensor.tracer.create_proxy(
            "call_function", torch.jit._unwrap_optional, (tensor,), {}
        )
        return unwrapped
    assert tensor is not None
    return tensor
