"""The training loop: passes over the training examples, measured on the way and on held-out examples."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from recsys.train.batches import EpochOrder, batches
from recsys.train.config import RunConfig, TrainConfig
from recsys.train.evaluate import evaluate_shares
from recsys.train.examples import Batch, Dataset
from recsys.train.learner import Learner, Step
from recsys.train.prefetch import Prefetch
from recsys.train.progress import Progress
from recsys.train.watch import Epoch, Watcher
from recsys.train.windows import Sums, Window, window


class DivergedError(RuntimeError):
    """The training went astray; lower learning rates help."""


Saver = Callable[[Progress], None]


@dataclass(frozen=True, kw_only=True)
class Saving:
    """When a run is saved.

    Attributes:
        save: called on every rank, after the same steps, and at the end of each pass.
        every: steps between two calls; 0 for the ends of passes only.
    """

    save: Saver
    every: int = 0


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

    def fit(self, start: Progress | None = None, saving: Saving | None = None) -> list[Epoch]:
        """Train up to the last pass; what was measured after each pass.

        Args:
            start: where to begin; the learner must be as it was there. None is the beginning.
            saving: None saves nothing.

        Raises:
            ValueError: a data file is malformed.
            DivergedError: the loss is no longer a number.
        """
        progress = start or Progress()
        done_before = len(progress.epochs) * self._dataset.num_train_rows + progress.num_rows
        self._watcher.batch_done(done_before)
        while len(progress.epochs) < self._config.epochs:
            progress = self._pass(progress, saving)
            self._watcher.epoch_done(progress.epochs[-1])
            if saving is not None:
                saving.save(progress)
        return list(progress.epochs)

    def _pass(self, start: Progress, saving: Saving | None) -> Progress:
        meter = _Meter(self._learner, start, self._clock)
        with self._batches(start) as ahead:
            for step in self._learner.steps(ahead):
                meter.add(step)
                self._watcher.batch_done(step.num_global_rows)
                if meter.step % self._run.log_every == 0:
                    self._watcher.window_done(meter.close_window(is_full=True))
                if saving is not None and saving.every and meter.step % saving.every == 0:
                    saving.save(meter.progress())
        if meter.has_open_window:
            self._watcher.window_done(meter.close_window(is_full=False))
        done = meter.progress()
        self._learner.clear_untrained()
        metrics = evaluate_shares(
            self._learner.score, self._dataset, self._learner.share, self._learner.group
        )
        epoch = Epoch(
            number=len(start.epochs) + 1,
            step=done.step,
            train_loss=done.loss / done.num_rows,
            examples_per_second=meter.examples_per_second(),
            held_out=metrics,
        )
        return Progress(epochs=(*start.epochs, epoch), step=done.step)

    @contextmanager
    def _batches(self, start: Progress) -> Iterator[Iterator[Batch]]:
        source = batches(
            self._dataset.train(),
            self._config.batch_size,
            EpochOrder(seed=self._config.seed, epoch=len(start.epochs)),
            self._learner.share,
            start.step_in_epoch,
        )
        if self._learner.device.type == "cuda":
            source = (batch.pin_memory() for batch in source)
        with Prefetch(source, self._run.prefetch) as ahead:
            yield ahead


def _check_finite(loss: float) -> None:
    if not math.isfinite(loss):
        raise DivergedError(f"the loss became {loss}: lower the learning rates")


class _Meter:
    """Counts and sums of one pass, over all ranks."""

    def __init__(self, learner: Learner, start: Progress, clock: Callable[[], float]) -> None:
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
        _check_finite(closed.loss)
        self._loss, self._num_rows = self._loss + sums[0], self._num_rows + closed.num_rows
        self._sums, self._window_started = Sums(self._learner.device), now
        self.has_open_window = False
        return closed

    def progress(self) -> Progress:
        loss, _, _, num_rows = self._sums.total(self._learner.group)
        _check_finite(loss)
        return Progress(
            epochs=self._start.epochs,
            step_in_epoch=self._start.step_in_epoch + self.step - self._start.step,
            step=self.step,
            num_rows=self._num_rows + num_rows,
            loss=self._loss + loss,
        )

    def examples_per_second(self) -> float:
        """Of the pass's steps in this run; whoever asks has measured the last window."""
        seconds = max(self._window_started - self._pass_started, 1e-9)
        return (self._num_rows - self._start.num_rows) / seconds
