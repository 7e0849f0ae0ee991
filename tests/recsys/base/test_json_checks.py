"""Fields of JSON that nobody vouches for."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from typing import Annotated, Any

import pytest

from recsys.base.json_checks import (
    ALWAYS,
    a_list,
    choice,
    count,
    flag,
    hex_digits,
    json_field,
    mapping,
    one_of,
    read_record,
    record_to_json,
    shape,
    text,
    whole,
)
from recsys.errors import ManifestError

Read = Callable[[Any, str, str], Any]


def of_choices(data: Any, key: str, at: str) -> str:
    return choice(data, key, at, ("sum", "mean"))


def of_digits(data: Any, key: str, at: str) -> str:
    return hex_digits(data, key, at, 4)


RIGHT: list[tuple[Read, Any]] = [
    (json_field, None),
    (text, "a"),
    (of_choices, "mean"),
    (of_digits, "09af"),
    (mapping, {"a": 1}),
    (whole, 0),
    (whole, 2**63 - 1),
    (count, 1),
    (flag, False),
    (shape, (2, 1)),
    (shape, ()),
]


@pytest.mark.parametrize(("read", "value"), RIGHT, ids=[f"{r.__name__} {v}" for r, v in RIGHT])
def test_right_fields_come_through(read: Read, value: Any) -> None:
    given = list(value) if isinstance(value, tuple) else value
    assert read({"key": given}, "key", "at") == value


def test_a_list_names_its_items() -> None:
    assert a_list({"key": ["x", 3]}, "key", "at") == [("at.key[0]", "x"), ("at.key[1]", 3)]


WRONG: list[tuple[Read, Any, str]] = [
    (text, "", "a non-empty text"),
    (text, 3, "a non-empty text"),
    (text, None, "a non-empty text"),
    (of_choices, "max", "one of sum, mean"),
    (of_choices, ["sum"], "a non-empty text"),
    (of_digits, "09aF", "4 hexadecimal digits"),
    (of_digits, "09a", "4 hexadecimal digits"),
    (mapping, [], "an object"),
    (whole, -1, "a whole number of at least 0"),
    (whole, 1.0, "a whole number of at least 0"),
    (whole, True, "a whole number of at least 0"),
    (whole, "1", "a whole number of at least 0"),
    (whole, 2**63, "a whole number of at least 0"),
    (count, 0, "a whole number of at least 1"),
    (flag, 1, "true or false"),
    (flag, "true", "true or false"),
    (a_list, {}, "a list"),
    (a_list, "ab", "a list"),
    (shape, [0], "a list of whole numbers of at least 1"),
    (shape, [1.5], "a list of whole numbers of at least 1"),
    (shape, [True], "a list of whole numbers of at least 1"),
    (shape, 3, "a list of whole numbers of at least 1"),
]


@pytest.mark.parametrize(
    ("read", "value", "expected"), WRONG, ids=[f"{r.__name__} {v!r}" for r, v, _ in WRONG]
)
def test_wrong_fields_are_named(read: Read, value: Any, expected: str) -> None:
    with pytest.raises(ManifestError, match=r"^at\.key: got .*expected " + expected):
        read({"key": value}, "key", "at")


@pytest.mark.parametrize("read", [text, of_choices, whole, count, flag, a_list, shape, mapping, json_field])
@pytest.mark.parametrize("data", [{}, [], None, "key", 3], ids=str)
def test_missing_fields_are_named(read: Read, data: Any) -> None:
    with pytest.raises(ManifestError, match=r"^at\.key: missing$"):
        read(data, "key", "at")


def test_long_values_are_shown_short() -> None:
    with pytest.raises(ManifestError) as caught:
        flag({"key": "x" * 10_000}, "key", "at")
    assert len(str(caught.value)) < 200


class Color(Enum):
    RED = "red"


@dataclass(frozen=True, kw_only=True)
class Part:
    size: Annotated[int, whole]


@dataclass(frozen=True, kw_only=True)
class Whole:
    name: str
    color: Color
    shape: tuple[int, ...]
    first: Part
    parts: tuple[Part, ...]
    names: tuple[str, ...] = ()
    kind: Annotated[str, one_of(("sum", "mean"))] = "sum"
    is_kept: Annotated[bool, ALWAYS] = False
    num_ids: int | None = None
    place: int = 0


WHOLE = {
    "name": "a",
    "color": "red",
    "shape": [1, 2],
    "first": {"size": 0},
    "parts": [{"size": 1}, {"size": 2}],
    "is_kept": False,
}


def test_records_are_read_as_they_are_written() -> None:
    record = read_record(Whole, WHOLE, "at", place=3)
    assert record == Whole(
        name="a",
        color=Color.RED,
        shape=(1, 2),
        first=Part(size=0),
        parts=(Part(size=1), Part(size=2)),
        place=3,
    )
    assert record_to_json(replace(record, place=0)) == WHOLE
    more = {"names": ["x"], "kind": "mean", "num_ids": 4}
    assert record_to_json(read_record(Whole, WHOLE | more, "at")) == WHOLE | more


@pytest.mark.parametrize(
    ("field", "value", "place"),
    [
        ("name", "", "at.name"),
        ("color", "blue", "at.color"),
        ("shape", [0], "at.shape"),
        ("first", 3, "at.first.size"),
        ("parts", [{"size": 1}, {"size": -1}], "at.parts[1].size"),
        ("names", [""], "at.names[0]"),
        ("kind", "none", "at.kind"),
        ("is_kept", 1, "at.is_kept"),
        ("num_ids", None, "at.num_ids"),
    ],
)
def test_wrong_fields_of_records(field: str, value: Any, place: str) -> None:
    with pytest.raises(ManifestError, match=rf"^{re.escape(place)}: "):
        read_record(Whole, WHOLE | {field: value}, "at")


@pytest.mark.parametrize("field", WHOLE)
def test_missing_fields_of_records(field: str) -> None:
    data = {name: value for name, value in WHOLE.items() if name != field}
    with pytest.raises(ManifestError, match=rf"^at\.{field}: missing"):
        read_record(Whole, data, "at")
