"""Loggers: callbacks that write a training's settings and numbers for TensorBoard, MLflow and Weights & Biases.

``--log KIND`` or ``--log KIND:WHERE`` opens them; each is one file here.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

from recsys.base.cli import near_misses
from recsys.train.callbacks import Callback

#: The classes by kind; packages are imported where one is asked for.
KINDS = {
    "tensorboard": "recsys.train.loggers.tensorboard:TensorBoardCallback",
    "mlflow": "recsys.train.loggers.mlflow:MLflowCallback",
    "wandb": "recsys.train.loggers.wandb:WandbCallback",
}


def open_logger(text: str, settings: Mapping[str, Any], name: str) -> Callback:
    """Return a logger, which begins when it is entered.

    Args:
        text: ``KIND`` or ``KIND:WHERE``.
        settings: The settings of the training: texts, numbers, booleans.
        name: The name of the run.

    Raises:
        ValueError: The kind is unknown, or its package is not installed.
    """
    kind, _, where = text.partition(":")
    if kind not in KINDS:
        raise ValueError(f"log: got {text!r}, expected one of {', '.join(KINDS)}{near_misses(kind, KINDS)}")
    module, _, of_class = KINDS[kind].partition(":")
    made: Callable[[str, Mapping[str, Any], str], Callback] = getattr(
        importlib.import_module(module), of_class
    )
    return made(where, settings, name)
