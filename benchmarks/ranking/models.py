"""Two models for rankings beside those over histories: each takes our collections or TorchRec's alike.

Shape letters: B batch, D embedding dim, F features.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

import recsys
from benchmarks.models.zoo import NUM_DENSE, OUTPUT, layers

DIM = 64
_USER_LAYERS = (512, 256, DIM)
_NUM_FEATURES, _NUM_USER_FEATURES = 26, 13


def bags(library: ModuleType, features: Sequence[str], num_rows: int) -> Any:
    """Return a collection with a table for each feature."""
    return library.EmbeddingBagCollection(
        tables=[
            library.EmbeddingBagConfig(
                name=f"t_{name}", embedding_dim=DIM, num_embeddings=num_rows, feature_names=[name]
            )
            for name in features
        ],
        device=torch.device("cpu"),
    )


class TwoTowers(nn.Module):
    """A deep tower of a user with seven features and numbers, and a layer over an item with two.

    Args:
        library: ``recsys`` or ``torchrec``: what collections come from.
        num_rows: Rows of each table.
    """

    context = tuple(f"user_{i}" for i in range(7))
    features = (*context, "item", "category")
    ids_per_feature = (1,) * 9

    def __init__(self, library: ModuleType, num_rows: int) -> None:
        super().__init__()
        self.users = bags(library, self.context, num_rows)
        self.items = bags(library, ("item", "category"), num_rows)
        width = len(self.context) * DIM + NUM_DENSE
        self.user_layers = layers([width, *_USER_LAYERS], ends_in_relu=False)
        self.item_layer = nn.Linear(2 * DIM, DIM)

    def forward(self, dense: Tensor, features: recsys.KeyedJaggedTensor) -> dict[str, Tensor]:
        """Score a batch."""
        user = self.user_layers(torch.cat((dense, self.users(features).values()), dim=1))
        item = self.item_layer(self.items(features).values())
        return {OUTPUT: torch.sigmoid((user * item).sum(dim=1))}


class Interacting(nn.Module):
    """DLRM: the numbers and half of the features are the user's.

    Args:
        library: ``recsys`` or ``torchrec``: what the model and its collections come from.
        num_rows: Rows of each table.
    """

    features = tuple(f"f{i}" for i in range(_NUM_FEATURES))
    context = features[:_NUM_USER_FEATURES]
    ids_per_feature = (1,) * _NUM_FEATURES

    def __init__(self, library: ModuleType, num_rows: int) -> None:
        super().__init__()
        model = import_module(f"{library.__name__}.models.dlrm").DLRM
        self.model = model(
            bags(library, self.features, num_rows), NUM_DENSE, list(_USER_LAYERS), [512, 256, 1]
        )

    def forward(self, dense: Tensor, features: recsys.KeyedJaggedTensor) -> dict[str, Tensor]:
        """Score a batch."""
        return {OUTPUT: torch.sigmoid(self.model(dense, features)).squeeze(1)}
