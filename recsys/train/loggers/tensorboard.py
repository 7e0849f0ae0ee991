"""Event files for TensorBoard."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from recsys.base.machine import install_command
from recsys.train.loggers.logged_numbers import NumbersCallback, held_out_numbers
from recsys.train.progress import Epoch


class TensorBoardCallback(NumbersCallback):
    """Writes event files, with the settings and the last epoch's metrics as hyperparameters.

    Args:
        where: The folder.
        settings: The settings of the training.
        name: The folder of the run in it; empty for the folder itself.

    Raises:
        ValueError: There is no folder, or the package ``tensorboard`` is not installed.
    """

    def __init__(self, where: str | Path, settings: Mapping[str, Any] | None = None, name: str = "") -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise ValueError(
                f"--log tensorboard: tensorboard is not installed: {install_command(extra='tensorboard')}"
            ) from None
        if not str(where):
            raise ValueError("--log tensorboard: got no folder, expected tensorboard:DIR")
        self._settings = dict(settings or {})
        self._writer: Any = SummaryWriter(Path(where) / name)
        self._last: dict[str, float] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._settings and self._last:
            from torch.utils.tensorboard.summary import hparams

            # As add_hparams writes them, but without a folder of their own.
            for summary in hparams(self._settings, self._last):
                self._writer.file_writer.add_summary(summary)
        self._writer.close()

    def log(self, numbers: Mapping[str, float], step: int) -> None:
        """Write numbers by name."""
        for name, value in numbers.items():
            self._writer.add_scalar(name, value, step)

    def epoch_done(self, epoch: Epoch) -> None:
        """Log the held-out numbers."""
        self._last = held_out_numbers(epoch)
        super().epoch_done(epoch)
