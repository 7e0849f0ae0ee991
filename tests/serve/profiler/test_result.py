"""Times that sum up, and the mean over a mix of batch sizes."""

from __future__ import annotations

import json

import pytest

from serve.profiler.operators import OperatorTime
from serve.profiler.report.texts import headline
from serve.profiler.result import (
    BETWEEN,
    CALL,
    CONTEXTS,
    ROWS,
    Measured,
    Profile,
    SizeProfile,
    linear_layers,
    lookups,
    mixed,
    size_profile,
)
from serve.profiler.work import Work
from tests.serve.profiler.test_work import LIMITS

LOOKUP, LINEAR = "lookup", "linear"


NO_WORK = Work()


def time(name: str, us: float, work: Work = NO_WORK, label: str = "", space: str = "") -> OperatorTime:
    return OperatorTime(name=name, label=label, space=space, calls=1.0, us=us, work=work)


def size(batch_size: int, call_us: float, *times: OperatorTime, python_us: float = 5.0) -> SizeProfile:
    measured = Measured(call_us=call_us, python_us=python_us, operators=times)
    return size_profile(batch_size, measured, (100.0, 6800.0, 40e6), LIMITS)


SMALL = size(1, 20.0, time(LOOKUP, 4.0, Work(num_rows=40)), time("aten::view", 1.0))
LARGE = size(
    100,
    200.0,
    time(LOOKUP, 80.0, Work(num_rows=1600)),
    time(LINEAR, 100.0, Work(flops=5e6, dtype="float32"), "13 → 32"),
)


def profile(*sizes: SizeProfile, mix: dict[int, float] | None = None) -> Profile:
    return Profile(
        artifact="model <b>",
        about={
            "digest": "00ff",
            "target": "cpu",
            "linear_dtype": "float32",
            "dense_dtype": "float32",
            "num_tables": 2,
            "table_bytes": 1000,
            "row_bytes": [68],
            "rows": "mapped from the file",
            "instructions": "avx512",
            "program": {"lookup": 2, "linear": 1},
        },
        settings={
            "ids_per_bag": "1",
            "zipf": 0.0,
            "ranking": False,
            "samples": False,
            "scripted": False,
            "copy_rows": False,
        },
        machine={
            "cpu": "a & b",
            "num_cores": 2,
            "load_average": [0.5],
            "versions": {"torch": "2"},
            "started_at": "2026-01-01",
        },
        limits=LIMITS,
        mix=mix or {one.batch_size: 1 / len(sizes) for one in sizes},
        sizes=sizes,
    )


def test_what_is_no_operators_has_rows_of_its_own() -> None:
    found = {row.name: row for row in SMALL.operators}
    assert found[CALL].us == 5.0
    assert found[BETWEEN].us == 10.0
    assert sum(row.us for row in SMALL.operators) == SMALL.us == 20.0
    assert sum(row.share for row in SMALL.operators) == pytest.approx(1.0)
    assert SMALL.rows_per_s == pytest.approx(1e6 / 20)


@pytest.mark.parametrize(
    ("call_us", "between", "call"), [(14.0, 0.0, 4.0), (9.0, 0.0, 0.0), (15.0, 0.0, 5.0)]
)
def test_no_time_is_below_nothing(call_us: float, between: float, call: float) -> None:
    found = size(1, call_us, time(LOOKUP, 10.0))
    rows = {row.name: row.us for row in found.operators}
    assert (rows[BETWEEN], rows[CALL]) == (between, call)
    assert found.us == sum(row.us for row in found.operators) == call_us
    assert rows[LOOKUP] == min(call_us, 10.0)


def test_the_share_of_the_limit() -> None:
    lookup, linear = LARGE.operators[:2]
    assert lookup.least_us == pytest.approx(40.0)
    assert lookup.of_limit == pytest.approx(0.5)
    assert linear.of_limit == pytest.approx(0.5)
    assert SMALL.operators[1].of_limit is None


def test_a_mix_weighs_batches() -> None:
    mix = {1: 0.75, 100: 0.25}
    rows = {(row.name, row.label): row for row in mixed((SMALL, LARGE), mix)}
    assert rows[LOOKUP, ""].us == pytest.approx(0.75 * 4 + 0.25 * 80)
    assert rows[LOOKUP, ""].rows == pytest.approx(0.75 * 40 + 0.25 * 1600)
    assert rows[LOOKUP, ""].least_us == pytest.approx(0.75 * 1 + 0.25 * 40)
    assert rows[LINEAR, "13 → 32"].calls == 0.25
    assert rows[BETWEEN, ""].us == pytest.approx(0.75 * 10 + 0.25 * 15)
    assert sum(row.share for row in rows.values()) == pytest.approx(1.0)
    whole = profile(SMALL, LARGE, mix=mix)
    assert whole.us == pytest.approx(0.75 * 20 + 0.25 * 200)
    assert whole.rows_per_s == pytest.approx(1e6 * (0.75 + 25) / whole.us)
    assert [row.name for row in whole.operators][-2:] == [BETWEEN, CALL]


def test_a_size_without_a_share_does_not_count() -> None:
    assert mixed((SMALL, LARGE), {1: 1.0, 100: 0.0}) == mixed((SMALL,), {1: 1.0})


def test_kinds_are_summed() -> None:
    found = lookups(LARGE.operators)
    assert found is not None
    assert (found.us, found.of_limit) == (80.0, pytest.approx(0.5))
    assert linear_layers(SMALL.operators) is None


def test_json_has_all_and_is_plain() -> None:
    data = json.loads(json.dumps(profile(SMALL, LARGE).to_json()))
    assert data["schema"] == 2
    assert [one["batch_size"] for one in data["sizes"]] == [1, 100]
    assert data["mix"]["shares"] == {"1": 0.5, "100": 0.5}
    assert data["sizes"][1]["operators"][0]["of_limit"] == pytest.approx(0.5)


RANKING = [time(LINEAR, 40.0, label="8 → 8", space=CONTEXTS), time(LINEAR, 60.0, label="8 → 8", space=ROWS)]


def test_steps_of_contexts_and_of_rows_are_apart() -> None:
    found = profile(size(10, 110.0, *RANKING), mix={10: 1.0})
    assert found.spaces_us == found.sizes[0].spaces_us == {CONTEXTS: 40.0, ROWS: 60.0}
    titles = {row.title: row.us for row in found.operators if row.name == LINEAR}
    assert titles == {"linear  8 → 8": 60.0, "linear  8 → 8, once a context": 40.0}
    assert found.to_json()["mix"]["spaces_us"] == {CONTEXTS: 40.0, ROWS: 60.0}
    assert headline(found).endswith("; 40.0 of 110 µs once a context")


def test_other_batches_have_no_spaces() -> None:
    assert profile(SMALL).spaces_us == {}
    assert "context" not in headline(profile(SMALL))
