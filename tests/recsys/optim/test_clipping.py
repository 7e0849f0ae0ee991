"""Gradients clipped over the ranks of a group; on one rank they are held against TorchRec's in tests/peer."""

from __future__ import annotations

import pytest
import torch
from torch import distributed as dist
from torch import nn
from torch.nn.utils import clip_grad_norm_
from torch.optim import SGD

from recsys.optim import GradientClipping, GradientClippingOptimizer, KeyedOptimizerWrapper
from tests.support.ranks import live_pool

_PARTS = torch.tensor([[3.0, -4.0], [1.0, 2.0]])
_WHOLE = torch.tensor([2.0, -6.0])


def clipped(rank: int, world_size: int, norm_type: float) -> tuple[list[float], float]:
    """One step: ``part`` has another part on each rank, ``whole`` is the same on all."""
    del world_size
    part, whole = nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(2))
    wrapped = KeyedOptimizerWrapper({"part": part, "whole": whole}, lambda params: SGD(params, lr=1.0))
    assert dist.group.WORLD is not None
    optimizer = GradientClippingOptimizer(
        wrapped,
        GradientClipping.NORM,
        1.0,
        norm_type,
        enable_global_grad_clip=True,
        param_to_pgs={part: [dist.group.WORLD]},
    )
    part.grad, whole.grad = _PARTS[rank].clone(), _WHOLE.clone()
    optimizer.step()
    assert optimizer.last_total_grad_norm is not None
    return [*part.tolist(), *whole.tolist()], float(optimizer.last_total_grad_norm)


@pytest.mark.parametrize("norm_type", [2.0, 3.0, float("inf")])
def test_the_norm_is_that_of_all_ranks(norm_type: float) -> None:
    together = nn.Parameter(torch.zeros(6))
    together.grad = torch.cat((_PARTS.reshape(-1), _WHOLE))
    norm = float(clip_grad_norm_([together], 1.0, norm_type))
    step = (-together.grad).tolist()
    for rank, (found, total) in enumerate(live_pool(2).run(clipped, norm_type)):
        assert total == pytest.approx(norm)
        assert found == pytest.approx([*step[2 * rank : 2 * rank + 2], *step[4:]], rel=1e-5)


def test_numbers_are_clipped_rank_by_rank() -> None:
    param = nn.Parameter(torch.zeros(2))
    wrapped = KeyedOptimizerWrapper({"p": param}, lambda params: SGD(params, lr=1.0))
    with pytest.raises(ValueError, match="param_to_pgs: got groups with"):
        GradientClippingOptimizer(
            wrapped,
            GradientClipping.VALUE,
            enable_global_grad_clip=True,
            param_to_pgs={param: [None]},  # type: ignore[list-item]
        )
