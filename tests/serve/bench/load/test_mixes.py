"""Mixes as options say them, and what is drawn from them."""

from __future__ import annotations

import numpy as np
import pytest

from serve.bench.load.requests import parse_mix, parse_names


@pytest.mark.parametrize(
    ("text", "parts", "mean"),
    [
        ("8", [(8, 8, 1.0)], 8.0),
        ("0-20", [(0, 20, 1.0)], 10.0),
        ("1:0.9,50:0.1", [(1, 1, 0.9), (50, 50, 0.1)], 5.9),
        (" 1-3:1, 10:3 ", [(1, 3, 1.0), (10, 10, 3.0)], 8.0),
    ],
)
def test_a_mix_is_read(text: str, parts: list[tuple[int, int, float]], mean: float) -> None:
    mix = parse_mix(text)
    assert [(part.least, part.most, part.weight) for part in mix.parts] == parts
    assert mix.mean == pytest.approx(mean)
    assert parse_mix(str(mix)) == mix


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "got ''"),
        ("x", "got 'x'"),
        ("-1", "got '-1'"),
        ("5-3", "got '5-3'"),
        ("1,2", "expected CHOICE:WEIGHT"),
        ("1:0", "expected a number above 0"),
        ("1:nan,2:1", "expected a number above 0"),
        ("1:inf,2:1", "expected a number above 0"),
        ("1.5", "got '1.5'"),
        ("99999999999", "got '99999999999'"),
    ],
)
def test_what_is_no_mix_is_refused(text: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint.replace("(", r"\(")):
        parse_mix(text)


def test_the_least_number_is_the_callers() -> None:
    with pytest.raises(ValueError, match="from 1 to"):
        parse_mix("0", least=1)


def test_names_stand_for_numbers() -> None:
    mix = parse_names("high:0.25,low:0.75", {"high": 1, "low": 3})
    drawn = mix.draw(4000, np.random.default_rng(0))
    assert set(drawn.tolist()) == {1, 3}
    assert (drawn == 1).mean() == pytest.approx(0.25, abs=0.03)
    with pytest.raises(ValueError, match="got 'urgent', expected one of high, low"):
        parse_names("urgent", {"high": 1, "low": 3})


def test_draws_keep_weights_and_ranges() -> None:
    mix = parse_mix("1:3,10-13:1")
    drawn = mix.draw(20_000, np.random.default_rng(1))
    share_of = {value: (drawn == value).mean() for value in (1, 10, 11, 12, 13)}
    assert share_of[1] == pytest.approx(0.75, abs=0.02)
    for value in (10, 11, 12, 13):
        assert share_of[value] == pytest.approx(0.0625, abs=0.01)
    assert sum(share_of.values()) == pytest.approx(1.0)
