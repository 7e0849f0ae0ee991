"""State dicts as training scripts save them are read by rule, and each rule is said."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from export.source.load import Source, load_model
from export.source.names import match_names
from recsys.errors import CheckpointError
from tests.support.models.export_models import dlrm

FACTORY = "tests.support.models.factories:make_dlrm"
State = dict[str, Tensor]


def loaded(content: Any, folder: Path, **options: Any) -> tuple[State, list[str]]:
    torch.save(content, folder / "s.pt", **options)
    notes: list[str] = []
    model = load_model(Source(path=folder / "s.pt", factory=FACTORY), notes)
    return model.state_dict(), notes


def equal(found: State, expected: State) -> bool:
    return set(found) == set(expected) and all(torch.equal(found[name], expected[name]) for name in expected)


def within(state: State, mark: str) -> State:
    """Names with a wrapper's before each last part, and before the first."""
    return {f"{mark}.{name.replace('.model.', f'.{mark}.model.')}": tensor for name, tensor in state.items()}


def compiled(state: State) -> State:
    return {f"_orig_mod.{name}": tensor for name, tensor in state.items()}


def lightning(state: State) -> dict[str, Any]:
    return {
        "epoch": 3,
        "pytorch-lightning_version": "2.5.0",
        "state_dict": {
            **{f"model.{name}": tensor for name, tensor in state.items()},
            "loss.pos_weight": torch.ones(1),
            "val_auc.preds": torch.ones(3),
        },
        "optimizer_states": [{"state": {0: {"exp_avg": torch.ones(3)}}, "param_groups": []}],
    }


@pytest.mark.parametrize(
    ("make", "rules"),
    [
        (lambda state: state, []),
        (compiled, ["names without '_orig_mod' (torch.compile)"]),
        (lambda state: within(state, "_orig_mod"), ["names without '_orig_mod' (torch.compile)"]),
        (lambda state: within(state, "module"), ["names without 'module' (DistributedDataParallel)"]),
        (
            lambda state: within(state, "_fsdp_wrapped_module"),
            ["names without '_fsdp_wrapped_module' (FSDP)"],
        ),
        (
            lambda state: within(compiled(state), "module"),
            [
                "names without '_orig_mod' (torch.compile)",
                "names without 'module' (DistributedDataParallel)",
            ],
        ),
        (
            lightning,
            [
                "the state dict under 'state_dict'",
                "names behind 'model.'",
                "without 2 other tensors: loss.pos_weight, val_auc.preds",
            ],
        ),
        (
            lambda state: {"state_dict": {f"net._orig_mod.ctr.{k}": v for k, v in state.items()}},
            [
                "the state dict under 'state_dict'",
                "names without '_orig_mod' (torch.compile)",
                "names behind 'net.ctr.'",
            ],
        ),
        (
            lambda state: {"model": state, "ema": {k: v * 2 for k, v in state.items()}, "step": 3},
            ["the state dict under 'model'"],
        ),
        (lambda state: {"ema": state, "step": 3}, ["the state dict under 'ema'"]),
        (
            lambda state: {"ema_state_dict": {"module": state}, "args": {"lr": 0.1}},
            ["the state dict under 'ema_state_dict.module'"],
        ),
        (
            lambda state: {
                **{f"model.{k}": v for k, v in state.items()},
                **{f"model_ema.{k}": v * 2 for k, v in state.items()},
            },
            ["names behind 'model.'", f"without {len(dlrm().state_dict())} other tensors: "],
        ),
        (
            lambda state: {"n_averaged": torch.tensor(3), **{f"module.{k}": v for k, v in state.items()}},
            [
                "names without 'module' (DistributedDataParallel)",
                "without 1 other tensor: n_averaged",
            ],
        ),
    ],
)
def test_names_as_training_scripts_save_them(
    tmp_path: Path, make: Callable[[State], Any], rules: list[str]
) -> None:
    state = dlrm().state_dict()
    found, notes = loaded(make(state), tmp_path)
    assert equal(found, state)
    assert len(notes) == len(rules)
    assert all(note.startswith(rule) for note, rule in zip(notes, rules, strict=True)), notes


def test_what_torch_makes_of_a_model_itself(tmp_path: Path) -> None:
    model = dlrm()
    averaged = AveragedModel(torch.compile(model))
    found, _ = loaded(averaged.state_dict(), tmp_path)
    assert equal(found, model.state_dict())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("nested", [False, True])
def test_weights_of_other_types_are_cast(tmp_path: Path, dtype: torch.dtype, nested: bool) -> None:
    state = {name: tensor.to(dtype) for name, tensor in dlrm().state_dict().items()}
    found, notes = loaded({"model": state} if nested else state, tmp_path)
    assert equal(found, {name: tensor.to(torch.float32) for name, tensor in state.items()})
    assert notes[-1] == f"weights of {str(dtype).removeprefix('torch.')} as float32"


def test_whole_numbers_are_no_weights(tmp_path: Path) -> None:
    state = {name: tensor.to(torch.int64) for name, tensor in dlrm().state_dict().items()}
    with pytest.raises(CheckpointError, match=r"got torch\.int64, expected torch\.float32"):
        loaded(state, tmp_path)


def test_files_of_torch_before_1_6(tmp_path: Path) -> None:
    state = dlrm().state_dict()
    found, notes = loaded({"state_dict": state}, tmp_path, _use_new_zipfile_serialization=False)
    assert equal(found, state)
    assert notes == ["the state dict under 'state_dict'"]


@pytest.mark.parametrize(
    "beside",
    [
        {"auc": np.float64(0.8), "loss": np.float32(0.3), "epoch": np.int64(3), "done": np.bool_(True)},
        {"thresholds": np.linspace(0, 1, 5), "dtype": np.dtype("float32")},
        {"args": argparse.Namespace(lr=0.1, out=Path("x")), "path": Path("/tmp/x")},
    ],
)
@pytest.mark.parametrize("is_zip", [True, False])
def test_what_scripts_store_beside_the_weights(tmp_path: Path, beside: dict[str, Any], is_zip: bool) -> None:
    state = dlrm().state_dict()
    content = {"state_dict": state, **beside}
    found, _ = loaded(content, tmp_path, _use_new_zipfile_serialization=is_zip)
    assert equal(found, state)


def test_two_prefixes_that_fit_are_named(tmp_path: Path) -> None:
    state = dlrm().state_dict()
    both = {f"{one}.{name}": tensor for one in ("student", "tutor") for name, tensor in state.items()}
    with pytest.raises(CheckpointError, match=r"more than once, but for prefixes \('student\.', 'tutor\.'\)"):
        loaded(both, tmp_path)


def test_the_nearest_names_are_listed(tmp_path: Path) -> None:
    state = dlrm().state_dict()
    bias = "over_arch.model.1.bias"
    renamed = {name.replace(bias, "over_arc.model.1.bias"): tensor for name, tensor in state.items()}
    with pytest.raises(
        CheckpointError,
        match=rf"missing {bias}, unknown over_arc\.model\.1\.bias; .*nearest: over_arc\.model\.1\.bias for {bias}",
    ):
        loaded(lightning(renamed), tmp_path)


def test_a_models_own_module_keeps_its_name() -> None:
    """A model whose names hold a wrapper's word."""
    inner = nn.ModuleDict({"module": nn.Linear(2, 2)}).state_dict()
    assert match_names(inner, inner).rules == ()
    assert match_names([f"module.{name}" for name in inner], inner).names == {
        name: f"module.{name}" for name in inner
    }
