"""What ranks must find: the float, unsharded collection on every rank's batch, and one optimizer step for all.

The loss is the mean over the ranks of each rank's own. Tolerances are bounds on rounding: each number that is added
is off by a few units in the last place of what is added, whatever the order.

Shape letters: D embedding dimension, R rows, W world size.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from recsys import EmbOptimType, RowWiseAdagrad
from recsys.embedding import FLOAT_DTYPES
from tests.recsys.sharding.ranks.cases import RankCase, float32_twin, named_outputs

LEARNING_RATE = 0.125
#: Large, so that a gradient's rounding is not blown up where the gradient is next to nothing.
EPS = 0.25
_UNITS = 8


@dataclass(frozen=True, kw_only=True)
class TestedOptimizer:
    """An optimizer as lookups have it, and for dense gradients.

    Attributes:
        fused: FBGEMM's.
        dense: made of parameters.
        slope: by how much an update changes at most with the gradient, per learning rate.
    """

    __test__ = False

    fused: EmbOptimType
    dense: Callable[[list[nn.Parameter]], Optimizer]
    slope: float

    def fused_params(self) -> dict[str, Any]:
        """For a sharder."""
        params = {"optimizer": self.fused, "learning_rate": LEARNING_RATE, "stochastic_rounding": False}
        return params if self.fused is EmbOptimType.EXACT_SGD else {**params, "eps": EPS}


OPTIMIZERS = {
    "sgd": TestedOptimizer(
        fused=EmbOptimType.EXACT_SGD,
        dense=lambda params: torch.optim.SGD(params, lr=LEARNING_RATE),
        slope=1.0,
    ),
    "rowwise_adagrad": TestedOptimizer(
        fused=EmbOptimType.EXACT_ROWWISE_ADAGRAD,
        dense=lambda params: RowWiseAdagrad(params, lr=LEARNING_RATE, eps=EPS),
        slope=1.0 / EPS,
    ),
    "adagrad": TestedOptimizer(
        fused=EmbOptimType.EXACT_ADAGRAD,
        dense=lambda params: torch.optim.Adagrad(params, lr=LEARNING_RATE, eps=EPS),
        slope=1.0 / EPS,
    ),
    "adam": TestedOptimizer(
        fused=EmbOptimType.ADAM,
        dense=lambda params: torch.optim.Adam(params, lr=LEARNING_RATE, eps=EPS),
        slope=1.0 / EPS,
    ),
}


@dataclass(frozen=True, kw_only=True)
class Expected:
    """What comes out.

    Attributes:
        outputs: for each step and rank, by name.
        output_atol: for each step.
        weights: table -> ``[R, D]`` at the end, and how far off it may be.
        states: table -> the optimizers' states of its column blocks.
    """

    outputs: list[list[dict[str, Tensor]]]
    output_atol: list[float]
    weights: dict[str, tuple[Tensor, float]]
    states: dict[str, list[dict[str, Any]]]


@dataclass
class _Table:
    """A table while it trains: an optimizer for each of its column blocks, as each has a state of its own."""

    weight: nn.Parameter
    eps: float
    blocks: list[tuple[slice, nn.Parameter, Optimizer]]
    atol: float = 0.0
    absolute: Tensor = field(default_factory=lambda: torch.zeros(0))

    @torch.no_grad()
    def step(self, slope: float) -> None:
        """Take ``weight.grad``."""
        assert self.weight.grad is not None
        for columns, block, optimizer in self.blocks:
            block.grad = self.weight.grad[:, columns].clone()
            optimizer.step()
            self.weight[:, columns] = block
        largest = float(self.weight.abs().max()) + LEARNING_RATE * slope * float(self.absolute.max())
        self.atol += _UNITS * self.eps * largest


def train_whole(case: RankCase, optimizer: TestedOptimizer) -> Expected:
    """All steps on the unsharded collection."""
    twin = float32_twin(case)
    tables = _tables(case, twin, optimizer)
    outputs, atols = [], []
    for step, sizes in enumerate(case.batch_sizes):
        batches = [case.batch(step, rank) for rank in range(len(sizes))]
        found = [named_outputs(twin(batch)) for batch in batches]
        heaviest = max((_heaviest_bag(batch) for batch in batches), default=0.0)
        largest = max(float(t.weight.detach().abs().max()) * t.eps * _UNITS + t.atol for t in tables.values())
        atols.append(max(heaviest, 1.0) * largest)
        outputs.append([{name: output.detach() for name, output in of_rank.items()} for of_rank in found])
        for absolute in (True, False):
            twin.zero_grad(set_to_none=False)
            losses = [case.loss(of_rank, step, r, absolute=absolute) for r, of_rank in enumerate(found)]
            (torch.stack(losses).sum() / len(losses)).backward(retain_graph=absolute)
            if absolute:
                for table in tables.values():
                    assert table.weight.grad is not None
                    table.absolute = table.weight.grad.clone()
        for table in tables.values():
            table.step(optimizer.slope)
    return Expected(
        outputs=outputs,
        output_atol=atols,
        weights={name: (table.weight.detach(), table.atol) for name, table in tables.items()},
        states={name: [o.state[b] for _, b, o in table.blocks] for name, table in tables.items()},
    )


def _tables(case: RankCase, twin: nn.Module, optimizer: TestedOptimizer) -> dict[str, _Table]:
    found = {}
    for table, weight in zip(case.tables, twin.parameters(), strict=True):
        blocks = []
        for start, end in case.column_blocks(table):
            block = nn.Parameter(weight.detach()[:, start:end].clone())
            blocks.append((slice(start, end), block, optimizer.dense([block])))
        eps = torch.finfo(FLOAT_DTYPES[table.data_type]).eps
        found[table.name] = _Table(weight=weight, eps=eps, blocks=blocks)
    return found


def _heaviest_bag(batch: Any) -> float:
    """The largest sum of weights, or number, of a bag's IDs."""
    most = float(batch.lengths().max()) if batch.lengths().numel() else 0.0
    weights = batch.weights_or_none()
    return most * max(1.0, float(weights.max()) if weights is not None and weights.numel() else 1.0)
