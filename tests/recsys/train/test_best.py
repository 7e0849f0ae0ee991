"""The epoch that is kept, and training that stops early."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch import Tensor

from recsys.checkpoint import Checkpoint, build_model
from recsys.checkpoint.lock import LOCK_NAME, check_free, locked
from recsys.checkpoint.run import BEST_NAME, best, kept, newest, read_record, steps
from recsys.data.tables.dataset import table_dataset
from recsys.errors import CheckpointError
from recsys.inputs.schema import LabelColumn, Schema, TableSpec
from recsys.metrics.exact import Metrics
from recsys.metrics.ranked import RankMetrics
from recsys.metrics.regression import NumberMetrics
from recsys.models.click import ClickModel
from recsys.train.best import BEST_METRICS, OF_NEXT_ITEMS, OF_NUMBERS, has_ended, is_better, kept_text
from recsys.train.callbacks import Callback
from recsys.train.config import ModelConfig, RunConfig, TrainConfig
from recsys.train.job import Trained, TrainJob, train_over_ranks
from recsys.train.loop import evaluate
from recsys.train.progress import Epoch, HeldOut, TrainProgress
from recsys.train.stepping.ranks import ONE_RANK, Ranks
from tests.support.ranks import run_ranks

_SCHEMA = Schema(
    labels=(LabelColumn(name="click"),),
    dense=(),
    tables=(TableSpec(name="user", num_embeddings=600, feature_names=("user",)),),
)
_OVERFITTING = TrainConfig(epochs=5, batch_size=64, learning_rate=0.02, row_learning_rate=0.5)


def _table() -> pa.Table:
    """Users who are seen too seldom for a model of its own of each: later epochs learn the noise."""
    generator = np.random.default_rng(0)
    user = generator.integers(0, 600, 2_000)
    taste = np.random.default_rng(1).normal(0, 0.5, 600)
    return pa.table(
        {"user": user, "click": (generator.random(2_000) < 1 / (1 + np.exp(-taste[user]))).astype(np.int64)}
    )


def _job(folder: Path | None = None, train: TrainConfig = _OVERFITTING, **more: Any) -> TrainJob:
    return TrainJob(
        dataset=table_dataset(_table(), _SCHEMA),
        model=ModelConfig(embedding_dim=8, over_layers=(16,)),
        train=train,
        run=RunConfig(example_rows=4),
        checkpoint_dir=folder,
        **more,
    )


def _train(job: TrainJob, ranks: Ranks = ONE_RANK) -> Trained:
    return train_over_ranks(job, ranks, Callback(), whole=True)


@pytest.fixture(scope="module")
def in_memory() -> Trained:
    """A training whose last epoch is not the best, without a directory."""
    return _train(_job())


def _loss(job: TrainJob, state_dict: dict[str, Tensor] | None) -> float:
    assert state_dict is not None
    checkpoint = Checkpoint(factory=job.factory, arguments=job.arguments(), state_dict=state_dict)
    model = build_model(checkpoint)
    assert isinstance(model, ClickModel)
    return evaluate(model.eval(), job.dataset)["click"].loss


def _same(one: Trained, other: Trained) -> None:
    assert one.kept.number == other.kept.number
    assert one.state_dict is not None
    assert other.state_dict is not None
    assert one.state_dict.keys() == other.state_dict.keys()
    for name, tensor in one.state_dict.items():
        assert torch.equal(tensor, other.state_dict[name]), name


def test_the_model_is_that_of_the_best_epoch(in_memory: Trained) -> None:
    losses = [epoch.held_out.loss for epoch in in_memory.epochs]
    assert len(losses) == 5
    assert in_memory.kept.number == 1 + int(np.argmin(losses)) < 5
    assert _loss(_job(), in_memory.state_dict) == pytest.approx(min(losses), abs=1e-6)


def test_the_last_epoch_is_kept_where_that_is_asked_for(in_memory: Trained) -> None:
    last = _train(_job(train=replace(_OVERFITTING, best_metric="last")))
    assert last.kept.number == 5
    assert last.kept.held_out == in_memory.epochs[-1].held_out
    assert _loss(_job(), last.state_dict) == pytest.approx(last.kept.held_out.loss, abs=1e-6)


def test_a_directory_keeps_the_best_epoch_beside_the_newest(in_memory: Trained, tmp_path: Path) -> None:
    _same(_train(_job(tmp_path / "run")), in_memory)
    found = best(tmp_path / "run")
    assert found is not None
    assert found == kept(tmp_path / "run") != newest(tmp_path / "run")
    progress = TrainProgress.from_json(read_record(found).shared["progress"])
    assert len(progress.epochs) == progress.best == in_memory.kept.number
    assert len(steps(tmp_path / "run")) == 3  # the best, and the last two


@pytest.mark.parametrize("num_before", [1, 2, 3, 4])
def test_a_resumed_training_keeps_the_same_epoch(in_memory: Trained, tmp_path: Path, num_before: int) -> None:
    _train(_job(tmp_path / "run", replace(_OVERFITTING, epochs=num_before)))
    _same(_train(_job(tmp_path / "run", resume=True)), in_memory)


def test_a_job_that_ended_between_the_pointers_goes_on(in_memory: Trained, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    _train(_job(folder, replace(_OVERFITTING, epochs=in_memory.kept.number)))
    (folder / BEST_NAME).unlink()
    _same(_train(_job(folder, resume=True)), in_memory)


def test_a_best_checkpoint_that_is_gone_is_replaced_by_a_later_one(
    in_memory: Trained, tmp_path: Path
) -> None:
    folder, num_before = tmp_path / "run", in_memory.kept.number + 1
    _train(_job(folder, replace(_OVERFITTING, epochs=num_before)))
    (folder / BEST_NAME).unlink()
    assert _train(_job(folder, resume=True)).kept.number > num_before


def test_the_metric_of_a_run_does_not_change(tmp_path: Path) -> None:
    _train(_job(tmp_path / "run", replace(_OVERFITTING, epochs=1)))
    with pytest.raises(CheckpointError, match="best_metric: it was trained with 'loss', got 'auc'"):
        _train(_job(tmp_path / "run", replace(_OVERFITTING, best_metric="auc"), resume=True))


def test_training_stops_early(in_memory: Trained, tmp_path: Path) -> None:
    patient = replace(_OVERFITTING, epochs=50, patience=2)
    stopped = _train(_job(tmp_path / "run", patient))
    assert len(stopped.epochs) == in_memory.kept.number + 2
    _same(stopped, in_memory)
    again = _train(_job(tmp_path / "run", patient, resume=True))
    assert len(again.epochs) == len(stopped.epochs)
    _same(again, stopped)


def _on_rank(rank: int, world_size: int, folder: Path) -> tuple[int, int, bool]:
    ranks = Ranks(rank=rank, world_size=world_size, local_world_size=world_size)
    job = _job(folder, replace(_OVERFITTING, batch_size=32, patience=1, epochs=9))
    trained = _train(job, ranks)
    assert (trained.state_dict is None) == (rank > 0)
    is_kept = rank > 0 or abs(_loss(job, trained.state_dict) - trained.kept.held_out.loss) < 1e-6
    return trained.kept.number, len(trained.epochs), is_kept


def test_ranks_keep_the_same_epoch_and_share_the_lock(tmp_path: Path) -> None:
    first, second = run_ranks(2, _on_rank, tmp_path / "run")
    assert first == second
    number, num_epochs, is_kept = first
    assert is_kept
    assert num_epochs == number + 1


def _epoch(number: int, **metrics: float | None) -> Epoch:
    values: dict[str, Any] = {"loss": 0.5, "auc": 0.5, "ne": 0.5, "calibration": 1.0}
    held_out: HeldOut
    if metrics.keys() & set(OF_NEXT_ITEMS):
        held_out = RankMetrics(
            num_rows=10, num_items=9, **{"loss": 0.5, "hit_rate": 0.5, "ndcg": 0.5, **metrics}
        )
    elif metrics.keys() & set(OF_NUMBERS):
        held_out = NumberMetrics(num_rows=10, **{"loss": 0.5, "rmse": 0.5, "mae": 0.5, **metrics})
    else:
        held_out = Metrics(num_rows=10, **values | metrics)
    return Epoch(number=number, step=number, train_loss=0.5, examples_per_second=1.0, held_out=held_out)


@pytest.mark.parametrize("metric", BEST_METRICS)
def test_of_equal_epochs_the_first_is_better(metric: str) -> None:
    equal = {metric: 0.5} if metric in (*OF_NUMBERS, *OF_NEXT_ITEMS) else {}
    assert is_better(_epoch(2, **equal), _epoch(1, **equal), metric) == (metric == "last")


def test_metrics_have_directions_and_may_be_undefined() -> None:
    assert is_better(_epoch(2, auc=0.6), _epoch(1), "auc")
    assert not is_better(_epoch(2, auc=0.4), _epoch(1), "auc")
    assert is_better(_epoch(2, loss=0.4), _epoch(1), "loss")
    assert not is_better(_epoch(2, ne=0.6), _epoch(1), "ne")
    assert is_better(_epoch(2, mae=0.4), _epoch(1, mae=0.6), "mae")
    assert is_better(_epoch(2, ndcg=0.6), _epoch(1, ndcg=0.4), "ndcg")
    assert not is_better(_epoch(2, hit_rate=0.4), _epoch(1, hit_rate=0.6), "hit_rate")
    assert is_better(_epoch(2, auc=0.1), _epoch(1, auc=None), "auc")
    assert not is_better(_epoch(2, auc=None), _epoch(1), "auc")
    assert is_better(_epoch(2, auc=None), _epoch(1, auc=None), "auc")
    labels = {"a": _epoch(1, loss=0.1).held_out, "b": _epoch(1, loss=0.7).held_out}
    assert is_better(replace(_epoch(2), labels=labels), _epoch(1), "loss")  # by the mean of 0.4


def test_it_is_said_which_epoch_was_kept() -> None:
    epochs = [_epoch(1), _epoch(2, auc=0.7), _epoch(3)]
    assert kept_text(epochs, epochs[1], "auc") == (
        "kept epoch 2 of 3: its held-out AUC is the highest, 0.7000 (--best-metric)"
    )
    assert not has_ended(epochs, 2, 2)
    assert has_ended(epochs, 2, 1)
    assert not has_ended(epochs, 2, None)


@pytest.mark.parametrize(
    "wrong", [{"best_metric": "f1"}, {"patience": 0}, {"patience": 1, "best_metric": "last"}]
)
def test_wrong_settings_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(wrong))}: got"):
        TrainConfig(**wrong)


_HOLDER = """
import sys, pathlib
from recsys.checkpoint.lock import locked
with locked(pathlib.Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_second_job_is_refused_until_the_first_is_gone(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    first = subprocess.Popen(
        [sys.executable, "-c", _HOLDER, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert first.stdout is not None
        assert first.stdout.readline() == "held\n"
        named = rf"'run' is in use by process {first.pid} on {os.uname().nodename} since"
        with pytest.raises(CheckpointError, match=named):
            check_free(folder)
        with pytest.raises(CheckpointError, match=named):
            _train(_job(folder, resume=True))
        assert not steps(folder)
    finally:
        first.send_signal(signal.SIGKILL)
        first.communicate()
    check_free(folder)  # its file is still there
    assert (folder / LOCK_NAME).read_text()
    _train(_job(folder, replace(_OVERFITTING, epochs=1)))
    assert not (folder / LOCK_NAME).read_text()


def test_without_locks_of_the_file_system_the_process_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unsupported(*_: object) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr("fcntl.flock", unsupported)
    lock, host = tmp_path / LOCK_NAME, os.uname().nodename
    text = '{{"host": "{}", "pid": {}, "since": "now"}}'.format
    lock.write_text(text(host, os.getppid()))
    with pytest.raises(CheckpointError, match=f"process {os.getppid()} on"):
        check_free(tmp_path)
    lock.write_text(text("elsewhere", 1))
    with pytest.warns(UserWarning, match="no locks, and process 1 on elsewhere since now has not left it"):
        check_free(tmp_path)
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    lock.write_text(text(host, gone.pid))
    with locked(tmp_path):
        check_free(tmp_path)
    lock.write_text("damaged")
    check_free(tmp_path)
