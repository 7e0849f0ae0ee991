"""Runs for Weights & Biases, offline: ``wandb sync`` sends them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from recsys.base.machine import install_command
from recsys.train.loggers.logged_numbers import NumbersCallback

#: The project that runs are in, unless the environment names one (WANDB_PROJECT).
PROJECT = "recsys-train"


class WandbCallback(NumbersCallback):
    """Writes a run with its config and history, without a network unless ``WANDB_MODE=online`` is in the environment.

    Args:
        where: The folder, which gets one ``wandb``; empty for the current one.
        settings: The settings of the training: the config.
        name: The name of the run; empty for one that W&B makes.

    Raises:
        ValueError: The package ``wandb`` is not installed.
    """

    def __init__(self, where: str, settings: Mapping[str, Any], name: str = "") -> None:
        try:
            import wandb
        except ImportError:
            raise ValueError(
                f"--log wandb: wandb is not installed: {install_command(extra='wandb')}"
            ) from None
        self._wandb: Any = wandb
        self._where, self._settings, self._name = where, settings, name
        self._run: Any = None

    def __enter__(self) -> Self:
        if self._where:
            Path(self._where).mkdir(parents=True, exist_ok=True)
        self._run = self._wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            name=self._name or None,
            dir=self._where or None,
            mode=os.environ.get("WANDB_MODE", "offline"),
            config=dict(self._settings),
            reinit="create_new",
            settings=self._wandb.Settings(silent=True, console="off", x_disable_stats=True, save_code=False),
        )
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._run.finish(exit_code=0 if kind is None else 1)

    def log(self, numbers: Mapping[str, float], step: int) -> None:
        """Write numbers by name."""
        self._run.log(dict(numbers), step=step)
