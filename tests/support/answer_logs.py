"""Answer logs without a server: records of made requests, written as a server writes them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from recsys.inputs.signature import DenseInput, Output, Signature, SparseInput, TableUse
from serve.config.settings import AnswerLogConfig
from serve.engine.reference.answers import Answered, RecordedBlock
from serve.observe.answers.log import AnswerLog
from serve.wire import predict_pb2 as wire

#: When the first request was answered.
START_S = 1_700_000_000
SIGNATURE = Signature(
    dense=(DenseInput(name="numbers", width=2, columns=("price", "age")),),
    sparse=(
        SparseInput(name="user", tables=(TableUse(name="users", num_embeddings=100),), pooling="sum"),
        SparseInput(
            name="item", tables=(TableUse(name="items", num_embeddings=100),), pooling="sum", strings="xxh64"
        ),
    ),
    outputs=(
        Output(name="score", shape=()),
        Output(name="vector", shape=(2,)),
        Output(name="best", shape=(), dtype="int64"),
    ),
)


def answered(
    request_id: str, items: Sequence[int | str], after_s: float = 0.0, user: int = 7, version: str = "1"
) -> Answered:
    """One request: a user, and candidates by ID or by text; row ``i`` has the score ``i / 10``."""
    rows = len(items)
    message = wire.PredictRequest(num_rows=rows)
    message.dense.add(name="numbers", values=np.arange(2 * rows, dtype="<f4").tobytes())
    message.context_sparse.add(
        name="user", lengths=np.array([1], "<i4").tobytes(), values=np.array([user], "<i8").tobytes()
    )
    given: dict[str, Any] = {"strings": [item.encode() for item in items if isinstance(item, str)]}
    if not given["strings"]:
        given = {"values": np.array(items, "<i8").tobytes()}
    message.sparse.add(name="item", lengths=np.ones(rows, "<i4").tobytes(), **given)
    return Answered(
        time_s=START_S + after_s,
        protocol="recsys",
        model="shop",
        version=version,
        request_id=request_id,
        num_rows=rows,
        draw=0.0,
        message=message.SerializeToString(),
        outputs=[
            (np.arange(rows) / 10).astype("<f4").tobytes(),
            np.arange(2 * rows, dtype="<f4").tobytes(),
            np.arange(rows, dtype="<i8").tobytes(),
        ],
        signature=SIGNATURE,
    )


def write_log(folder: Path, records: Sequence[Answered], **settings: Any) -> None:
    """Write a log whose files are whole."""
    log = AnswerLog(AnswerLogConfig(destination=str(folder), **settings))
    for record in records:
        log.offer(RecordedBlock([record]))
    log.close()
    assert log.counts() == {"written": len(records), "queue_full": 0, "write_failed": 0}
