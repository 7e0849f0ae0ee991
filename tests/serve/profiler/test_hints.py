"""What to change, from profiles with one thing to change each."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from recsys.artifact.load import LoadedArtifact
from serve.profiler.hints import hints
from serve.profiler.limits import GatherRate
from serve.profiler.result import Profile, SizeProfile
from serve.profiler.work import REGION, Work
from tests.serve.profiler.test_result import LINEAR, LOOKUP, profile, size, time
from tests.serve.profiler.test_work import LIMITS

FAST = size(
    100, 100.0, time(LOOKUP, 50.0, Work(num_rows=1600)), time(LINEAR, 45.0, Work(flops=4e6, dtype="int8"))
)


def texts(given: Profile, model: LoadedArtifact) -> list[str]:
    return [hint.text for hint in hints(given, model)]


def about(**changes: Any) -> Profile:
    given = profile(FAST)
    return replace(given, about={**given.about, **changes})


def test_a_fast_artifact_needs_no_change(model: LoadedArtifact) -> None:
    assert texts(profile(FAST), model) == []


def test_layers_in_float32(model: LoadedArtifact) -> None:
    slow = size(100, 100.0, time(LINEAR, 80.0, Work(flops=4e6, dtype="float32")), time(LOOKUP, 15.0))
    # One advice for both, the better one first: three quarters of 80 %.
    [found] = hints(profile(slow), model)
    assert "--linear-dtype int8 (up to 4.0 times as fast here) or bfloat16 (up to 2.0 times" in found.text
    assert found.saved == pytest.approx(0.6)
    rare = size(100, 100.0, time(LINEAR, 10.0, Work(flops=4e5, dtype="float32")), time(LOOKUP, 85.0))
    assert texts(profile(rare), model) == []


def test_small_pages(model: LoadedArtifact) -> None:
    limits = replace(
        LIMITS,
        gather=GatherRate(rows_per_s=15e6, bytes_per_s=1e9),
        gather_huge_pages=GatherRate(rows_per_s=30e6, bytes_per_s=2e9),
    )
    given = replace(profile(FAST), limits=limits)
    [hint] = hints(given, model)
    assert "--copy-rows" in hint.text
    assert hint.saved == pytest.approx(0.25)
    assert texts(replace(given, settings={**given.settings, "copy_rows": True}), model) == []


def test_small_batches(model: LoadedArtifact) -> None:
    small = size(1, 20.0, time(LOOKUP, 15.0))
    [hint] = hints(profile(small, FAST), model)
    assert "a row costs 20.0 µs in batches of 1, 1.0 in those of 100" in hint.text
    assert hint.saved == pytest.approx(19 / 120)
    assert texts(profile(small, FAST, mix={1: 0.0, 100: 1.0}), model) == []


def test_torchscript_in_the_place_of_a_program(
    model: LoadedArtifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("recsys.kernels.operators.why_missing", lambda: "it is not built; `make native`")
    given = about(program=None)
    assert "`make native`" in texts(given, model)[0]
    monkeypatch.setattr("recsys.kernels.operators.why_missing", lambda: "")
    assert "the artifact has no program" in texts(given, model)[0]
    given = replace(given, settings={**given.settings, "scripted": True})
    assert "--scripted" in texts(given, model)[0]
    assert "--linear-dtype" in texts(about(program=None, dense_dtype="bfloat16"), model)[0]


@pytest.mark.parametrize(
    ("given", "word"),
    [
        (size(100, 100.0, time("aten::remainder", 40.0), time(LOOKUP, 55.0)), "--id-policy reject"),
        (size(100, 100.0, time("aten::cat", 40.0), time(LOOKUP, 55.0)), "aten::cat 40%"),
        (size(100, 100.0, time(REGION, 40.0), time(LOOKUP, 55.0)), "what no step computes takes 40%"),
        (size(100, 100.0, time(LOOKUP, 55.0)), "45% of the time is no operator's"),
    ],
)
def test_other_operators(given: SizeProfile, word: str, model: LoadedArtifact) -> None:
    [found] = texts(profile(given), model)
    assert word in found
