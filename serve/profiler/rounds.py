"""Timing of contestants in turns, so that noise of the machine affects all of them equally."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

Clock = Callable[[], float]
CLOCKS: dict[str, Clock] = {"wall": time.perf_counter, "cpu": time.thread_time}


@dataclass(frozen=True, kw_only=True)
class RoundsConfig:
    """The duration of a measurement.

    Attributes:
        num_rounds: in each round every contestant has one turn; the order rotates.
        turn_s: length of a turn, roughly.
        clock: ``wall``, or ``cpu``: the time that the calling thread was on a core, for machines that others use
            at the same time. On an idle machine both are the same for calls that use one thread.
        num_warm_up_calls: before each turn, untimed: the caches hold the last contestant's weights.
        until_s: no further round begins after this time of ``time.monotonic``; the first one always runs.
    """

    num_rounds: int
    turn_s: float
    clock: str = "wall"
    num_warm_up_calls: int = 20
    until_s: float = math.inf


@dataclass(frozen=True)
class Contestant:
    """One way to answer batches.

    Attributes:
        call: answers one batch.
        batches: the batches as ``call`` takes them, used in rotation.
    """

    call: Callable[..., object]
    batches: Sequence[tuple[object, ...]]


@dataclass(frozen=True, kw_only=True)
class Timing:
    """Seconds per call of one contestant, by round."""

    seconds: tuple[float, ...]

    @property
    def median_s(self) -> float:
        """The median of the rounds, in seconds."""
        return statistics.median(self.seconds)

    def speedups_over(self, other: Timing) -> list[float]:
        """How many times faster this one was in each round, sorted; turns of the same round are compared."""
        return sorted(theirs / ours for ours, theirs in zip(self.seconds, other.seconds, strict=True))


def run_rounds(contestants: Mapping[str, Contestant], config: RoundsConfig) -> dict[str, Timing]:
    """Time all contestants.

    The number of calls of a turn is settled for each contestant beforehand and then kept. Every turn goes on
    in the rotation of the batches where the contestant's last turn stopped.
    """
    clock = CLOCKS[config.clock]
    num_calls = {name: _num_calls(contestant, config, clock) for name, contestant in contestants.items()}
    positions = dict.fromkeys(contestants, 0)
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    names = list(contestants)
    for number in range(config.num_rounds):
        if number and time.monotonic() > config.until_s:
            break
        shift = number % len(names)
        for name in names[shift:] + names[:shift]:
            contestant = contestants[name]
            _turn(contestant, positions[name], config.num_warm_up_calls, clock)
            positions[name] += config.num_warm_up_calls
            seconds[name].append(_turn(contestant, positions[name], num_calls[name], clock))
            positions[name] += num_calls[name]
    return {name: Timing(seconds=tuple(rounds)) for name, rounds in seconds.items()}


def _turn(contestant: Contestant, start: int, num_calls: int, clock: Clock) -> float:
    call, batches = contestant.call, contestant.batches
    chosen = [batches[i % len(batches)] for i in range(start, start + num_calls)]
    began = clock()
    for batch in chosen:
        call(*batch)
    return (clock() - began) / num_calls


def _num_calls(contestant: Contestant, config: RoundsConfig, clock: Clock) -> int:
    num_calls = config.num_warm_up_calls
    _turn(contestant, 0, num_calls, clock)
    while True:
        took = _turn(contestant, 0, num_calls, clock) * num_calls
        if took > config.turn_s / 8:
            return max(3, round(num_calls * config.turn_s / took))
        num_calls *= 2
