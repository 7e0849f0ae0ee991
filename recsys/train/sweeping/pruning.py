"""Early ends of runs: one that is worse than most runs before it were after as many epochs, by Optuna's pruners."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from recsys.train.best import HIGHER_IS_BETTER, held_out, is_better
from recsys.train.callbacks import Callback
from recsys.train.progress import Epoch
from recsys.train.sweeping.runs import SweepRun
from recsys.train.sweeping.space import load_optuna

# By name, the percentage of earlier runs that a run must match.
_PERCENTILES = {"median": 50.0, "quartile": 25.0}
# The number of first runs that never end early; Optuna's default.
_NUM_FIRST_RUNS = 5


class PrunedError(Exception):
    """A run was ended early."""


class Pruning(Callback):
    """Collects the epochs of a run, and ends it early.

    Args:
        pruner: One of ``recsys.train.config.PRUNERS``.
        metric: What runs are compared by.
        runs: The runs before it.
        num_epochs: Those of the run; after the last one nothing is left to end.

    Attributes:
        epochs: The epochs so far.

    Raises:
        ValueError: Optuna is not installed.
    """

    def __init__(self, pruner: str, metric: str, runs: Sequence[SweepRun], num_epochs: int) -> None:
        self.epochs: list[Epoch] = []
        self._metric = metric
        self._num_epochs = num_epochs
        self._trial: Any = None if pruner == "none" else _trial(_PERCENTILES[pruner], metric, runs)

    def epoch_done(self, epoch: Epoch) -> None:
        """Compare the run with those before it.

        Raises:
            PrunedError: It is worse.
        """
        self.epochs.append(epoch)
        value = held_out(epoch, self._metric)
        if self._trial is None or value is None or epoch.number >= self._num_epochs:
            return
        self._trial.report(value, epoch.number)
        if self._trial.should_prune():
            raise PrunedError

    @property
    def curve(self) -> dict[str, float]:
        """The metric by the number of the epoch, of epochs that have one."""
        values = {str(epoch.number): held_out(epoch, self._metric) for epoch in self.epochs}
        return {number: value for number, value in values.items() if value is not None}

    @property
    def best(self) -> Epoch:
        """The best epoch so far, of one at least."""
        best = self.epochs[0]
        for epoch in self.epochs[1:]:
            best = epoch if is_better(epoch, best, self._metric) else best
        return best


def _trial(percentile: float, metric: str, runs: Sequence[SweepRun]) -> Any:
    """Return a trial of Optuna beside those of earlier runs that came to their end."""
    optuna = load_optuna("--sweep-pruner")
    study = optuna.create_study(
        direction="maximize" if metric in HIGHER_IS_BETTER else "minimize",
        pruner=optuna.pruners.PercentilePruner(percentile, n_startup_trials=_NUM_FIRST_RUNS),
    )
    for run in runs:
        if run.metric is not None and not run.is_pruned:
            study.add_trial(optuna.create_trial(value=run.metric, intermediate_values=run.steps()))
    return study.ask()
