"""Labels as clients send them: messages, bodies, records of topics."""

from __future__ import annotations

import json
from typing import Any

import pytest

from serve.errors import RequestError, RequestTooLargeError
from serve.quality.labels import (
    MAX_ITEMS,
    MAX_LABELS,
    Taken,
    items_of_json,
    items_of_message,
    items_of_record,
)
from serve.wire import feedback_pb2 as wire


def test_bodies_records_and_messages_give_the_same_items() -> None:
    first = {"request_id": "a", "rows": [1], "labels": {"click": 1}}
    body = {"items": [first, {"request_id": "b", "model": "m", "labels": {"buy": [0, 1]}}]}
    message = wire.FeedbackRequest(
        items=[
            wire.FeedbackItem(request_id="a", rows=[1], labels=[wire.Label(name="click", values=[1])]),
            wire.FeedbackItem(request_id="b", model="m", labels=[wire.Label(name="buy", values=[0, 1])]),
        ]
    )
    expected = items_of_json(body)
    assert items_of_message(message) == expected
    assert items_of_record(json.dumps(body).encode()) == expected
    assert items_of_record(message.SerializeToString()) == expected


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ([], "body: got list, expected an object"),
        ({}, "items: got NoneType, expected a list"),
        ({"item": []}, "body: got an unknown field 'item'"),
        ({"items": {}}, "items: got dict"),
        ({"items": [1]}, "items[0]: got 1, expected an object"),
        ({"items": [{"request_id": 1, "labels": {}}]}, "items[0].request_id: got 1, expected a text"),
        ({"items": [{"id": "a"}]}, "items[0]: got an unknown field 'id', expected 'request_id'"),
        ({"items": [{"request_id": "a"}]}, "items[0].labels: got NoneType"),
        ({"items": [{"labels": {"click": ["1"]}}]}, "items[0].labels['click']: got list, expected numbers"),
        ({"items": [{"rows": [0.5], "labels": {}}]}, "items[0].rows: got list, expected a list of whole"),
    ],
)
def test_wrong_bodies_are_refused(body: Any, text: str) -> None:
    with pytest.raises(RequestError) as raised:
        items_of_json(body)
    assert text in str(raised.value)


@pytest.mark.parametrize(
    "value", [b"\xff\xff\xff", b"{nonsense", b"[1]", b'{"items": "\xed\xa0\x80"}', b'{"items": 1}']
)
def test_records_that_are_neither_are_refused(value: bytes) -> None:
    with pytest.raises(RequestError):
        items_of_record(value)


def test_sizes_are_bounded() -> None:
    one = wire.FeedbackItem(request_id="a")
    with pytest.raises(RequestTooLargeError, match="items: got 4097, expected at most 4096"):
        items_of_message(wire.FeedbackRequest(items=[one] * (MAX_ITEMS + 1)))
    many = wire.FeedbackItem(request_id="a", labels=[wire.Label(name="x", values=[0] * (MAX_LABELS + 1))])
    with pytest.raises(RequestTooLargeError, match="labels: got 131073 values"):
        items_of_message(wire.FeedbackRequest(items=[many]))
    doubled = wire.FeedbackItem(labels=[wire.Label(name="x"), wire.Label(name="x")])
    with pytest.raises(RequestError, match=r"items\[0\].labels: got a name twice"):
        items_of_message(wire.FeedbackRequest(items=[doubled]))


def test_answers_tell_the_first_refusals_only() -> None:
    taken = Taken()
    for i in range(300):
        taken.refuse(i, "unknown", 2, "request_id: got 'x'")
    message = taken.message()
    assert message.num_unknown == 600
    assert len(message.refused) == 100 == len(taken.to_json()["refused"])
    assert message.refused[3].result == wire.FEEDBACK_RESULT_UNKNOWN
