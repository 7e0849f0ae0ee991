"""Numbers that are the same for every row: dense weights, and constants of the model's code.

Shape letters: B rows.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from export.lower.strided import Strided, contiguous
from export.lower.values import Called, NotLoweredError, Space, Weight, path_of

#: float32 holds every whole number up to this one.
MOST_WHOLE = 1 << 24


def weight_of(tensor: Tensor, space: Space) -> Weight:
    """Return the numbers of a tensor in a space, flat.

    Raises:
        NotLoweredError: Steps do not hold them in float32.
    """
    is_whole = not tensor.is_floating_point()
    if tensor.numel() == 0 or (tensor.dtype is not torch.float32 and not is_whole):
        raise NotLoweredError(f"it computes with a constant of {tensor.dtype}")
    if is_whole and tensor.dtype is not torch.bool and int(tensor.abs().max()) > MOST_WHOLE:
        raise NotLoweredError("it computes with whole numbers that float32 does not hold")
    path = path_of(tensor)
    numbers = None if path is not None else tensor.detach().to(torch.float32).reshape(-1).contiguous()
    return Weight(
        dims=(tensor.numel(),), space=space, dtype=tensor.dtype, path=path, numbers=numbers, tensor=tensor
    )


def lifted(one: Any, space: Space) -> Any:
    """Return a tensor as a view of numbers that are the same for every row; anything else as it is."""
    if isinstance(one, Called) or not isinstance(one, Tensor):
        return one
    return Strided(value=weight_of(one, space), axes=tuple(contiguous(one.shape)))
