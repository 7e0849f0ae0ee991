"""Model factories as a user of ``recsys-export --model`` has them."""

from __future__ import annotations

import torch
from torch import nn

from tests.support.models.export_models import bare, dlrm


def make_dlrm(num_tables: int = 4, dim: int = 16) -> nn.Module:
    """A DLRM with other weights than the tests' own."""
    return dlrm(num_tables, dim, seed=99)


def make_bare() -> nn.Module:
    """A collection alone."""
    return bare()


def make_nothing() -> int:
    """Returns no module."""
    return 7


def make_trouble() -> nn.Module:
    """Raises an error of the user's."""
    raise LookupError("no such feature store")


class Buffered(nn.Module):
    """Computed buffers that no checkpoint holds."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = bare()
        self.register_buffer("scale", torch.full((63,), 2.0), persistent=False)

    def forward(self, features):  # type: ignore[no-untyped-def]
        """Scaled users."""
        return self.inner(features)["user"] * self.scale


NOT_A_FUNCTION = 3


class HoldsModule(nn.Module):
    """Has a submodule of the name that a wrapper puts in front of every other."""

    def __init__(self) -> None:
        super().__init__()
        self.ebc = bare()
        self.module = nn.Linear(3, 2)


class Shallow(nn.Module):
    """One parameter at the top, whose name a wrapper's prefix could double."""

    def __init__(self) -> None:
        super().__init__()
        self.ebc = bare()
        self.gain = nn.Parameter(torch.ones(2))
