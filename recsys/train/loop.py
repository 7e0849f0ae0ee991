"""The training loop: epochs over the training examples, measured during training and on held-out examples."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor
from torch import distributed as dist

from recsys.base.collectives import gather_rows
from recsys.data.batches import ONE_RANK, EpochOrder, Share, batches
from recsys.data.examples import Dataset, LabeledBatch
from recsys.data.prefetch import prefetched
from recsys.inputs.columns import LabelColumn, learns_numbers
from recsys.metrics.exact import Metrics
from recsys.metrics.regression import NumberMetrics, measure_label
from recsys.models.click import ClickModel
from recsys.train.best import has_ended, is_better
from recsys.train.callbacks import Callback
from recsys.train.config import RunConfig, TrainConfig
from recsys.train.progress import Epoch, HeldOut, Sums, TrainProgress, Window, window
from recsys.train.schedules import steps_per_epoch
from recsys.train.stepping.next_item import NextItem, rank_shares
from recsys.train.stepping.steps import Step
from recsys.train.stepping.trainer import Trainer


class DivergedError(RuntimeError):
    """The loss is not finite; lower learning rates help."""


Saver = Callable[[TrainProgress], None]


@dataclass(frozen=True, kw_only=True)
class Saving:
    """The schedule of checkpoints.

    Attributes:
        save: Called on every rank, after the same steps, and at the end of each epoch.
        every: Steps between two calls; 0 for the ends of epochs only.
    """

    save: Saver
    every: int = 0


class Loop:
    """Drives a trainer through the epochs. On ranks, every rank runs one, over the same data set.

    Args:
        trainer: The trainer.
        dataset: The examples.
        config: How to train.
        run: Reading ahead and measuring.
        callback: Called as the training proceeds.
        clock: Seconds.
    """

    def __init__(
        self,
        trainer: Trainer,
        dataset: Dataset,
        config: TrainConfig,
        run: RunConfig,
        callback: Callback,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._trainer = trainer
        self._dataset = dataset
        self._config = config
        self._run = run
        self._callback = callback
        self._clock = clock

    def fit(
        self,
        start: TrainProgress | None = None,
        saving: Saving | None = None,
        keep: Callable[[], None] = lambda: None,
    ) -> TrainProgress:
        """Train up to the last epoch, or until no epoch was better for long enough.

        Args:
            start: The progress to start from, with the trainer in the same state. None starts from the
                beginning.
            saving: None disables saving.
            keep: Called on every rank after each epoch that is better than those before.

        Returns:
            The progress at the end, with what was measured after each epoch.

        Raises:
            ValueError: A data file is malformed.
            DivergedError: The loss is no longer a number.
        """
        progress = start or TrainProgress()
        done_before = len(progress.epochs) * self._dataset.num_train_rows + progress.num_rows
        self._callback.batch_done(done_before)
        while len(progress.epochs) < self._config.epochs and not has_ended(
            progress.epochs, progress.best, self._config.patience
        ):
            progress = self._pass(progress, saving)
            self._callback.epoch_done(progress.epochs[-1])
            if progress.is_best:
                keep()
            if saving is not None:
                saving.save(progress)
        return progress

    def _pass(self, start: TrainProgress, saving: Saving | None) -> TrainProgress:
        meter, is_due = _Meter(self._trainer, start, self._clock), False
        with self._batches(start) as ahead:
            for step in self._trainer.steps(ahead, self._rates(start.step)):
                meter.add(step)
                self._callback.batch_done(step.num_global_rows)
                if meter.step % self._run.log_every == 0:
                    self._callback.window_done(meter.close_window(is_full=True))
                is_due |= bool(saving is not None and saving.every and meter.step % saving.every == 0)
                if saving is not None and is_due and not self._trainer.optimizer.is_waiting:
                    saving.save(meter.progress())
                    is_due = False
        if meter.has_open_window:
            self._callback.window_done(meter.close_window(is_full=False))
        done = meter.progress()
        self._trainer.clear_untrained()
        metrics = self._measured()
        epoch = Epoch(
            number=len(start.epochs) + 1,
            step=done.step,
            train_loss=done.mean_loss,
            examples_per_second=meter.examples_per_second(),
            held_out=next(iter(metrics.values())),
            labels=metrics if len(metrics) > 1 else {},
        )
        before = start.epochs[start.best - 1] if start.best else None
        is_best = is_better(epoch, before, self._config.best_metric)
        return TrainProgress(
            epochs=(*start.epochs, epoch), step=done.step, best=epoch.number if is_best else start.best
        )

    def _rates(self, first_step: int) -> Iterator[tuple[float, float]] | None:
        """Return the factors of the learning rates from a step on; None where they stay 1."""
        config = self._config
        if not config.has_schedules:
            return None
        size = config.batch_size * self._trainer.share.world_size
        return config.rates(first_step, config.epochs, steps_per_epoch(self._dataset.num_train_rows, size))

    def _measured(self) -> dict[str, HeldOut]:
        """Return the held-out metrics by label, or of the next items."""
        trainer, dataset = self._trainer, self._dataset
        if isinstance(trainer.items, NextItem):
            ranked = rank_shares(trainer.vectors, dataset, trainer.items, trainer.share, trainer.group)
            return {trainer.items.columns.target: ranked}
        labels = dataset.schema.labels if trainer.labels is None else trainer.labels
        return {**_evaluate_shares(trainer.score, dataset, labels, trainer.share, trainer.group)}

    @contextmanager
    def _batches(self, start: TrainProgress) -> Iterator[Iterator[LabeledBatch]]:
        source = batches(
            self._dataset.train(),
            self._config.batch_size,
            EpochOrder(seed=self._config.seed, epoch=len(start.epochs)),
            self._trainer.share,
            start.step_in_epoch,
        )
        if self._trainer.items is not None:
            source = map(self._trainer.items.negatives.extended, source)
        if self._trainer.device.type == "cuda":
            source = (batch.pin_memory() for batch in source)
        with prefetched(source, self._run.prefetch) as ahead:
            yield ahead


def _check_finite(loss: float) -> None:
    if not math.isfinite(loss):
        raise DivergedError(f"the loss became {loss}: lower the learning rates")


class _Meter:
    """Counts and sums of one epoch, over all ranks."""

    def __init__(self, trainer: Trainer, start: TrainProgress, clock: Callable[[], float]) -> None:
        self._trainer = trainer
        self._start = start
        self._clock = clock
        # Sums over the epoch, up to the open window.
        self._loss, self._weight, self._num_rows = start.loss, start.weight, start.num_rows
        self._pass_started = self._window_started = clock()
        self._sums = self._new_sums()
        self.step = start.step
        self.has_open_window = False

    def add(self, step: Step) -> None:
        self._sums.add(step.loss, step.logits, step.labels, step.weights)
        self.step += 1
        self.has_open_window = True

    def close_window(self, *, is_full: bool) -> Window:
        """Measure what was added since the last window, and begin a new one."""
        totals = self._sums.total(self._trainer.group)
        now = self._clock()
        closed = window(self.step, totals, now - self._window_started, is_full=is_full)
        _check_finite(closed.loss)
        self._loss, self._weight = self._loss + totals.loss, self._weight + totals.weight
        self._num_rows += closed.num_rows
        self._sums, self._window_started = self._new_sums(), now
        self.has_open_window = False
        return closed

    def _new_sums(self) -> Sums:
        labels = self._trainer.labels
        num_clicks = 1 if labels is None else len(labels)
        return Sums(self._trainer.device, 0 if learns_numbers(labels or ()) else num_clicks)

    def progress(self) -> TrainProgress:
        totals = self._sums.total(self._trainer.group)
        _check_finite(totals.loss)
        return TrainProgress(
            epochs=self._start.epochs,
            step_in_epoch=self._start.step_in_epoch + self.step - self._start.step,
            step=self.step,
            num_rows=self._num_rows + totals.num_rows,
            weight=self._weight + totals.weight,
            loss=self._loss + totals.loss,
            best=self._start.best,
        )

    def examples_per_second(self) -> float:
        """Return the throughput of the epoch's steps in this run. The last window must be closed."""
        seconds = max(self._window_started - self._pass_started, 1e-9)
        return (self._num_rows - self._start.num_rows) / seconds


