"""A run that stopped goes on exactly where it stood, refuses what does not fit, and says so."""

from __future__ import annotations

import contextlib
import gc
import json
import math
import shutil
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed as dist

from recsys.checkpoint import load_checkpoint
from recsys.data.sources.synthetic import synthetic
from recsys.errors import CheckpointError, PlanError
from recsys.metrics.exact import Metrics
from recsys.sharding.plan.plan import read_plan
from recsys.train.callbacks import Callback
from recsys.train.commands.train import main
from recsys.train.config import ModelConfig, TrainConfig
from recsys.train.job import Trained, TrainJob, train_over_ranks
from recsys.train.progress import Epoch, TrainProgress
from recsys.train.stepping.ranks import ONE_RANK, Ranks, find_ranks, process_group
from tests.recsys.train.plans import mixed_plan
from tests.support.ranks import live_pool

_SMALL = ModelConfig(embedding_dim=8, dense_layers=(8,), over_layers=(8,))
_DIN = replace(_SMALL, model="din", history="recent_items", target="item", max_history=6)
# 9 steps in each of 2 passes.
_CONFIG = TrainConfig(epochs=2, batch_size=200, row_weight_decay=1e-3)
_NUM_ROWS = 2_000


def _job(folder: Path, **changes: Any) -> TrainJob:
    job = TrainJob(
        dataset=synthetic(_NUM_ROWS), model=_SMALL, train=_CONFIG, checkpoint_dir=folder, checkpoint_every=4
    )
    return replace(job, **changes)


class _Stop(Exception):
    pass


class _Stops(Callback):
    """Ends the run in the middle of everything, after so many steps; counts the rows it hears of."""

    def __init__(self, at_step: int | None = None) -> None:
        self._at_step = at_step
        self._num_calls = 0
        self.num_rows = 0

    def batch_done(self, num_rows: int) -> None:
        self.num_rows += num_rows
        if self._num_calls == self._at_step:  # the first call tells what was done before
            raise _Stop
        self._num_calls += 1


@dataclass(frozen=True, kw_only=True)
class _Finished:
    """A whole run of ``_SMALL``: its checkpoints, which are not to be written to, and what it trained."""

    folder: Path
    trained: Trained

    def copy(self, to: Path) -> Path:
        return Path(shutil.copytree(self.folder, to))


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> _Finished:
    folder = tmp_path_factory.mktemp("finished") / "a"
    trained = train_over_ranks(_job(folder), ONE_RANK, Callback(), whole=True)
    return _Finished(folder=folder, trained=trained)


def _same(a: Trained, b: Trained) -> None:
    assert a.state_dict is not None
    assert b.state_dict is not None
    assert set(a.state_dict) == set(b.state_dict)
    for name, tensor in a.state_dict.items():
        assert torch.equal(tensor, b.state_dict[name]), name
    for one, other in zip(a.epochs, b.epochs, strict=True):
        assert replace(one, examples_per_second=0.0, train_loss=0.0) == replace(
            other, examples_per_second=0.0, train_loss=0.0
        )
        assert one.train_loss == pytest.approx(other.train_loss, rel=1e-9)


@pytest.mark.parametrize(
    ("model", "changes", "at_step"),
    [
        pytest.param(_SMALL, {}, 6, id="first-pass"),
        pytest.param(_SMALL, {}, 11, id="just-begun-pass"),
        pytest.param(_SMALL, {"optimizer": "adagrad"}, 15, id="last-pass"),
        pytest.param(_DIN, {}, 11, id="din"),
        pytest.param(_SMALL, {"schedule": "cosine", "accumulate": 3}, 8, id="in-a-step-of-batches"),
    ],
)
def test_a_stopped_run_goes_on_exactly(
    tmp_path: Path, finished: _Finished, model: ModelConfig, changes: dict[str, Any], at_step: int
) -> None:
    of_run = {"model": model, "train": replace(_CONFIG, **changes)}
    if of_run == {"model": _SMALL, "train": _CONFIG}:
        whole = finished.trained
    else:
        whole = train_over_ranks(_job(tmp_path / "a", **of_run), ONE_RANK, Callback(), whole=True)
    with pytest.raises(_Stop):
        train_over_ranks(_job(tmp_path / "b", **of_run), ONE_RANK, _Stops(at_step), whole=True)
    callback = _Stops()
    resumed = train_over_ranks(_job(tmp_path / "b", **of_run, resume=True), ONE_RANK, callback, whole=True)
    _same(resumed, whole)
    assert callback.num_rows == 2 * 1_800


