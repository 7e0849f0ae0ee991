"""The handle on lookups that train in their backward pass."""

from __future__ import annotations

import copy
from collections.abc import Mapping

import pytest
import torch
from torch import Tensor

from recsys.errors import CheckpointError
from recsys.optim import CombinedOptimizer, EmbOptimType, FusedConfig, FusedOptimizer
from tests.recsys.optim.lookups import AdamLookup, Batch, TbeLookup, batches, table
from tests.support.helpers import needs_gpu

NAME = "embedding_bags.t1.weight"
CONFIGS = {
    "sgd": FusedConfig(learning_rate=0.1),
    "row-wise adagrad": FusedConfig(
        optimizer=EmbOptimType.EXACT_ROWWISE_ADAGRAD, learning_rate=0.02, eps=0.002
    ),
    "adagrad": FusedConfig(optimizer=EmbOptimType.EXACT_ADAGRAD, learning_rate=0.1),
}
ADAM = FusedConfig(optimizer=EmbOptimType.ADAM, learning_rate=0.1)


def _resumed(saved: dict[str, Tensor], kernel: TbeLookup | AdamLookup, steps: list[Batch]) -> Tensor:
    optimizer = FusedOptimizer([kernel])
    optimizer.init_state()
    kernel.weight.data.copy_(saved["weight"])
    optimizer.load_state_dict(saved["optimizer"])  # type: ignore[arg-type]
    for batch in steps:
        kernel.train(batch)
    return kernel.weight.detach()


def _saved(kernel: TbeLookup | AdamLookup) -> dict[str, Tensor]:
    return copy.deepcopy(
        {"weight": kernel.weight.detach(), "optimizer": FusedOptimizer([kernel]).state_dict()}
    )


@pytest.mark.parametrize("name", CONFIGS)
def test_training_goes_on_from_its_state(name: str) -> None:
    kernel, steps = TbeLookup(CONFIGS[name]), batches(6)
    for batch in steps[:3]:
        kernel.train(batch)
    saved = _saved(kernel)
    for batch in steps[3:]:
        kernel.train(batch)
    other = TbeLookup(CONFIGS[name], weight=table(seed=3))
    other.train(steps[5])
    assert torch.equal(_resumed(saved, other, steps[3:]), kernel.weight)


@pytest.mark.parametrize("trained", [0, 2], ids=["fresh", "trained"])
def test_the_number_of_steps_is_part_of_adams_state(trained: int) -> None:
    kernel, steps = AdamLookup(ADAM), batches(6)
    for batch in steps[:3]:
        kernel.train(batch)
    saved = _saved(kernel)
    assert set(FusedOptimizer([kernel]).state_dict()["state"][NAME]) == {
        "t1.momentum1",
        "t1.momentum2",
        "t1.step",
    }
    for batch in steps[3:]:
        kernel.train(batch)
    other = AdamLookup(ADAM)
    for batch in steps[:trained]:
        other.train(batch)
    assert torch.equal(_resumed(saved, other, steps[3:]), kernel.weight)

    twin = AdamLookup(ADAM)
    FusedOptimizer([twin]).set_optimizer_step(7)
    assert twin.step_count().tolist() == [7]


class TestOnCuda:
    pytestmark = needs_gpu

    def test_fbgemms_adam_goes_on_from_its_state(self) -> None:
        kernel, steps = TbeLookup(ADAM, device="cuda"), batches(6)
        for batch in steps[:3]:
            kernel.train(batch)
        saved = _saved(kernel)
        for batch in steps[3:]:
            kernel.train(batch)
        other = TbeLookup(ADAM, device="cuda")
        other.train(steps[0])
        torch.testing.assert_close(_resumed(saved, other, steps[3:]), kernel.weight.detach())


def test_state_is_the_kernels_own_memory() -> None:
    kernel = TbeLookup(CONFIGS["row-wise adagrad"])
    optimizer = FusedOptimizer([kernel])
    state = optimizer.state_dict()["state"][NAME]
    assert set(state) == {"t1.momentum1"}
    assert not state["t1.momentum1"].any()
    kernel.train(batches(1)[0])
    assert state["t1.momentum1"].any()
    assert optimizer.params[NAME] is kernel.weight
    assert FusedOptimizer([TbeLookup(CONFIGS["sgd"])]).state_dict() == {"state": {}}


def test_learning_rates_reach_the_kernels_once() -> None:
    kernels = [TbeLookup(CONFIGS["sgd"], "t1"), TbeLookup(CONFIGS["adagrad"], "t2")]
    optimizer = FusedOptimizer(kernels)
    assert [group["lr"] for group in optimizer.param_groups] == [0.1, 0.1]
    optimizer.step()
    optimizer.zero_grad()
    assert [kernel.rates_set for kernel in kernels] == [[], []]
    optimizer.param_groups[1]["lr"] = 0.5
    optimizer.zero_grad()
    optimizer.step()
    optimizer.apply_learning_rates()
    assert [kernel.rates_set for kernel in kernels] == [[], [0.5]]
    assert kernels[1].tbe.get_learning_rate() == 0.5
    text = repr(optimizer)
    assert "optimizer: exact_sgd" in text
    assert "optimizer: exact_adagrad" in text
    assert "lr: 0.5" in text


