"""Decoding of the native engine's events, totals and statuses. Pure functions."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import grpc
import numpy as np
import numpy.typing as npt

from recsys.inputs.signature import Signature
from serve.engine.answered import Columns, DenseColumn, RequestColumns, SparseColumn
from serve.engine.interface import ModelInfo, Servable
from serve.engine.records import BatchTimes, Captured, EndedRequest, ShadowPair
from serve.errors import ERROR_KINDS, ExecutionError, QueueFullError
from serve.metrics.counters import (
    SHADOW_RESULTS,
    ContextCacheTotals,
    HistogramTotals,
    ModelDescription,
    ModelTotals,
    OutsideRowsTotals,
    PendingTotals,
)

# One error for each status code that requests can end with; callers see only code and text.
_ERRORS: Mapping[int, type[Exception]] = {kind.code.value[0]: kind.error for kind in reversed(ERROR_KINDS)}


def error_of_answer(code: int, text: str, retry_after_ms: int) -> Exception | None:
    """Return the error of a submitted request; None if it was answered."""
    if code == grpc.StatusCode.OK.value[0]:
        return None
    if code == grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]:
        return QueueFullError(text, retry_after_ms)
    return _ERRORS.get(code, ExecutionError)(text)


def ended_of(fields: Mapping[str, Any]) -> EndedRequest:
    """Return the record of an ended request."""
    times = fields["times"]
    return EndedRequest(**{**fields, "times": None if times is None else BatchTimes(**times)})


def captured_of(time_s: float, model: str, version: str, message: bytes) -> Captured:
    """Return the record of a captured request."""
    return Captured(time_s=time_s, model=model, version=version, message=message)


@dataclass(frozen=True, slots=True)
class NativeBlock:
    """See ``AnsweredBlock``; the memory is the engine's.

    Attributes:
        model: the model that answered.
        version: its version.
        signature: its inputs and outputs.
        block: the binding's object.
    """

    model: str
    version: str
    signature: Signature
    block: Any

    @property
    def has_inputs(self) -> bool:
        """See ``AnsweredBlock``."""
        return bool(self.block.has_inputs)

    @property
    def num_requests(self) -> int:
        """See ``AnsweredBlock``."""
        return len(self.block)

    @property
    def num_bytes(self) -> int:
        """See ``AnsweredBlock``."""
        return int(self.block.num_bytes)

    def draws(self) -> npt.NDArray[np.float64]:
        """See ``AnsweredBlock``."""
        draws: npt.NDArray[np.float64] = self.block.draws()
        return draws

    def columns(self) -> Columns:
        """See ``AnsweredBlock``."""
        requests, dense, sparse = self.block.columns()
        return Columns(
            RequestColumns(*requests),
            [DenseColumn(*one) for one in dense],
            [SparseColumn(*one) for one in sparse],
        )


def pair_of(
    primary: Servable,
    shadow: Servable,
    request_id: str,
    num_rows: int,
    expected: Sequence[bytes],
    got: Sequence[bytes],
) -> ShadowPair:
    """Return the outputs of two versions for one request."""
    return ShadowPair(
        model=primary.info.name,
        version=primary.info.version,
        shadow=shadow.info.version,
        request_id=request_id,
        num_rows=num_rows,
        expected=expected,
        got=got,
        expected_outputs=primary.signature.outputs,
        got_outputs=shadow.signature.outputs,
    )


def totals_of(text: str, info: ModelInfo, description: ModelDescription) -> ModelTotals:
    """Return the counters of a version.

    Args:
        text: the engine's totals as JSON.
        info: identity of the version.
        description: description of the version.
    """
    totals = json.loads(text)
    return ModelTotals(
        model=info.name,
        version=info.version,
        outcomes=totals["outcomes"],
        accepted=totals["accepted"],
        stages={stage: _histogram(histogram) for stage, histogram in totals["stages"].items()},
        request=_histogram(totals["request"]),
        batch_requests=_histogram(totals["batch_requests"]),
        batch_rows=_histogram(totals["batch_rows"]),
        batch_ids=_histogram(totals["batch_ids"]),
        last_batch_s=totals["last_batch_s"],
        pending=PendingTotals(**totals["pending"]),
        table_bytes=dict(info.table_bytes),
        # Python compares answers and counts the results.
        shadow={result: totals["shadow"].get(result, 0) for result in SHADOW_RESULTS},
        description=description,
        cut_requests=totals["cut_requests"],
        context_cache=ContextCacheTotals(**totals["context_cache"]),
        outside_rows=_outside_rows(totals["outside_rows"]),
    )


def _outside_rows(totals: Mapping[str, Any]) -> OutsideRowsTotals:
    return OutsideRowsTotals(**{**totals, "seconds": _histogram(totals["seconds"])})


def _histogram(totals: Mapping[str, Any]) -> HistogramTotals:
    return HistogramTotals(tuple(totals["bounds"]), tuple(totals["counts"]), totals["sum"])
