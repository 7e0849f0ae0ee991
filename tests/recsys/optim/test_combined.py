"""Several optimizers as one."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adagrad, Adam, Optimizer
from torch.optim.lr_scheduler import StepLR
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.profiler import ProfilerActivity, profile

from recsys.errors import CheckpointError
from recsys.optim import (
    AccumulatingOptimizer,
    CombinedOptimizer,
    GradientClipping,
    GradientClippingOptimizer,
    KeyedOptimizer,
    KeyedOptimizerWrapper,
    OptimizerWrapper,
    WarmupOptimizer,
    WarmupStage,
)


def _models() -> tuple[nn.Linear, nn.Linear]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Linear(3, 4), nn.Linear(4, 1)


def _combined(below: nn.Module, above: nn.Module) -> CombinedOptimizer:
    return CombinedOptimizer(
        [
            ("below", KeyedOptimizerWrapper(dict(below.named_parameters()), lambda p: Adagrad(p, lr=0.1))),
            KeyedOptimizerWrapper(dict(above.named_parameters(prefix="above")), lambda p: Adam(p, lr=0.2)),
        ]
    )


def _gradients(below: nn.Module, above: nn.Module) -> None:
    above(below(torch.randn(8, 3, generator=torch.Generator().manual_seed(1)))).square().sum().backward()


def test_it_steps_each_as_it_would_alone() -> None:
    ours, theirs = _models(), _models()
    combined = _combined(*ours)
    alone = (Adagrad(theirs[0].parameters(), lr=0.1), Adam(theirs[1].parameters(), lr=0.2))
    for _ in range(3):
        combined.zero_grad(set_to_none=True)
        assert all(p.grad is None for module in ours for p in module.parameters())
        _gradients(*ours)
        combined.step()
        for optimizer in alone:
            optimizer.zero_grad()
        _gradients(*theirs)
        for optimizer in alone:
            optimizer.step()
    for a, b in zip(ours, theirs, strict=True):
        assert torch.equal(a.weight, b.weight)


def test_names_groups_and_parts() -> None:
    models = _models()
    combined = _combined(*models)
    names = ["below.weight", "below.bias", "above.weight", "above.bias"]
    assert list(combined.params) == names
    assert combined.params["below.weight"] is models[0].weight
    assert [group["lr"] for group in combined.param_groups] == [0.1, 0.2]
    assert [name for name, _ in combined.optimizers] == ["below", ""]
    combined.init_state()
    assert sorted(combined.state_dict()["state"]) == sorted(names)
    assert set(combined.state) == set(combined.params.values())
    assert "below: Adagrad" in repr(combined)


@pytest.mark.parametrize(
    ("name", "key", "expected"),
    [("w", "k", "k.w"), ("w", "", "w"), ("", "k", "k")],
    ids=["both", "name", "key"],
)
def test_prefixes(name: str, key: str, expected: str) -> None:
    assert CombinedOptimizer.prepend_opt_key(name, key) == expected


def test_state_and_groups_round_trip() -> None:
    models, twins = _models(), _models()
    combined, twin = _combined(*models), _combined(*twins)
    for optimizer in (combined, twin):
        optimizer.init_state()
        optimizer.save_param_groups(True)
    for _ in range(2):
        _gradients(*models)
        combined.step()
    combined.param_groups[1]["lr"] = 0.05
    saved = copy.deepcopy(combined.state_dict())
    twin.load_state_dict(saved)
    torch.testing.assert_close(twin.state_dict()["state"], saved["state"], rtol=0, atol=0)
    assert twin.state_dict()["param_groups"] == saved["param_groups"]
    assert twin.optimizers[1][1].param_groups[0]["lr"] == 0.05

    del saved["state"]["below.weight"]
    with pytest.raises(CheckpointError, match=r"lacks \['below\.weight'\]"):
        twin.load_state_dict(saved)


def test_the_closure_is_evaluated_once() -> None:
    models = _models()
    combined = _combined(*models)
    calls = []

    def closure() -> float:
        calls.append(torch.is_grad_enabled())
        _gradients(*models)
        return 2.5

    before = models[0].weight.detach().clone()
    with torch.no_grad():
        assert combined.step(closure) == 2.5
    assert calls == [True]
    assert not torch.equal(models[0].weight, before)


def test_a_parameter_has_one_optimizer() -> None:
    below, above = _models()
    one = KeyedOptimizerWrapper(dict(below.named_parameters()), SGD)
    other = KeyedOptimizerWrapper(dict(above.named_parameters()), SGD)
    with pytest.raises(ValueError, match=r"\['bias', 'weight'\] are named twice"):
        CombinedOptimizer([one, other])
    with pytest.raises(ValueError, match=r"'a\.weight' and 'b\.weight' are one tensor"):
        CombinedOptimizer([("a", one), ("b", KeyedOptimizerWrapper({"weight": below.weight}, SGD))])


def test_of_nothing() -> None:
    combined = CombinedOptimizer([])
    combined.step()
    combined.zero_grad()
    assert combined.state_dict() == {"state": {}}
    combined.load_state_dict({"state": {}})


def test_optimizers_without_names_are_refused() -> None:
    below, _ = _models()
    with pytest.raises(TypeError, match=r"optims: got Adam, .* KeyedOptimizerWrapper makes one"):
        CombinedOptimizer([("below", Adam(below.parameters()))])  # type: ignore[list-item]


def _nested() -> tuple[CombinedOptimizer, AccumulatingOptimizer, SGD]:
    weight = nn.Parameter(torch.ones(2))
    weight.grad = torch.ones(2)
    inner: list[SGD] = []

    def make(params: list[Any]) -> SGD:
        inner.append(SGD(params, lr=0.5))
        return inner[0]

    wrapped = AccumulatingOptimizer(KeyedOptimizerWrapper({"weight": weight}, make), 1)
    return CombinedOptimizer([wrapped]), wrapped, inner[0]


def test_only_the_outermost_step_goes_through_the_wrapper_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    combined, _, inner = _nested()
    names: list[str] = []
    real = torch.autograd.profiler.record_function

    def recorded(name: str) -> Any:
        names.append(name)
        return real(name)

    monkeypatch.setattr(torch.autograd.profiler, "record_function", recorded)
    combined.step()
    assert names == ["Optimizer.step#CombinedOptimizer.step"]
    assert inner.param_groups[0]["params"][0].tolist() == [0.5, 0.5]


def test_profiles_name_the_steps_of_all_parts() -> None:
    combined, _, _ = _nested()
    with profile(activities=[ProfilerActivity.CPU], acc_events=True) as recorded:
        combined.step()
    names = {event.key for event in recorded.key_averages() if event.key.startswith("Optimizer.step#")}
    parts = ("CombinedOptimizer", "AccumulatingOptimizer", "KeyedOptimizerWrapper", "SGD")
    assert names == {f"Optimizer.step#{part}.step" for part in parts}


def test_hooks_of_parts_are_called() -> None:
    combined, wrapped, inner = _nested()
    called: list[str] = []
    inner.register_step_pre_hook(lambda *_: called.append("before the inner one"))
    wrapped.register_step_post_hook(lambda *_: called.append("after the outer one"))
    combined.step()
    assert called == ["before the inner one", "after the outer one"]


@pytest.mark.parametrize(
    "wrap",
    [
        lambda optimizer: AccumulatingOptimizer(optimizer, 1),
        lambda optimizer: GradientClippingOptimizer(optimizer, GradientClipping.NORM, 1.0),
        lambda optimizer: WarmupOptimizer(optimizer, [WarmupStage(max_iters=5)]),
    ],
    ids=["accumulating", "clipping", "warm-up"],
)
def test_hooks_are_called_once_where_torch_has_patched_the_base(
    wrap: Callable[[KeyedOptimizer], OptimizerWrapper],
) -> None:
    weight = nn.Parameter(torch.ones(2))
    weight.grad = torch.ones(2)
    inner = KeyedOptimizerWrapper({"weight": weight}, SGD)
    OptimizerWrapper(inner)  # torch patches the step of each class when it is first made
    wrapped = wrap(inner)
    called: list[str] = []
    wrapped.register_step_post_hook(lambda *_: called.append("after"))
    wrapped.step()
    assert called == ["after"]


def test_global_hooks_are_called_for_every_part() -> None:
    combined, _, _ = _nested()
    called: list[str] = []

    def hook(optimizer: Optimizer, *_: Any) -> None:
        called.append(type(optimizer).__name__)

    handle = register_optimizer_step_post_hook(hook)
    try:
        combined.step()
    finally:
        handle.remove()
    assert called == ["SGD", "KeyedOptimizerWrapper", "AccumulatingOptimizer", "CombinedOptimizer"]


def test_a_schedule_of_a_part_sees_its_steps() -> None:
    combined, _, inner = _nested()
    schedule = StepLR(inner, 1, gamma=0.1)
    combined.step()
    schedule.step()  # warns, which is an error here, unless the optimizer has stepped before
    assert inner.param_groups[0]["lr"] == pytest.approx(0.05)