_BATCH_SIZE = 4096
_PREFETCH = 2

_OfLabel = Metrics | NumberMetrics
Scorer = Callable[[Iterable[LabeledBatch]], Iterator[tuple[Tensor, Tensor, Tensor | None]]]


def evaluate(model: ClickModel, dataset: Dataset) -> dict[str, _OfLabel]:
    """Return the metrics of a model in this process on the held-out examples, by label."""

    @torch.no_grad()
    def score(held_out: Iterable[LabeledBatch]) -> Iterator[tuple[Tensor, Tensor, Tensor | None]]:
        for batch in held_out:
            yield model.logits(batch.dense, batch.kjt), batch.labels, batch.weights

    return _evaluate_shares(
        score, dataset, dataset.schema.labels if model.inputs is None else model.inputs.labels
    )


def _evaluate_shares(
    scorer: Scorer,
    dataset: Dataset,
    labels: Sequence[LabelColumn],
    share: Share = ONE_RANK,
    group: dist.ProcessGroup | None = None,
) -> dict[str, _OfLabel]:
    """Return the metrics, by label, over all ranks' shares of the held-out examples. Every rank must call it.

    Args:
        scorer: Yields each batch's logits and labels ``[B, L]``, and its weights ``[B]``, or None without any.
        dataset: The examples.
        labels: The model's.
        share: This rank's.
        group: The ranks; None for one process.

    Raises:
        ValueError: The model's logits are not finite.
    """
    with prefetched(batches(dataset.held_out(), _BATCH_SIZE, share=share), _PREFETCH) as held_out:
        scored = [_stacked(*batch) for batch in scorer(held_out)]
    rows = torch.cat(scored)
    if group is not None:
        rows = torch.cat(gather_rows(rows, group))
    scores = rows.cpu().numpy()
    return {
        label.name: measure_label(label, *(scores[:, kind, i] for kind in range(scores.shape[1])))
        for i, label in enumerate(labels)
    }


def _stacked(logits: Tensor, labels: Tensor, weights: Tensor | None) -> Tensor:
    """Return ``[B, 2, L]``, or ``[B, 3, L]`` with weights."""
    parts = [logits.float(), labels]
    if weights is not None:
        parts.append(weights.unsqueeze(1).expand_as(labels))
    return torch.stack(parts, dim=1)
