"""Labels for answers, as clients send them, and what became of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from google.protobuf.message import DecodeError

from recsys.base.files import parse_json
from serve.errors import RequestError, RequestTooLargeError, listed, short
from serve.wire import feedback_pb2 as wire

#: What becomes of a label; docs/operate/quality.md says what each means.
RESULTS = ("taken", "late", "unknown", "doubled", "invalid")
#: The most items of one call. They take about 60 ms, in which Python answers no other call.
MAX_ITEMS = 4096
MAX_LABELS = 1 << 17
_MAX_REFUSALS = 100
_MAX_NAME_BYTES = 128
_ITEM_FIELDS = ("request_id", "model", "rows", "labels")
_RESULT_NUMBERS = {
    result: wire.FeedbackResult.Value(f"FEEDBACK_RESULT_{result.upper()}") for result in RESULTS[1:]
}


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedbackItem:
    """Labels for rows of one answer.

    Attributes:
        request_id: the ID of the request.
        model: the model that answered; empty for all that answered a request of this ID.
        rows: the rows of the labels; empty for all rows.
        labels: by name a value for each row.
    """

    request_id: str
    model: str = ""
    rows: Sequence[int] = ()
    labels: Mapping[str, Sequence[float]]

    @property
    def num_labels(self) -> int:
        """The number of values."""
        return sum(map(len, self.labels.values()))


@dataclass(kw_only=True)
class Taken:
    """What became of the items of one call.

    Attributes:
        counts: labels by one of ``RESULTS``.
        refused: the first items that were not taken: place, result and reason.
    """

    counts: Counter[str] = field(default_factory=Counter)
    refused: list[tuple[int, str, str]] = field(default_factory=list)

    def refuse(self, item: int, result: str, num_labels: int, reason: str) -> None:
        """Count labels that were not taken."""
        self.counts[result] += num_labels
        if len(self.refused) < _MAX_REFUSALS:
            self.refused.append((item, result, reason))

    def message(self) -> wire.FeedbackResponse:
        """Return the answer to a call."""
        return wire.FeedbackResponse(
            **{f"num_{result}": self.counts[result] for result in RESULTS},
            refused=[
                wire.Refusal(item=item, result=_RESULT_NUMBERS[result], message=reason)
                for item, result, reason in self.refused
            ],
        )

    def to_json(self) -> dict[str, Any]:
        """Return the answer to a call as plain data."""
        return {
            **{f"num_{result}": self.counts[result] for result in RESULTS},
            "refused": [
                {"item": item, "result": result, "message": reason} for item, result, reason in self.refused
            ],
        }


def items_of_message(request: wire.FeedbackRequest) -> list[FeedbackItem]:
    """Return the items of a call.

    Raises:
        RequestError: there are too many, or an item has a label twice.
    """
    _check_sizes(len(request.items), sum(len(one.values) for item in request.items for one in item.labels))
    items = []
    for i, item in enumerate(request.items):
        labels = {label.name: list(label.values) for label in item.labels}
        if len(labels) < len(item.labels):
            raise RequestError(f"items[{i}].labels: got a name twice, expected each once")
        items.append(
            FeedbackItem(request_id=item.request_id, model=item.model, rows=list(item.rows), labels=labels)
        )
    return items


def items_of_json(body: object) -> list[FeedbackItem]:
    """Return the items of a body such as ``{"items": [{"request_id": "r1", "labels": {"click": [0, 1]}}]}``.

    A value alone stands for a list of one.

    Raises:
        RequestError: it is not such a body; the message says where.
    """
    given = _checked_fields("body", body, ("items",)).get("items")
    if not isinstance(given, list):
        raise RequestError(f"items: got {short(given)}, expected a list")
    _check_sizes(len(given), 0)
    items = [_item_of_json(f"items[{i}]", item) for i, item in enumerate(given)]
    _check_sizes(len(items), sum(item.num_labels for item in items))
    return items


def items_of_record(value: bytes) -> list[FeedbackItem]:
    """Return the items of a record of a topic: a serialized ``FeedbackRequest``, or the body of ``items_of_json``.

    Raises:
        RequestError: it is neither.
    """
    # No FeedbackRequest begins with a brace: that would be the beginning of a group, field 15.
    if value.lstrip()[:1] == b"{":
        return items_of_json(parse_json(value, "record", RequestError))
    try:
        return items_of_message(wire.FeedbackRequest.FromString(value))
    except DecodeError:
        raise RequestError(
            f"record: got {len(value)} bytes that are neither a FeedbackRequest nor JSON"
        ) from None


def _item_of_json(at: str, given: object) -> FeedbackItem:
    item = _checked_fields(at, given, _ITEM_FIELDS)
    for name in ("request_id", "model"):
        if type(item.get(name, "")) is not str:
            raise RequestError(f"{at}.{name}: got {short(item[name])}, expected a text")
    rows, labels = item.get("rows", []), item.get("labels")
    if not isinstance(rows, list) or not all(type(row) is int for row in rows):
        raise RequestError(f"{at}.rows: got {short(rows)}, expected a list of whole numbers")
    if not isinstance(labels, dict):
        raise RequestError(f"{at}.labels: got {short(labels)}, expected an object: values by name")
    by_name = {}
    for name, value in labels.items():
        values = value if isinstance(value, list) else [value]
        if not all(type(one) in (int, float, bool) for one in values):
            raise RequestError(f"{at}.labels[{short(name)}]: got {short(value)}, expected numbers, 0 or 1")
        by_name[name] = values
    return FeedbackItem(
        request_id=item.get("request_id", ""), model=item.get("model", ""), rows=rows, labels=by_name
    )


def _checked_fields(at: str, given: object, known: Sequence[str]) -> dict[str, Any]:
    if not isinstance(given, dict):
        raise RequestError(f"{at}: got {short(given)}, expected an object")
    unknown = next((name for name in given if name not in known), None)
    if unknown is not None:
        raise RequestError(f"{at}: got an unknown field {short(unknown)}, expected {listed(known)}")
    return given


def _check_sizes(num_items: int, num_labels: int) -> None:
    if num_items > MAX_ITEMS:
        raise RequestTooLargeError(
            f"items: got {num_items}, expected at most {MAX_ITEMS} in one call; split it"
        )
    if num_labels > MAX_LABELS:
        raise RequestTooLargeError(
            f"labels: got {num_labels} values, expected at most {MAX_LABELS} in one call; split it"
        )


def wrong_name(name: str) -> str:
    """Return what is wrong with a label's name; empty if nothing is."""
    try:
        if 0 < len(name.encode()) <= _MAX_NAME_BYTES:
            return ""
    except UnicodeEncodeError:  # JSON can escape characters that UTF-8 cannot encode
        pass
    return f"labels: got the name {short(name)}, expected a text of 1 to {_MAX_NAME_BYTES} bytes of UTF-8"
