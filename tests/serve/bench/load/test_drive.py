"""The loops, with senders that end requests as the test says, and the counting of what came back."""

from __future__ import annotations

import asyncio
import time
from itertools import cycle, islice, repeat

import numpy as np
import pytest

from serve.bench.load.drive import closed_loop, open_loop, shuffled, until
from serve.bench.load.figures import Figures, Verdict, figures, verdict
from serve.bench.load.measured import NOT_SENT, Failure, Measured, Recorder
from serve.bench.load.plan import Step
from serve.bench.load.requests import Prepared
from tests.support.serve.bench_metadata import ScriptedSender

REQUEST = Prepared(data=b"x", num_rows=3)
FULL = Failure("RESOURCE_EXHAUSTED", "the queue is full")
_ALL_DAY_S = 1e9


def answered(_number: int) -> None:
    """Every request is."""


def _figures(measured: Measured, **step: float) -> Figures:
    return figures(measured, Step(**{"duration_s": 1.0, "rate_per_s": 100.0, **step}))  # type: ignore[arg-type]


def test_a_closed_loop_keeps_so_many_in_flight_and_sends_each_request_once() -> None:
    sender = ScriptedSender(lambda number: FULL if number % 10 == 0 else None)
    recorder = Recorder(0.0, 2 * _ALL_DAY_S, by_due=False)
    requests = islice(cycle([REQUEST]), 100)
    asyncio.run(closed_loop(sender, requests, recorder, 7, time.monotonic() + _ALL_DAY_S))
    assert (len(sender.sent), sender.most_in_flight) == (100, 7)
    measured = recorder.measured
    assert (measured.num_answered, measured.num_failed, measured.num_rows) == (90, 10, 270)
    assert measured.errors == {"RESOURCE_EXHAUSTED": 10}
    assert measured.texts == {"RESOURCE_EXHAUSTED": "the queue is full"}


def test_a_closed_loop_ends_with_its_time() -> None:
    sender = ScriptedSender(answered)
    recorder = Recorder(0.0, _ALL_DAY_S, by_due=False)
    asyncio.run(closed_loop(sender, repeat(REQUEST), recorder, 3, time.monotonic()))
    assert len(sender.sent) == 3


def test_an_open_loop_that_is_behind_counts_from_when_requests_were_due() -> None:
    """All were due in the past: what a stalled client would not have noticed is counted."""
    sender = ScriptedSender(answered)
    now_s = time.monotonic()
    due = [(now_s - 10.0 + i * 1e-3, REQUEST) for i in range(200)]
    recorder = Recorder(0.0, _ALL_DAY_S, by_due=True)
    asyncio.run(open_loop(sender, due, recorder, 1000))
    measured = recorder.measured
    assert measured.num_answered == len(sender.sent) == 200
    assert measured.latencies.quantiles_ns([0.001])[0] > 9.5e9
    assert measured.lags.quantiles_ns([0.001])[0] > 9.5e9
    assert measured.services.max_ns < measured.lags.max_ns
    made = _figures(measured)
    assert (made.late_share, made.is_valid) == (1.0, False)
    assert made.late_text.startswith("not valid: 100.0% of the requests were sent more than")
    assert verdict(made, 1.0) is Verdict.LATE


def test_an_open_loop_waits_until_requests_are_due() -> None:
    sender = ScriptedSender(answered)
    start_s = time.monotonic()
    due = [(start_s + i * 0.004, REQUEST) for i in range(10)]
    recorder = Recorder(0.0, 2 * _ALL_DAY_S, by_due=True)
    asyncio.run(open_loop(sender, due, recorder, 1000))
    assert time.monotonic() >= start_s + 0.036
    assert recorder.measured.num_answered == 10


def test_what_is_due_beyond_the_bound_fails_unsent() -> None:
    gate = asyncio.Event()

    class Stuck(ScriptedSender):
        async def send(self, request: Prepared) -> Failure | None:
            self.sent.append(request)
            await gate.wait()
            return None

    async def scenario() -> Measured:
        sender = Stuck(answered)
        now_s = time.monotonic()
        recorder = Recorder(0.0, _ALL_DAY_S, by_due=True)
        due = [(now_s - 1.0, REQUEST)] * 50
        loop = asyncio.create_task(open_loop(sender, due, recorder, 5))
        while recorder.measured.num_failed < 45:
            await asyncio.sleep(0)
        assert len(sender.sent) == 5
        gate.set()
        await loop
        return recorder.measured

    measured = asyncio.run(scenario())
    assert measured.errors == {NOT_SENT: 45}
    assert measured.num_answered == 5
    # What was not sent was not sent late either.
    assert len(measured.lags) == 5
    assert "--max-in-flight" in " ".join(_figures(measured).warnings)


