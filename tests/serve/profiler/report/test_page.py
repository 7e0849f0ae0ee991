"""The profile as HTML, read by a strict parser."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from serve.profiler.report.page import kind_of, page
from serve.profiler.report.texts import flops_text, needs_text, reached_text, time_text
from serve.profiler.result import BETWEEN, Hint, OperatorRow
from serve.profiler.work import REGION, Work
from tests.serve.profiler.test_result import LARGE, LOOKUP, RANKING, SMALL, profile, size, time
from tests.serve.profiler.test_work import LIMITS
from tests.support.serve.strict_page import parsed_page

_EVIL = '<script>alert("x")</script>&'


def test_the_page_is_whole_and_has_nothing_from_elsewhere() -> None:
    evil = size(4, 50.0, time(_EVIL, 20.0, label=_EVIL))
    given = replace(
        profile(SMALL, LARGE, evil), artifact=_EVIL, hints=(Hint(text=_EVIL, saved=0.5),), notes=(_EVIL,)
    )
    text = page(given)
    made = parsed_page(text)
    assert "script" not in made.tags
    assert made.addresses == []
    for word in ("http:", "https:", "url(", "@import"):
        assert word not in text
    assert sum(_EVIL in one for one in made.texts) >= 4
    assert "svg" not in made.tags


def test_bars_show_what_the_limits_leave() -> None:
    text = page(profile(SMALL, LARGE))
    # 80 µs of 200 µs, at half of the limit, and 10 µs of 20 µs that are no operator's.
    for kind, width, needed in (("lookup", 40.0, 50.0), ("linear", 50.0, 50.0), ("between", 50.0, 0.0)):
        found = re.search(
            rf'<span class="{kind}" style="width:{width}%" title="[^"]*"><span style="width:([0-9.]+)%', text
        )
        assert found is not None
        assert float(found[1]) == needed
    assert "20.0 µs a row" in text
    assert "2.00 µs a row" in text


def test_steps_of_contexts_are_named() -> None:
    text = page(profile(size(10, 110.0, *RANKING), mix={10: 1.0}))
    assert "<b>40.0 µs</b><span>of it once a context</span>" in text
    assert text.count('<span class="soft">8 → 8, once a context</span>') == 2
    assert text.count('<span class="soft">8 → 8</span>') == 2


def test_a_profile_without_hints_says_so() -> None:
    assert "Nothing that is known here." in page(profile(SMALL))
    assert "saves up to 50%" in page(replace(profile(SMALL), hints=(Hint(text="a", saved=0.5),)))


@pytest.mark.parametrize(
    ("row", "kind"),
    [
        (OperatorRow(name=LOOKUP, us=1.0, share=1.0), "lookup"),
        (OperatorRow(name="aten::linear", us=1.0, share=1.0, flops=1.0), "linear"),
        (OperatorRow(name="aten::bmm", us=1.0, share=1.0, flops=1.0), "interaction"),
        (OperatorRow(name="dot", us=1.0, share=1.0, flops=1.0), "interaction"),
        (OperatorRow(name="elementwise", us=1.0, share=1.0), "own"),
        (OperatorRow(name=REGION, us=1.0, share=1.0), "other"),
        (OperatorRow(name="aten::cat", us=1.0, share=1.0), "other"),
        (OperatorRow(name=BETWEEN, us=1.0, share=1.0), "between"),
    ],
)
def test_operators_have_kinds(row: OperatorRow, kind: str) -> None:
    assert kind_of(row) == kind


@pytest.mark.parametrize(
    ("us", "work", "needs", "reaches"),
    [
        (100.0, Work(num_rows=2100), "2,100 rows", "21.0 of 40.0 M rows/s"),
        (100.0, Work(flops=6.1e6, dtype="float32"), "6.1 MFLOP float32", "61 of 100 GFLOPS"),
        (
            100.0,
            Work(flops=1e5, dtype="float32", num_bytes=4e6),
            "100 kFLOP float32",
            "40.0 of 80.0 GB/s",
        ),
        (100.0, Work(num_bytes=4e6), "4.0 MB", "40.0 of 80.0 GB/s"),
        (
            100.0,
            Work(num_rows=2000, flops=1e6, dtype="float32"),
            "2,000 rows, 1 MFLOP float32",
            "100 µs, 60.0 at the limits",
        ),
        (100.0, Work(), "", ""),
    ],
)
def test_needs_and_reach_as_text(us: float, work: Work, needs: str, reaches: str) -> None:
    row = size(1, us, time("a", us, work)).operators[0]
    assert needs_text(row) == needs
    assert reached_text(row, LIMITS) == reaches


def test_numbers_have_three_digits() -> None:
    assert [time_text(us) for us in (0.123, 12.34, 1234.5)] == ["0.12", "12.3", "1,234"]
    assert [flops_text(flops) for flops in (5, 1234, 5.5e6, 2e9)] == [
        "5 FLOP",
        "1.23 kFLOP",
        "5.5 MFLOP",
        "2 GFLOP",
    ]
