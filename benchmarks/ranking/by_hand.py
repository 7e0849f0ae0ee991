"""The same models by hand, in TorchScript: float32 tables, the user once, candidates by products of matrices.

Each takes the numbers of the user ``[1, 13]``, the IDs of the user's features one after the other ``[N]``, and those of
the items ``[F, B]``; histories have no padding. It returns scores ``[B]``.

Shape letters: B candidates, D embedding dim, F features of an item, H heads, S length of the history.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.models.sequences import DIM, HEADS
from recsys.scripting import torchscript


def scripted(module: nn.Module) -> Any:
    """Return a module in TorchScript, with its weights as constants."""
    return torchscript.freeze(torchscript.script(module.eval().requires_grad_(False)))


def _table(model: Any, path: str) -> Tensor:
    weight: Tensor = dict(model.named_parameters())[path].detach()
    return weight


class SelfAttentiveByHand(nn.Module):
    """``SelfAttentive``: the mean state times the items.

    Args:
        model: The model.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.table = _table(model, "items.embeddings.goods.weight")
        self.positions = model.positions.detach()
        self.layers = nn.ModuleList(_BlockByHand(block) for block in model.layers)
        self.size: int = model.size

    def forward(self, dense: Tensor, user: Tensor, items: Tensor) -> Tensor:
        """Score the candidates."""
        x = functional.embedding(user, self.table) + self.positions[: user.size(0)]
        for layer in self.layers:
            x = layer(x)
        state = x.sum(dim=0) / self.size
        return torch.sigmoid(torch.mv(functional.embedding(items[0], self.table), state) + dense.sum())


