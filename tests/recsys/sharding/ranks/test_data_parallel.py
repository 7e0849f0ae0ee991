"""Layers that are not sharded: wrapped when asked, by a given wrapper, with gradients of a given dtype on the wire."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from recsys import EmbeddingBagCollection, KeyedJaggedTensor
from recsys.model_parallel import DataParallelWrapper, DefaultDataParallelWrapper, DistributedModelParallel
from recsys.sharding.plan.env import ShardingEnv
from recsys.sharding.plan.plan import ShardingPlan
from recsys.sharding.plan.sharding_types import table_wise
from tests.recsys.sharding.ranks.training import group_of
from tests.support.helpers import bag
from tests.support.ranks import live_pool

TABLE = bag("t", 9, 8, ["f"])


class _Model(nn.Module):
    """A layer above a table, and one that no loss needs."""

    def __init__(self) -> None:
        super().__init__()
        self.bags = EmbeddingBagCollection([TABLE])
        self.over = nn.Linear(8, 1, bias=False)
        self.unused = nn.Linear(2, 2)

    def forward(self, features: KeyedJaggedTensor) -> torch.Tensor:
        out: torch.Tensor = self.over(self.bags(features).values())
        return out


class _Nothing(DataParallelWrapper):
    """Wraps nothing, and remembers that it was asked."""

    asked = False

    def wrap(self, dmp: DistributedModelParallel, env: ShardingEnv, device: torch.device) -> None:
        assert dmp.env is env
        assert device.type == "cpu"
        self.asked = True


def gradients(
    rank: int, world_size: int, precision: str | None, late: bool
) -> tuple[list[float], list[float]]:
    """The gradient of the layer here alone, and averaged over the ranks."""
    torch.manual_seed(0)
    model = _Model()
    env = ShardingEnv.from_process_group(group_of(world_size))
    features = KeyedJaggedTensor(["f"], torch.tensor([rank, rank + 1]), lengths=torch.tensor([1, 1]))
    alone = model(features).sum()
    (own,) = torch.autograd.grad(alone, [model.over.weight])
    sharded = DistributedModelParallel(
        model,
        env,
        torch.device("cpu"),
        ShardingPlan({"bags": {"t": table_wise(TABLE, 0)}}),
        init_data_parallel=not late,
        data_parallel_wrapper=DefaultDataParallelWrapper(allreduce_comm_precision=precision),
    )
    assert isinstance(sharded._dmp_wrapped_module, DistributedDataParallel) != late
    sharded.init_data_parallel()
    sharded.init_data_parallel()
    assert isinstance(sharded._dmp_wrapped_module, DistributedDataParallel)
    sharded(features).sum().backward()
    grad = model.over.weight.grad
    assert grad is not None
    assert {name for name, _ in sharded.bare_named_parameters("m")} - {"m.over.weight"} == {
        "m.unused.weight",
        "m.unused.bias",
        *(["m.bags.embedding_bags.t.weight"] if sharded.env.rank == 0 else []),
    }
    state = sharded.state_dict(prefix="m.")
    assert all(name.startswith("m.") for name in state)
    sharded.load_state_dict({**state, "other": torch.zeros(())}, prefix="m.")
    return own.reshape(-1).tolist(), grad.reshape(-1).tolist()


@pytest.mark.parametrize("late", [False, True], ids=["at once", "later"])
@pytest.mark.parametrize("precision", [None, "fp16"])
def test_gradients_are_averaged(precision: str | None, late: bool) -> None:
    results = live_pool(2).run(gradients, precision, late)
    mean = [sum(pair) / 2 for pair in zip(*(own for own, _ in results), strict=True)]
    close = 1e-6 if precision is None else 2e-3
    for _, averaged in results:
        assert averaged == pytest.approx(mean, rel=close, abs=close / 10)
        assert (averaged == pytest.approx(mean, rel=1e-7)) == (precision is None)


def wrapped(rank: int, world_size: int) -> bool:
    """Whether a wrapper of one's own is asked, and nothing else wraps."""
    del rank
    wrapper = _Nothing()
    model = DistributedModelParallel(
        _Model(), ShardingEnv.from_process_group(group_of(world_size)), data_parallel_wrapper=wrapper
    )
    return wrapper.asked and not isinstance(model._dmp_wrapped_module, DistributedDataParallel)


def test_a_wrapper_of_ones_own() -> None:
    assert live_pool(2).run(wrapped) == [True, True]


def test_precisions_that_do_not_exist() -> None:
    with pytest.raises(ValueError, match="allreduce_comm_precision: got 'int8'"):
        DefaultDataParallelWrapper(allreduce_comm_precision="int8")
