"""Warm-up batches for an executor's thread: generated ones, and captured requests.

The first calls of a TorchScript module in a new process take a thousand times as long as later ones, those in
a new thread several times as long, and the code is specialised again for the first few shapes. A model with
two entry points (row by row, and for ranking) is warmed up through both.

Shape letters: B rows of a request, F sparse inputs, N number of IDs.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from itertools import cycle

import numpy as np

from recsys.artifact.samples import spread_ids, warm_up_sizes
from recsys.signature import Signature, SparseInput
from serve.config.models import BatchLimits
from serve.engine.reference.request_check import CheckedRequest, RequestChecker
from serve.engine.reference.sparse_check import SparseArrays
from serve.errors import RequestError
from serve.protocols.calls import parse
from serve.wire import predict_pb2 as wire

_log = logging.getLogger("serve")
# Numbers of captured requests per batch, in turn.
_CAPTURED_SIZES = (1, 8, 64)
# More would delay a model's first request for little benefit.
_MAX_CAPTURED = 2000


def warm_up_batches(signature: Signature, limits: BatchLimits) -> Iterator[list[CheckedRequest]]:
    """Yield batches of several sizes, each twice; with a context, also for ranking.

    Bags hold one ID, or as many as the model takes (``SparseInput.num_ids``). Of a model whose batches are one request
    only the size that its export has verified.

    Args:
        signature: signature of the model.
        limits: bounds of the batches, except of the one with one row.
    """
    for context in ((), signature.context) if signature.context else ((),):
        for num_requests, num_rows in warm_up_sizes(signature):
            batch = [_request(signature, num_rows, context) for _ in range(num_requests)]
            if num_requests * num_rows > 1 and not _fits(batch, limits):
                continue
            yield batch
            yield [_request(signature, num_rows, context) for _ in range(num_requests)]


def captured_batches(
    captured: Iterable[bytes], checker: RequestChecker, limits: BatchLimits
) -> list[list[CheckedRequest]]:
    """Yield batches of captured requests, of one request and of many; those that do not fit are skipped.

    The log reports how many were used and skipped.

    Args:
        captured: serialized ``recsys.v1.PredictRequest``s.
        checker: checks requests against the model.
        limits: bounds of the batches, except of those with one request.
    """
    used: list[CheckedRequest] = []
    num_skipped = 0
    for data in captured:
        try:
            used.append(checker.check(parse(wire.PredictRequest, data)))
        except RequestError:
            num_skipped += 1
        if len(used) == _MAX_CAPTURED:
            break
    if used or num_skipped:
        _log.info("warm-up: %d captured requests are used, %d do not fit the model", len(used), num_skipped)
    if checker.signature.by_request:
        return [[request] for request in used]
    by_row = [request for request in used if request.context is None]
    ranking = [request for request in used if request.context is not None]
    return [*_grouped(by_row, limits), *_grouped(ranking, limits)]


def _grouped(requests: Iterable[CheckedRequest], limits: BatchLimits) -> Iterator[list[CheckedRequest]]:
    sizes = cycle(_CAPTURED_SIZES)
    size, batch = next(sizes), list[CheckedRequest]()
    for request in requests:
        if batch and (len(batch) == size or not _fits([*batch, request], limits)):
            yield batch
            size, batch = next(sizes), []
        batch.append(request)
    if batch:
        yield batch


def _fits(batch: Sequence[CheckedRequest], limits: BatchLimits) -> bool:
    num_rows = sum(request.num_rows for request in batch)
    return num_rows <= limits.max_batch_rows and sum(r.num_ids for r in batch) <= limits.max_batch_ids


def _request(signature: Signature, num_rows: int, context: Sequence[str]) -> CheckedRequest:
    """Return a request; without a context if ``context`` is empty."""
    dense = tuple(
        np.zeros((1 if d.name in context else num_rows, d.width), np.float32) for d in signature.dense
    )
    of_rows = [use for use in signature.sparse if use.name not in context]
    shared = [use for use in signature.sparse if use.name in context]
    weighted = signature.is_weighted
    return CheckedRequest(
        num_rows=num_rows,
        dense=dense,
        sparse=_arrays(of_rows, num_rows, weighted),
        context=_arrays(shared, 1, weighted) if context else None,
    )


def _arrays(uses: Sequence[SparseInput], num_rows: int, weighted: bool) -> SparseArrays:
    lengths, values = spread_ids(uses, num_rows)
    return SparseArrays(
        lengths=np.repeat(np.array(lengths, np.int64), num_rows),
        values=values,
        weights=np.ones(values.size, np.float32) if weighted else None,
        num_ids=[num_rows * length for length in lengths],
    )
