"""Models over histories of items, as a user writes them: BST, SASRec, BERT4Rec, HSTU.

Shape letters: B batch, D embedding dim, H heads, S longest history.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

from recsys import EmbeddingBagCollection, EmbeddingCollection, JaggedTensor, KeyedJaggedTensor
from recsys.modules.mlp import MLP


def present(lengths: Tensor, size: int) -> Tensor:
    """Return which places of ``[B, S]`` hold an item."""
    return torch.arange(size, device=lengths.device).unsqueeze(0) < lengths.unsqueeze(1)


class BehaviorTransformer(nn.Module):
    """BST: the target is the last item of the sequence (Chen et al., arXiv 1905.06874)."""

    def __init__(
        self, items: EmbeddingCollection, bags: EmbeddingBagCollection, size: int, heads: int = 2
    ) -> None:
        super().__init__()
        self.items, self.bags, self.size = items, bags, size
        dim = items.embedding_dim()
        self.positions = nn.Embedding(size + 1, dim)
        self.attention = nn.MultiheadAttention(dim, heads, batch_first=True)
        self.norm, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.feed = nn.Sequential(nn.Linear(dim, 2 * dim), nn.LeakyReLU(), nn.Linear(2 * dim, dim))
        others = sum(len(t.feature_names) * t.embedding_dim for t in bags.embedding_bag_configs())
        self.mlp = MLP((size + 1) * dim + others, [16, 1], activation_on_last=False)

    def forward(self, sparse_features: KeyedJaggedTensor) -> Tensor:
        found = self.items(sparse_features)
        history = found["history"].to_padded_dense(self.size)
        target = found["target"].to_padded_dense(1)
        x = torch.cat([history, target], dim=1) + self.positions.weight
        batch = x.shape[0]
        padding = ~present(found["history"].lengths(), self.size)
        padding = torch.cat([padding, torch.zeros(batch, 1, dtype=torch.bool, device=x.device)], dim=1)
        seen, _ = self.attention(x, x, x, key_padding_mask=padding, need_weights=False)
        x = self.norm(x + seen)
        x = self.norm2(x + self.feed(x))
        x = torch.where(padding.unsqueeze(2), torch.zeros_like(x), x)
        others = self.bags(sparse_features).values()
        return torch.sigmoid(self.mlp(torch.cat([x.reshape(batch, -1), others], dim=1))).squeeze(1)


class Block(nn.Module):
    """One layer of self-attention before a feed-forward network, with the norms in front."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.norm, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.feed = nn.Sequential(
            nn.Linear(dim, 2 * dim), nn.GELU(), nn.Dropout(0.1), nn.Linear(2 * dim, dim)
        )

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        b, s, d = x.shape
        q, k, v = self.qkv(self.norm(x)).view(b, s, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask.unsqueeze(1))
        x = x + self.out(seen.transpose(1, 2).reshape(b, s, d))
        return x + self.feed(self.norm2(x))


