"""The values that a sweep tries: lists of them, or ranges, by option."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from recsys.base.cli import near_misses
from recsys.base.machine import install_command
from recsys.options.kinds import ConfigError
from recsys.options.table import Option
from recsys.train.sweeping.runs import SweepRun

_OF_RANGE = ("low", "high", "log", "step")


@dataclass(frozen=True, kw_only=True)
class Choice:
    """A list of values.

    Attributes:
        key: The option's key.
        values: The values, as in TOML.
    """

    key: str
    values: tuple[Any, ...]


@dataclass(frozen=True, kw_only=True)
class Range:
    """A range of numbers.

    Attributes:
        key: The option's key.
        low: The lowest value.
        high: The highest value.
        log: Whether ratios count, not differences.
        step: The difference of neighbours; None for any number, and 1 for whole ones.
    """

    key: str
    low: float
    high: float
    log: bool = False
    step: float | None = None

    @property
    def is_whole(self) -> bool:
        """Whether the numbers are whole."""
        return isinstance(self.low, int) and isinstance(self.high, int) and not isinstance(self.step, float)


def read_space(document: Mapping[str, Any], options: Sequence[Option]) -> tuple[Choice | Range, ...]:
    """Return the values of each option in a document ``[sweep]``.

    Args:
        document: Lists of values, or tables with ``low``, ``high``, and ``log`` or ``step``.
        options: Options that may differ between runs.

    Raises:
        ConfigError: The document is empty, or an option or value is wrong; the message names the key.
    """
    known = {option.key: option for option in options}
    if not document:
        raise ConfigError("[sweep]: got no options, expected lists or ranges of their values")
    found: list[Choice | Range] = []
    for key, given in document.items():
        if key not in known:
            raise ConfigError(
                f"[sweep] {key}: unknown key, expected one of {', '.join(sorted(known))}{near_misses(key, known)}"
            )
        try:
            found.append(_range(key, given) if isinstance(given, Mapping) else _choice(key, given))
            one = found[-1]
            for value in one.values if isinstance(one, Choice) else (one.low, one.high):
                known[key].from_file(value)
        except ConfigError as error:
            raise ConfigError(f"[sweep] {key}: {error}") from None
    return tuple(found)


def _choice(key: str, given: Any) -> Choice:
    if not isinstance(given, list) or not given:
        raise ConfigError(
            f"got {str(given)[:80]!r}, expected a list of values, or a range such as "
            "{low = 1e-4, high = 1e-2, log = true}"
        )
    return Choice(key=key, values=tuple(given))


def _range(key: str, given: Mapping[str, Any]) -> Range:
    for name, value in given.items():
        if name not in _OF_RANGE or (
            type(value) is not bool if name == "log" else type(value) not in (int, float)
        ):
            raise ConfigError(
                f"{name}: got {str(value)[:80]!r}, expected low, high and step as numbers, log as true or false"
            )
    if "low" not in given or "high" not in given:
        raise ConfigError("got a range without both ends, expected low and high")
    one = Range(key=key, **given)
    if not one.low < one.high or (one.log and one.low <= 0):
        raise ConfigError(
            f"got low {one.low} and high {one.high}, expected a higher high, and with log a low above 0"
        )
    if one.step is not None and (one.log or one.step <= 0):
        raise ConfigError(f"step: got {one.step}, expected a number above 0, without log")
    return one


def grid(space: Sequence[Choice | Range]) -> list[dict[str, Any]] | None:
    """Return all combinations, the last option's values next to each other; None where there are ranges."""
    choices = [one for one in space if isinstance(one, Choice)]
    if len(choices) < len(space):
        return None
    return [
        dict(zip((one.key for one in choices), values, strict=True))
        for values in itertools.product(*(one.values for one in choices))
    ]


def load_optuna(option: str) -> Any:
    """Return Optuna, which says nothing but warnings.

    Raises:
        ValueError: It is not installed; names the option that needs it.
    """
    try:
        import optuna
    except ImportError:
        raise ValueError(f"{option}: Optuna is not installed: {install_command(extra='sweep')}") from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


class Search:
    """Chooses the next values by those of earlier runs, with Optuna's sampler of trees of Parzen estimators.

    Args:
        space: The values.
        higher_is_better: The direction of the metric.
        seed: The sampler's, with the number of earlier runs.

    Raises:
        ValueError: Optuna is not installed.
    """

    def __init__(self, space: Sequence[Choice | Range], *, higher_is_better: bool, seed: int) -> None:
        self._optuna = load_optuna("--sweep")
        self._space = {one.key: one for one in space}
        # Lists may hold lists, which Optuna does not take: their places are chosen.
        self._distributions = {one.key: self._distribution(one) for one in space}
        directions = self._optuna.study.StudyDirection
        self._direction = directions.MAXIMIZE if higher_is_better else directions.MINIMIZE
        self._seed = seed

    def _distribution(self, one: Choice | Range) -> Any:
        of = self._optuna.distributions
        if isinstance(one, Choice):
            return of.CategoricalDistribution(list(range(len(one.values))))
        if one.is_whole:
            return of.IntDistribution(int(one.low), int(one.high), log=one.log, step=int(one.step or 1))
        return of.FloatDistribution(float(one.low), float(one.high), log=one.log, step=one.step)

    def next(self, runs: Sequence[SweepRun]) -> dict[str, Any]:
        """Return the values of the next run.

        Args:
            runs: The earlier ones.
        """
        state = self._optuna.trial.TrialState
        sampler = self._optuna.samplers.TPESampler(seed=self._seed + len(runs))
        study = self._optuna.create_study(direction=self._direction, sampler=sampler)
        for run in runs:
            known: dict[str, Any] = {"value": run.metric}
            if run.metric is None or run.is_pruned:
                known = {"state": state.FAIL if run.metric is None else state.PRUNED}
            study.add_trial(
                self._optuna.create_trial(
                    params={key: self._place(key, value) for key, value in run.values.items()},
                    intermediate_values=run.steps(),
                    distributions=self._distributions,
                    **known,
                )
            )
        chosen = study.ask(self._distributions).params
        return {key: self._value(key, chosen[key]) for key in self._space}

    def _place(self, key: str, value: Any) -> Any:
        one = self._space[key]
        return one.values.index(value) if isinstance(one, Choice) else value

    def _value(self, key: str, place: Any) -> Any:
        one = self._space[key]
        return one.values[place] if isinstance(one, Choice) else place
