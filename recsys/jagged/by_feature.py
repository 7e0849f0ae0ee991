"""The values of several features as one tensor, and back.

Shape letters: N number of IDs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from recsys.jagged.tensor import JaggedTensor
from recsys.ops import joined


def by_feature(
    features: Mapping[str, JaggedTensor], change: Callable[[Tensor], Tensor]
) -> dict[str, JaggedTensor]:
    """Return features with other values, which are made of those of all as one ``[N]`` int64."""
    parts = list(features.values())
    values = change(joined([part.values().to(torch.int64) for part in parts]))
    split = values.split([part.values().numel() for part in parts])
    return {
        name: JaggedTensor(of_part, part.weights_or_none(), part.lengths())
        for name, part, of_part in zip(features, parts, split, strict=True)
    }


def ids_of(features: Mapping[str, JaggedTensor]) -> dict[str, Tensor]:
    """Return the raw IDs of features, ``[N]`` int64 each."""
    return {name: part.values().to(torch.int64) for name, part in features.items()}
