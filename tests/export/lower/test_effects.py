"""Models that write to tensors: what becomes steps, and what stays together as a region.

Shape letters: B rows.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from export.lower.values import NotLoweredError
from recsys import EmbeddingBagCollection, KeyedJaggedTensor
from tests.export.lower.test_lowering import Scored, kinds_of, lowered, weight
from tests.export.lower.test_single_ids import Case
from tests.support.helpers import bag


def _writing(m: Scored, x: Tensor) -> Tensor:
    """Write to what a collection has returned, after it was read."""
    score: Tensor = m.over(x)
    x.zero_()
    return score


def _in_place(m: Scored, x: Tensor) -> Tensor:
    y = torch.sigmoid(x)
    y += 1
    y.mul_(x).clamp_(-2, 2)
    score: Tensor = m.over(y)
    return score


def _cleared(m: Scored, x: Tensor) -> Tensor:
    y = x * 2
    before = y.sum(1, keepdim=True)
    y.zero_()
    y.add_(x)
    score: Tensor = m.over(y)
    return score + before


def _through_a_view(m: Scored, x: Tensor) -> Tensor:
    """Read before, between and after writes to a view, and write what steps compute of it."""
    y = x * 2
    part = y[:, :4]
    before = y.sum(1, keepdim=True)
    part.mul_(m.over(x) + before)
    between = torch.tanh(y)
    y[:, 2:].zero_()
    score: Tensor = m.over(between + y)
    return score + before


def _into_rows(m: Scored, x: Tensor) -> Tensor:
    """Write to a view of what a collection has returned, which others read."""
    before: Tensor = m.over(x)
    x[:, :3].fill_(0.5)
    after: Tensor = m.over(x)
    return before * after


def _read_again(m: Scored, x: Tensor) -> Tensor:
    """Ask for the same before, between and after writes."""
    y = x * 2
    first = y.sum(1, keepdim=True)
    y[:, :4].mul_(first)
    second = y.sum(1, keepdim=True)
    y[:, 4:].add_(second)
    third = y.sum(1, keepdim=True)
    score: Tensor = m.over(y) + first * second - third
    return score


def _by_numbers(m: Scored, x: Tensor) -> Tensor:
    y = x + 0
    y.index_fill_(1, torch.tensor([0, 3]), 2.0)
    y.masked_fill_(x < 0, 0.25)
    score: Tensor = m.over(y)
    return score


def _two_at_once(m: Scored, x: Tensor) -> Tensor:
    """Two tensors that are written through views, the second with what is read of the first."""
    y, z = x * 2, torch.tanh(x)
    y[:, :2].add_(1)
    z[:, 1:3].copy_(y[:, :2])
    y[:, 4:].mul_(z[:, 4:])
    score: Tensor = m.over(torch.relu(y) + z)
    return score


def _parts(m: Scored, x: Tensor) -> Tensor:
    y = x * 3
    left, right = y.chunk(2, dim=1)
    left.add_(right)
    score: Tensor = m.over(y)
    return score


def _layer(m: Scored, x: Tensor) -> Tensor:
    score: Tensor = m.over(m.act(x + 1))
    return score


@torch.fx.wrap
def doubled(x: Tensor) -> Tensor:
    """Write to an argument, and to a second name of what is made here."""
    x.mul_(2)
    y = x + 1
    z = y
    y += 1
    return z


@torch.fx.wrap
def halved(x: Tensor) -> Tensor:
    """Write to nothing but what is made here."""
    y = x + 1
    z = y
    z *= 0.5
    return y


def _in_code(m: Scored, x: Tensor) -> Tensor:
    y = torch.tanh(x)
    z = doubled(y)
    score: Tensor = m.over(y + z)
    return score


def _in_own_code(m: Scored, x: Tensor) -> Tensor:
    score: Tensor = m.over(halved(x))
    return score


def _checked(m: Scored, x: Tensor) -> Tensor:
    torch._assert((torch.tanh(x) < 2).all(), "too large")
    score: Tensor = m.over(x)
    return score


_FOR_ROWS = ("f",)
PARTS: dict[str, tuple[Any, list[str]]] = {
    "rows after they were read": (lambda: Scored(_writing), ["plan"]),
    "in place": (lambda: Scored(_in_place), ["plan"]),
    "cleared": (lambda: Scored(_cleared), ["plan"]),
    "through a view": (lambda: Scored(_through_a_view), ["plan", "region", "plan"]),
    "into rows": (lambda: Scored(_into_rows), ["plan", "region", "plan"]),
    "read again": (lambda: Scored(_read_again), ["plan", "region", "plan"]),
    "by numbers": (lambda: Scored(_by_numbers), ["plan", "region", "plan"]),
    "two at once": (lambda: Scored(_two_at_once), ["plan", "region", "plan"]),
    "parts": (lambda: Scored(_parts), ["plan", "region", "plan"]),
    "a layer": (lambda: Scored(_layer, act=nn.ReLU(inplace=True)), ["plan"]),
    "in the model's code": (lambda: Scored(_in_code), ["plan", "region", "plan"]),
    "in the model's own code": (lambda: Scored(_in_own_code), ["plan", "region", "plan"]),
    "a check": (lambda: Scored(_checked), ["plan", "region"]),
}
CASES = {name: Case(make=make, context=_FOR_ROWS) for name, (make, _) in PARTS.items()}


@pytest.mark.parametrize("name", PARTS)
def test_what_is_written_is_lowered(name: str) -> None:
    make, parts = PARTS[name]
    assert kinds_of(lowered(make())) == parts


def test_the_weights_of_the_model_stay_as_they_are() -> None:
    model = Scored(lambda m, x: m.over(x.mul_(m.w)), w=weight(16))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    lowered(model)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


class Bags(nn.Module):
    """Writes to the IDs of a batch before they are looked up."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = EmbeddingBagCollection([bag("t", 20, 16, ["f"])])

    def forward(self, features: KeyedJaggedTensor) -> Tensor:
        features.values().clamp_(max=3)
        found: Tensor = self.tables(features).values()
        return found


REFUSED = {
    "a weight": (
        lambda: Scored(lambda m, x: m.over(x) + m.w.mul_(x[:1].sum() * 0), w=torch.zeros(1)),
        r"it writes to model\.w \(node 'mul_', .*test_effects\.py:\d+ in .*m\.w\.mul_",
    ),
    "IDs": (Bags, r"it writes to values \(node 'clamp_', .*features\.values\(\)\.clamp_\(max=3\)`"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_kept_has_no_program(name: str) -> None:
    make, text = REFUSED[name]
    with pytest.raises(NotLoweredError, match=text):
        lowered(make())
