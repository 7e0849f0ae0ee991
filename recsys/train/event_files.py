"""What was measured, in event files for TensorBoard."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from recsys.train.metrics import Metrics
from recsys.train.watch import Epoch, Watcher
from recsys.train.windows import Window

_WINDOW_NAMES = ("loss", "ne", "calibration", "examples_per_second")
_HELD_OUT_NAMES = ("loss", "auc", "ne", "calibration")


class EventFileWatcher(Watcher):
    """Writes ``train/...`` at each window and ``held_out/...`` at each epoch, over the number of steps.

    A context manager: the file is closed on exit.

    Args:
        folder: gets one event file per run.

    Raises:
        ValueError: the package ``tensorboard`` is not installed.
    """

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise ValueError(
                "--tensorboard: tensorboard is not installed: pip install 'recsys-serving[tensorboard]'"
            ) from None
        self._writer: Any = SummaryWriter(folder)

    def __enter__(self) -> EventFileWatcher:
        return self

    def __exit__(self, *_: object) -> None:
        self._writer.close()

    def window_done(self, window: Window) -> None:
        """Writes the window's numbers."""
        self._write("train", window, _WINDOW_NAMES, window.step)

    def epoch_done(self, epoch: Epoch) -> None:
        """Writes the held-out numbers."""
        self._write("held_out", epoch.held_out, _HELD_OUT_NAMES, epoch.step)

    def _write(self, kind: str, numbers: Window | Metrics, names: tuple[str, ...], step: int) -> None:
        for name in names:
            value = getattr(numbers, name)
            if value is not None:
                self._writer.add_scalar(f"{kind}/{name}", value, step)
