"""What may be asked of FBGEMM's optimizers, and that they take and do it."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
from torch.optim import SGD, Adagrad, Adam, AdamW

from recsys.kernels.training import SplitTableBatchedEmbeddingBagsCodegen
from recsys.optim import (
    LAMB,
    EmbOptimType,
    FusedConfig,
    LarsSGD,
    PartialRowWiseAdam,
    PartialRowWiseLAMB,
    RowWiseAdagrad,
)
from recsys.optim.fused_config import WeightDecayMode
from tests.recsys.optim.lookups import (
    TbeLookup,
    batches,
    make_tbe,
)

CPU = torch.device("cpu")
ON_CPU = (EmbOptimType.EXACT_SGD, EmbOptimType.EXACT_ROWWISE_ADAGRAD, EmbOptimType.EXACT_ADAGRAD)
ROWWISE = EmbOptimType.EXACT_ROWWISE_ADAGRAD


def test_the_defaults_are_fbgemms() -> None:
    parameters = inspect.signature(SplitTableBatchedEmbeddingBagsCodegen).parameters
    ours = FusedConfig.from_params(None).tbe_arguments()
    assert ours == {name: parameters[name].default for name in ours}


def test_the_tutorials_params() -> None:
    config = FusedConfig.from_params({"optimizer": ROWWISE, "learning_rate": 0.02, "eps": 0.002})
    assert config == FusedConfig(optimizer=ROWWISE, learning_rate=0.02, eps=0.002)
    assert hash(config) == hash(FusedConfig(optimizer=ROWWISE, learning_rate=0.02, eps=0.002))
    tbe = make_tbe(4, 4, **config.tbe_arguments())
    assert tbe.optimizer == ROWWISE
    assert tbe.get_learning_rate() == pytest.approx(0.02)
    assert tbe.optimizer_args.eps == 0.002


@pytest.mark.parametrize("optimizer", ON_CPU, ids=str)
def test_states_are_what_fbgemm_keeps(optimizer: EmbOptimType) -> None:
    config = FusedConfig(optimizer=optimizer)
    config.check_device(CPU)
    states = make_tbe(6, 8, **config.tbe_arguments()).split_optimizer_states()
    found = [tuple(state.shape) for state in states[0]] if states else []
    assert found == [config.state_shape(name, 6, 8) for name in config.state_names()]


@pytest.mark.parametrize(
    ("optimizer", "second"),
    [
        (EmbOptimType.ADAM, (6, 8)),
        (EmbOptimType.LAMB, (6, 8)),
        (EmbOptimType.PARTIAL_ROWWISE_ADAM, (6,)),
        (EmbOptimType.PARTIAL_ROWWISE_LAMB, (6,)),
    ],
)
def test_adam_and_lamb_have_two_states_and_count_steps(
    optimizer: EmbOptimType, second: tuple[int, ...]
) -> None:
    config = FusedConfig(optimizer=optimizer)
    assert config.state_names() == ("momentum1", "momentum2")
    assert config.state_shape("momentum1", 6, 8) == (6, 8)
    assert config.state_shape("momentum2", 6, 8) == second
    assert config.has_step_count()
    assert not FusedConfig(optimizer=ROWWISE).has_step_count()
    assert not FusedConfig(optimizer=EmbOptimType.LARS_SGD).has_step_count()


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "unknown key": ({"lr": 0.1, "eps": 1e-8}, r"unknown keys \['lr'\], expected some of \['optimizer', 'l"),
    "optimizer by name": ({"optimizer": "exact_sgd"}, r"'optimizer'\]: got 'exact_sgd', expected one of Emb"),
    "optimizer in a list": ({"optimizer": [ROWWISE]}, "'optimizer'"),
    "deprecated": ({"optimizer": EmbOptimType.SGD}, r"; use EmbOptimType\.EXACT_SGD"),
    "unsupported": ({"optimizer": EmbOptimType.MADGRAD}, r"got .*madgrad.*expected one of"),
    "momentum of SGD": ({"momentum": 0.5}, r"'momentum'\]: got 0\.5, but only LARS_SGD has it"),
    "eta of LAMB": ({"optimizer": EmbOptimType.LAMB, "eta": 0.5}, "only LARS_SGD has it"),
    "negative": ({"learning_rate": -0.1}, r"'learning_rate'\]: got -0\.1, expected a finite number"),
    "not a number": ({"learning_rate": float("nan")}, "got nan, expected a finite"),
    "tensor": ({"learning_rate": torch.tensor(0.1)}, r"got tensor\(0\.1"),
    "bool": ({"eps": True}, r"'eps'\]: got True"),
    "infinite": ({"max_gradient": float("inf")}, "'max_gradient'"),
    "beta": (
        {"optimizer": EmbOptimType.ADAM, "beta1": 1.0},
        r"'beta1'\]: got 1\.0, expected a number in \[0, 1\)",
    ),
    "clipping": ({"gradient_clipping": 1}, r"'gradient_clipping'\]: got 1, expected True or False"),
    "decay of SGD": (
        {"weight_decay": 0.1},
        r"'weight_decay'\]: got 0\.1, but EmbOptimType\.EXACT_SGD has none",
    ),
    "decay without mode": ({"optimizer": ROWWISE, "weight_decay": 0.1}, "without a weight_decay_mode"),
    "mode of SGD": ({"weight_decay_mode": WeightDecayMode.L2}, "only EXACT_ROWWISE_ADAGRAD has a choice"),
    "rare mode": ({"optimizer": ROWWISE, "weight_decay_mode": WeightDecayMode.COWCLIP}, "COWCLIP"),
    "norm of SGD": ({"max_norm": 1.0}, "only EXACT_ROWWISE_ADAGRAD has it"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_params_are_named(name: str) -> None:
    params, text = WRONG[name]
    with pytest.raises(ValueError, match=text):
        FusedConfig.from_params(params)


@pytest.mark.parametrize(
    "optimizer",
    [
        EmbOptimType.ADAM,
        EmbOptimType.LAMB,
        EmbOptimType.PARTIAL_ROWWISE_ADAM,
        EmbOptimType.PARTIAL_ROWWISE_LAMB,
        EmbOptimType.LARS_SGD,
    ],
)
def test_what_cpus_lack_is_refused_before_fbgemm_does(optimizer: EmbOptimType) -> None:
    config = FusedConfig(optimizer=optimizer)
    message = rf"{optimizer.name} exists on CUDA only.*is cpu.*EXACT_SGD.*dense kernel"
    with pytest.raises(ValueError, match=message):
        config.check_device(CPU)
    config.check_device(torch.device("cuda", 0))
    with pytest.raises(AssertionError, match="not supported in CPU mode"):
        make_tbe(4, 4, **config.tbe_arguments())


@pytest.mark.parametrize(
    "ignored",
    [{"weight_decay": 0.5, "weight_decay_mode": WeightDecayMode.L2}, {"max_norm": 0.1}],
    ids=["weight decay", "max norm"],
)
def test_what_fbgemm_ignores_on_a_cpu_is_refused(ignored: dict[str, Any]) -> None:
    config = FusedConfig(optimizer=ROWWISE, **ignored)
    with pytest.raises(ValueError, match=rf"'{next(iter(ignored))}'.*FBGEMM ignores it on cpu"):
        config.check_device(CPU)
    config.check_device(torch.device("cuda", 0))
    # If this fails, FBGEMM has learned it, and the check can go.
    with_it, without = TbeLookup(config), TbeLookup(FusedConfig(optimizer=ROWWISE))
    for batch in batches(2):
        with_it.train(batch)
        without.train(batch)
    assert torch.equal(with_it.weight, without.weight)


def test_classes_with_fbgemms_defaults() -> None:
    assert FusedConfig.from_in_backward(SGD, {}) == FusedConfig(learning_rate=0.01)
    adagrad = FusedConfig.from_in_backward(Adagrad, {"lr": 0.5, "foreach": True})
    assert adagrad == FusedConfig(optimizer=EmbOptimType.EXACT_ADAGRAD, learning_rate=0.5, eps=1e-8)
    adam = FusedConfig.from_in_backward(Adam, {"lr": 0.1, "betas": (0.8, 0.9), "weight_decay": 0})
    assert adam == FusedConfig(optimizer=EmbOptimType.ADAM, learning_rate=0.1, beta1=0.8, beta2=0.9)
    numbers = {"lr": 0.1, "betas": (0.8, 0.9), "eps": 0.5, "weight_decay": 0.25}
    theirs = {"learning_rate": 0.1, "beta1": 0.8, "beta2": 0.9, "eps": 0.5, "weight_decay": 0.25}
    for kind, optimizer in (
        (LAMB, EmbOptimType.LAMB),
        (PartialRowWiseAdam, EmbOptimType.PARTIAL_ROWWISE_ADAM),
        (PartialRowWiseLAMB, EmbOptimType.PARTIAL_ROWWISE_LAMB),
    ):
        expected = FusedConfig(optimizer=optimizer, **theirs)
        assert FusedConfig.from_in_backward(kind, numbers) == expected
        assert FusedConfig.from_in_backward(kind, {**numbers, "by_row": True}) == expected
    lars = FusedConfig.from_in_backward(LarsSGD, {"lr": 0.1, "eta": 0.5, "momentum": 0.25})
    assert lars == FusedConfig(optimizer=EmbOptimType.LARS_SGD, learning_rate=0.1, eta=0.5, momentum=0.25)
    rowwise = FusedConfig.from_in_backward(RowWiseAdagrad, {"lr": 0.02, "eps": 0.002})
    assert rowwise == FusedConfig(optimizer=ROWWISE, learning_rate=0.02, eps=0.002)
    decayed = FusedConfig.from_in_backward(RowWiseAdagrad, {"weight_decay": 0.1})
    assert (decayed.weight_decay, decayed.weight_decay_mode) == (0.1, WeightDecayMode.L2)
    decoupled = {"weight_decay": 0.1, "weight_decay_mode": WeightDecayMode.DECOUPLE, "max_norm": 2.0}
    found = FusedConfig.from_in_backward(RowWiseAdagrad, decoupled)
    assert (found.weight_decay_mode, found.max_norm) == (WeightDecayMode.DECOUPLE, 2.0)


@pytest.mark.parametrize(
    ("optimizer_class", "kwargs", "text"),
    [
        pytest.param(
            AdamW,
            {},
            r"got AdamW, which no lookup.*\['Adagrad', 'Adam', 'LAMB",
            id="class",
        ),
        pytest.param(
            SGD, {"momentum": 0.9}, r"'momentum'\]: got 0\.9, .*leave it at 0, or use", id="momentum"
        ),
        pytest.param(SGD, {"weight_decay": 0.1}, r"'weight_decay'\]: got 0\.1", id="decay of SGD"),
        pytest.param(Adam, {"weight_decay": 0.1}, r"EmbOptimType\.ADAM has no such", id="L2 decay of Adam"),
        pytest.param(Adagrad, {"initial_accumulator_value": 1.0}, "initial_accumulator_value", id="initial"),
        pytest.param(
            SGD, {"learning_rate": 0.1}, r"'learning_rate'\]: SGD has no such argument", id="unknown"
        ),
    ],
)
def test_what_fbgemm_lacks_is_named(optimizer_class: type[Any], kwargs: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        FusedConfig.from_in_backward(optimizer_class, kwargs)
