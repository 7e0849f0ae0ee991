"""Counts of the answers of one or more processes, in bounded memory."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from serve.bench.load.latencies import Latencies, Series
from serve.bench.load.requests import Prepared

#: The code of a request that became due while too many others were unanswered.
NOT_SENT = "NOT_SENT"
_MOST_TEXT = 300


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a request was not answered: the name of a status code, and the text of the server or the transport."""

    code: str
    text: str = ""


@dataclass(slots=True)
class Kind:
    """Requests of one kind."""

    latencies: Latencies = field(default_factory=Latencies)
    num_failed: int = 0


@dataclass(slots=True, kw_only=True)
class Measured:
    """Counts of one process, or the sum of several.

    Attributes:
        latencies: latencies of the answered requests, from when they were due.
        services: the same from when they were sent; of an open loop.
        lags: time between when requests were due and when they were sent; of an open loop.
        errors: failed requests by code.
        texts: text of the first failed request of each code.
        kinds: counts by kind of request, if there are several.
        series: latencies over time.
        num_in_time: answers that came within the measured time.
        num_rows: rows of these answers.
        cpu_shares: share of a core that each sending process or thread used.
        elapsed_s: the measured time, if a recording ended it.
    """

    latencies: Latencies = field(default_factory=Latencies)
    services: Latencies = field(default_factory=Latencies)
    lags: Latencies = field(default_factory=Latencies)
    errors: Counter[str] = field(default_factory=Counter)
    texts: dict[str, str] = field(default_factory=dict)
    kinds: dict[str, Kind] = field(default_factory=dict)
    series: Series = field(default_factory=Series)
    num_in_time: int = 0
    num_rows: int = 0
    cpu_shares: list[float] = field(default_factory=list)
    elapsed_s: float | None = None

    def merge(self, other: Measured) -> None:
        """Add what another process counted."""
        self.latencies.merge(other.latencies)
        self.services.merge(other.services)
        self.lags.merge(other.lags)
        self.errors.update(other.errors)
        self.texts = {**other.texts, **self.texts}
        for name, kind in other.kinds.items():
            mine = self.kinds.setdefault(name, Kind())
            mine.latencies.merge(kind.latencies)
            mine.num_failed += kind.num_failed
        self.series.merge(other.series)
        self.num_in_time += other.num_in_time
        self.num_rows += other.num_rows
        self.cpu_shares += other.cpu_shares
        if other.elapsed_s is not None:
            self.elapsed_s = max(self.elapsed_s or 0.0, other.elapsed_s)

    @property
    def num_answered(self) -> int:
        """Number of answered requests."""
        return len(self.latencies)

    @property
    def num_failed(self) -> int:
        """Number of failed requests."""
        return self.errors.total()


class Recorder:
    """Counts the requests of the measured time: by due time in an open loop, else by end time.

    Args:
        start_s: start of the measured time, by the clock of all times here.
        end_s: end of the measured time.
        by_due: whether the loop is open.
    """

    def __init__(self, start_s: float, end_s: float, *, by_due: bool) -> None:
        self.measured = Measured()
        self._start_s = start_s
        self._end_s = end_s
        self._by_due = by_due

    def done(
        self, request: Prepared, due_s: float, sent_s: float, done_s: float, failure: Failure | None
    ) -> None:
        """Count a request that has ended.

        Args:
            request: the request.
            due_s: when it was due.
            sent_s: when it was sent.
            done_s: when its answer or error came.
            failure: None if it was answered.
        """
        if not self._start_s <= (due_s if self._by_due else done_s) < self._end_s:
            return
        measured = self.measured
        if self._by_due and (failure is None or failure.code != NOT_SENT):
            measured.lags.add(sent_s - due_s)
        kind = measured.kinds.setdefault(request.kind, Kind()) if request.kind else None
        if failure is not None:
            measured.errors[failure.code] += 1
            measured.texts.setdefault(failure.code, failure.text[:_MOST_TEXT])
            measured.series.add(done_s - self._start_s, None)
            if kind is not None:
                kind.num_failed += 1
            return
        latency_s = done_s - due_s
        measured.latencies.add(latency_s)
        if self._by_due:
            measured.services.add(done_s - sent_s)
        if kind is not None:
            kind.latencies.add(latency_s)
        measured.series.add(done_s - self._start_s, latency_s)
        if done_s < self._end_s:
            measured.num_in_time += 1
            measured.num_rows += request.num_rows
