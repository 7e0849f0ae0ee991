"""Models of plain PyTorch, each with example inputs beside it.

Shape letters: B batch, F fields, L IDs of a history, D embedding dim.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

FIELDS = (100, 50, 2000)
NUM_ITEMS, LENGTH, DIM = 60, 6, 8
_ROWS = 16


class Factorization(nn.Module):
    """One table for all fields, in which each field's IDs begin behind the last's."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(sum(FIELDS), DIM)
        self.linear = nn.Embedding(sum(FIELDS), 1)
        self.layers = nn.Sequential(
            nn.Linear(len(FIELDS) * DIM, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 1)
        )
        self.offsets = [0, *torch.tensor(FIELDS).cumsum(0)[:-1].tolist()]

    def forward(self, x: Tensor) -> Tensor:
        x = x + x.new_tensor(self.offsets).unsqueeze(0)
        rows = self.embedding(x)
        pairs = 0.5 * (rows.sum(dim=1) ** 2 - (rows**2).sum(dim=1)).sum(dim=1, keepdim=True)
        found = self.linear(x).sum(dim=1) + pairs + self.layers(rows.view(-1, len(FIELDS) * DIM))
        return torch.sigmoid(found.squeeze(1))


class Columns(nn.Module):
    """A table for each column of one integer tensor, and columns that no table reads."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(size, DIM) for size in FIELDS)
        self.over = nn.Linear(len(FIELDS) * DIM + 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        rows = [table(x[:, i]) for i, table in enumerate(self.tables)]
        found: Tensor = self.over(torch.cat([*rows, x[:, len(FIELDS) :].float()], dim=1))
        return found


class FloatColumns(nn.Module):
    """IDs, a history and numbers within one float tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.user, self.item = nn.Embedding(FIELDS[0], DIM), nn.Embedding(NUM_ITEMS, DIM, padding_idx=0)
        self.over = nn.Linear(2 * DIM + 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        ids = x[:, 1 : 1 + LENGTH].long()
        history = self.item(ids).sum(dim=1) / (ids != 0).sum(dim=1, keepdim=True).clamp(min=1)
        found: Tensor = self.over(torch.cat([self.user(x[:, 0].long()), history, x[:, 1 + LENGTH :]], dim=-1))
        return found.squeeze(-1)


class Towers(nn.Module):
    """A table of items that two inputs read, masked means, positions, and numbers as ``[B]``."""

    def __init__(self) -> None:
        super().__init__()
        self.users = nn.Embedding(FIELDS[0], DIM)
        self.items = nn.Embedding(NUM_ITEMS, DIM, padding_idx=0)
        self.positions = nn.Embedding(LENGTH, DIM)

    def forward(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        history = batch["history"]
        mask = (history > 0).unsqueeze(-1).float()
        rows = self.items(history) + self.positions(torch.arange(history.size(1), device=history.device))
        seen = (rows * mask).sum(dim=1) / mask.sum(dim=1).clamp(min=1.0)
        user = self.users(batch["user"]) + seen
        score = (user * self.items(batch["item"])).sum(dim=-1) * batch["price"]
        return {"score": score, "user": functional.normalize(user, dim=-1)}


class Bags(nn.Module):
    """``EmbeddingBag`` and lookups in a parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.mean = nn.EmbeddingBag(NUM_ITEMS, DIM, mode="mean", padding_idx=0)
        self.largest = nn.EmbeddingBag(NUM_ITEMS, DIM, mode="max", padding_idx=0)
        self.factors = nn.Parameter(torch.randn(FIELDS[0], DIM))
        self.biases = nn.Parameter(torch.randn(FIELDS[0], 1))

    def forward(self, user: Tensor, history: Tensor) -> Tensor:
        user_row = self.factors[user.squeeze(1)] + functional.embedding(user, self.biases).squeeze(1)
        return (user_row * (self.mean(history) + self.largest(history))).sum(dim=1)


class Recurrent(nn.Module):
    """A GRU over a history, whose last place scores all items by their own table."""

    def __init__(self) -> None:
        super().__init__()
        self.items = nn.Embedding(NUM_ITEMS, DIM, padding_idx=0)
        self.targets = nn.Embedding(NUM_ITEMS, DIM)
        self.gru = nn.GRU(DIM, DIM, batch_first=True)

    def forward(self, history: Tensor) -> Tensor:
        states, _ = self.gru(self.items(history))
        return states[:, -1] @ self.targets.weight.T


class Tied(nn.Module):
    """A history whose items score all items by the table that it is looked up in, as BERT4Rec has it."""

    def __init__(self) -> None:
        super().__init__()
        self.items = nn.Embedding(NUM_ITEMS, DIM, padding_idx=0)
        self.users = nn.Embedding(FIELDS[0], DIM)
        self.over = nn.Linear(DIM, NUM_ITEMS)
        self.over.weight = self.items.weight

    def forward(self, history: Tensor, user: Tensor) -> Tensor:
        seen = self.items(history).sum(dim=1) / (history != 0).sum(dim=1, keepdim=True)
        found: Tensor = self.over(seen + self.users(user))
        return found


class Assigning(nn.Module):
    """Assignments to items, which torch.fx does not follow and torch.export does; indices and arguments of NumPy."""

    def __init__(self) -> None:
        super().__init__()
        self.items = nn.Embedding(NUM_ITEMS, DIM, padding_idx=0)
        self.users = nn.Parameter(torch.randn(FIELDS[0], DIM))
        self.norm = nn.LayerNorm(DIM)

    def forward(self, history: Tensor, user: Tensor) -> Tensor:
        rows = self.items(history)
        earlier = torch.zeros_like(rows)
        earlier[:, 1:] = rows[:, :-1]
        mask = (history != 0).unsqueeze(-1)
        seen = self.norm(((rows + earlier) * mask).sum(axis=1)) + rows[:, (0, 2), :].mean(dim=1)
        return (seen * self.users[user]).sum(dim=-1, keepdim=True)


def ids(*sizes: int) -> Tensor:
    """IDs ``[B, F]`` below sizes."""
    return torch.stack([torch.randint(0, size, (_ROWS,)) for size in sizes], dim=1)


def history(side: str) -> Tensor:
    """Histories ``[B, L]`` of 1 to L items, with 0 on one side."""
    items = torch.randint(1, NUM_ITEMS, (_ROWS, LENGTH))
    held = torch.arange(LENGTH) < torch.arange(_ROWS).remainder(LENGTH).add(1).unsqueeze(1)
    return items * (held if side == "right" else held.flip(1))


@dataclass(frozen=True, kw_only=True)
class Case:
    """A model, and what its inputs become.

    Attributes:
        make: Returns it.
        example: Returns its example inputs.
        sparse: The features: the number of IDs in a row, or the side of their padding.
        tables: The stored tables.
    """

    make: Callable[[], nn.Module]
    example: Callable[[], Any]
    sparse: Mapping[str, int | str]
    tables: set[str]


CASES = {
    "factorization": Case(
        make=Factorization,
        example=lambda: ids(*FIELDS),
        sparse={f"x.{i}": 1 for i in range(3)},
        tables={f"tables.{name}_{i}" for name in ("embedding", "linear") for i in range(3)},
    ),
    "columns": Case(
        make=Columns,
        example=lambda: ids(*FIELDS, 7, 9),
        sparse={**{f"x.{i}": 1 for i in range(3)}, "x.3-4": 2},
        tables={f"tables.{i}" for i in range(3)},
    ),
    "float columns": Case(
        make=FloatColumns,
        example=lambda: torch.cat([ids(FIELDS[0]), history("right"), torch.rand(_ROWS, 2)], dim=1),
        sparse={"x.0": 1, f"x.1-{LENGTH}": "right"},
        tables={"tables.user", f"sequences_{DIM}.item"},
    ),
    **{
        f"towers, padded {side}": Case(
            make=Towers,
            example=lambda side=side: {
                "user": ids(FIELDS[0]).squeeze(1),
                "item": ids(NUM_ITEMS).squeeze(1),
                "history": history(side),
                "price": torch.rand(_ROWS),
            },
            sparse={"user": 1, "item": 1, "history": side},
            tables={"tables.users", f"sequences_{DIM}.items"},
        )
        for side in ("left", "right")
    },
    "bags": Case(
        make=Bags,
        example=lambda: {"user": ids(FIELDS[0]), "history": history("right")},
        sparse={"user": 1, "history": "right"},
        tables={"tables.factors", "tables.biases", "tables.mean", f"sequences_{DIM}.largest"},
    ),
    "assignments": Case(
        make=Assigning,
        example=lambda: {"history": history("right"), "user": ids(FIELDS[0]).squeeze(1)},
        sparse={"history": "right", "user": 1},
        tables={f"sequences_{DIM}.items", "tables.users"},
    ),
    "tied": Case(
        make=Tied,
        example=lambda: {"history": history("right"), "user": ids(FIELDS[0]).squeeze(1)},
        sparse={"history": "right", "user": 1},
        tables={"tables.users"},
    ),
    "recurrent": Case(
        make=Recurrent,
        example=lambda: (history("left"),),
        sparse={"history": "left"},
        tables={f"sequences_{DIM}.items"},
    ),
}


def made(case: Case) -> tuple[nn.Module, Any]:
    """A model in eval mode and its example inputs."""
    torch.manual_seed(0)
    return case.make().eval(), case.example()


def bags_of(example: Tensor, side: int | str) -> list[list[int]]:
    """The IDs of each row as requests give them."""
    rows = example.long().reshape(len(example), -1).tolist()
    if isinstance(side, int):
        return rows
    return [[one for one in row if one] for row in rows]
