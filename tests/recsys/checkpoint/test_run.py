"""A run's directory: which checkpoint is the newest, which go, what training.json may hold; one process alone."""

from __future__ import annotations

import json
import os
import pickle
import random
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn

from export.cli import main
from export.source.load import Source, load_model
from recsys.artifact.load import load_artifact
from recsys.checkpoint.dcp_metadata import METADATA_NAME
from recsys.checkpoint.distributed import TrainingState, load_training, save_training
from recsys.checkpoint.run import LATEST_NAME, TRAINING_NAME, newest, read_record, steps
from recsys.errors import CheckpointError
from recsys.jagged.keyed_jagged import KeyedJaggedTensor
from recsys.models.click import build_dlrm
from recsys.optim import KeyedOptimizerWrapper
from tests.support.models.checkpoint_model import ARGUMENTS, FACTORY, ROWS


def _model() -> tuple[nn.Module, KeyedOptimizerWrapper]:
    model = build_dlrm(**ARGUMENTS)
    params = dict(model.named_parameters())
    return model, KeyedOptimizerWrapper(params, lambda p: torch.optim.Adam(p, lr=0.01))


def _step(model: nn.Module, optimizer: KeyedOptimizerWrapper) -> None:
    for parameter in model.parameters():
        parameter.grad = torch.rand_like(parameter)
    optimizer.step()


