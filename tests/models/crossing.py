"""Rankers over pooled embeddings, as a user writes them: wide & deep, xDeepFM, MaskNet, WuKong.

Shape letters: B batch, D embedding dim, F features, N width of the flat input.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

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


class MaskBlock(nn.Module):
    """A layer whose input is multiplied with a mask of the whole instance."""

    def __init__(self, width: int, instance_width: int, out: int) -> None:
        super().__init__()
        self.mask = nn.Sequential(
            nn.Linear(instance_width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width)
        )
        self.hidden = nn.Sequential(nn.Linear(width, out), nn.LayerNorm(out), nn.ReLU())

    def forward(self, x: Tensor, instance: Tensor) -> Tensor:
        return self.hidden(x * self.mask(instance))


class MaskNet(nn.Module):
    """Parallel mask blocks (Wang et al., arXiv 2102.07619)."""

    def __init__(self, bags: EmbeddingBagCollection, dense_width: int, num_blocks: int = 2) -> None:
        super().__init__()
        self.bags = bags
        tables = bags.embedding_bag_configs()
        self.dim = tables[0].embedding_dim
        width = sum(len(t.feature_names) * t.embedding_dim for t in tables)
        self.norm = nn.LayerNorm(self.dim)
        self.blocks = nn.ModuleList(MaskBlock(width, dense_width + width, 8) for _ in range(num_blocks))
        self.out = nn.Sequential(nn.Linear(8 * num_blocks, 8), nn.ReLU(), nn.Linear(8, 1), nn.Sigmoid())

    def forward(self, dense_features: Tensor, sparse_features: KeyedJaggedTensor) -> dict[str, Tensor]:
        embedded = self.bags(sparse_features).values()
        normed = self.norm(embedded.view(embedded.size(0), -1, self.dim)).flatten(1)
        instance = torch.cat([dense_features, embedded], 1)
        blocks = [block(normed, instance) for block in self.blocks]
        return {"click": self.out(torch.cat(blocks, 1)).flatten()}


class WukongLayer(nn.Module):
    """A factorization machine block beside a linear compression, and what came in is added."""

    def __init__(self, fields: int, dim: int, num_fm: int, num_linear: int, rank: int = 3) -> None:
        super().__init__()
        self.rank, self.num_fm, self.dim = rank, num_fm, dim
        self.project = nn.Parameter(torch.randn(fields, rank) / fields**0.5)
        self.norm = nn.LayerNorm(fields * rank)
        self.mlp = MLP(fields * rank, [16, num_fm * dim], activation_on_last=False)
        self.compress = nn.Parameter(torch.randn(num_linear, fields) / fields**0.5)
        self.residual = nn.Parameter(torch.randn(num_fm + num_linear, fields) / fields**0.5)
        self.out_norm = nn.LayerNorm(dim)

    def forward(self, x: Tensor) -> Tensor:
        batch = x.shape[0]
        products = torch.bmm(x, torch.matmul(x.transpose(1, 2), self.project))
        machine = self.mlp(self.norm(products.view(batch, -1))).view(batch, self.num_fm, self.dim)
        linear = torch.matmul(self.compress, x)
        return self.out_norm(torch.cat([machine, linear], dim=1) + torch.matmul(self.residual, x))


class Wukong(nn.Module):
    """Stacked factorization machines (Zhang et al., arXiv 2403.02545)."""

    def __init__(self, bags: EmbeddingBagCollection, dense_width: int) -> None:
        super().__init__()
        self.bags = bags
        tables = bags.embedding_bag_configs()
        self.dim = tables[0].embedding_dim
        fields = 1 + sum(len(t.feature_names) for t in tables)
        self.dense = nn.Linear(dense_width, self.dim)
        self.layers = nn.Sequential(WukongLayer(fields, self.dim, 3, 2), WukongLayer(5, self.dim, 2, 2))
        self.over = MLP(4 * self.dim, [8, 1], activation_on_last=False)

    def forward(self, dense_features: Tensor, sparse_features: KeyedJaggedTensor) -> Tensor:
        pooled = self.bags(sparse_features).values()
        dense = self.dense(dense_features)
        x = torch.cat([dense, pooled], dim=1).reshape(pooled.shape[0], -1, self.dim)
        crossed = self.layers(functional.normalize(x, dim=-1))
        return self.over(crossed.reshape(pooled.shape[0], -1)).sigmoid()
