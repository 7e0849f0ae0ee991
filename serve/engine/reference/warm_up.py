"""Warm-up batches for an executor's thread: of rows that the export has verified, and of captured requests.

The first calls of a TorchScript module in a new process take a thousand times as long as later ones, those in
a new thread several times as long, and the code is specialised again for the first few shapes. A model with
two entry points (row by row, and for ranking) is warmed up through both.

Shape letters: B rows of a request, F sparse inputs, N number of IDs.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from itertools import cycle

import torch
from torch import Tensor

from recsys.artifact.batches.answers import warm_up_rows, warm_up_sizes
from recsys.artifact.batches.ranking import picked, ranking_batch
from recsys.artifact.batches.samples import Batch
from recsys.inputs.signature import Signature
from serve.config.models import BatchLimits
from serve.engine.reference.request_check import CheckedRequest, RequestChecker
from serve.engine.reference.sparse_arrays import SparseArrays
from serve.errors import RequestError
from serve.protocols.calls import parse
from serve.wire import predict_pb2 as wire

_log = logging.getLogger("serve")
# Numbers of captured requests per batch, in turn.
_CAPTURED_SIZES = (1, 8, 64)
# More would delay a model's first request for little benefit.
_MAX_CAPTURED = 2000


def warm_up_batches(
    signature: Signature, limits: BatchLimits, verified: Batch | None = None
) -> Iterator[list[CheckedRequest]]:
    """Yield batches of several sizes, each twice; with a context, also for ranking.

    A model whose batches are one request gets only the size that its export has verified.

    Args:
        signature: signature of the model.
        limits: bounds of the batches, except of the one with one row.
        verified: rows that the model takes, in place of made ones: see ``recsys.artifact.batches.answers``.
    """
    for is_ranking in (False, True) if signature.context else (False,):
        for num_requests, num_rows in warm_up_sizes(signature):
            rows = [warm_up_rows(signature, verified, num_rows, i * num_rows) for i in range(num_requests)]
            batch = [_request(signature, one, is_ranking=is_ranking) for one in rows]
            if num_requests * num_rows > 1 and not _fits(batch, limits):
                continue
            yield batch
            yield [request.copy() for request in batch]


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


def _request(signature: Signature, rows: Batch, *, is_ranking: bool) -> CheckedRequest:
    """Return a request of some rows; for ranking, with the context of the first."""
    if not is_ranking:
        return CheckedRequest(
            num_rows=rows.num_rows,
            dense=tuple(tensor.numpy() for tensor in rows.dense),
            sparse=_arrays(len(signature.sparse), rows.lengths, rows.values, rows.weights),
        )
    first = picked(signature, rows, torch.zeros(1, dtype=torch.int64))
    batch = ranking_batch(signature, first, rows, torch.zeros(rows.num_rows, dtype=torch.int64))
    context = (batch.context_lengths, batch.context_values, batch.context_weights)
    return CheckedRequest(
        num_rows=rows.num_rows,
        dense=tuple(tensor.numpy() for tensor in batch.dense),
        sparse=_arrays(len(signature.row_sparse), batch.lengths, batch.values, batch.weights),
        context=_arrays(len(signature.context_sparse), *context),
    )


def _arrays(num_inputs: int, lengths: Tensor, values: Tensor, weights: Tensor | None) -> SparseArrays:
    return SparseArrays(
        lengths=lengths.numpy(),
        values=values.numpy(),
        weights=None if weights is None else weights.numpy(),
        num_ids=lengths.view(num_inputs, -1).sum(dim=1).tolist() if num_inputs else [],
    )
