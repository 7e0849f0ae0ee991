"""Rankers over pooled embeddings, as a user writes them: wide & deep and xDeepFM.

Shape letters: B batch, D embedding dim, F features, N width of the flat input.
"""

import torch
from torch import Tensor, nn

from recsys import EmbeddingBagCollection, KeyedJaggedTensor
from recsys.modules.mlp import MLP


class WideAndDeep(nn.Module):
    """A table of weights beside the network (Cheng et al., arXiv 1606.07792).

    The wide tables have one column and are summed.
    """

    def __init__(self, wide: EmbeddingBagCollection, deep: EmbeddingBagCollection, dense_width: int) -> None:
        super().__init__()
        self.wide, self.deep = wide, deep
        self.wide_dense = nn.Linear(dense_width, 1)
        width = sum(len(t.feature_names) * t.embedding_dim for t in deep.embedding_bag_configs())
        self.mlp = MLP(dense_width + width, [16, 8])
        self.out = nn.Linear(8, 1)

    def forward(self, dense_features: Tensor, sparse_features: KeyedJaggedTensor) -> Tensor:
        wide = self.wide_dense(dense_features) + self.wide(sparse_features).values().sum(-1, keepdim=True)
        deep = torch.cat([dense_features, self.deep(sparse_features).values()], dim=-1)
        return (wide + self.out(self.mlp(deep))).squeeze(-1)


class XDeepFM(nn.Module):
    """A compressed interaction network, a linear part and a deep one (Lian et al., arXiv 1803.05170)."""

    def __init__(
        self, bags: EmbeddingBagCollection, dense_width: int, layers: tuple[int, ...] = (6, 4)
    ) -> None:
        super().__init__()
        self.bags = bags
        tables = bags.embedding_bag_configs()
        self.dim = tables[0].embedding_dim
        self.fields = sum(len(t.feature_names) for t in tables)
        widths = [self.fields, *layers]
        self.convs = nn.ModuleList(
            nn.Conv1d(self.fields * a, b, kernel_size=1) for a, b in zip(widths, layers, strict=False)
        )
        flat = dense_width + self.fields * self.dim
        self.linear = nn.Linear(flat, 1)
        self.mlp = MLP(flat, [16, 8])
        self.out = nn.Linear(8 + sum(layers), 1)

    def forward(self, dense_features: Tensor, sparse_features: KeyedJaggedTensor) -> Tensor:
        pooled = self.bags(sparse_features).values()
        batch = pooled.shape[0]
        first = pooled.view(batch, self.fields, self.dim)
        found, sums = first, []
        for conv in self.convs:
            outer = torch.einsum("bhd,bmd->bhmd", found, first)
            found = torch.relu(conv(outer.reshape(batch, -1, self.dim)))
            sums.append(found.sum(dim=2))
        flat = torch.cat([dense_features, pooled], dim=1)
        return torch.sigmoid(self.linear(flat) + self.out(torch.cat([self.mlp(flat), *sums], dim=1)))
