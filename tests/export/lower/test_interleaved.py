"""Values joined at a dimension that is not the first of a row.

Shape letters: B rows, L vectors, D numbers of a vector.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from recsys import EmbeddingBagCollection, KeyedJaggedTensor
from tests.export.lower.test_lowering import lowered, steps_of
from tests.support.helpers import bag


class Joined(nn.Module):
    """A score of two features' vectors as ``[B, L, D]`` and ``[B, D]``, by layers over each joined vector.

    Args:
        join: Returns ``[B, L, width]`` of vectors and one vector.
        width: Numbers of a joined vector.
    """

    def __init__(self, join: Callable[[Tensor, Tensor], Tensor], width: int) -> None:
        super().__init__()
        tables = [bag("t", 20, 24, ["f"]), bag("u", 20, 6, ["g"])]
        self.tables = EmbeddingBagCollection(tables)
        self.join = join
        self.layer = nn.Linear(width, 3)

    def forward(self, features: KeyedJaggedTensor) -> Tensor:
        found = self.tables(features)
        joined = self.join(found["f"].view(-1, 4, 6), found["g"])
        score: Tensor = torch.relu(self.layer(joined)).sum(dim=(1, 2))
        return score


def _as_din(x: Tensor, one: Tensor) -> Tensor:
    each = one.unsqueeze(1).expand(-1, 4, -1)
    return torch.cat((x, each, x - each, x * each), dim=2)


def _with_sums(x: Tensor, one: Tensor) -> Tensor:
    each = one.unsqueeze(1).expand(-1, 4, -1)
    return torch.cat((x + each, each - x, x, each, (x + each) - x, each - (x + each)), dim=2)


def _of_several_dimensions(x: Tensor, one: Tensor) -> Tensor:
    a = x.view(-1, 2, 2, 6)
    return torch.cat((a, a * 2, one.view(-1, 1, 1, 6).expand(-1, 2, 1, 6)), dim=2).reshape(-1, 5, 12)


#: What is joined, the width, and the steps: of forms, and one by one.
JOINED: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], int, int, int]] = {
    # Products are written where they belong, and differences are a part of the layer.
    "as in DIN": (_as_din, 24, 3, 1),
    "sums of what is joined": (_with_sums, 36, 4, 2),
    "a difference of others": (
        lambda x, one: torch.cat((x, x * 2 - one.unsqueeze(1), one.unsqueeze(1).expand(-1, 4, -1)), dim=2),
        18,
        3,
        2,
    ),
    "the same twice": (lambda x, *_: torch.cat((x, x), dim=2), 12, 2, 1),
    "a difference twice": (
        lambda x, one: (lambda d: torch.cat((d, d), dim=2))(x - one.unsqueeze(1)),
        12,
        3,
        1,
    ),
    "what others read too": (
        lambda x, one: (lambda d: torch.cat((d, x), dim=2) * d.sum(dim=(1, 2)).view(-1, 1, 1))(
            x - one.unsqueeze(1)
        ),
        12,
        4,
        2,
    ),
    "transposed": (lambda x, *_: torch.cat((x.transpose(1, 2), x.transpose(1, 2)), dim=2), 8, 2, 1),
    "some columns": (lambda x, *_: torch.cat((x[:, :, 1:3], x[:, :, 5:]), dim=2), 3, 2, 1),
    "stacked": (lambda x, *_: torch.stack((x, x * x), dim=3).flatten(2), 12, 2, 2),
    "several dimensions": (_of_several_dimensions, 12, 3, 2),
    "the first dimension": (lambda x, one: torch.cat((x, one.unsqueeze(1)), dim=1), 6, 0, 3),
}


@pytest.mark.parametrize("name", JOINED)
def test_parts_are_written_among_each_other(name: str) -> None:
    join, width, num_formed, num_elementwise = JOINED[name]
    found = steps_of(lowered(Joined(join, width)))
    assert (found.get("broadcast", 0), found["elementwise"]) == (num_formed, num_elementwise)
