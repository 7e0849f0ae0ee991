"""Runs in MLflow's tracking store."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Any, Self

from recsys.base.machine import install_command
from recsys.train.loggers.logged_numbers import NumbersCallback

#: The experiment that runs are in, unless the environment names one (MLFLOW_EXPERIMENT_NAME).
EXPERIMENT = "recsys-train"
_NAME_VARIABLE = "MLFLOW_EXPERIMENT_NAME"


class MLflowCallback(NumbersCallback):
    """Writes a run with parameters and metrics; it ends as finished, failed or killed, as the training does.

    Args:
        where: The tracking URI, such as ``sqlite:///mlflow.db`` or ``http://host:5000``; empty for MLflow's own, by
            ``MLFLOW_TRACKING_URI``.
        settings: The settings of the training: parameters.
        name: The name of the run; empty for one that MLflow makes.

    Raises:
        ValueError: MLflow is not installed, or refuses the URI.
    """

    def __init__(self, where: str, settings: Mapping[str, Any], name: str = "") -> None:
        try:
            from mlflow.entities import Metric, Param
            from mlflow.exceptions import MlflowException
            from mlflow.tracking import MlflowClient
        except ImportError:
            raise ValueError(
                f"--log mlflow: MLflow is not installed: {install_command(extra='mlflow')}"
            ) from None
        self._metric, self._param = Metric, Param
        try:
            self._client: Any = MlflowClient(tracking_uri=where or None)
        except MlflowException as error:
            raise ValueError(f"--log mlflow: {where}: MLflow refuses it: {error}") from None
        self._settings, self._name = settings, name
        self._run = ""

    def __enter__(self) -> Self:
        name = os.environ.get(_NAME_VARIABLE, "") or EXPERIMENT
        known = self._client.get_experiment_by_name(name)
        experiment = self._client.create_experiment(name) if known is None else known.experiment_id
        run = self._client.create_run(experiment, run_name=self._name or None)
        self._run = run.info.run_id
        params = [self._param(name, str(value)) for name, value in self._settings.items()]
        self._client.log_batch(self._run, params=params)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        status = "FINISHED" if kind is None else "KILLED" if issubclass(kind, KeyboardInterrupt) else "FAILED"
        self._client.set_terminated(self._run, status)

    def log(self, numbers: Mapping[str, float], step: int) -> None:
        """Write numbers by name."""
        now = int(time.time() * 1000)
        metrics = [self._metric(name, value, now, step) for name, value in numbers.items()]
        self._client.log_batch(self._run, metrics=metrics)
