"""The least work of operators, and the time that the limits leave for it."""

from __future__ import annotations

import pytest

from serve.profiler.limits import Limits
from serve.profiler.work import LOOKUPS, Call, Work, label_of, work_of

LIMITS = Limits(
    is_native=True,
    gather=None,
    gather_huge_pages=None,
    read_bytes_per_s=20e9,
    cached_bytes_per_s=80e9,
    cached_bytes=1 << 20,
    flops={"float32": 100e9, "bfloat16": 200e9, "int8": 400e9},
)


def call(name: str, *arguments: tuple[object, str], values: tuple[object, ...] = ()) -> Call:
    return Call(
        name=name,
        shapes=[shape for shape, _ in arguments],
        dtypes=[dtype for _, dtype in arguments],
        values=values or [None] * len(arguments),
    )


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (
            call("aten::linear", ([8, 13], "float"), ([32, 13], "float"), ([32], "float")),
            Work(flops=2 * 8 * 13 * 32, dtype="float32", num_bytes=4 * (8 * 13 + 32 * 13 + 32)),
        ),
        (
            call("aten::linear", ([8, 13], "c10::BFloat16"), ([32, 13], "c10::BFloat16"), ([], "")),
            Work(flops=2 * 8 * 13 * 32, dtype="bfloat16", num_bytes=2 * (8 * 13 + 32 * 13)),
        ),
        (
            call("aten::addmm", ([32], "float"), ([8, 13], "float"), ([13, 32], "float")),
            Work(flops=2 * 8 * 13 * 32, dtype="float32", num_bytes=4 * (32 + 8 * 13 + 13 * 32)),
        ),
        (
            call("aten::bmm", ([8, 5, 3], "float"), ([8, 3, 4], "float")),
            Work(flops=2 * 8 * 5 * 3 * 4, dtype="float32", num_bytes=4 * (8 * 5 * 3 + 8 * 3 * 4)),
        ),
        (
            call(LOOKUPS[0], *[([], "")] * 12, ([3328], "long int")),
            Work(num_rows=3328),
        ),
        (call("aten::view", ([8, 13], "float"), ([], "ScalarList")), Work()),
        (call("aten::sigmoid", ([8, 13], "float")), Work(num_bytes=4 * 8 * 13)),
        (call("aten::cat", ([[8, 2], [8, 3]], "TensorList"), ([], "Scalar")), Work(num_bytes=4 * 40)),
        # What the profiler did not record is not known.
        (call(LOOKUPS[0]), Work()),
        (call("aten::linear", ([], ""), ([], "")), Work()),
    ],
    ids=lambda value: value.name if isinstance(value, Call) else "",
)
def test_the_work_of_an_operator(given: Call, expected: Work) -> None:
    assert work_of(given) == expected


def test_only_the_last_arguments_are_the_operators_own() -> None:
    recorded = call("aten::sigmoid", ([1000], "float"), ([8, 13], "float"))
    assert work_of(recorded.last(1)) == Work(num_bytes=4 * 8 * 13)
    assert recorded.last(0).shapes == ()


def test_layers_are_told_apart() -> None:
    assert label_of(call("aten::linear", ([8, 13], "float"), ([32, 13], "float"))) == "13 → 32"
    assert label_of(call("aten::addmm", *[([3], "float")] * 2, ([13, 32], "float"))) == "13 → 32"
    assert label_of(call("aten::cat", ([[8, 2]], "TensorList"))) == ""
    assert label_of(call("aten::linear")) == ""


@pytest.mark.parametrize(
    ("work", "expected_us"),
    [
        (Work(num_rows=4000), 100.0),
        (Work(flops=1e7, dtype="float32"), 100.0),
        (Work(flops=1e7, dtype="int8"), 25.0),
        # A product is as fast as the slower of arithmetic and reading; rows are read before.
        (Work(flops=1e7, dtype="float32", num_bytes=16e6), 200.0),
        (Work(num_rows=4000, flops=1e7, dtype="float32"), 200.0),
        (Work(num_bytes=8e6), 100.0),
        (Work(), None),
    ],
)
def test_the_limits_leave_a_time_for_work(work: Work, expected_us: float | None) -> None:
    found = work.least_us(LIMITS, 40e6)
    assert found == (None if expected_us is None else pytest.approx(expected_us))


def test_without_a_gather_limit_rows_take_no_known_time() -> None:
    assert Work(num_rows=4000).least_us(LIMITS, None) is None
