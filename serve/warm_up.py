"""Batches that warm an executor's thread up.

The first calls of a TorchScript module in a fresh process take a thousand times as long as later ones, those
of a fresh thread several times as long; and code is specialised anew for the first few shapes.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from recsys.signature import Signature
from serve.batching import BatchLimits
from serve.request_check import CheckedRequest
from serve.sparse_check import SparseArrays

# A single request and many: they take different ways through the collation.
_SIZES = ((1, 1), (1, 2), (2, 1), (8, 1), (32, 1), (1, 64), (128, 1))


def warm_up_batches(signature: Signature, limits: BatchLimits) -> Iterator[list[CheckedRequest]]:
    """Batches of several sizes, one ID in each bag, each size twice.

    Args:
        signature: what the model takes.
        limits: no batch is larger than these, except that of one row.
    """
    for num_requests, num_rows in _SIZES:
        rows = num_requests * num_rows
        ids = rows * len(signature.sparse)
        if rows > 1 and (rows > limits.max_batch_rows or ids > limits.max_batch_ids):
            continue
        for _ in range(2):
            yield [_request(signature, num_rows) for _ in range(num_requests)]


def _request(signature: Signature, num_rows: int) -> CheckedRequest:
    """IDs are spread over each table, so that its pages are read in."""
    limits = [use.id_limit or 1 for use in signature.sparse]
    spread = [np.linspace(0, limit - 1, num_rows, dtype=np.int64) for limit in limits]
    values = np.concatenate([np.empty(0, np.int64), *spread])
    return CheckedRequest(
        num_rows=num_rows,
        dense=tuple(np.zeros((num_rows, dense.width), np.float32) for dense in signature.dense),
        sparse=SparseArrays(
            np.ones(values.size, np.int64),
            values,
            np.ones(values.size, np.float32) if signature.is_weighted else None,
            [num_rows] * len(spread),
        ),
    )