def test_a_learning_rate_of_zero_stops_training() -> None:
    kernel = TbeLookup(CONFIGS["sgd"])
    optimizer = FusedOptimizer([kernel])
    kernel.train(batches(1)[0])
    assert not torch.equal(kernel.weight, table())
    before = kernel.weight.detach().clone()
    optimizer.param_groups[0]["lr"] = 0.0
    optimizer.zero_grad()
    kernel.train(batches(1)[0])
    assert torch.equal(kernel.weight, before)


def test_saved_groups_bring_the_learning_rate_back() -> None:
    kernels = [TbeLookup(CONFIGS["sgd"], "t1"), TbeLookup(CONFIGS["sgd"], "t2")]
    optimizer = CombinedOptimizer([("sparse", FusedOptimizer(kernels))])
    optimizer.save_param_groups(True)
    optimizer.param_groups[0]["lr"] = 0.25
    saved = copy.deepcopy(optimizer.state_dict())
    assert saved["param_groups"][0]["params"] == ["sparse.embedding_bags.t1.weight"]
    others = [TbeLookup(CONFIGS["sgd"], "t1"), TbeLookup(CONFIGS["sgd"], "t2")]
    other = CombinedOptimizer([("sparse", FusedOptimizer(others))])
    other.save_param_groups(True)
    other.load_state_dict(saved)
    assert [kernel.tbe.get_learning_rate() for kernel in others] == pytest.approx([0.25, 0.1])


def test_the_closure_is_evaluated() -> None:
    kernel = TbeLookup(CONFIGS["sgd"])

    def closure() -> float:
        kernel.train(batches(1)[0])
        return 1.5

    with torch.no_grad():
        assert FusedOptimizer([kernel]).step(closure) == 1.5
    assert not torch.equal(kernel.weight, table())


def test_a_state_of_another_table_is_refused() -> None:
    saved = FusedOptimizer([TbeLookup(CONFIGS["adagrad"], "t2")]).state_dict()
    optimizer = FusedOptimizer([TbeLookup(CONFIGS["adagrad"])])
    with pytest.raises(CheckpointError, match=r"lacks \['embedding_bags\.t1\.weight'\]; unknown here: .*t2"):
        optimizer.load_state_dict(saved)
    wide = FusedOptimizer([TbeLookup(CONFIGS["adagrad"], weight=table(12, 16))]).state_dict()
    with pytest.raises(
        CheckpointError, match=r"\['t1\.momentum1'\]: got shape \[12, 16\], expected \[12, 8\]"
    ):
        optimizer.load_state_dict(wide)


class _Part(TbeLookup):
    """Half of a table; the state of both halves comes from one of them."""

    def __init__(self, config: FusedConfig, states: Mapping[str, Mapping[str, Tensor]]) -> None:
        super().__init__(config)
        self._states = states

    def fused_states(self) -> Mapping[str, Mapping[str, Tensor]]:
        return self._states


class _AdamPart(AdamLookup):
    """The other half of a table, whose state comes with the first."""

    def fused_states(self) -> Mapping[str, Mapping[str, Tensor]]:
        return {NAME: {}}


def test_the_step_of_a_table_in_two_kernels_is_kept_once() -> None:
    kernels = [AdamLookup(ADAM), _AdamPart(ADAM)]
    optimizer = FusedOptimizer(kernels)
    for batch in batches(2):
        for kernel in kernels:
            kernel.train(batch)
    assert optimizer.state_dict()["state"][NAME]["t1.step"].tolist() == [2]
    optimizer.set_optimizer_step(5)
    assert [kernel.step_count().tolist() for kernel in kernels] == [[5], [5]]


class _Elsewhere(TbeLookup):
    """A table of which this rank has no shard."""

    def fused_parameters(self) -> Mapping[str, Tensor]:
        return {}


def test_a_table_in_two_kernels_has_its_state_from_one() -> None:
    config = CONFIGS["adagrad"]
    kernel = TbeLookup(config)
    optimizer = FusedOptimizer([kernel, _Part(config, {}), _Part(config, {NAME: {}})])
    assert list(optimizer.params) == [NAME]
    assert list(optimizer.state_dict()["state"][NAME]) == ["t1.momentum1"]
    optimizer.save_param_groups(True)
    optimizer.param_groups[2]["lr"] = 0.75
    saved = copy.deepcopy(optimizer.state_dict())
    optimizer.param_groups[2]["lr"] = 0.5
    optimizer.load_state_dict(saved)
    assert [group["lr"] for group in optimizer.param_groups] == [0.1, 0.1, 0.75]
    with pytest.raises(
        ValueError, match=r"two of them give \['t1\.momentum1'\] of 'embedding_bags\.t1\.weight'"
    ):
        FusedOptimizer([kernel, TbeLookup(config)])


def test_a_table_on_other_ranks_has_its_names_here() -> None:
    optimizer = FusedOptimizer([_Elsewhere(CONFIGS["adagrad"])])
    assert list(optimizer.params) == [NAME]
    assert list(optimizer.state_dict()["state"][NAME]) == ["t1.momentum1"]


def test_without_kernels() -> None:
    optimizer = FusedOptimizer([])
    optimizer.step()
    optimizer.load_state_dict(optimizer.state_dict())
    assert optimizer.param_groups == []
