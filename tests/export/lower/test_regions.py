"""What no step computes: which parts of a model are regions, and what is refused.

Shape letters: B rows, N number of IDs.
"""

from __future__ import annotations

from collections.abc import Callable
from io import BytesIO
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from export.lower.scheduling import Lowered, PlacedRegion
from recsys import EmbeddingBagCollection, EmbeddingCollection, KeyedJaggedTensor
from tests.export.graph.test_managed import Pooled
from tests.export.lower.test_lowering import Scored, kinds_of, lowered, weight
from tests.support.helpers import bag, sequence


class Shifted(nn.Module):
    """Computes the IDs that it looks up."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = EmbeddingBagCollection([bag("t", 20, 16, ["f"])])
        self.over = nn.Linear(16, 1)

    def forward(self, features: KeyedJaggedTensor) -> Tensor:
        ids = (features.values() + 1) % 20
        shifted = KeyedJaggedTensor(["f"], ids, lengths=features.lengths(), stride=features.stride())
        score: Tensor = self.over(self.tables(shifted).values())
        return score


def tied(model: Scored) -> Scored:
    """Let two layers share a weight."""
    model.second = nn.Linear(16, 1)
    model.second.weight = model.over.weight
    return model


def _not_finite() -> nn.Linear:
    layer = nn.Linear(16, 2)
    with torch.no_grad():
        layer.weight[1, 3] = torch.inf
    return layer


def _taken(m: Scored, x: Tensor) -> Tensor:
    return m.over(x + m.rows((x[:, :1] * 9).long().clamp(min=0)).flatten(1))


def _between(m: Scored, x: Tensor) -> Tensor:
    """Regions between steps, one of which takes what another one gives."""
    odd = torch.erfinv(torch.sigmoid(m.over(x)) * 0.5)
    return m.wide(torch.relu(torch.cat([torch.digamma(odd.abs() + 1), odd * x], dim=1)))


def _from_zeros(m: Scored, x: Tensor) -> Tensor:
    """A recurrence that begins with zeros, whose states a region reads."""
    state, states = torch.zeros(x.size(0), 16), []
    for part in (x * 2, x):
        states.append(torch.tanh(m.hidden(state)))
        state = torch.tanh(part + states[-1])
    return m.over(torch.erfinv(torch.stack([states[0], state], dim=1) * 0.5).sum(dim=1))


class OfIds(nn.Module):
    """Computes with the rows of single IDs what no step does."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = EmbeddingCollection([sequence("t", 20, 8, ["f"])])

    def forward(self, features: KeyedJaggedTensor) -> Tensor:
        found = self.rows(features)["f"]
        return torch.segment_reduce(found.values(), "max", lengths=found.lengths(), initial=0)


def _counted(m: Scored, x: Tensor) -> Tensor:
    odd = torch.erfinv(torch.tanh(x))
    count = torch.unique(odd).size(0) + 1
    scores: Tensor = torch.sinc(m.over(odd)) * (count // count)
    return scores


#: By name: a model, and what its program consists of.
REGIONS: dict[str, tuple[Any, list[str]]] = {
    "an operator without a step": (
        lambda: Scored(lambda m, x: m.over(torch.erfinv(torch.tanh(x)))),
        ["plan", "region", "plan"],
    ),
    "several": (
        lambda: Scored(_between, wide=nn.Linear(17, 1)),
        ["plan", "region", "plan", "region", "plan"],
    ),
    "one after the other": (
        lambda: Scored(
            lambda m, x: m.over(torch.erfinv(torch.tanh(m.wide(torch.sinc(x))))), wide=nn.Linear(16, 16)
        ),
        ["plan", "region", "plan", "region", "plan"],
    ),
    "an output": (lambda: Scored(lambda m, x: torch.sinc(m.over(x))), ["plan", "region"]),
    "whole numbers": (
        lambda: Scored(lambda m, x: m.ids[torch.topk(x, 3, dim=1)[1]], ids=torch.arange(16) * 2**40),
        ["plan", "region"],
    ),
    "computed weights": (
        lambda: Scored(lambda m, x: nn.functional.linear(x, torch.exp(m.w)), w=weight(1, 16)),
        ["plan", "region"],
    ),
    "stored whole numbers": (
        lambda: Scored(lambda m, x: m.over(x.index_select(1, m.stored)), stored=torch.arange(16)),
        ["plan", "region", "plan"],
    ),
    "numbers that may be out of range": (
        lambda: Scored(_taken, rows=nn.Embedding(20, 16)),
        ["plan", "region", "plan"],
    ),
    "weights that are not finite": (
        lambda: Scored(lambda m, x: torch.nan_to_num(m.wide(x), 0, 1, 1), wide=_not_finite()),
        ["plan", "region", "plan"],
    ),
    "a number between regions": (lambda: Scored(_counted), ["plan", "region", "plan", "region"]),
    "rows of constants alone": (
        lambda: Scored(_from_zeros, hidden=nn.Linear(16, 16)),
        ["plan", "region", "plan"],
    ),
    "rows of single IDs": (OfIds, ["region", "plan", "region"]),
    "computed IDs": (Shifted, ["region", "plan"]),
    "mapped IDs": (Pooled, ["plan", "region", "plan"]),
}


@pytest.mark.parametrize("name", REGIONS)
def test_torch_computes_what_no_step_does(name: str) -> None:
    make, kinds = REGIONS[name]
    options = {"dense_widths": {"price": 2}} if name == "mapped IDs" else {}
    assert kinds_of(lowered(make(), **options)) == kinds


def _code_of(program: Lowered) -> str:
    regions = [step.region for step in program.steps if isinstance(step, PlacedRegion)]
    return "".join(torch.jit.load(BytesIO(region.script)).code for region in regions)


TWINS: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "in one region": lambda m, x: m.over(torch.erfinv(x) * torch.sinc(torch.erfinv(x))),
    "of an attribute": lambda m, x: m.over(torch.sinc(m.over.weight.erfinv() + m.over.weight.erfinv() * x)),
    "with others between": lambda m, x: m.over(torch.erfinv(x) + torch.sinc(m.over(torch.erfinv(x)))),
    "of twins": lambda m, x: m.over(torch.erfinv(torch.sinc(x)) - torch.digamma(torch.erfinv(torch.sinc(x)))),
    "whole numbers": lambda m, x: m.over(
        x * torch.sinc(torch.erfinv(x).long() + torch.erfinv(x).long().abs())
    ),
}


@pytest.mark.parametrize("name", TWINS)
def test_regions_compute_once_what_is_asked_for_twice(name: str) -> None:
    assert _code_of(lowered(Scored(TWINS[name]))).count("torch.erfinv(") == 1


def _overwritten(m: Scored, x: Tensor) -> Tensor:
    """Two layers' outputs, one of which an activation overwrites, in a region that computes both."""
    return m.narrow(m.act(m.odd(x)) + torch.sinc(m.odd(x)))


def test_what_is_overwritten_has_no_twin() -> None:
    model = Scored(_overwritten, odd=_not_finite(), act=nn.ReLU(inplace=True), narrow=nn.Linear(2, 1))
    assert _code_of(lowered(model)).count("forward(input_1") == 2


def test_torch_compares_the_rows_of_a_request() -> None:
    model = Scored(lambda m, x: m.over(x - x.mean(dim=0)))
    assert kinds_of(lowered(model, batch="request")) == ["plan", "region", "plan"]