def test_resuming_a_finished_run_trains_no_more(finished: _Finished, tmp_path: Path) -> None:
    folder = finished.copy(tmp_path / "a")
    again = train_over_ranks(_job(folder, resume=True), ONE_RANK, Callback(), whole=True)
    _same(again, finished.trained)


def test_more_epochs_would_stretch_a_decay(tmp_path: Path) -> None:
    cosine = replace(_CONFIG, schedule="cosine")
    train_over_ranks(_job(tmp_path, train=cosine), ONE_RANK, Callback(), whole=False)
    longer = _job(tmp_path, train=replace(cosine, epochs=3), resume=True)
    with pytest.raises(CheckpointError, match="decay_steps: it was trained with '18', got 27"):
        train_over_ranks(longer, ONE_RANK, Callback(), whole=False)


def test_more_epochs_go_on_from_the_end(finished: _Finished, tmp_path: Path) -> None:
    short = replace(_CONFIG, epochs=1)
    train_over_ranks(_job(tmp_path / "b", train=short), ONE_RANK, Callback(), whole=False)
    longer = train_over_ranks(_job(tmp_path / "b", resume=True), ONE_RANK, Callback(), whole=True)
    _same(longer, finished.trained)


def _over_ranks(rank: int, world_size: int, folder: Path, at_step: int | None) -> str | None:
    """A run of two ranks under a mixed plan; the error of one that was stopped."""
    ranks = Ranks(rank=rank, world_size=world_size, local_world_size=world_size)
    half = replace(_CONFIG, batch_size=_CONFIG.batch_size // world_size)
    plan = mixed_plan(synthetic(_NUM_ROWS), _SMALL.embedding_dim, ("rw", "tw", "dp"))
    try:
        train_over_ranks(_job(folder, train=half, plan=plan), ranks, _Stops(at_step), whole=False)
    except _Stop as stop:
        return type(stop).__name__
    return None


def test_a_run_of_two_ranks_goes_on_with_one(finished: _Finished, tmp_path: Path) -> None:
    assert live_pool(2).run(_over_ranks, tmp_path / "a", 14) == ["_Stop", "_Stop"]
    assert (tmp_path / "a" / "latest").read_text().strip() == "step-00000012"
    resumed = train_over_ranks(_job(tmp_path / "a", resume=True), ONE_RANK, Callback(), whole=True)
    for one, other in zip(resumed.epochs, finished.trained.epochs, strict=True):
        assert one.train_loss == pytest.approx(other.train_loss, rel=1e-3)
        assert one.held_out.auc == pytest.approx(other.held_out.auc, abs=2e-3)


def test_resuming_from_nothing_begins(finished: _Finished, tmp_path: Path) -> None:
    fresh = train_over_ranks(_job(tmp_path / "a", resume=True), ONE_RANK, Callback(), whole=True)
    _same(fresh, finished.trained)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        pytest.param({"batch_size": 100}, "global_batch_size .*trained with '200', got 100", id="batch"),
        pytest.param({"seed": 1}, "seed: it was trained with '0', got 1", id="seed"),
        pytest.param({"learning_rate": 0.5}, "learning_rate: it was trained with '0.001'", id="rate"),
        pytest.param({"epochs": 1}, "2 epochs are done, expected at most the 1 asked for", id="epochs"),
    ],
)
def test_other_settings_are_refused(
    finished: _Finished, tmp_path: Path, changes: dict[str, Any], text: str
) -> None:
    job = _job(finished.copy(tmp_path / "a"), train=replace(_CONFIG, **changes), resume=True)
    with pytest.raises(CheckpointError, match=text):
        train_over_ranks(job, ONE_RANK, Callback(), whole=False)


def test_another_length_of_the_data_is_refused(finished: _Finished, tmp_path: Path) -> None:
    job = _job(finished.copy(tmp_path / "a"), dataset=synthetic(3_000), resume=True)
    with pytest.raises(CheckpointError, match="num_train_rows: it was trained with '1800', got 2700"):
        train_over_ranks(job, ONE_RANK, Callback(), whole=False)


def test_other_data_of_the_same_length_is_refused(finished: _Finished, tmp_path: Path) -> None:
    job = _job(finished.copy(tmp_path / "a"), dataset=synthetic(_NUM_ROWS, seed=1), resume=True)
    with pytest.raises(
        CheckpointError, match="got other data than it was trained with, of the same number of rows"
    ):
        train_over_ranks(job, ONE_RANK, Callback(), whole=False)


