"""What the native engine reports, decoded."""

from __future__ import annotations

import json
from dataclasses import replace

import grpc
import pytest

from serve.config.models import BatchLimits
from serve.engine.interface import ModelInfo
from serve.engine.native_events import captured_of, ended_of, error_of_answer, totals_of
from serve.engine.records import BatchTimes, Captured, Sampling, draw_of
from serve.errors import QueueFullError, status_of
from serve.metrics.counters import (
    OUTCOMES,
    STAGES,
    ContextCacheTotals,
    HistogramTotals,
    ModelCounters,
    ModelDescription,
    OutsideRowsTotals,
)

INFO = ModelInfo(name="dlrm", version="7", table_bytes={"users": 1600})
DESCRIPTION = ModelDescription(target="cpu", digest="d", num_executors=2, limits=BatchLimits())


@pytest.mark.parametrize(
    "code",
    [
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.NOT_FOUND,
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.FAILED_PRECONDITION,
        grpc.StatusCode.INTERNAL,
    ],
)
def test_an_error_has_the_code_and_text_that_the_engine_gave(code: grpc.StatusCode) -> None:
    error = error_of_answer(code.value[0], "dense: got 1", 7)
    assert error is not None
    assert status_of(error) == (code, "dense: got 1")
    assert getattr(error, "retry_after_ms", None) == (7 if isinstance(error, QueueFullError) else None)


def test_an_answer_is_no_error() -> None:
    assert error_of_answer(0, "", 0) is None


def test_records_have_all_that_the_engine_says() -> None:
    times = {
        "taken_s": 1.0,
        "collated_s": 2.0,
        "executed_s": 3.0,
        "responded_s": 4.0,
        "num_requests": 2,
        "num_rows": 5,
    }
    fields = {
        "trace_parent": "00-1",
        "protocol": "recsys",
        "model": "m",
        "version": "1",
        "request_id": "r",
        "outcome": "ok",
        "code": "OK",
        "reason": "",
        "num_rows": 3,
        "num_ids": 4,
        "started_s": 0.5,
        "ended_s": 5.0,
        "enqueued_s": 0.75,
        "is_logged": True,
        "is_traced": False,
    }
    ended = ended_of({**fields, "times": times})
    assert {name: getattr(ended, name) for name in fields} == fields
    assert ended.times == BatchTimes(
        taken_s=1.0, collated_s=2.0, executed_s=3.0, responded_s=4.0, num_requests=2, num_rows=5
    )
    assert ended_of({**fields, "times": None}).times is None
    assert captured_of(1.5, "m", "2", b"x") == Captured(time_s=1.5, model="m", version="2", message=b"x")


def test_a_share_of_answers_is_chosen_by_their_ids_alike_everywhere() -> None:
    assert Sampling().answered_share == 0
    assert (
        draw_of("visit-1") == 0.31119646980888427
    )  # as Records::KeepsAnswer in cpp_client/engine/records.cpp
    assert sum(draw_of(f"visit-{i}") < 0.5 for i in range(1000)) == pytest.approx(500, abs=80)


def test_totals_are_those_that_python_would_count() -> None:
    counters = ModelCounters("dlrm", "7")
    counters.set_table_bytes({"users": 1600})
    counters.describe(DESCRIPTION)
    counters.accepted()
    counters.answered(0.01)
    counters.count("invalid")
    counters.shadow("failed")
    counters.observe_batch(1, 2, 3)
    counters.observe_stages([0.1], 0.2, 0.3, 0.4)
    counters.set_pending(1, 2, 3)
    expected = counters.totals()

    def histogram(of: object) -> dict[str, object]:
        return {name: getattr(of, name) for name in ("bounds", "counts", "sum")}

    text = json.dumps(
        {
            "outcomes": {outcome: expected.outcomes[outcome] for outcome in OUTCOMES},
            "accepted": 1,
            "stages": {stage: histogram(expected.stages[stage]) for stage in STAGES},
            "request": histogram(expected.request),
            "batch_requests": histogram(expected.batch_requests),
            "batch_rows": histogram(expected.batch_rows),
            "batch_ids": histogram(expected.batch_ids),
            "last_batch_s": expected.last_batch_s,
            "pending": {"rows": 1, "ids": 2, "bytes": 3},
            "shadow": {"failed": 1, "dropped": 0},
            "cut_requests": 2,
            "deltas_applied": 9,
            "deltas_failed": 9,
            "context_cache": {"hits": 1, "misses": 2, "evictions": 3, "entries": 4, "bytes": 5, "grown": 6},
            "outside_rows": {
                "hits": 1,
                "misses": 2,
                "cache_bytes": 3,
                "read_bytes": 4,
                "failures": 5,
                "hedged": 6,
                "zeros": 7,
                "seconds": {"bounds": [0.1], "counts": [2, 1], "sum": 0.5},
            },
        }
    )
    outside = OutsideRowsTotals(
        hits=1,
        misses=2,
        cache_bytes=3,
        read_bytes=4,
        failures=5,
        hedged=6,
        zeros=7,
        seconds=HistogramTotals((0.1,), (2, 1), 0.5),
    )
    cache = ContextCacheTotals(hits=1, misses=2, evictions=3, entries=4, bytes=5, grown=6)
    counted = replace(expected, context_cache=cache, outside_rows=outside, cut_requests=2)
    assert totals_of(text, INFO, DESCRIPTION) == counted