class SASRec(nn.Module):
    """A causal transformer; the last item's state scores the target (Kang & McAuley, arXiv 1808.09781)."""

    causal: Tensor

    def __init__(self, items: EmbeddingCollection, size: int, layers: int = 2, heads: int = 2) -> None:
        super().__init__()
        self.items, self.size = items, size
        dim = items.embedding_dim()
        self.positions = nn.Parameter(torch.randn(size, dim) * 0.1)
        self.blocks = nn.ModuleList(Block(dim, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(dim)
        self.register_buffer("causal", torch.ones(size, size, dtype=torch.bool).tril())

    def forward(self, sparse_features: KeyedJaggedTensor) -> dict[str, Tensor]:
        found = self.items(sparse_features)
        x = found["history"].to_padded_dense(self.size) * self.items.embedding_dim() ** 0.5 + self.positions
        lengths = found["history"].lengths()
        mask = self.causal & present(lengths, self.size).unsqueeze(1)
        mask = mask | torch.eye(self.size, dtype=torch.bool, device=x.device)
        for block in self.blocks:
            x = block(x, mask)
        last = (lengths.clamp(min=1, max=self.size) - 1).view(-1, 1, 1).expand(-1, 1, x.shape[2])
        state = self.norm(x.gather(1, last.long()).squeeze(1))
        target = found["target"].to_padded_dense(1).squeeze(1)
        return {"score": (state * target).sum(-1).sigmoid(), "state": state}


class BERT4Rec(nn.Module):
    """A transformer in both directions, with a score for each item (Sun et al., arXiv 1904.06690)."""

    def __init__(self, items: EmbeddingCollection, size: int, num_items: int, heads: int = 2) -> None:
        super().__init__()
        self.items, self.size = items, size
        dim = items.embedding_dim()
        self.mask_token = nn.Parameter(torch.randn(1, 1, dim) * 0.1)
        self.positions = nn.Embedding(size + 1, dim)
        self.blocks = nn.ModuleList([Block(dim, heads)])
        self.head = nn.Linear(dim, num_items)

    def forward(self, sparse_features: KeyedJaggedTensor) -> Tensor:
        history: JaggedTensor = self.items(sparse_features)["history"]
        x = history.to_padded_dense(self.size)
        batch = x.size(0)
        x = torch.cat([x, self.mask_token.expand(batch, -1, -1)], dim=1)
        x = x + self.positions(torch.arange(self.size + 1, device=x.device))
        mask = present(history.lengths(), self.size)
        mask = torch.cat([mask, torch.ones(batch, 1, dtype=torch.bool, device=x.device)], dim=1)
        mask = mask.unsqueeze(1).repeat(1, self.size + 1, 1)
        for block in self.blocks:
            x = block(x, mask)
        return self.head(x[:, -1])


class RelativeBias(nn.Module):
    """A bias for each distance of two places, and for the order of magnitude of the time between them."""

    distances: Tensor

    def __init__(self, size: int, heads: int, buckets: int = 12) -> None:
        super().__init__()
        self.by_place = nn.Parameter(torch.randn(2 * size - 1, heads) * 0.1)
        self.by_time = nn.Embedding(buckets, heads)
        self.buckets = buckets
        places = torch.arange(size)
        self.register_buffer("distances", places[:, None] - places[None, :] + size - 1)

    def forward(self, times: Tensor) -> Tensor:
        gaps = (times.unsqueeze(2) - times.unsqueeze(1)).abs().clamp(min=1)
        buckets = torch.log2(gaps.float()).long().clamp(max=self.buckets - 1)
        return (self.by_place[self.distances] + self.by_time(buckets)).permute(0, 3, 1, 2)


class HSTULayer(nn.Module):
    """Pointwise attention: SiLU in place of the softmax, with a relative bias (arXiv 2402.17152)."""

    def __init__(self, dim: int, heads: int, size: int) -> None:
        super().__init__()
        self.heads, self.size, self.dim = heads, size, dim
        self.uvqk = nn.Linear(dim, 4 * dim)
        self.out = nn.Linear(dim, dim)
        self.norm, self.out_norm = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.bias = RelativeBias(size, heads)

    def forward(self, x: Tensor, times: Tensor, mask: Tensor) -> Tensor:
        u, v, q, k = functional.silu(self.uvqk(self.norm(x))).chunk(4, dim=-1)
        shape = (x.shape[0], self.size, self.heads, self.dim // self.heads)
        q, k, v = (part.view(shape).transpose(1, 2) for part in (q, k, v))
        weights = functional.silu(q @ k.transpose(-1, -2) + self.bias(times)) / self.size
        seen = (weights * mask.unsqueeze(1).to(x.dtype)) @ v
        seen = self.out_norm(seen.transpose(1, 2).flatten(2))
        return x + self.out(u * seen)


class HSTU(nn.Module):
    """Two layers of HSTU over a history and its times, which no table reads; the mean state scores the target."""

    causal: Tensor

    def __init__(self, items: EmbeddingCollection, size: int, heads: int = 2) -> None:
        super().__init__()
        self.items, self.size = items, size
        dim = items.embedding_dim()
        self.layers = nn.ModuleList(HSTULayer(dim, heads, size) for _ in range(2))
        self.out = nn.Linear(2 * dim, 1)
        self.register_buffer("causal", torch.ones(size, size, dtype=torch.bool).tril())

    def forward(self, sparse_features: KeyedJaggedTensor) -> Tensor:
        found = self.items(sparse_features)
        history = found["history"]
        x = history.to_padded_dense(self.size)
        there = present(history.lengths(), self.size)
        mask = self.causal.unsqueeze(0) & there.unsqueeze(1)
        times = sparse_features["times"].to_padded_dense(self.size)
        for layer in self.layers:
            x = layer(x, times, mask)
        num = history.lengths().clamp(min=1, max=self.size).unsqueeze(1)
        state = (x * there.unsqueeze(2)).sum(dim=1) / num
        target = found["target"].to_padded_dense(1).squeeze(1)
        return self.out(torch.cat([state, target], dim=1)).sigmoid()
