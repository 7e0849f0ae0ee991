"""What a public model is for the tables of ``benchmarks.plain_models``.

Shape letters: B batch, L places of a history.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

# Rows of the tables. A table of a public model may have one row more, for padding.
NUM_ROWS = 40
NUM_EXAMPLES = 16
HISTORY = 6


@dataclass(frozen=True, kw_only=True)
class PublicModel:
    """A model of a package that others publish.

    Attributes:
        library: the distribution.
        name: the class.
        make: constructs it, and the arguments that a user of the library calls it with.
        method: the method that predicts.
        glue: lines that a user adds to the class, its constructor aside; empty if the class is exported as it is.
    """

    library: str
    name: str
    make: Callable[[], tuple[nn.Module, tuple[Any, ...]]]
    method: str = "forward"
    glue: tuple[str, ...] = ()


def ids(*shape: int, begin: int = 0, end: int = NUM_ROWS) -> torch.Tensor:
    """Return random IDs, int64, from ``begin`` to below ``end``."""
    return torch.randint(begin, end, shape)


def histories(num_places: int = HISTORY, num_rows: int = NUM_ROWS, *, left: bool = False) -> torch.Tensor:
    """Return histories ``[B, L]`` of 1 to L items, padded with zeros at the end, or at the beginning if ``left``."""
    found = ids(NUM_EXAMPLES, num_places, begin=1, end=num_rows)
    lengths = lengths_of(num_places)
    places = torch.arange(num_places)
    places = num_places - 1 - places if left else places
    return found * (places < lengths.unsqueeze(1))


def lengths_of(num_places: int = HISTORY) -> torch.Tensor:
    """Return lengths ``[B]``, from 1 to ``num_places`` in turns."""
    return torch.arange(NUM_EXAMPLES) % num_places + 1
