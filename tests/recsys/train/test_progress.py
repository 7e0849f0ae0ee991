"""Measuring while training: the loop's windows, the sums behind them, and the event files."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional

from recsys.data.sources.synthetic import synthetic
from recsys.metrics.exact import measure
from recsys.train.callbacks import Callback, CallbackList
from recsys.train.config import ModelConfig, RunConfig, TrainConfig
from recsys.train.loggers.tensorboard import TensorBoardCallback
from recsys.train.loop import Loop
from recsys.train.progress import Epoch, Sums, Totals, Window, window
from recsys.train.stepping.ranks import ONE_RANK, process_group
from recsys.train.stepping.trainer import Trainer

_SMALL = ModelConfig(embedding_dim=4, dense_layers=(8,), over_layers=(8,))


def test_a_window_measures_as_the_metrics_do() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(300, 1, generator=generator)
    labels = torch.randint(2, (300, 1), generator=generator).float()
    sums = Sums(torch.device("cpu"))
    for x, y in zip(logits.split(128), labels.split(128), strict=True):
        sums.add(functional.binary_cross_entropy_with_logits(x, y, reduction="sum"), x, y)
    found = window(7, sums.total(None), 1.5, is_full=True)
    expected = measure(logits.numpy()[:, 0], labels.numpy()[:, 0])
    assert (found.step, found.num_rows, found.examples_per_second) == (7, 300, 200)
    assert found.loss == pytest.approx(expected.loss, rel=1e-6)
    assert found.ne == pytest.approx(expected.ne, rel=1e-6)
    assert found.calibration == pytest.approx(expected.calibration, rel=1e-6)


def test_a_window_without_clicks_defines_no_ne() -> None:
    totals = Totals(
        loss=2.0, predictions=(0.5,), labels=(0.0,), others=(4.0,), log_losses=(2.0,), weight=4.0, num_rows=4
    )
    found = window(1, totals, 1.0, is_full=True)
    assert (found.loss, found.ne, found.calibration) == (0.5, None, None)


def test_a_window_counts_examples_by_their_weights() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(300, 1, generator=generator)
    labels = torch.randint(2, (300, 1), generator=generator).float()
    weights = torch.randint(4, (300,), generator=generator).float()
    sums = Sums(torch.device("cpu"))
    losses = functional.binary_cross_entropy_with_logits(logits, labels, weights[:, None], reduction="none")
    for rows in torch.arange(300).split(128):
        sums.add(losses[rows].sum(), logits[rows], labels[rows], weights[rows])
    totals = sums.total(None)
    found = window(7, totals, 1.5, is_full=True)
    expected = measure(logits.numpy()[:, 0], labels.numpy()[:, 0], weights.numpy())
    assert (found.num_rows, totals.weight) == (300, float(weights.sum()))
    assert found.loss == pytest.approx(expected.loss, rel=1e-6)
    assert found.ne == pytest.approx(expected.ne, rel=1e-6)
    assert found.calibration == pytest.approx(expected.calibration, rel=1e-6)
    nothing = Sums(torch.device("cpu"))
    nothing.add(torch.zeros(()), logits[:3], labels[:3], torch.zeros(3))
    found = window(1, nothing.total(None), 1.0, is_full=True)
    assert (found.num_rows, found.loss, found.ne, found.calibration) == (3, 0, None, None)


def test_ne_is_that_of_the_log_loss_whatever_is_minimized() -> None:
    torch.manual_seed(0)
    logits, labels, weights = torch.randn(50, 2), (torch.rand(50, 2) < 0.3).float(), torch.rand(50)
    sums = Sums(torch.device("cpu"), num_labels=2)
    sums.add(torch.tensor(1234.5), logits, labels, weights)
    found = window(1, sums.total(None), 1.0, is_full=True)
    of_labels = [measure(logits[:, i].numpy(), labels[:, i].numpy(), weights.numpy()) for i in range(2)]
    base = sum(one.loss / one.ne for one in of_labels if one.ne is not None)
    assert found.ne == pytest.approx(sum(one.loss for one in of_labels) / base, rel=1e-5)
    assert found.loss == pytest.approx(1234.5 / float(weights.sum()), rel=1e-5)


@pytest.mark.parametrize("label", [0.0, 1.0])
def test_labels_of_one_class_have_no_ne_whatever_the_weights(label: float) -> None:
    """Rounding of the sums must not make the mean label one beside 0 or 1."""
    for seed in range(30):
        torch.manual_seed(seed)
        logits, labels, weights = torch.randn(37, 2), torch.full((37, 2), label), torch.rand(37)
        sums = Sums(torch.device("cpu"), num_labels=2)
        sums.add(torch.ones(()), logits, labels, weights)
        assert window(1, sums.total(None), 1.0, is_full=True).ne is None


class _Listener(Callback):
    def __init__(self) -> None:
        self.windows: list[Window] = []
        self.epochs: list[Epoch] = []

    def window_done(self, window: Window) -> None:
        self.windows.append(window)

    def epoch_done(self, epoch: Epoch) -> None:
        self.epochs.append(epoch)


def _fit(callback: Callback) -> None:
    """Two passes of 9 steps; a clock that ticks once a second each time it is read."""
    dataset = synthetic(2_000)
    arguments, config = _SMALL.arguments(dataset), TrainConfig(epochs=2, batch_size=200)
    ticks = count()
    with process_group(ONE_RANK):
        trainer = Trainer(ModelConfig().factory, arguments, config, ONE_RANK)
        Loop(trainer, dataset, config, RunConfig(log_every=4), callback, lambda: next(ticks)).fit()


def test_windows_cover_each_pass() -> None:
    listener = _Listener()
    _fit(listener)
    assert [(w.step, w.num_rows, w.is_full) for w in listener.windows] == [
        (4, 800, True),
        (8, 800, True),
        (9, 200, False),
        (12, 600, True),
        (16, 800, True),
        (18, 400, False),
    ]
    assert [w.examples_per_second for w in listener.windows] == [w.num_rows for w in listener.windows]
    for epoch, windows in zip(listener.epochs, (listener.windows[:3], listener.windows[3:]), strict=True):
        losses = np.average([w.loss for w in windows], weights=[w.num_rows for w in windows])
        assert epoch.train_loss == pytest.approx(losses)
        assert epoch.step == windows[-1].step
        assert epoch.examples_per_second == 600


def test_event_files_hold_what_was_measured(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    listener = _Listener()
    with TensorBoardCallback(tmp_path) as callback:
        _fit(CallbackList([listener, callback]))
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    train = {"train/loss", "train/ne", "train/calibration", "train/examples_per_second"}
    held_out = {"held_out/loss", "held_out/auc", "held_out/ne", "held_out/calibration"}
    assert set(events.Tags()["scalars"]) == train | held_out
    losses = [(event.step, event.value) for event in events.Scalars("train/loss")]
    assert losses == [(w.step, pytest.approx(w.loss)) for w in listener.windows]
    aucs = [(event.step, event.value) for event in events.Scalars("held_out/auc")]
    assert aucs == [(e.step, pytest.approx(e.held_out.auc)) for e in listener.epochs]


def test_event_files_hold_every_label(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    click = measure(np.array([0.5, 1.5]), np.array([0.0, 1.0]))
    order = measure(np.array([0.5, 1.5]), np.array([0.0, 0.0]))
    labels = {"click": click, "order": order}
    with TensorBoardCallback(tmp_path) as callback:
        callback.epoch_done(
            Epoch(number=1, step=9, train_loss=1.0, examples_per_second=1.0, held_out=click, labels=labels)
        )
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    # With labels that are all 0, only the loss is defined.
    assert set(events.Tags()["scalars"]) == {
        *(f"held_out/click/{name}" for name in ("loss", "auc", "ne", "calibration")),
        "held_out/order/loss",
    }
    assert [(e.step, e.value) for e in events.Scalars("held_out/click/auc")] == [(9, 1.0)]
    assert events.Scalars("held_out/order/loss")[0].value == pytest.approx(order.loss)