def _save(run: Path, step: int, **fields: Any) -> tuple[nn.Module, KeyedOptimizerWrapper]:
    model, optimizer = _model()
    _step(model, optimizer)
    keep = fields.pop("keep", 2)
    state = TrainingState(step=step, **{"factory": FACTORY, "arguments": ARGUMENTS, **fields})
    save_training(run, model, optimizer, state, keep=keep)
    return model, optimizer


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with a checkpoint of step 1. Not to be written to."""
    run = tmp_path_factory.mktemp("saved")
    _save(run, 1)
    return run


@pytest.fixture
def copied(saved: Path, tmp_path: Path) -> Path:
    """A copy of the run ``saved``."""
    return Path(shutil.copytree(saved, tmp_path / "run"))


def _numbers(model: nn.Module, optimizer: KeyedOptimizerWrapper) -> list[Tensor]:
    states = [t for _, s in sorted(optimizer.state_dict()["state"].items()) for _, t in sorted(s.items())]
    return [t.clone() for t in [*model.state_dict().values(), *states]]


def _same(a: list[Tensor], b: list[Tensor]) -> bool:
    return len(a) == len(b) and all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def test_one_process_without_a_process_group(tmp_path: Path) -> None:
    run = tmp_path / "run"
    model, optimizer = _save(run, 3, shared={"auc": 0.5}, local={"position": 7})
    drawn = (torch.rand(3), random.random())
    other, other_optimizer = _model()
    assert not _same(_numbers(model, optimizer), _numbers(other, other_optimizer))
    state = load_training(run, other, other_optimizer)
    assert state is not None
    assert (state.step, state.shared, state.local) == (3, {"auc": 0.5}, {"position": 7})
    assert _same(_numbers(model, optimizer), _numbers(other, other_optimizer))
    assert torch.equal(torch.rand(3), drawn[0])
    assert random.random() == drawn[1]


def test_torchs_own_loader_reads_it(tmp_path: Path) -> None:
    model, optimizer = _save(tmp_path, 1)
    want = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    want |= {
        f"optimizer.{parameter}.{name}": tensor
        for parameter, states in optimizer.state_dict()["state"].items()
        for name, tensor in states.items()
    }
    found = {name: torch.full_like(tensor, 77) for name, tensor in want.items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that no process group is up
        dcp.load(found, checkpoint_id=tmp_path / "step-00000001", no_dist=True)
    assert all(torch.equal(found[name], tensor) for name, tensor in want.items())


def test_modules_hear_that_they_were_loaded(tmp_path: Path) -> None:
    managed = {"eviction": "lru", "interval": 2}
    tables = [{**ARGUMENTS["tables"][0], "managed": managed}, *ARGUMENTS["tables"][1:]]
    arguments = {**ARGUMENTS, "tables": tables}

    def batch(ids: list[int]) -> KeyedJaggedTensor:
        keys = [f"f_{name}" for name in ROWS]
        return KeyedJaggedTensor(keys, values=[*ids, 1, 2, 3, 4], lengths=[1] * 6)

    model = build_dlrm(**arguments).train()
    for _ in range(4):
        model(torch.ones(2, 3), batch([123_456_789, 987_654_321]))
    save_training(tmp_path, model, None, TrainingState(step=4))
    other = build_dlrm(**arguments).train()
    other(torch.ones(2, 3), batch([5, 6]))  # counted, not yet admitted: forgotten by the load
    load_training(tmp_path, other, None)
    for trained in (model, other):
        for _ in range(2):
            trained(torch.ones(2, 3), batch([7, 987_654_321]))
    want = model.state_dict()
    assert int(next(v for k, v in want.items() if k.endswith(".step"))) == 6
    assert all(torch.equal(tensor, want[name]) for name, tensor in other.state_dict().items())


def test_parameter_groups_are_kept_where_the_optimizer_keeps_them(tmp_path: Path) -> None:
    model, optimizer = _model()
    optimizer.save_param_groups(True)
    optimizer.init_state()
    optimizer.param_groups[0]["lr"] = 0.125
    save_training(tmp_path, model, optimizer, TrainingState(step=1))
    model, optimizer = _model()
    optimizer.save_param_groups(True)
    load_training(tmp_path, model, optimizer)
    assert optimizer.param_groups[0]["lr"] == 0.125
    assert optimizer.param_groups[0]["betas"] == (0.9, 0.999)


def test_a_run_that_starts_has_no_checkpoint(tmp_path: Path) -> None:
    model, optimizer = _model()
    assert load_training(tmp_path / "nowhere", model, optimizer) is None
    assert load_training(tmp_path, model, None) is None


def test_old_checkpoints_go_and_those_of_an_abandoned_future_too(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        _save(tmp_path, step)
    assert [path.name for path in steps(tmp_path)] == ["step-00000002", "step-00000003"]
    _save(tmp_path, 2, keep=3)
    assert [path.name for path in steps(tmp_path)] == ["step-00000002", "step-00000002.1"]
    assert newest(tmp_path) == tmp_path / "step-00000002.1"
    _save(tmp_path, 4, keep=1)
    assert {path.name for path in tmp_path.iterdir()} == {"step-00000004", LATEST_NAME}


@pytest.mark.parametrize(
    "pointer", [None, "", "step-00000009", "../step-00000001", "\xff\xfe", "step-00000001"], ids=repr
)
def test_a_lost_pointer_costs_nothing(copied: Path, pointer: str | None) -> None:
    _save(copied, 2)
    if pointer is None:
        (copied / LATEST_NAME).unlink()
    else:
        (copied / LATEST_NAME).write_bytes(pointer.encode("latin-1"))
    wanted = "step-00000001" if pointer == "step-00000001" else "step-00000002"
    assert newest(copied) == copied / wanted
    assert newest(copied / "step-00000001") == copied / "step-00000001"


def test_what_a_killed_save_left_is_never_loaded_and_goes(tmp_path: Path) -> None:
    _save(tmp_path, 1)
    shutil.copytree(tmp_path / "step-00000001", tmp_path / ".saving-aaaa")
    assert newest(tmp_path) == tmp_path / "step-00000001"
    _save(tmp_path, 2)
    assert not (tmp_path / ".saving-aaaa").exists()


def test_a_disk_that_cannot_be_written_is_one_error(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("a file")
    with pytest.raises(CheckpointError, match="run"):
        _save(tmp_path / "run", 1)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"shared": {"model": object()}}, "training.shared.model: got object, expected plain data"),
        ({"local": {"x": float("nan")}}, r"training.ranks\[0\].local.x: got nan, expected a finite number"),
        ({"arguments": {"x": torch.ones(1)}}, "training.arguments.x: got Tensor"),
    ],
    ids=["object", "nan", "tensor"],
)
def test_progress_must_be_plain_data(tmp_path: Path, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        _save(tmp_path / "run", 1, **fields)
    assert not (tmp_path / "run").exists()


def _edit(change: Callable[[Any], Any]) -> Callable[[Path], None]:
    def edit(directory: Path) -> None:
        data = json.loads((directory / TRAINING_NAME).read_text())
        (directory / TRAINING_NAME).write_text(json.dumps(change(data) or data))

    return edit


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda d: (d / TRAINING_NAME).unlink(), "there is none; it was not written by save_training"),
        (lambda d: (d / TRAINING_NAME).write_text("{"), "not readable as JSON"),
        (lambda d: (d / TRAINING_NAME).write_bytes(b"\xff"), "not readable as JSON"),
        (lambda d: (d / TRAINING_NAME).write_text("[" * 100_000), "not readable as JSON"),
        (lambda d: (d / TRAINING_NAME).write_text("[]"), "training.format: missing"),
        (_edit(lambda data: data.update(format="other")), "training.format: got 'other'"),
        (
            _edit(lambda data: data.update(format_version=99)),
            "training: got format version 99.*newer release",
        ),
        (_edit(lambda data: data.update(step=-1)), "training.step: got '-1'"),
        (_edit(lambda data: data.update(ranks={})), "training.ranks: got '{}', expected a list"),
        (_edit(lambda data: data.update(ranks=[3])), "rank: got .3., expected an object"),
        (_edit(lambda data: data["ranks"][0].update(rng={"torch": "!"})), "ranks.rng: cannot be set"),
        (
            _edit(lambda data: data["optimizer"].update(counters=[])),
            r"optimizer.counters: got '\[\]', expected an",
        ),
        (
            _edit(lambda data: data["optimizer"].update(counters={"t": "x"})),
            "counters.t: got 'x', expected a num",
        ),
        (
            _edit(lambda data: data["optimizer"].update(column_widths={"t": 4})),
            "widths.t: got '4', expected a list",
        ),
        (_edit(lambda data: data["optimizer"].update(column_widths={"t": [0]})), r"widths.t: got '\[0\]'"),
        (
            _edit(lambda data: data["optimizer"].update(param_groups=[3])),
            r"groups\[0\]: got int, expected an",
        ),
        (lambda d: (d / "__0_0.distcp").unlink(), "which is not there"),
        (lambda d: os.truncate(d / "__0_0.distcp", 1000), "it is truncated"),
        (lambda d: (d / METADATA_NAME).write_bytes(pickle.dumps(os.getcwd)), "nothing in it was run"),
    ],
)
def test_damaged_checkpoints_are_one_clear_error(
    copied: Path, damage: Callable[[Path], Any], message: str
) -> None:
    damage(copied / "step-00000001")
    with pytest.raises(CheckpointError, match=message):
        load_training(copied, *_model())


def test_another_model_does_not_fit(saved: Path) -> None:
    small = nn.Linear(2, 2)
    with pytest.raises(
        CheckpointError, match=r"model: the checkpoint lacks \['model.bias', 'model.weight'\] \(2\)"
    ):
        load_training(saved, small, None)
    wide = build_dlrm(**{**ARGUMENTS, "over_arch_layer_sizes": [16, 1]})
    with pytest.raises(CheckpointError, match=r"holds torch.float32 \[8, .*expected torch.float32 \[16, "):
        load_training(saved, wide, None)


def test_another_optimizer_does_not_fit(saved: Path) -> None:
    model = build_dlrm(**ARGUMENTS)
    adagrad = KeyedOptimizerWrapper(dict(model.named_parameters()), lambda p: torch.optim.Adagrad(p))
    with pytest.raises(CheckpointError, match=r"optimizer: the checkpoint lacks \['optimizer\..*sum'"):
        load_training(saved, model, adagrad)


def test_the_exporter_takes_a_run_as_it_is(tmp_path: Path) -> None:
    model, _ = _save(tmp_path / "run", 1)
    model, _ = _save(tmp_path / "run", 2)
    loaded = load_model(Source(path=tmp_path / "run", scratch=tmp_path))
    assert _same(list(loaded.state_dict().values()), list(model.state_dict().values()))
    assert main([str(tmp_path / "run"), "--dtype", "fp32"]) == 0
    artifact = load_artifact(tmp_path / "run.artifact")
    assert artifact.manifest.name == "run"
    one = tmp_path / "run" / "step-00000001"
    assert main([str(one), "--out", str(tmp_path / "one")]) == 0


def test_the_exporter_asks_for_a_factory_where_none_is_named(tmp_path: Path) -> None:
    _save(tmp_path, 1, factory=None, arguments={})
    assert read_record(tmp_path / "step-00000001").factory is None
    with pytest.raises(CheckpointError, match="a checkpoint that names no factory needs --factory"):
        load_model(Source(path=tmp_path))


@pytest.mark.parametrize(
    "factory", ["os:system", "recsys.models.click:ClickModel", "recsys.models.nowhere:make"]
)
def test_the_exporter_calls_factories_of_ours_only(tmp_path: Path, factory: str) -> None:
    _save(tmp_path, 1, factory=factory)
    with pytest.raises(CheckpointError, match="factory: got"):
        load_model(Source(path=tmp_path))
