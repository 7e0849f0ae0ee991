"""Models of an Interaction, as RecBole has them: users, items, histories and their lengths by name.

Shape letters: B batch, D embedding dim, H heads, L places of a history.
"""

from __future__ import annotations

from collections import UserDict

import torch
from torch import Tensor, nn

from tests.models.plain.columns import DIM, NUM_ROWS, tower

_PLACES = 6
_USERS, _ITEMS = NUM_ROWS["user"], NUM_ROWS["item"]


class Interaction(UserDict[str, Tensor]):
    """Tensors by name, which is no dict."""


class BPR(nn.Module):
    """Products of rows of users and items (Rendle et al., arXiv 1205.2618)."""

    def __init__(self) -> None:
        super().__init__()
        self.user_embedding, self.item_embedding = nn.Embedding(_USERS, DIM), nn.Embedding(_ITEMS, DIM)

    def forward(self, interaction: Interaction) -> Tensor:
        """Return scores ``[B]``."""
        user, item = self.user_embedding(interaction["user_id"]), self.item_embedding(interaction["item_id"])
        return torch.mul(user, item).sum(dim=1)


class NeuMF(nn.Module):
    """A product and a network, with tables of their own (He et al., arXiv 1708.05031)."""

    def __init__(self) -> None:
        super().__init__()
        self.users = nn.ModuleList(nn.Embedding(_USERS, DIM) for _ in range(2))
        self.items = nn.ModuleList(nn.Embedding(_ITEMS, DIM) for _ in range(2))
        self.network = tower([2 * DIM, 16, 8])
        self.out = nn.Linear(DIM + 8, 1)

    def forward(self, interaction: Interaction) -> Tensor:
        """Return probabilities ``[B]``."""
        user, item = interaction["user_id"], interaction["item_id"]
        product = self.users[0](user) * self.items[0](item)
        network = self.network(torch.cat((self.users[1](user), self.items[1](item)), -1))
        return torch.sigmoid(self.out(torch.cat((product, network), -1)).squeeze(-1))


class SASRec(nn.Module):
    """Causal self-attention, of which the last item's place is taken (Kang and McAuley, arXiv 1808.09781)."""

    def __init__(self, heads: int = 2, layers: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.item_embedding = nn.Embedding(_ITEMS, DIM, padding_idx=0)
        self.position_embedding = nn.Embedding(_PLACES, DIM)
        self.norm = nn.LayerNorm(DIM, eps=1e-12)
        self.projections = nn.ModuleList(nn.Linear(DIM, 3 * DIM) for _ in range(layers))
        self.inner = nn.ModuleList(tower([DIM, 16, DIM]) for _ in range(layers))
        self.norms = nn.ModuleList(nn.LayerNorm(DIM, eps=1e-12) for _ in range(2 * layers))

    def mask(self, items: Tensor) -> Tensor:
        """Return what is added to scores, ``[B, 1, L, L]``."""
        seen = torch.tril((items != 0).unsqueeze(1).unsqueeze(2).expand(-1, -1, items.size(-1), -1))
        return torch.where(seen, 0.0, -10000.0)

    def encoded(self, items: Tensor) -> Tensor:
        """Return the encoder's places, ``[B, L, D]``."""
        positions = torch.arange(items.size(1), dtype=torch.long, device=items.device)
        positions = positions.unsqueeze(0).expand_as(items)
        x = self.norm(self.item_embedding(items) + self.position_embedding(positions))
        mask = self.mask(items)
        for i, (projection, inner) in enumerate(zip(self.projections, self.inner, strict=True)):
            parts = projection(x).view(*items.shape, 3, self.heads, DIM // self.heads).permute(2, 0, 3, 1, 4)
            query, key, value = parts[0], parts[1], parts[2]  # [B, H, L, D / H]
            scores = query @ key.transpose(-1, -2) / (DIM // self.heads) ** 0.5 + mask
            attended = (scores.softmax(-1) @ value).permute(0, 2, 1, 3).flatten(2)
            x = self.norms[2 * i](x + attended)
            x = self.norms[2 * i + 1](x + inner(x))
        return x

    def forward(self, interaction: Interaction) -> Tensor:
        """Return scores ``[B]``."""
        encoded = self.encoded(interaction["item_id_list"])
        last = (interaction["item_length"] - 1).view(-1, 1, 1).expand(-1, -1, DIM)
        user = encoded.gather(1, last).squeeze(1)
        return torch.mul(user, self.item_embedding(interaction["item_id"])).sum(dim=1)


class GRU4Rec(nn.Module):
    """A recurrent network over the history (Hidasi et al., arXiv 1511.06939)."""

    def __init__(self) -> None:
        super().__init__()
        self.item_embedding = nn.Embedding(_ITEMS, DIM, padding_idx=0)
        self.gru = nn.GRU(DIM, 12, bias=False, batch_first=True)
        self.dense = nn.Linear(12, DIM)

    def forward(self, interaction: Interaction) -> Tensor:
        """Return scores ``[B]``."""
        output, _ = self.gru(self.item_embedding(interaction["item_id_list"]))
        last = (interaction["item_length"] - 1).view(-1, 1, 1).expand(-1, -1, DIM)
        user = self.dense(output).gather(1, last).squeeze(1)
        return torch.mul(user, self.item_embedding(interaction["item_id"])).sum(dim=1)


class Bert4Rec(nn.Module):
    """torch's encoder over all places, of which the mean is taken (after Sun et al., arXiv 1904.06690)."""

    def __init__(self) -> None:
        super().__init__()
        self.item_embedding = nn.Embedding(_ITEMS, DIM, padding_idx=0)
        self.position_embedding = nn.Embedding(_PLACES, DIM)
        layer = nn.TransformerEncoderLayer(DIM, 2, 16, dropout=0.1, activation="gelu", batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, interaction: Interaction) -> Tensor:
        """Return scores ``[B]``."""
        items = interaction["item_id_list"]
        places = self.position_embedding(torch.arange(items.shape[1], device=items.device))
        encoded = self.encoder(self.item_embedding(items) + places, src_key_padding_mask=items == 0)
        seen = (items != 0).float().unsqueeze(-1)
        user = (encoded * seen).sum(1) / seen.sum(1)
        return torch.mul(user, self.item_embedding(interaction["item_id"])).sum(dim=1)


def batch(num_rows: int, seed: int) -> Interaction:
    """Return users, items, and histories of at least one item."""
    drawn = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, _PLACES + 1, (num_rows,), generator=drawn)
    items = torch.randint(1, _ITEMS, (num_rows, _PLACES), generator=drawn)
    return Interaction(
        {
            "user_id": torch.randint(1, _USERS, (num_rows,), generator=drawn),
            "item_id": torch.randint(1, _ITEMS, (num_rows,), generator=drawn),
            "item_id_list": items * (torch.arange(_PLACES) < lengths.unsqueeze(1)),
            "item_length": lengths,
        }
    )
