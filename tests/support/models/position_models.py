"""Models that take inputs for positions, and fail on zeros and on random numbers; and rows that they take.

Shape letters: B batch, D embedding dim, L positions.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from recsys import EmbeddingBagCollection, KeyedJaggedTensor
from tests.support.helpers import bag

DIM, NUM_POSITIONS = 4, 6


class _Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.users = EmbeddingBagCollection([bag("u", 30, DIM, ["user"])])
        self.positions = nn.Parameter(torch.randn(NUM_POSITIONS, DIM))

    def scores(self, features: KeyedJaggedTensor, at: Tensor) -> Tensor:
        """Return the scores of rows at positions ``[B]`` from 0 to L - 1."""
        rows = self.positions.expand(at.size(0), -1, -1)
        picked = rows.gather(1, at.view(-1, 1, 1).expand(-1, 1, DIM)).squeeze(1)
        return (picked * self.users(features).values()).sum(dim=1)


class DensePosition(_Model):
    """Takes its dense input for a position that counts from one."""

    def forward(self, features: KeyedJaggedTensor, position: Tensor) -> Tensor:
        """Return scores ``[B]``."""
        return self.scores(features, position.squeeze(1).long() - 1)


class FeaturePosition(_Model):
    """Takes the IDs of a feature that no table reads for positions that count from one, one in each row."""

    def forward(self, features: KeyedJaggedTensor) -> Tensor:
        """Return scores ``[B]``."""
        return self.scores(features, features["at"].values() - 1)


class LastOfHistory(_Model):
    """Takes the last item of a history that is never empty, by the history's length."""

    def forward(self, features: KeyedJaggedTensor) -> Tensor:
        """Return scores ``[B]``."""
        return self.scores(features, features["user"].lengths().long() - 1)


class TasksAtPositions(DensePosition):
    """Scores for two tasks."""

    def forward(self, features: KeyedJaggedTensor, position: Tensor) -> dict[str, Tensor]:  # type: ignore[override]
        """Return scores ``[B]`` by task."""
        scores = super().forward(features, position)
        return {"click": scores.sigmoid(), "watch": scores.exp()}


MODELS: dict[str, type[nn.Module]] = {
    "dense": DensePosition,
    "feature": FeaturePosition,
    "history": LastOfHistory,
}


def rows_of(name: str, num_rows: int, seed: int = 0) -> dict[str, Any]:
    """Return rows that a model takes as a request in JSON."""
    generator = torch.Generator().manual_seed(seed)

    def whole(low: int, high: int, count: int) -> list[int]:
        numbers: list[int] = torch.randint(low, high, (count,), generator=generator).tolist()
        return numbers

    lengths = whole(1, NUM_POSITIONS + 1, num_rows)
    request: dict[str, Any] = {"dense": {}, "sparse": {"user": [whole(0, 30, n) for n in lengths]}}
    positions = [[position] for position in whole(1, NUM_POSITIONS + 1, num_rows)]
    if name == "dense":
        request["dense"]["position"] = [[float(position)] for (position,) in positions]
    if name == "feature":
        request["sparse"]["at"] = positions
    return request


def samples_of(name: str, path: Path, num_rows: int = 20) -> Path:
    """Write a file of samples that a model takes."""
    path.write_text(json.dumps(rows_of(name, num_rows)))
    return path