def test_another_model_is_refused(finished: _Finished, tmp_path: Path) -> None:
    finished.copy(tmp_path / "a")
    wider = replace(_SMALL, embedding_dim=2 * _SMALL.embedding_dim)
    text = f"table 'user': embedding_dim: it was trained with '{_SMALL.embedding_dim}', got {wider.embedding_dim}"
    with pytest.raises(CheckpointError, match=text):
        train_over_ranks(_job(tmp_path / "a", model=wider, resume=True), ONE_RANK, Callback(), whole=False)
    deeper = replace(_SMALL, over_layers=(*_SMALL.over_layers, 4))
    with pytest.raises(CheckpointError, match="over_arch_layer_sizes: it was trained with"):
        train_over_ranks(_job(tmp_path / "a", model=deeper, resume=True), ONE_RANK, Callback(), whole=False)


def _gloo_threads() -> set[str]:
    """Return the IDs of gloo's threads in this process."""
    ids = set()
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # a thread that has ended since
            if "gloo" in task.joinpath("comm").read_text():
                ids.add(task.name)
    return ids


def test_no_thread_outlives_the_training(tmp_path: Path) -> None:
    gc.collect()
    before = _gloo_threads()
    started: list[set[str]] = []

    class Looks(Callback):
        def epoch_done(self, epoch: Epoch) -> None:
            started.append(_gloo_threads() - before)

    train_over_ranks(_job(tmp_path / "a"), ONE_RANK, Looks(), whole=False)
    assert all(started)
    # A joined thread stays in /proc until the kernel has cleaned up after it.
    for _ in range(1000):
        if not set().union(*started) & _gloo_threads():
            return
        time.sleep(0.01)
    pytest.fail(f"threads of gloo that outlive the training: {set().union(*started) & _gloo_threads()}")


@pytest.mark.parametrize(
    ("changes", "text"),
    [({"resume": True}, "resume: got it without"), ({"resume": False}, "checkpoint_every: got it without")],
    ids=["resume", "every"],
)
def test_jobs_that_make_no_sense(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        TrainJob(dataset=synthetic(_NUM_ROWS), model=_SMALL, train=_CONFIG, checkpoint_every=3, **changes)
    with pytest.raises(ValueError, match="checkpoint_every: got -1"):
        TrainJob(dataset=synthetic(_NUM_ROWS), model=_SMALL, train=_CONFIG, checkpoint_every=-1)


_PROGRESS = TrainProgress(
    epochs=(
        Epoch(
            number=1,
            step=9,
            train_loss=0.5,
            examples_per_second=10.0,
            held_out=Metrics(num_rows=3, loss=0.6, auc=None, ne=1.5, calibration=None),
        ),
    ),
    step_in_epoch=3,
    step=12,
    num_rows=600,
    loss=300.5,
)


def test_progress_survives_json() -> None:
    assert TrainProgress.from_json(json.loads(json.dumps(_PROGRESS.to_json()))) == _PROGRESS


@pytest.mark.parametrize(
    ("path", "value", "text"),
    [
        pytest.param(["step"], -1, "progress.step: got '-1'", id="step"),
        pytest.param(["step_in_epoch"], 1.5, "progress.step_in_epoch: got '1.5'", id="step-in-epoch"),
        pytest.param(["loss"], "much", "progress.loss: got 'much'", id="loss"),
        pytest.param(["epochs"], {}, "progress.epochs: got '{}'", id="epochs"),
        pytest.param(
            ["epochs", 0, "held_out"], None, r"epochs\[0\].held_out.num_rows: missing", id="held-out"
        ),
        pytest.param(["epochs", 0, "held_out", "auc"], "1", r"held_out.auc: got '1'", id="auc"),
    ],
)
def test_damaged_progress(path: list[Any], value: Any, text: str) -> None:
    data = _PROGRESS.to_json()
    at: Any = data
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    with pytest.raises(CheckpointError, match=text):
        TrainProgress.from_json(data)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not readable as JSON"),
        ("[]", "plan 'plan.json': plan: got list, expected an object"),
        (None, "cannot read"),
    ],
    ids=["json", "list", "missing"],
)
def test_plans_that_cannot_be_read(tmp_path: Path, text: str | None, message: str) -> None:
    path = tmp_path / "plan.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(PlanError, match=message):
        read_plan(path)


_TORCHRUN = {
    "RANK": "1",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "29500",
}


