"""A factory with example inputs beside it, as users write them."""

from __future__ import annotations

import torch
from torch import Tensor

from tests.export.plain.models import CASES, Towers


def make() -> Towers:
    """The model."""
    return Towers()


def example_inputs() -> dict[str, Tensor]:
    """What forward takes."""
    torch.manual_seed(1)
    found: dict[str, Tensor] = CASES["towers, padded left"].example()
    return found
