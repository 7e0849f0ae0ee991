"""Learning-rate schedules of ``torch.optim`` over fused and other optimizers at once."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.optim import SGD, Optimizer
from torch.optim.lr_scheduler import (
    CosineAnnealingWarmRestarts,
    LambdaLR,
    LinearLR,
    LRScheduler,
    PolynomialLR,
    SequentialLR,
    StepLR,
)

from recsys.optim import CombinedOptimizer, FusedConfig, FusedOptimizer, KeyedOptimizerWrapper
from tests.recsys.optim.lookups import TbeLookup, batches, table

NUM_STEPS = 9
WARMUP_STEPS = 4
RATE = 0.5


def _warmup_then_inverse_sqrt(optimizer: Optimizer) -> LRScheduler:
    return SequentialLR(
        optimizer,
        [
            LinearLR(optimizer, start_factor=0.1, total_iters=WARMUP_STEPS),
            LambdaLR(optimizer, lambda step: float((1 + step) ** -0.5)),
        ],
        milestones=[WARMUP_STEPS],
    )


SCHEDULES: dict[str, Callable[[Optimizer], LRScheduler]] = {
    "linear warm-up, then constant": lambda o: LinearLR(o, start_factor=0.1, total_iters=WARMUP_STEPS),
    "linear warm-up, then inverse square root": _warmup_then_inverse_sqrt,
    "linear warm-up, then polynomial": lambda o: SequentialLR(
        o,
        [LinearLR(o, start_factor=0.1, total_iters=WARMUP_STEPS), PolynomialLR(o, total_iters=5, power=2.0)],
        milestones=[WARMUP_STEPS],
    ),
    "steps": lambda o: StepLR(o, step_size=2, gamma=0.5),
    "cosine": lambda o: CosineAnnealingWarmRestarts(o, T_0=3),
}


class _Trainer:
    """A fused table and a dense one, with the same gradients, and what both should become."""

    def __init__(self, schedule: Callable[[Optimizer], LRScheduler]) -> None:
        self.kernel = TbeLookup(FusedConfig(learning_rate=RATE))
        self.dense = nn.Parameter(table())
        self.optimizer = CombinedOptimizer(
            [
                ("sparse", FusedOptimizer([self.kernel])),
                ("dense", KeyedOptimizerWrapper({"w": self.dense}, lambda params: SGD(params, lr=RATE))),
            ]
        )
        self.scheduler = schedule(self.optimizer)

    def train(self, first: int, last: int) -> None:
        for batch in batches(last)[first:]:
            self.optimizer.zero_grad()
            self.kernel.train(batch)
            self.dense.grad = batch.dense_gradient(len(self.dense))
            self.optimizer.step()
            self.scheduler.step()


@pytest.mark.parametrize("name", SCHEDULES)
def test_tables_follow_the_schedule_from_the_first_step_on(name: str) -> None:
    trainer = _Trainer(SCHEDULES[name])
    trainer.train(0, NUM_STEPS)
    torch.testing.assert_close(trainer.kernel.weight.detach(), trainer.dense.detach())

    reference = nn.Parameter(table())
    plain = SGD([reference], lr=RATE)
    scheduler = SCHEDULES[name](plain)
    for batch in batches(NUM_STEPS):
        reference.grad = batch.dense_gradient(len(reference))
        plain.step()
        scheduler.step()
    assert torch.equal(trainer.dense, reference)
    assert len(set(trainer.kernel.rates_set)) > 2
    assert trainer.scheduler.get_last_lr() == pytest.approx([scheduler.get_last_lr()[0]] * 2)


def test_a_schedule_resumes() -> None:
    straight, first = (_Trainer(_warmup_then_inverse_sqrt) for _ in range(2))
    straight.train(0, NUM_STEPS)
    first.train(0, 5)
    first.optimizer.save_param_groups(True)
    saved = copy.deepcopy((first.optimizer.state_dict(), first.scheduler.state_dict()))

    second = _Trainer(_warmup_then_inverse_sqrt)
    second.kernel.weight.data.copy_(first.kernel.weight)
    second.dense.data.copy_(first.dense)
    second.optimizer.save_param_groups(True)
    second.optimizer.load_state_dict(saved[0])
    second.scheduler.load_state_dict(saved[1])
    second.train(5, NUM_STEPS)
    assert torch.equal(second.kernel.weight, straight.kernel.weight)
    assert torch.equal(second.dense, straight.dense)
