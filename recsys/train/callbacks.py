"""Callbacks of a training: console output and a progress bar."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from recsys.data.examples import Dataset, Reference
from recsys.data.lines import counted
from recsys.inputs.columns import learns_numbers
from recsys.metrics.ranked import TOP, RankMetrics
from recsys.metrics.regression import NumberMetrics
from recsys.train.progress import Epoch, HeldOut, Window


class Callback:
    """The interface of training callbacks. This one does nothing.

    A context manager, which is entered before the training and left after it, also after an error.
    """

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def resumed(self, step: int) -> None:
        """Handle that the training continues from a checkpoint, after this many steps."""

    def batch_done(self, num_rows: int) -> None:
        """Handle a step over this many rows of all ranks, and once the rows of a resumed run."""

    def window_done(self, window: Window) -> None:
        """Handle the measurements of some steps."""

    def epoch_done(self, epoch: Epoch) -> None:
        """Handle an epoch that is done and measured."""


class CallbackList(Callback):
    """Calls several callbacks in order."""

    def __init__(self, callbacks: Sequence[Callback]) -> None:
        self._callbacks = callbacks

    def resumed(self, step: int) -> None:
        """Call ``resumed`` of each."""
        for callback in self._callbacks:
            callback.resumed(step)

    def batch_done(self, num_rows: int) -> None:
        """Call ``batch_done`` of each."""
        for callback in self._callbacks:
            callback.batch_done(num_rows)

    def window_done(self, window: Window) -> None:
        """Call ``window_done`` of each."""
        for callback in self._callbacks:
            callback.window_done(window)

    def epoch_done(self, epoch: Epoch) -> None:
        """Call ``epoch_done`` of each."""
        for callback in self._callbacks:
            callback.epoch_done(epoch)


class ConsoleCallback(Callback):
    """Prints a line per window and epoch to stdout, and shows a progress bar on stderr if it is a terminal.

    Args:
        dataset: The data set.
        num_epochs: The number of epochs to train.
    """

    def __init__(self, dataset: Dataset, num_epochs: int) -> None:
        console = Console(stderr=True)
        self._num_epochs = num_epochs
        self._has_clicks = bool(dataset.schema.labels) and not learns_numbers(dataset.schema.labels)
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn(show_speed=False),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._progress.add_task("training", total=num_epochs * dataset.num_train_rows)
        print(
            f"{dataset.name}: {dataset.num_train_rows} training and {dataset.num_held_out_rows} held-out rows, "
            f"{counted(len(dataset.dense_names), 'dense feature')}, {counted(len(dataset.tables), 'table')}",
            flush=True,
        )
        for line in dataset.columns:
            print(f"  {line}", flush=True)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def resumed(self, step: int) -> None:
        """Print where the training continues."""
        print(f"resumed after step {step}", flush=True)

    def batch_done(self, num_rows: int) -> None:
        """Move the bar."""
        self._progress.update(self._task, advance=num_rows)

    def window_done(self, window: Window) -> None:
        """Print the numbers of a full window."""
        if not window.is_full:
            return
        of_labels = f"NE {_number(window.ne)}, calibration {_number(window.calibration)}, "
        print(
            f"step {window.step}: train loss {window.loss:.4f}, {of_labels if self._has_clicks else ''}"
            f"{window.examples_per_second:,.0f} examples/s",
            flush=True,
        )

    def epoch_done(self, epoch: Epoch) -> None:
        """Print the epoch's numbers."""
        print(
            f"epoch {epoch.number}/{self._num_epochs}: train loss {epoch.train_loss:.4f}, "
            + (f"held out: {metrics_text(epoch.held_out)}; " if not epoch.labels else "")
            + f"{epoch.examples_per_second:,.0f} examples/s",
            flush=True,
        )
        for name, metrics in epoch.labels.items():
            print(f"  label {name}: held out: {metrics_text(metrics)}", flush=True)


def metrics_text(metrics: HeldOut) -> str:
    """Return all metrics in one line."""
    if isinstance(metrics, RankMetrics):
        return f"loss {metrics.loss:.4f}, {_top_text(metrics)}"
    if isinstance(metrics, NumberMetrics):
        return f"loss {metrics.loss:.4f}, {_main_text(metrics)}"
    return (
        f"loss {metrics.loss:.4f}, AUC {_number(metrics.auc)}, NE {_number(metrics.ne)}, "
        f"calibration {_number(metrics.calibration)}"
    )


def summary_text(epoch: Epoch, reference: Reference | None) -> str:
    """Return the AUC, the errors of a number, or how items are ranked, with the reference, in lines."""
    lines = [f"held-out {_main_text(epoch.held_out)}, this model"]
    if epoch.labels:
        lines = [f"held-out {_main_text(m)}, label {name}" for name, m in epoch.labels.items()]
    if reference is not None:
        of_reference = (
            f"AUC {_number(reference.auc)}" if reference.ranked is None else _main_text(reference.ranked)
        )
        lines.append(f"held-out {of_reference}, {reference.text}")
    return "\n".join(lines)


def _main_text(metrics: HeldOut) -> str:
    if isinstance(metrics, NumberMetrics):
        return f"RMSE {metrics.rmse:.4g}, MAE {metrics.mae:.4g}"
    return _top_text(metrics) if isinstance(metrics, RankMetrics) else f"AUC {_number(metrics.auc)}"


def _top_text(metrics: RankMetrics) -> str:
    return (
        f"hit rate@{TOP} {metrics.hit_rate:.4f}, NDCG@{TOP} {metrics.ndcg:.4f} of {metrics.num_items:,} items"
    )


def _number(value: float | None) -> str:
    return "undefined" if value is None else f"{value:.4f}"