def test_only_the_measured_time_counts() -> None:
    closed = Recorder(10.0, 20.0, by_due=False)
    for due_s, done_s in ((8.0, 9.0), (9.0, 10.0), (15.0, 16.0), (19.0, 20.0)):
        closed.done(REQUEST, due_s, due_s, done_s, None)
    assert closed.measured.num_answered == closed.measured.num_in_time == 2
    opened = Recorder(10.0, 20.0, by_due=True)
    for due_s, done_s in ((9.9, 12.0), (10.0, 12.0), (19.9, 25.0), (20.0, 21.0)):
        opened.done(REQUEST, due_s, due_s, done_s, None)
    # An answer that came after the end counts with its latency, and not as throughput.
    assert (opened.measured.num_answered, opened.measured.num_in_time) == (2, 1)
    assert opened.measured.latencies.max_ns == pytest.approx(5.1e9)


def test_kinds_are_counted_apart() -> None:
    recorder = Recorder(0.0, 10.0, by_due=False)
    recorder.done(Prepared(data=b"", num_rows=1, kind="high"), 1.0, 1.0, 1.001, None)
    recorder.done(Prepared(data=b"", num_rows=1, kind="low"), 1.0, 1.0, 1.1, None)
    recorder.done(Prepared(data=b"", num_rows=1, kind="low"), 1.0, 1.0, 1.1, FULL)
    kinds = _figures(recorder.measured).kinds
    assert kinds["high"]["latency_ms"]["p50"] == pytest.approx(1.0, rel=0.004)
    assert (kinds["low"]["num_answered"], kinds["low"]["num_failed"]) == (1, 1)


def _at_rate(count: int, latency_s: float, lag_s: float = 0.0, failed: int = 0) -> Figures:
    recorder = Recorder(0.0, 1.0, by_due=True)
    for i in range(count):
        due_s = i / count
        recorder.done(REQUEST, due_s, due_s + lag_s, due_s + lag_s + latency_s, FULL if i < failed else None)
    return _figures(recorder.measured, rate_per_s=count)


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (_at_rate(100, 0.010), Verdict.OK),
        (_at_rate(100, 0.030), Verdict.SLOW),
        (_at_rate(100, 0.010, failed=1), Verdict.FAILED),
        (_at_rate(100, 0.010, failed=100), Verdict.FAILED),
        (_at_rate(100, 0.015, lag_s=0.010), Verdict.LATE),
        (_at_rate(100, 0.010, lag_s=0.005), Verdict.OK),
    ],
    ids=["ok", "slow", "failed", "all-failed", "late", "late-and-still-within"],
)
def test_a_rate_passes_or_fails_for_a_reason(made: Figures, expected: Verdict) -> None:
    assert verdict(made, 20.0) is expected


@pytest.mark.parametrize(
    ("num_slow", "expected"), [(1, Verdict.PAUSED), (2, Verdict.PAUSED), (3, Verdict.SLOW)]
)
def test_a_pause_is_told_from_a_rate_that_is_too_high(num_slow: int, expected: Verdict) -> None:
    """By the number of seconds, out of four, in which requests were slow."""
    recorder = Recorder(0.0, 4.0, by_due=True)
    for i in range(400):
        due_s = i / 100
        recorder.done(REQUEST, due_s, due_s, due_s + (0.03 if due_s < num_slow - 0.1 else 0.01), None)
    made = figures(recorder.measured, Step(duration_s=4.0, rate_per_s=100.0))
    assert verdict(made, 20.0) is expected


def test_answers_that_fall_behind_the_rate_do_not_pass() -> None:
    assert verdict(_at_rate(100, 0.3), 500.0) is Verdict.BEHIND


def test_a_busy_client_is_told() -> None:
    measured = Measured(cpu_shares=[0.2, 0.97])
    assert "1 of 2 sending processes" in _figures(measured).warnings[0]


def test_processes_are_added_up() -> None:
    total = Measured()
    for share, count in ((0.5, 10), (0.25, 20)):
        recorder = Recorder(0.0, 1.0, by_due=True)
        for i in range(count):
            recorder.done(REQUEST, i / count, i / count, i / count + 0.001, FULL if i == 0 else None)
        recorder.measured.cpu_shares = [share]
        total.merge(recorder.measured)
    assert (total.num_answered, total.num_failed, total.cpu_shares) == (28, 2, [0.5, 0.25])
    made = _figures(total)
    assert made.requests_per_s == 28
    assert made.rows_per_s == 84
    assert sum(count for _, count in made.histogram) == 28


def test_requests_are_sent_in_an_order_that_changes_and_none_is_left_out() -> None:
    requests = [Prepared(data=bytes([i]), num_rows=1) for i in range(20)]
    order = list(islice(shuffled(requests, np.random.default_rng(0)), 40))
    assert sorted(one.data for one in order[:20]) == sorted(one.data for one in order[20:])
    assert order[:20] != order[20:]


def test_times_end() -> None:
    assert list(until(2.0, iter([0.5, 1.9, 2.0, 0.1]))) == [0.5, 1.9]
