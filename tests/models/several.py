"""Two towers that retrieve, as a user writes them.

Shape letters: B batch, D width of the towers' vectors, K items of an answer, N number of candidates.
"""

import torch
from torch import Tensor, nn

from recsys import EmbeddingBagCollection, KeyedJaggedTensor
from recsys.modules.mlp import MLP


class TwoTowers(nn.Module):
    """Trained on pairs of a user and an item."""

    def __init__(self, users: EmbeddingBagCollection, items: EmbeddingBagCollection, width: int = 6) -> None:
        super().__init__()
        self.users, self.items = users, items
        self.user_mlp = MLP(_width(users), [12, width], activation_on_last=False)
        self.item_mlp = MLP(_width(items), [12, width], activation_on_last=False)

    def user(self, features: KeyedJaggedTensor) -> Tensor:
        return nn.functional.normalize(self.user_mlp(self.users(features).values()), dim=1)

    def item(self, features: KeyedJaggedTensor) -> Tensor:
        return nn.functional.normalize(self.item_mlp(self.items(features).values()), dim=1)

    def forward(self, sparse_features: KeyedJaggedTensor) -> Tensor:
        return torch.sigmoid(4 * (self.user(sparse_features) * self.item(sparse_features)).sum(dim=1))


class Retrieval(nn.Module):
    """The user's side of two towers, and the IDs of the K best of N candidates."""

    candidates: Tensor
    ids: Tensor

    def __init__(self, towers: TwoTowers, candidates: Tensor, ids: Tensor, k: int = 5) -> None:
        super().__init__()
        self.users, self.user_mlp, self.k = towers.users, towers.user_mlp, k
        self.register_buffer("candidates", candidates)
        self.register_buffer("ids", ids)

    def forward(self, sparse_features: KeyedJaggedTensor) -> tuple[Tensor, Tensor]:
        user = nn.functional.normalize(self.user_mlp(self.users(sparse_features).values()), dim=1)
        scores, items = torch.topk(user @ self.candidates.T, k=self.k, dim=1)
        return scores, self.ids[items]


def _width(bags: EmbeddingBagCollection) -> int:
    return sum(len(t.feature_names) * t.embedding_dim for t in bags.embedding_bag_configs())
