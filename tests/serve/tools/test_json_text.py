"""JSON for people: short lists on one line, nothing lost unless it is asked for."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from serve.tools.predict import json_text

PLAIN = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20)
DATA = st.recursive(
    PLAIN, lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=10), inner), max_leaves=200
)


def test_inputs_stand_below_each_other_with_their_rows_on_one_line() -> None:
    request = {
        "dense": {"context": [[0.5, 1.0], [2.0, -1.5]]},
        "sparse": {"user": [[7], [8]], "item": [[1, 4], []]},
    }
    assert json_text(request) == (
        "{\n"
        '  "dense": {"context": [[0.5, 1.0], [2.0, -1.5]]},\n'
        '  "sparse": {"user": [[7], [8]], "item": [[1, 4], []]}\n'
        "}"
    )


def test_a_row_that_is_too_long_for_a_line_has_a_line_of_its_own() -> None:
    rows = [[i + 0.125 for i in range(12)] for _ in range(2)]
    row = "[0.125, 1.125, 2.125, 3.125, 4.125, 5.125, 6.125, 7.125, 8.125, 9.125, 10.125, 11.125]"
    assert json_text({"score": rows}) == f'{{\n  "score": [\n    {row},\n    {row}\n  ]\n}}'


def test_long_lists_of_numbers_fill_their_lines() -> None:
    lines = json_text(list(range(100))).splitlines()
    assert len(lines) == 2 + 5
    assert lines[1].startswith("  0, 1, 2, 3,")
    assert max(map(len, lines)) <= 100


def test_long_lists_are_shortened_where_that_is_asked_for() -> None:
    assert json_text(list(range(65)), 64) == "[0, 1, 2, 3, 4, 5, 6, 7, … 56 more …, 64]"
    assert json.loads(json_text(list(range(64)), 64)) == list(range(64))
    text = json_text({"score": [[i] for i in range(1000)]}, 64)
    assert text == '{"score": [[0], [1], [2], [3], [4], [5], [6], [7], … 991 more …, [999]]}'


def test_empty_values() -> None:
    assert [json_text(value) for value in ({}, [], None, {"dense": {}})] == [
        "{}",
        "[]",
        "null",
        '{"dense": {}}',
    ]


@given(DATA)
def test_it_is_json_of_the_same_value(value: Any) -> None:
    assert json.loads(json_text(value)) == value