class _BlockByHand(nn.Module):
    def __init__(self, block: Any) -> None:
        super().__init__()
        self.qkv, self.out, self.feed = block.qkv, block.out, block.feed
        self.norm, self.norm2 = block.norm, block.norm2
        self.heads = HEADS

    def forward(self, x: Tensor) -> Tensor:
        """Return the next states of a history ``[S, D]``."""
        parts = self.qkv(self.norm(x)).view(1, x.size(0), 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(parts[0], parts[1], parts[2], is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(x.size()))
        found: Tensor = x + self.feed(self.norm2(x))
        return found


class PointwiseByHand(nn.Module):
    """``Pointwise``: the layer over the state and the item in two parts.

    Args:
        model: The model.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.table = _table(model, "items.embeddings.goods.weight")
        self.positions = model.positions.detach()
        self.layers = nn.ModuleList(_PointwiseBlockByHand(block) for block in model.layers)
        self.size: int = model.size
        weight = model.over.weight.detach()[0]
        self.of_state, self.of_item = weight[:DIM].contiguous(), weight[DIM:].contiguous()
        self.bias = model.over.bias.detach()

    def forward(self, dense: Tensor, user: Tensor, items: Tensor) -> Tensor:
        """Score the candidates."""
        x = functional.embedding(user, self.table) + self.positions[: user.size(0)]
        for layer in self.layers:
            x = layer(x)
        of_user = torch.dot(x.sum(dim=0) / self.size, self.of_state) + dense.sum() + self.bias
        return torch.sigmoid(torch.mv(functional.embedding(items[0], self.table), self.of_item) + of_user)


class _PointwiseBlockByHand(nn.Module):
    def __init__(self, block: Any) -> None:
        super().__init__()
        self.uvqk, self.out, self.norm, self.out_norm = block.uvqk, block.out, block.norm, block.out_norm
        self.heads = HEADS
        self.bias = block.by_distance.detach()[block.distances].permute(2, 0, 1).contiguous()
        # The division by the longest history is in the mask.
        self.mask = torch.ones(block.size, block.size).tril() / block.size

    def forward(self, x: Tensor) -> Tensor:
        """Return the next states of a history ``[S, D]``."""
        size = x.size(0)
        joined = functional.silu(self.uvqk(self.norm(x)))
        parts = joined.view(size, 4, self.heads, -1).permute(1, 2, 0, 3)
        products = torch.baddbmm(self.bias[:, :size, :size], parts[2], parts[3].transpose(1, 2))
        seen = torch.bmm(functional.silu(products) * self.mask[:size, :size], parts[1])
        gated = joined[:, : x.size(1)] * self.out_norm(seen.transpose(0, 1).reshape(size, x.size(1)))
        found: Tensor = x + self.out(gated)
        return found


class TwoTowersByHand(nn.Module):
    """``TwoTowers``: the user's tower once.

    Args:
        model: The model.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        tables = [_table(model, f"users.embedding_bags.t_{name}.weight") for name in model.context]
        self.users = torch.cat(tables)
        self.first_rows = _first_rows(tables)
        self.items = _table(model, "items.embedding_bags.t_item.weight")
        self.categories = _table(model, "items.embedding_bags.t_category.weight")
        self.user_layers = model.user_layers
        self.item_layer = model.item_layer

    def forward(self, dense: Tensor, user: Tensor, items: Tensor) -> Tensor:
        """Score the candidates."""
        vectors = functional.embedding(user + self.first_rows, self.users).view(1, -1)
        state = self.user_layers(torch.cat((dense, vectors), dim=1))
        pairs = (functional.embedding(items[0], self.items), functional.embedding(items[1], self.categories))
        return torch.sigmoid(torch.mv(self.item_layer(torch.cat(pairs, dim=1)), state.squeeze(0)))


class InterestByHand(nn.Module):
    """``InterestNetwork``: the first layers in parts of the history, of the item, and of both.

    Args:
        model: The model.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.table = _table(model, "items.embeddings.goods.weight")
        tables = [_table(model, f"users.embedding_bags.t_user_{i}.weight") for i in range(6)]
        self.users = torch.cat(tables)
        self.first_rows = _first_rows(tables)
        first, self.second, self.third = model.attention[0], model.attention[2], model.attention[4]
        of_history, of_item, of_difference, of_product = first.weight.detach().split(DIM, dim=1)
        self.of_history = _layer(of_history + of_difference, first.bias)
        self.of_item = _layer(of_item - of_difference)
        self.of_product = _layer(of_product)
        over = model.over[0]
        width = over.in_features - 2 * DIM
        self.over_user = _layer(over.weight.detach()[:, :width], over.bias)
        self.over_item = _layer(over.weight.detach()[:, width:])
        self.over = copy.deepcopy(model.over[1:])

    def forward(self, dense: Tensor, user: Tensor, items: Tensor) -> Tensor:
        """Score the candidates."""
        num_users = self.first_rows.size(0)
        size = user.size(0) - num_users
        history = functional.embedding(user[:size], self.table)
        item = functional.embedding(items[0], self.table)
        products = self.of_product((item.unsqueeze(1) * history).view(-1, history.size(1)))
        hidden = products.view(item.size(0), size, -1)
        hidden.add_(self.of_history(history)).add_(self.of_item(item).unsqueeze(1)).relu_()
        matches = self.third(self.second(hidden).relu_()).squeeze(2)
        users = functional.embedding(user[size:] + self.first_rows, self.users).view(1, -1)
        of_user = self.over_user(torch.cat((dense, users), dim=1))
        rows = self.over_item(torch.cat((item, matches @ history), dim=1))
        return torch.sigmoid(self.over(rows + of_user)).squeeze(1)


class InteractingByHand(nn.Module):
    """``Interacting``: the user's layers and pairs once, and the first layer over them.

    Args:
        model: The model.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        dlrm, num_users = model.model, len(model.context)
        path = "model.sparse_arch.embedding_bag_collection.embedding_bags.t_{}.weight"
        tables = [_table(model, path.format(name)) for name in model.features]
        self.users, self.items = torch.cat(tables[:num_users]), torch.cat(tables[num_users:])
        self.first_rows = _first_rows(tables[:num_users])
        self.first_item_rows = _first_rows(tables[num_users:]).unsqueeze(1)
        self.dense_layers = dlrm.dense_arch
        over = dlrm.over_arch.model
        first, self.rest = _first_linear(over), _after_first(over)
        num_first, num_vectors = num_users + 1, len(tables) + 1
        self.user_pairs = _flat_pairs(num_first)
        num_items = num_vectors - num_first
        self.item_pairs = _flat_pairs(num_items)
        pairs = torch.triu_indices(num_vectors, num_vectors, offset=1)
        at = torch.zeros(num_vectors, num_vectors, dtype=torch.int64)
        at[pairs[0], pairs[1]] = torch.arange(pairs.size(1)) + DIM
        weight = first.weight.detach()
        of_users = at[:num_first, :num_first].flatten()[self.user_pairs]
        own = at[num_first:, num_first:].flatten()[self.item_pairs]
        crossed = at[:num_first, num_first:].t().flatten()
        self.of_user = _layer(weight[:, torch.cat((torch.arange(DIM), of_users))], first.bias)
        self.of_rows = _layer(weight[:, torch.cat((crossed, own))])

    def forward(self, dense: Tensor, user: Tensor, items: Tensor) -> Tensor:
        """Score the candidates."""
        deep = self.dense_layers(dense)
        users = torch.cat((deep, functional.embedding(user + self.first_rows, self.users)))
        pairs = torch.mm(users, users.t()).view(1, -1).index_select(1, self.user_pairs)
        of_user = self.of_user(torch.cat((deep, pairs), dim=1))
        vectors = functional.embedding((items + self.first_item_rows).t(), self.items)
        crossed = torch.matmul(vectors, users.t()).flatten(1)
        own = torch.bmm(vectors, vectors.transpose(1, 2)).flatten(1).index_select(1, self.item_pairs)
        hidden = (self.of_rows(torch.cat((crossed, own), dim=1)) + of_user).relu_()
        return torch.sigmoid(self.rest(hidden)).squeeze(1)


def _first_rows(tables: list[Tensor]) -> Tensor:
    """Return where the rows of each table begin when they follow each other."""
    sizes = torch.tensor([0, *(table.size(0) for table in tables[:-1])])
    return sizes.cumsum(0)


def _layer(weight: Tensor, bias: Tensor | None = None) -> nn.Linear:
    """Return a linear layer of given weights ``[K out, K in]``."""
    layer = nn.Linear(weight.size(1), weight.size(0), bias=bias is not None)
    layer.weight = nn.Parameter(weight.contiguous())
    if bias is not None:
        layer.bias = nn.Parameter(bias.detach())
    return layer


def _flat_pairs(num: int) -> Tensor:
    pairs = torch.triu_indices(num, num, offset=1)
    found: Tensor = pairs[0] * num + pairs[1]
    return found


def _first_linear(module: nn.Module) -> nn.Linear:
    return next(one for one in module.modules() if isinstance(one, nn.Linear))


def _after_first(module: nn.Module) -> nn.Module:
    """Return the linear layers after the first, with ReLUs between them."""
    found: list[nn.Module] = []
    for one in [one for one in module.modules() if isinstance(one, nn.Linear)][1:]:
        found += [nn.ReLU()] * bool(found) + [one]
    return nn.Sequential(*found)
