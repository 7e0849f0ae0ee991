"""The numbers of a training by name, as all loggers write them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from recsys.train.callbacks import Callback
from recsys.train.config import ModelConfig, TrainConfig
from recsys.train.progress import Epoch, HeldOut, Window

_WINDOW_NAMES = ("loss", "ne", "calibration", "examples_per_second")
_HELD_OUT_NAMES = ("loss", "auc", "ne", "calibration", "rmse", "mae", "hit_rate", "ndcg")


class NumbersCallback(Callback):
    """Logs ``train/...`` at each window and ``held_out/...`` at each epoch, over the number of steps.

    Several labels are ``held_out/LABEL/...`` each. Numbers that are not defined are left out.
    """

    def log(self, numbers: Mapping[str, float], step: int) -> None:
        """Write numbers by name."""
        raise NotImplementedError

    def window_done(self, window: Window) -> None:
        """Log the window's numbers."""
        self.log(_named("train", window, _WINDOW_NAMES), window.step)

    def epoch_done(self, epoch: Epoch) -> None:
        """Log the held-out numbers."""
        self.log(held_out_numbers(epoch), epoch.step)


def held_out_numbers(epoch: Epoch) -> dict[str, float]:
    """Return the held-out numbers of an epoch by name."""
    by_kind = {f"held_out/{label}": metrics for label, metrics in epoch.labels.items()}
    found: dict[str, float] = {}
    for kind, metrics in (by_kind or {"held_out": epoch.held_out}).items():
        found |= _named(kind, metrics, _HELD_OUT_NAMES)
    return found


def _named(kind: str, numbers: Window | HeldOut, names: tuple[str, ...]) -> dict[str, float]:
    found = {name: getattr(numbers, name, None) for name in names}
    return {f"{kind}/{name}": float(value) for name, value in found.items() if value is not None}


def settings_of(data: str, model: ModelConfig | None, train: TrainConfig) -> dict[str, Any]:
    """Return the settings of a training, without those that are empty: texts, numbers, booleans.

    Args:
        data: The name of the data.
        model: The model's sizes; None for those of another model.
        train: How to train.
    """
    every = {"data": data, **({} if model is None else asdict(model)), **asdict(train)}
    return {
        name: ",".join(map(str, value)) if isinstance(value, tuple | list) else value
        for name, value in every.items()
        if isinstance(value, str | int | float | tuple | list) and value not in ("", (), [])
    }
