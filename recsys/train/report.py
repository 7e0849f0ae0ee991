"""What recsys-train says to people while it runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from recsys.train.examples import Dataset, Reference
from recsys.train.metrics import Metrics
from recsys.train.watch import Epoch, Watcher
from recsys.train.windows import Window


class PeopleWatcher(Watcher):
    """Prints a line per window and per epoch to stdout, and shows a progress bar on stderr where that is a terminal.

    A context manager: the bar is taken down on exit.

    Args:
        dataset: what is trained on.
        num_epochs: passes to come.
    """

    def __init__(self, dataset: Dataset, num_epochs: int) -> None:
        console = Console(stderr=True)
        self._num_epochs = num_epochs
        self._num_train_rows = dataset.num_train_rows
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
            f"{len(dataset.dense_names)} dense features, {len(dataset.tables)} tables",
            flush=True,
        )

    def __enter__(self) -> PeopleWatcher:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def resumed(self, step: int) -> None:
        """Prints where the training goes on."""
        print(f"resumed after step {step}", flush=True)

    def batch_done(self, num_rows: int) -> None:
        """Moves the bar."""
        self._progress.update(self._task, advance=num_rows)

    def window_done(self, window: Window) -> None:
        """Prints the numbers of a full window."""
        if not window.is_full:
            return
        print(
            f"step {window.step}: train loss {window.loss:.4f}, NE {_number(window.ne)}, "
            f"calibration {_number(window.calibration)}, {window.examples_per_second:,.0f} examples/s",
            flush=True,
        )

    def epoch_done(self, epoch: Epoch) -> None:
        """Prints the epoch's numbers."""
        print(
            f"epoch {epoch.number}/{self._num_epochs}: train loss {epoch.train_loss:.4f}, "
            f"held out: {metrics_text(epoch.held_out)}; "
            f"{epoch.examples_per_second:,.0f} examples/s",
            flush=True,
        )


def metrics_text(metrics: Metrics) -> str:
    """All metrics in one line."""
    return (
        f"loss {metrics.loss:.4f}, AUC {_number(metrics.auc)}, NE {_number(metrics.ne)}, "
        f"calibration {_number(metrics.calibration)}"
    )


def summary_text(metrics: Metrics, reference: Reference | None, saved: Sequence[Path]) -> str:
    """The last lines: the AUC beside what to hold it against, and where the model is."""
    lines = [f"held-out AUC {_number(metrics.auc)}, this model"]
    if reference is not None:
        lines.append(f"held-out AUC {_number(reference.auc)}, {reference.text}")
    return "\n".join([*lines, *(f"saved {path}" for path in saved)])


def _number(value: float | None) -> str:
    return "undefined" if value is None else f"{value:.4f}"
