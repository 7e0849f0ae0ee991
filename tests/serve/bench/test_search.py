"""The search for the highest rate, on servers that are formulas, without a clock."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest

from serve.bench.cli import COMMAND
from serve.bench.load.figures import Verdict
from serve.bench.load.measured import Measured, Recorder
from serve.bench.load.plan import Progress, Step
from serve.bench.load.requests import Prepared
from serve.bench.run import search_rate
from serve.bench.search import Found, find_rate
from serve.bench.settings import read_settings


def _limited(limit_per_s: float, asked: list[float]) -> Callable[[float], Verdict]:
    def measure(rate_per_s: float) -> Verdict:
        asked.append(rate_per_s)
        return Verdict.OK if rate_per_s <= limit_per_s else Verdict.SLOW

    return measure


@pytest.mark.parametrize("limit_per_s", [3.0, 77.0, 100.0, 1234.5, 90_000.0])
@pytest.mark.parametrize("precision", [0.02, 0.1])
def test_the_limit_is_found(limit_per_s: float, precision: float) -> None:
    asked: list[float] = []
    found = find_rate(_limited(limit_per_s, asked), 100.0, precision=precision)
    assert found.rate_per_s is not None
    assert found.failing_per_s is not None
    assert found.rate_per_s <= limit_per_s < found.failing_per_s
    assert found.failing_per_s - found.rate_per_s <= precision * found.rate_per_s * 1.001
    assert (found.limit, found.is_settled) == (Verdict.SLOW, True)
    assert asked[0] == 100.0
    assert len(asked) <= 24


def test_a_good_guess_saves_steps() -> None:
    asked: list[float] = []
    assert find_rate(_limited(700.0, asked), 825.0).is_settled
    assert len(asked) <= 12


def test_a_server_that_fails_at_any_rate_ends_the_search() -> None:
    asked: list[float] = []
    found = find_rate(_limited(0.0, asked), 100.0, most_steps=12)
    assert (found.rate_per_s, found.limit, found.is_settled) == (None, Verdict.SLOW, False)
    assert len(asked) == 12
    # The lower, the faster: soon it is clear that the rate is not the reason.
    assert asked[:3] == pytest.approx([100.0, 77.0, 58.0], rel=0.05)
    assert asked[-1] < 1.0


def test_a_limit_that_is_never_reached_is_said_to_be_unknown() -> None:
    found = find_rate(_limited(float("inf"), []), 1.0, most_steps=10)
    assert found.rate_per_s is not None
    assert found.rate_per_s > 100
    assert (found.failing_per_s, found.is_settled) == (None, False)


def test_no_time_ends_the_search_with_the_best_rate_so_far() -> None:
    asked: list[float] = []
    limited = _limited(130.0, asked)

    def measure(rate_per_s: float) -> Verdict | None:
        return limited(rate_per_s) if len(asked) < 4 else None

    found = find_rate(measure, 100.0)
    assert len(asked) == 4
    assert found.rate_per_s == max(rate for rate in asked if rate <= 130.0)
    assert not found.is_settled
    assert find_rate(lambda _: None, 100.0) == Found(
        rate_per_s=None, failing_per_s=None, limit=None, is_settled=False
    )


@pytest.mark.parametrize("verdict", [verdict for verdict in Verdict if verdict is not Verdict.OK])
@pytest.mark.parametrize("wrong", [2, 3, 5])
def test_one_wrong_failure_does_not_decide(verdict: Verdict, wrong: int) -> None:
    asked: list[float] = []
    steady = _limited(1000.0, asked)

    def once_slow(rate_per_s: float) -> Verdict:
        found = steady(rate_per_s)
        return verdict if len(asked) == wrong else found

    found = find_rate(once_slow, 100.0, precision=0.05)
    assert found.rate_per_s == pytest.approx(1000.0, rel=0.06)


@pytest.mark.parametrize("lucky", [2, 3, 4])
def test_one_lucky_measurement_does_not_decide(lucky: int) -> None:
    asked: list[float] = []
    steady = _limited(130.0, asked)

    def once_lucky(rate_per_s: float) -> Verdict:
        verdict = steady(rate_per_s)
        return Verdict.OK if len(asked) == lucky else verdict

    found = find_rate(once_lucky, 100.0, precision=0.05)
    assert found.rate_per_s == pytest.approx(130.0, rel=0.06)


@pytest.mark.parametrize("seed", range(20))
def test_pauses_that_fail_a_fifth_of_all_steps_move_the_answer_by_little(seed: int) -> None:
    rng = np.random.default_rng(seed)
    asked: list[float] = []

    def paused(rate_per_s: float) -> Verdict:
        asked.append(rate_per_s)
        return Verdict.OK if rate_per_s <= 500.0 and rng.random() > 0.2 else Verdict.SLOW

    found = find_rate(paused, 825.0)
    assert found.rate_per_s is not None
    assert 400 < found.rate_per_s <= 500
    assert len(asked) <= 40


@pytest.mark.parametrize("seed", range(5))
def test_noise_at_the_border_moves_the_answer_by_little(seed: int) -> None:
    rng = np.random.default_rng(seed)

    def noisy(rate_per_s: float) -> Verdict:
        return Verdict.OK if rate_per_s <= 500.0 * rng.normal(1.0, 0.03) else Verdict.SLOW

    found = find_rate(noisy, 40.0, precision=0.05)
    assert found.rate_per_s == pytest.approx(500.0, rel=0.15)


def test_the_reason_is_the_failing_sides() -> None:
    def measure(rate_per_s: float) -> Verdict:
        return Verdict.OK if rate_per_s < 300 else Verdict.LATE if rate_per_s < 350 else Verdict.FAILED

    assert find_rate(measure, 100.0, precision=0.05).limit is Verdict.LATE


class _QueueLoad:
    """A sender and its server: a queue that answers 825 requests a second, on a machine that pauses now and then.

    Args:
        seed: seed of arrivals and pauses.
        pause_every_s: mean time between pauses of 100 ms.
    """

    num_requests = 1

    def __init__(self, seed: int, pause_every_s: float) -> None:
        self.now_s = 0.0
        self.rates: list[float | None] = []
        self._rng = np.random.default_rng(seed)
        self._pause_every_s = pause_every_s

    def measure(self, step: Step, progress: Progress | None = None) -> Measured:
        del progress
        self.rates.append(step.rate_per_s)
        begin_s = self.now_s + step.warm_up_s
        end_s = begin_s + step.duration_s
        recorder = Recorder(begin_s, end_s, by_due=step.is_open)
        request = Prepared(data=b"", num_rows=1)
        count = int(1.2 * (end_s - self.now_s) * (step.rate_per_s or 825.0)) + 20
        gaps_s = self._rng.exponential(1 / step.rate_per_s, count) if step.rate_per_s else np.zeros(count)
        pauses_s = iter((self.now_s + np.cumsum(self._rng.exponential(self._pause_every_s, 1000))).tolist())
        pause_s, free_s = next(pauses_s), self.now_s
        for due_s in (self.now_s + np.cumsum(gaps_s)).tolist():
            if due_s >= end_s or (not step.is_open and free_s >= end_s):
                break
            free_s = max(free_s, due_s) + 1 / 825
            while pause_s < free_s:
                free_s, pause_s = free_s + 0.1, next(pauses_s)
            sent_s = due_s if step.is_open else free_s - (step.num_in_flight or 0) / 825
            recorder.done(request, sent_s, sent_s, free_s, None)
        self.now_s = max(end_s, free_s)
        return recorder.measured


def _searched(seed: int, pause_every_s: float, *options: str) -> tuple[Found, _QueueLoad, list[str]]:
    arguments = ["127.0.0.1:9", "--find-rate", "--p99-ms", "20", "--sender", "python", *options]
    load, said = _QueueLoad(seed, pause_every_s), []

    def begin(what: str, _length_s: float) -> Progress:
        said.append(what)
        return lambda *_: None

    settings = read_settings(COMMAND.parse(arguments))
    return search_rate(settings, load, begin, lambda: load.now_s)[1], load, said


def test_a_search_starts_from_the_rate_of_a_closed_loop() -> None:
    found, load, said = _searched(0, 1e9)
    assert load.rates[:2] == [None, pytest.approx(825.0, rel=0.01)]
    assert found.rate_per_s is not None
    assert 650 < found.rate_per_s < 800
    assert found.is_settled
    assert load.now_s < 90
    assert said[0] == "a first guess"
    assert re.fullmatch(r"step 1: 82\d/s, at most 117 s left", said[1])


@pytest.mark.parametrize("seed", range(8))
def test_pauses_of_the_machine_do_not_lead_far_below_the_answer(seed: int) -> None:
    """They fail steps at any rate."""
    found, load, _ = _searched(seed, 12.0)
    assert found.rate_per_s is not None
    assert found.rate_per_s > 400
    assert load.now_s <= 120


@pytest.mark.parametrize("pause_every_s", [0.5, 1e9], ids=["always-paused", "never-paused"])
@pytest.mark.parametrize(
    "options", [["--search-s", "30"], ["--duration-s", "2"], ["--start-rate", "5"]], ids=" ".join
)
def test_a_search_ends_in_its_time(options: list[str], pause_every_s: float) -> None:
    """Also of rates at which a thousand requests take long, and of rates far above what the server answers."""
    _, load, _ = _searched(0, pause_every_s, *options)
    assert load.now_s <= {"--search-s": 30, "--duration-s": 72, "--start-rate": 120}[options[0]]