def _environment(monkeypatch: pytest.MonkeyPatch, changes: dict[str, str | None]) -> None:
    for name in _TORCHRUN:
        monkeypatch.delenv(name, raising=False)
    for name, value in {**_TORCHRUN, **changes}.items():
        if value is not None:
            monkeypatch.setenv(name, value)


def test_ranks_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    _environment(monkeypatch, {})
    found = find_ranks("cpu")
    assert (found.rank, found.world_size, found.local_world_size) == (1, 4, 2)
    assert found.device == torch.device("cpu")
    _environment(monkeypatch, dict.fromkeys(_TORCHRUN))
    assert find_ranks("cpu") == ONE_RANK


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        pytest.param({"MASTER_PORT": None}, r"environment: missing \['MASTER_PORT'\]", id="missing"),
        pytest.param({"WORLD_SIZE": "0"}, "environment WORLD_SIZE: got '0'", id="no-ranks"),
        pytest.param({"RANK": "first"}, "environment RANK: got 'first'", id="text"),
        pytest.param({"RANK": "4"}, "environment RANK: got 4, expected one below WORLD_SIZE 4", id="rank"),
    ],
)
def test_wrong_environments(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, str | None], text: str
) -> None:
    _environment(monkeypatch, changes)
    with pytest.raises(ValueError, match=text):
        find_ranks("cpu")


def test_a_group_that_stands_is_used_if_it_is_of_these_ranks() -> None:
    with process_group(ONE_RANK):
        with process_group(ONE_RANK):
            pass
        assert dist.is_initialized()
        with (
            pytest.raises(ValueError, match="this process is rank 0 of 1, expected rank 1 of 2"),
            process_group(Ranks(rank=1, world_size=2)),
        ):
            pass
    assert not dist.is_initialized()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_device_that_is_not_there() -> None:
    with pytest.raises(ValueError, match="--device: got 'cuda' for local rank 0, but this host has 0"):
        find_ranks("cuda")


_ARGV = ["--data", "synthetic", "--limit-rows", "2000", "--epochs", "2", "--embedding-dim", "8", "--json"]


def test_resume_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = ["--checkpoint-dir", str(tmp_path / "run"), *_ARGV]
    assert main(run) == 0
    first = json.loads(capsys.readouterr().out)
    assert first["out"] is None
    assert first["checkpoint_dir"] == str(tmp_path / "run")
    assert main(run) == 2
    assert "which is not empty; --resume goes on" in capsys.readouterr().err
    assert main([*run, "--resume", "--out", str(tmp_path / "m.pt")]) == 0
    again = json.loads(capsys.readouterr().out)
    assert again["metrics"] == first["metrics"]
    assert [epoch["number"] for epoch in again["epochs"]] == [1, 2]
    assert load_checkpoint(tmp_path / "m.pt").info["metrics"] == first["metrics"]


def test_it_says_where_it_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = ["--checkpoint-dir", str(tmp_path / "run"), *_ARGV[:-1], "--resume"]
    assert main(run) == 0
    assert "resumed" not in capsys.readouterr().out
    assert main(run) == 0
    steps = 2 * math.ceil(1800 / 512)
    assert f"resumed after step {steps}\n" in capsys.readouterr().out


def test_a_plan_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = [*_ARGV, "--out", str(tmp_path / "m.pt"), "--plan", str(tmp_path / "plan.json")]
    (tmp_path / "plan.json").write_text(json.dumps({"elsewhere": {}}))
    assert main(argv) == 2
    assert "unknown collections ['elsewhere']" in capsys.readouterr().err
    assert not (tmp_path / "m.pt").exists()


class _Precision(Callback):
    """Notes the precision of products during the training."""

    def batch_done(self, num_rows: int) -> None:
        self.found = torch.get_float32_matmul_precision()


def test_products_have_the_precision_that_was_asked_for(tmp_path: Path) -> None:
    before, callback = torch.get_float32_matmul_precision(), _Precision()
    coarse = replace(_CONFIG, matmul_precision="bfloat16")
    trained = train_over_ranks(_job(tmp_path / "a", train=coarse), ONE_RANK, callback, whole=True)
    assert callback.found == "medium"
    assert torch.get_float32_matmul_precision() == before
    exact = train_over_ranks(_job(tmp_path / "b"), ONE_RANK, callback, whole=True)
    assert callback.found == "highest"
    assert trained.kept.held_out.loss == pytest.approx(exact.kept.held_out.loss, rel=0.02)
    with pytest.raises(CheckpointError, match="matmul_precision: it was trained with 'bfloat16'"):
        train_over_ranks(_job(tmp_path / "a", resume=True), ONE_RANK, callback, whole=True)
