"""The training loop: passes over the training examples, measured on the way and on held-out examples."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from recsys.models.click import ClickModel, build_dlrm
from recsys.train.batches import EpochOrder, batches
from recsys.train.config import ModelConfig, RunConfig, TrainConfig
from recsys.train.evaluate import evaluate_shares
from recsys.train.examples import Batch, Dataset
from recsys.train.learner import Learner, OneProcessLearner, Step
from recsys.train.prefetch import Prefetch
from recsys.train.watch import Epoch, Watcher
from recsys.train.windows import Sums, Window, window


class DivergedError(RuntimeError):
    """The training went astray; lower learning rates help."""


@dataclass(frozen=True, kw_only=True)
class Position:
    """How far a training has come; the next step follows from it alone.

    Attributes:
        epoch: passes done.
        step_in_epoch: steps done of the pass after them.
        step: steps done since the training began.
        num_rows: training rows of the pass's steps, on all ranks.
        loss: sum of their losses.
    """

    epoch: int = 0
    step_in_epoch: int = 0
    step: int = 0
    num_rows: int = 0
    loss: float = 0.0


Saver = Callable[[Position], None]


@dataclass(frozen=True, kw_only=True)
class Checkpointing:
    """Where a run begins, and when it is saved.

    Attributes:
        start: where to begin; the learner must be as it was there.
        every: steps between two calls of ``save``; 0 saves at the end of passes only.
        save: called on every rank, after the same steps; None saves nothing.
    """

    start: Position = Position()
    every: int = 0
    save: Saver | None = None


def train(
    dataset: Dataset,
    model_config: ModelConfig,
    config: TrainConfig,
    watcher: Watcher | None = None,
    run: RunConfig | None = None,
) -> tuple[ClickModel, list[Epoch]]:
    """Build and train a model in this process; the same seed, threads and versions give the same model bit for bit.

    Args:
        dataset: the examples.
        model_config: the model's sizes.
        config: how to train.
        watcher: told of the progress.
        run: reading ahead and measuring.

    Returns:
        the model and what was measured after each epoch.

    Raises:
        ValueError: the sizes do not fit, or a data file is malformed.
        DivergedError: the loss is no longer a number.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        model = build_dlrm(**model_config.arguments(dataset))  # type: ignore[arg-type]
    loop = Loop(OneProcessLearner(model, config), dataset, config, run or RunConfig(), watcher or Watcher())
    return model.eval(), loop.fit(Checkpointing())


class Loop:
    """Drives a learner through the passes. On ranks, every rank runs one, over the same data set.

    Args:
        learner: what learns.
        dataset: the examples.
        config: how to train.
        run: reading ahead and measuring.
        watcher: told of the progress.
        clock: seconds.
    """

    def __init__(
        self,
        learner: Learner,
        dataset: Dataset,
        config: TrainConfig,
        run: RunConfig,
        watcher: Watcher,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._learner = learner
        self._dataset = dataset
        self._config = config
        self._run = run
        self._watcher = watcher
        self._clock = clock

    def fit(self, checkpointing: Checkpointing) -> list[Epoch]:
        """Train from the start position to the last pass; what was measured after each pass.

        Raises:
            ValueError: a data file is malformed.
            DivergedError: the loss is no longer a number.
        """
        position = checkpointing.start
        self._watcher.batch_done(position.epoch * self._dataset.num_train_rows + position.num_rows)
        epochs: list[Epoch] = []
        while position.epoch < self._config.epochs:
            epoch, position = self._pass(position, checkpointing)
            epochs.append(epoch)
            self._watcher.epoch_done(epoch)
            if checkpointing.save is not None:
                checkpointing.save(position)
        return epochs

    def _pass(self, start: Position, checkpointing: Checkpointing) -> tuple[Epoch, Position]:
        meter = _Meter(self._learner, start, self._clock)
        with self._batches(start) as ahead:
            for step in self._learner.steps(ahead):
                meter.add(step)
                self._watcher.batch_done(step.num_global_rows)
                if meter.step % self._run.log_every == 0:
                    self._watcher.window_done(meter.close_window(is_full=True))
                if checkpointing.every and meter.step % checkpointing.every == 0 and checkpointing.save:
                    checkpointing.save(meter.position())
        if meter.has_open_window:
            self._watcher.window_done(meter.close_window(is_full=False))
        done = meter.position()
        self._learner.clear_untrained()
        metrics = evaluate_shares(
            self._learner.logits, self._dataset, self._learner.share, self._learner.group
        )
        epoch = Epoch(
            number=start.epoch + 1,
            step=done.step,
            train_loss=done.loss / done.num_rows,
            examples_per_second=meter.examples_per_second(),
            held_out=metrics,
        )
        return epoch, Position(epoch=start.epoch + 1, step=done.step)

    @contextmanager
    def _batches(self, start: Position) -> Iterator[Iterator[Batch]]:
        source = batches(
            self._dataset.train(),
            self._config.batch_size,
            EpochOrder(seed=self._config.seed, epoch=start.epoch),
            self._learner.share,
            start.step_in_epoch,
        )
        with Prefetch(source, self._run.prefetch) as ahead:
            yield ahead


class _Meter:
    """Counts and sums of one pass, over all ranks."""

    def __init__(self, learner: Learner, start: Position, clock: Callable[[], float]) -> None:
        self._learner = learner
        self._start = start
        self._clock = clock
        self._loss, self._num_rows = start.loss, start.num_rows  # of the pass, up to the open window
        self._pass_started = self._window_started = clock()
        self._sums = Sums(learner.device)
        self.step = start.step
        self.has_open_window = False

    def add(self, step: Step) -> None:
        self._sums.add(step.loss, step.logits, step.labels)
        self.step += 1
        self.has_open_window = True

    def close_window(self, *, is_full: bool) -> Window:
        """Measure what was added since the last window, and begin a new one."""
        sums = self._sums.total(self._learner.group)
        now = self._clock()
        closed = window(self.step, sums, now - self._window_started, is_full=is_full)
        if not math.isfinite(closed.loss):
            raise DivergedError(f"the loss became {closed.loss}: lower the learning rates")
        self._loss, self._num_rows = self._loss + sums[0], self._num_rows + closed.num_rows
        self._sums, self._window_started = Sums(self._learner.device), now
        self.has_open_window = False
        return closed

    def position(self) -> Position:
        loss, _, _, num_rows = self._sums.total(self._learner.group)
        return Position(
            epoch=self._start.epoch,
            step_in_epoch=self._start.step_in_epoch + self.step - self._start.step,
            step=self.step,
            num_rows=self._num_rows + num_rows,
            loss=self._loss + loss,
        )

    def examples_per_second(self) -> float:
        """Of the pass's steps in this run; whoever asks has measured the last window."""
        seconds = max(self._window_started - self._pass_started, 1e-9)
        return (self._num_rows - self._start.num_rows) / seconds
