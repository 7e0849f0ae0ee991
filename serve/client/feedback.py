"""Labels for answers, packed into requests."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from serve.client.packing import ArrayLike
from serve.wire import feedback_pb2 as wire


@dataclass(frozen=True, kw_only=True)
class Feedback:
    """Labels for the answer to one request, such as which of its rows were clicked.

    Attributes:
        request_id: the ID that the request had.
        labels: by name a 0 or 1 for each row: a list, an array or a tensor, or a number for one row. The name is an
            output of the model, or any name if it has one output.
        rows: the rows of the labels, from 0; empty for all rows of the request.
        model: the model that answered; empty for that of the client, or all that answered a request of this ID.
    """

    request_id: str
    labels: Mapping[str, ArrayLike]
    rows: Sequence[int] = ()
    model: str = ""


def feedback_request(items: Iterable[Feedback], model: str = "") -> wire.FeedbackRequest:
    """Pack labels.

    Args:
        items: the labels.
        model: the model of items that name none.

    Raises:
        ValueError: a label is neither 0 nor 1, or a name or an ID is empty; the message names the item.
    """
    request = wire.FeedbackRequest()
    for i, item in enumerate(items):
        if not item.request_id:
            raise ValueError(f"items[{i}].request_id: got an empty text, expected that of the request")
        packed = request.items.add(request_id=item.request_id, model=item.model or model, rows=item.rows)
        for name, given in item.labels.items():
            if not name:
                raise ValueError(f"items[{i}].labels: got an empty name")
            values = np.asarray(given, dtype=np.float32).reshape(-1)
            if not np.isin(values, (0.0, 1.0)).all():
                other = values[~np.isin(values, (0.0, 1.0))][0]
                raise ValueError(f"items[{i}].labels[{name!r}]: got {other}, expected 0 or 1")
            packed.labels.add(name=name, values=values.tolist())
    return request
