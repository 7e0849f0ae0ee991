"""Models whose layers and interactions read users, which are the context, and items.

Shape letters: B rows, D embedding dim, L places, N outputs.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

import recsys
from recsys.models.din import AttentionConfig, TargetAttention
from tests.support.helpers import bag

DIM = 16
SIZE = 5
NUM_OUTPUTS = 128
CONTEXT = ("user_0", "user_1")
FEATURES = ("user_0", "item_0", "user_1", "item_1")


class Mixed(nn.Module):
    """Bags of users and items, of which ``join`` makes what a layer reads."""

    def __init__(
        self, join: Callable[[Mixed, dict[str, Tensor]], Tensor], dim: int = DIM, num_inputs: int = 4 * DIM
    ) -> None:
        super().__init__()
        tables = [bag(f"t_{name}", 20, dim, [name]) for name in FEATURES]
        self.tables = recsys.EmbeddingBagCollection(tables=tables)
        self.join = join
        self.layer = nn.Linear(num_inputs, NUM_OUTPUTS)
        self.over = nn.Linear(NUM_OUTPUTS, 1)

    def forward(self, features: recsys.KeyedJaggedTensor) -> Tensor:
        found = self.tables(features).to_dict()
        return self.over(torch.relu(self.layer(self.join(self, found))).flatten(1)[:, :NUM_OUTPUTS]).squeeze(
            1
        )


def side_by_side(_: Mixed, found: dict[str, Tensor]) -> Tensor:
    return torch.cat([found[name] for name in FEATURES], dim=1)


def _nested(_: Mixed, found: dict[str, Tensor]) -> Tensor:
    one = torch.cat([found["user_0"], found["item_0"]], dim=1)
    return torch.cat([one, found["item_1"], found["user_1"]], dim=1)


def _stacked(_: Mixed, found: dict[str, Tensor]) -> Tensor:
    return torch.stack([found[name] for name in FEATURES], dim=1).reshape(-1, len(FEATURES) * DIM)


def _part(_: Mixed, found: dict[str, Tensor]) -> Tensor:
    one = torch.cat([found["user_0"], found["item_0"], found["user_1"]], dim=1)
    return torch.cat([one[:, : 2 * DIM], one[:, DIM:]], dim=1)


def _sums(_: Mixed, found: dict[str, Tensor]) -> Tensor:
    user, item = found["user_0"] + found["user_1"], found["item_0"]
    return torch.cat([user, item, user - item, user * item], dim=1)


JOINS = {"joined": side_by_side, "nested": _nested, "stacked": _stacked, "part": _part, "sums": _sums}


class Attention(nn.Module):
    """A layer over each item of a history beside the item that is scored, as DIN has it."""

    def __init__(self, *, with_products: bool = True) -> None:
        super().__init__()
        table = recsys.EmbeddingConfig(
            name="items", embedding_dim=DIM, num_embeddings=100, feature_names=["history", "item"]
        )
        self.items = recsys.EmbeddingCollection(tables=[table])
        self.with_products = with_products
        self.layer = nn.Linear((4 if with_products else 3) * DIM, NUM_OUTPUTS)
        self.over = nn.Linear(NUM_OUTPUTS, 1)

    def forward(self, features: recsys.KeyedJaggedTensor) -> Tensor:
        found = self.items(features)
        history = found["history"].to_padded_dense(SIZE)
        item = found["item"].to_padded_dense(1).expand(-1, SIZE, -1)
        parts = [history, item, history - item, *([history * item] if self.with_products else [])]
        hidden = torch.relu(self.layer(torch.cat(parts, dim=2)))
        return (self.over(hidden) * history).sum(dim=(1, 2))


class IdsAttention(nn.Module):
    """DIN's attention, whose layers take each ID of a history, which is not padded before."""

    def __init__(self) -> None:
        super().__init__()
        table = recsys.EmbeddingConfig(
            name="goods", num_embeddings=50, embedding_dim=DIM, feature_names=["history", "item"]
        )
        self.goods = recsys.EmbeddingCollection([table], device=torch.device("cpu"))
        self.attention = TargetAttention(
            DIM, AttentionConfig(history="history", target="item", max_history=6, layer_sizes=[9])
        )
        self.over = nn.Linear(DIM, 1)

    def forward(self, features: recsys.KeyedJaggedTensor) -> Tensor:
        """Return ``[B, 1]``."""
        found = self.goods(features)
        scores: Tensor = self.over(
            self.attention(found["history"], found["item"].to_padded_dense(1).squeeze(1))
        )
        return scores


class Interaction(nn.Module):
    """The products of all pairs of vectors of users and items, as DLRM has them, and a layer over them."""

    names = tuple(f"{of}_{i}" for i in range(4) for of in ("user", "item"))
    context = names[::2]

    def __init__(self) -> None:
        super().__init__()
        tables = [bag(f"t_{name}", 20, DIM, [name]) for name in self.names]
        self.tables = recsys.EmbeddingBagCollection(tables=tables)
        num = len(self.names)
        self.layer = nn.Linear(num * (num - 1) // 2 + DIM, NUM_OUTPUTS)
        self.over = nn.Linear(NUM_OUTPUTS, 1)
        self.num = num

    def forward(self, features: recsys.KeyedJaggedTensor) -> Tensor:
        vectors = self.tables(features).values().view(-1, self.num, DIM)
        at = torch.triu_indices(self.num, self.num, 1)
        products = torch.bmm(vectors, vectors.transpose(1, 2))[:, at[0], at[1]]
        hidden = torch.relu(self.layer(torch.cat([vectors[:, 0], products], dim=1)))
        return self.over(hidden).squeeze(1)
