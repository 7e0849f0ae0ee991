"""Models of several labels or of two sides, as a user writes them: PLE, two towers that retrieve.

Shape letters: B batch, D width of the towers' vectors, K items of an answer, L labels, N number of candidates.
"""

import torch
from torch import Tensor, nn

from recsys import EmbeddingBagCollection, KeyedJaggedTensor
from recsys.modules.mlp import MLP


class Extraction(nn.Module):
    """Experts of each task and shared ones, mixed by a gate of each task, and by one of the shared ones."""

    def __init__(self, width: int, out: int, tasks: int, experts: int = 2) -> None:
        super().__init__()
        self.own = nn.ModuleList(
            nn.ModuleList(MLP(width, [out]) for _ in range(experts)) for _ in range(tasks + 1)
        )
        self.gates = nn.ModuleList(
            nn.Linear(width, 2 * experts if task < tasks else (tasks + 1) * experts)
            for task in range(tasks + 1)
        )

    def forward(self, states: list[Tensor]) -> list[Tensor]:
        experts = [[net(state) for net in nets] for nets, state in zip(self.own, states, strict=True)]  # type: ignore[attr-defined]
        shared, mixed = experts[-1], []
        for i, gate in enumerate(self.gates):
            is_shared = i == len(self.gates) - 1
            seen = [e for some in experts for e in some] if is_shared else [*experts[i], *shared]
            weights = torch.softmax(gate(states[i]), dim=-1)
            mixed.append(torch.einsum("be,bed->bd", weights, torch.stack(seen, dim=1)))
        return mixed


class ProgressiveExtraction(nn.Module):
    """PLE: two levels of extraction and a tower for each label (Tang et al., RecSys 2020)."""

    def __init__(self, bags: EmbeddingBagCollection, dense_width: int, labels: tuple[str, ...]) -> None:
        super().__init__()
        self.bags, self.labels = bags, labels
        width = dense_width + sum(
            len(t.feature_names) * t.embedding_dim for t in bags.embedding_bag_configs()
        )
        self.levels = nn.ModuleList([Extraction(width, 8, len(labels)), Extraction(8, 6, len(labels))])
        self.towers = nn.ModuleDict({label: nn.Linear(6, 1) for label in labels})

    def forward(self, dense_features: Tensor, sparse_features: KeyedJaggedTensor) -> dict[str, Tensor]:
        flat = torch.cat([dense_features, self.bags(sparse_features).values()], dim=1)
        states = [flat] * (len(self.labels) + 1)
        for level in self.levels:
            states = level(states)
        return {
            label: torch.sigmoid(self.towers[label](state)).squeeze(1)
            for label, state in zip(self.labels, states, strict=False)
        }


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
