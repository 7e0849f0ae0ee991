"""State by parameter name: saved, checked, loaded in place, made without training."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adagrad, Adam, AdamW, Optimizer, RMSprop, SparseAdam
from torch.optim.lr_scheduler import StepLR

from recsys.errors import CheckpointError
from recsys.optim import (
    CombinedOptimizer,
    GradientClipping,
    GradientClippingOptimizer,
    KeyedOptimizer,
    KeyedOptimizerWrapper,
    OptimizerWrapper,
    RowWiseAdagrad,
    WarmupOptimizer,
    WarmupStage,
)

Factory = Callable[[list[Tensor]], Optimizer]
FACTORIES: dict[str, Factory] = {
    "sgd": lambda params: SGD(params, lr=0.1, weight_decay=0.1),
    "sgd momentum": lambda params: SGD(params, lr=0.1, momentum=0.9, weight_decay=0.1),
    "adagrad": lambda params: Adagrad(params, lr=0.1),
    "adam": lambda params: Adam(params, lr=0.1, weight_decay=0.1),
    "adamw": lambda params: AdamW(params, lr=0.1, weight_decay=0.1),
    "rmsprop": lambda params: RMSprop(params, lr=0.1, momentum=0.5),
}


def _model() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))


def _optimizer(model: nn.Module, factory: Factory) -> KeyedOptimizerWrapper:
    return KeyedOptimizerWrapper(dict(model.named_parameters()), factory)


def _train(model: nn.Module, optimizer: Optimizer, num_steps: int, seed: int = 1) -> None:
    generator = torch.Generator().manual_seed(seed)
    for _ in range(num_steps):
        optimizer.zero_grad()
        model(torch.randn(8, 3, generator=generator)).square().sum().backward()
        optimizer.step()


def _assert_same(a: nn.Module, b: nn.Module) -> None:
    for (name, ours), theirs in zip(a.named_parameters(), b.parameters(), strict=True):
        assert torch.equal(ours, theirs), name


@pytest.mark.parametrize("name", FACTORIES)
def test_training_goes_on_from_a_state_dict_as_if_it_had_not_stopped(name: str) -> None:
    straight, first, second = _model(), _model(), _model()
    _train(straight, plain := FACTORIES[name](list(straight.parameters())), 3)
    _train(straight, plain, 3, seed=2)
    _train(first, optimizer := _optimizer(first, FACTORIES[name]), 3)
    saved = copy.deepcopy(optimizer.state_dict())
    assert set(saved["state"]) <= set(dict(first.named_parameters()))

    second.load_state_dict(first.state_dict())
    resumed = _optimizer(second, FACTORIES[name])
    resumed.init_state()
    resumed.load_state_dict(saved)
    _train(second, resumed, 3, seed=2)
    _assert_same(second, straight)


@pytest.mark.parametrize("name", FACTORIES)
def test_init_state_trains_nothing(name: str) -> None:
    plain, initialized = _model(), _model()
    optimizer = _optimizer(initialized, FACTORIES[name])
    initialized(torch.ones(1, 3)).sum().backward()
    gradient = initialized[0].weight.grad  # type: ignore[union-attr]
    groups = copy.deepcopy([{n: v for n, v in g.items() if n != "params"} for g in optimizer.param_groups])
    optimizer.init_state()
    _assert_same(initialized, plain)
    assert initialized[0].weight.grad is gradient
    assert [{n: v for n, v in g.items() if n != "params"} for g in optimizer.param_groups] == groups
    assert bool(optimizer.state_dict()["state"]) == (name != "sgd")

    _train(initialized, optimizer, 3)
    optimizer.init_state()  # nothing is lacking now
    _train(initialized, optimizer, 1, seed=2)
    _train(plain, FACTORIES[name](list(plain.parameters())), 3)
    reference = _model()
    _train(reference, other := FACTORIES[name](list(reference.parameters())), 3)
    _train(reference, other, 1, seed=2)
    _assert_same(initialized, reference)


class _Shrinking(Optimizer):
    """A penalty under a name of its own, and a count that is no tensor."""

    def __init__(self, params: list[Tensor]) -> None:
        super().__init__(params, {"lr": 0.5, "penalty": 0.5})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        for group in self.param_groups:
            for param in group["params"]:
                self.state[param]["step"] = self.state[param].get("step", 0) + 1
                param -= group["lr"] * (param.grad + group["penalty"] * param)
        return None if closure is None else closure()


def test_init_state_of_an_optimizer_of_ones_own() -> None:
    weight = nn.Parameter(torch.ones(2))
    optimizer = KeyedOptimizerWrapper({"w": weight}, _Shrinking)
    optimizer.init_state()
    assert torch.equal(weight, torch.ones(2))
    assert optimizer.state_dict() == {"state": {"w": {"step": 0}}}


def test_init_state_of_sparse_gradients() -> None:
    weight, frozen = nn.Parameter(torch.ones(4, 2)), nn.Parameter(torch.ones(1), requires_grad=False)
    optimizer = KeyedOptimizerWrapper({"w": weight, "frozen": frozen}, SparseAdam)
    optimizer.init_state({"w"})
    assert set(optimizer.state_dict()["state"]["w"]) == {"step", "exp_avg", "exp_avg_sq"}
    assert torch.equal(weight, torch.ones(4, 2))


def test_loading_copies_in_place() -> None:
    model = _model()
    _train(model, optimizer := _optimizer(model, FACTORIES["adam"]), 2)
    saved = copy.deepcopy(optimizer.state_dict())
    _train(model, optimizer, 2)
    before = {
        (p, n): tensor for p, state in optimizer.state_dict()["state"].items() for n, tensor in state.items()
    }
    optimizer.load_state_dict(saved)
    for (param, name), tensor in before.items():
        assert optimizer.state_dict()["state"][param][name] is tensor
        assert torch.equal(tensor, saved["state"][param][name])
        assert tensor is not saved["state"][param][name]


def _dropped(saved: dict[str, Any], *path: str) -> None:
    for name in path[:-1]:
        saved = saved[name]
    del saved[path[-1]]


DAMAGE: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "no state": (lambda s: s.pop("state"), r"got the keys \[\], expected 'state'"),
    "no parameter": (lambda s: _dropped(s, "state", "0.weight"), r"state: .*it lacks \['0\.weight'\]"),
    "parameter more": (lambda s: s["state"].update(new={"step": 1}), r"state: .*unknown here: \['new'\]"),
    "no moment": (
        lambda s: _dropped(s, "state", "2.bias", "exp_avg"),
        r"state\['2\.bias'\].*lacks \['exp_avg'\]",
    ),
    "shape": (
        lambda s: s["state"]["2.bias"].update(exp_avg=torch.zeros(2)),
        r"state\['2\.bias'\]\['exp_avg'\]: got shape \[2\], expected \[1\]",
    ),
    "kind": (
        lambda s: s["state"]["2.bias"].update(exp_avg=1.0),
        r"\['exp_avg'\]: got a float, expected a tensor of",
    ),
    "no dict": (
        lambda s: s["state"].update({"2.bias": torch.zeros(1)}),
        r"got a Tensor, expected a dict with \['exp",
    ),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_what_does_not_fit_is_named_and_changes_nothing(name: str) -> None:
    damage, text = DAMAGE[name]
    model = _model()
    _train(model, optimizer := _optimizer(model, FACTORIES["adam"]), 2)
    saved = copy.deepcopy(optimizer.state_dict())
    _train(model, optimizer, 1)
    before = copy.deepcopy(optimizer.state_dict())
    damage(saved)
    with pytest.raises(CheckpointError, match=text):
        optimizer.load_state_dict(saved)
    torch.testing.assert_close(optimizer.state_dict(), before, rtol=0, atol=0)


def test_loading_before_there_is_state_names_the_way() -> None:
    model = _model()
    _train(model, optimizer := _optimizer(model, FACTORIES["adam"]), 1)
    with pytest.raises(CheckpointError, match=r"has none yet; call init_state\(\)"):
        _optimizer(_model(), FACTORIES["adam"]).load_state_dict(optimizer.state_dict())
    with pytest.raises(CheckpointError, match=r"lacks \['0\.bias'"):
        optimizer.load_state_dict({"state": {}})


def _two_groups(params: list[Tensor]) -> Optimizer:
    return Adam([{"params": params[:2], "lr": 0.1}, {"params": params[2:], "lr": 0.2}])


def test_param_groups_are_saved_on_request() -> None:
    optimizer = _optimizer(_model(), _two_groups)
    optimizer.init_state()
    assert "param_groups" not in optimizer.state_dict()
    optimizer.save_param_groups(True)
    saved = copy.deepcopy(optimizer.state_dict())
    assert [group["params"] for group in saved["param_groups"]] == [
        ["0.bias", "0.weight"],
        ["2.bias", "2.weight"],
    ]
    saved["param_groups"].reverse()
    groups = optimizer.param_groups
    for group in groups:
        group["lr"] = 9.0
    optimizer.load_state_dict(saved)
    assert [group["lr"] for group in groups] == [0.1, 0.2]
    assert optimizer.param_groups is groups


@pytest.mark.parametrize(
    ("damage", "text"),
    [
        pytest.param(lambda s: s.pop("param_groups"), r"has none; call save_param_groups\(True\)", id="none"),
        pytest.param(lambda s: s["param_groups"].pop(), r"lacks \['2\.bias/2\.weight'\]", id="one lacks"),
        pytest.param(
            lambda s: s["param_groups"][0].pop("lr"),
            r"\['0\.bias/0\.weight'\]: the checkpoint lacks \['lr'\]",
            id="number lacks",
        ),
    ],
)
def test_groups_that_do_not_fit(damage: Callable[[dict[str, Any]], Any], text: str) -> None:
    optimizer = _optimizer(_model(), _two_groups)
    optimizer.init_state()
    optimizer.save_param_groups(True)
    saved = copy.deepcopy(optimizer.state_dict())
    damage(saved)
    with pytest.raises(CheckpointError, match=text):
        optimizer.load_state_dict(saved)


def test_state_and_groups_are_of_the_parameters() -> None:
    weight, stranger = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    with pytest.raises(ValueError, match=r"state: 1 of its keys are no tensors of params \['w'\]"):
        KeyedOptimizer({"w": weight}, {stranger: {}}, [])
    with pytest.raises(ValueError, match=r"param_groups\[0\]\['params'\]: 1 of them"):
        KeyedOptimizer({"w": weight}, {}, [{"params": [weight, stranger]}])
    with pytest.raises(ValueError, match="'a' and 'b' are one tensor"):
        KeyedOptimizerWrapper({"a": weight, "b": weight}, SGD)
    with pytest.raises(NotImplementedError, match="combine"):
        KeyedOptimizer({"w": weight}, {}, []).add_param_group({"params": [stranger]})


def test_nested_state_and_objects_that_know_their_state() -> None:
    weight, module = nn.Parameter(torch.ones(2)), nn.Linear(1, 1, bias=False)
    state = {"inner": {"a": torch.zeros(2)}, "module": module, "count": 3, "none": None}
    optimizer = KeyedOptimizer({"w": weight}, {weight: state}, [])
    saved = copy.deepcopy(optimizer.state_dict())
    assert set(saved["state"]["w"]["module"]) == {"weight"}
    saved["state"]["w"]["inner"]["a"] += 5
    saved["state"]["w"]["module"]["weight"].fill_(7)
    saved["state"]["w"]["count"] = 4
    optimizer.load_state_dict(saved)
    assert torch.equal(state["inner"]["a"], torch.full((2,), 5.0))  # type: ignore[index]
    assert module.weight.item() == 7
    assert state["count"] == 4


def test_hooks_closures_and_copies() -> None:
    model = _model()
    optimizer = _optimizer(model, FACTORIES["adagrad"])
    called: list[str] = []
    optimizer.register_step_pre_hook(lambda *_: called.append("pre"))
    optimizer.register_step_post_hook(lambda *_: called.append("post"))

    def closure() -> float:
        loss = model(torch.ones(1, 3)).sum()
        loss.backward()
        return float(loss.detach())

    assert optimizer.step(closure) is not None
    assert called == ["pre", "post"]
    assert "lr: 0.1" in repr(optimizer)
    StepLR(optimizer, 1)
    twin = copy.deepcopy((model, optimizer))
    _train(*twin, 1)
    _train(model, optimizer, 1)
    _assert_same(model, twin[0])


class _Doubling(OptimizerWrapper):
    """Steps twice."""

    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        super().step(closure)
        return super().step()


def test_a_wrapper_passes_everything_on() -> None:
    model, twice = _model(), _model()
    optimizer = _optimizer(model, FACTORIES["adam"])
    wrapped = _Doubling(_optimizer(twice, FACTORIES["adam"]))
    wrapped.init_state()
    wrapped.save_param_groups(True)
    _train(twice, wrapped, 1)
    optimizer.zero_grad()
    model(torch.randn(8, 3, generator=torch.Generator().manual_seed(1))).square().sum().backward()
    optimizer.step()
    optimizer.step()
    _assert_same(model, twice)
    saved = copy.deepcopy(wrapped.state_dict())
    assert list(wrapped.params) == list(optimizer.params)
    assert saved["param_groups"][0]["lr"] == 0.1
    _train(twice, wrapped, 1)
    wrapped.load_state_dict(saved)
    torch.testing.assert_close(wrapped.state_dict()["state"], optimizer.state_dict()["state"], rtol=0, atol=0)
    wrapped.param_groups[0]["lr"] = 0.5
    assert "lr: 0.5" in repr(wrapped)


def test_rowwise_adagrad_has_its_state_from_the_start() -> None:
    weight = nn.Parameter(torch.ones(3, 2))
    optimizer = KeyedOptimizerWrapper({"t": weight}, RowWiseAdagrad)
    assert {n: tuple(v.shape) for n, v in optimizer.state_dict()["state"]["t"].items()} == {
        "step": (),
        "sum": (3, 1),
    }


class _NeedsClosure(KeyedOptimizer):
    """As code for TorchRec writes it: the closure has no default."""

    def step(self, closure: Callable[[], float] | None) -> float | None:  # type: ignore[override]
        for param in self.params.values():
            if param.grad is not None:
                self.state[param] = {"steps": torch.tensor(1.0)}
        return None if closure is None else closure()


def _needs_closure(model: nn.Module) -> _NeedsClosure:
    params = dict(model.named_parameters())
    return _NeedsClosure(params, defaultdict(dict), [{"params": list(params.values())}])


def test_a_step_that_needs_its_closure_is_given_one() -> None:
    model = _model()
    optimizer = _needs_closure(model)
    optimizer.init_state()
    assert set(optimizer.state_dict()["state"]) == set(dict(model.named_parameters()))


@pytest.mark.parametrize(
    "around",
    [
        lambda keyed: CombinedOptimizer([("", keyed)]),
        OptimizerWrapper,
        lambda keyed: GradientClippingOptimizer(keyed, GradientClipping.NORM),
        lambda keyed: WarmupOptimizer(keyed, [WarmupStage(max_iters=2)]),
        lambda keyed: KeyedOptimizerWrapper(keyed.params, lambda _: keyed),
    ],
)
def test_what_wraps_an_optimizer_passes_the_closure_on(around: Callable[[KeyedOptimizer], Optimizer]) -> None:
    model = _model()
    inner = _needs_closure(model)
    optimizer = around(inner)
    model(torch.ones(1, 3)).sum().backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    assert len(inner.state) == len(list(model.parameters()))
