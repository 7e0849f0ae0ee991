"""The engine's policy needs no setting on many processors, in simulated time."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.server.scaling import PAGES, RANKINGS, SINGLES, SMALL, Found, Work, picture, simulate

PROGRAM = Path(__file__).resolve().parents[2] / "build" / "native" / "recsys-scaling"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not PROGRAM.exists(), reason="make native-peers builds recsys-scaling"),
]


def found(work: Work, processors: int, polling_threads: int = 0) -> Found:
    return simulate(PROGRAM, work, processors, polling_threads=polling_threads, num_requests=2000)


@pytest.mark.parametrize("work", [PAGES, RANKINGS], ids=["pages", "rankings"])
@pytest.mark.parametrize("processors", [4, 64])
def test_no_number_of_polling_threads_is_better_than_the_default(work: Work, processors: int) -> None:
    default = found(work, processors).requests_per_s
    for polling_threads in {1, processors // 8 or 1, processors // 4, processors}:
        assert default >= 0.9 * found(work, processors, polling_threads).requests_per_s


@pytest.mark.parametrize("processors", [4, 16, 64])
def test_single_rows_need_no_setting(processors: int) -> None:
    default = found(SINGLES, processors)
    for polling_threads in {1, processors // 4}:
        assert default.requests_per_s >= 1.5 * found(SINGLES, processors, polling_threads).requests_per_s
    assert default.idle <= 0.35


@pytest.mark.parametrize("work", [SMALL, SINGLES, PAGES], ids=["small", "singles", "pages"])
def test_throughput_grows_with_the_processors(work: Work) -> None:
    assert found(work, 64).requests_per_s >= 6 * found(work, 8).requests_per_s


def test_the_picture_has_a_line_for_each_kind_of_request() -> None:
    runs = [found(work, processors) for work in (SMALL, PAGES) for processors in (1, 96)]
    drawn = picture(runs)
    assert drawn.count("<polyline") == 2 + 2
    assert "prefers-color-scheme: dark" in drawn
