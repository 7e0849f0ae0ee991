"""The scores of answered requests, as they are kept for labels.

Shape letters: Q requests of a block, R rows of all of them.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from recsys.inputs.signature import ROWS_FIRST, Output
from serve.engine.answered import AnsweredBlock, selected
from serve.engine.records import ShadowPair
from serve.quality.store import ScoredBlock, key_of

Bools = NDArray[np.bool_]


def scored(block: AnsweredBlock, share: float, arm: str) -> ScoredBlock | None:
    """Return the answers that have an ID, scores, and a draw below ``share``; None if none has.

    An answer's scores are its float outputs with one finite number for each row.
    """
    outputs = block.signature.outputs
    columns = block.columns()._replace(dense=(), sparse=())
    requests = columns.requests
    has = {
        output.name: _has_scores(numbers, requests.num_rows)
        for output, numbers in zip(outputs, requests.outputs, strict=True)
        if _is_score(output)
    }
    takes = (requests.draws < share) & (np.diff(requests.id_offsets) > 0) & (requests.num_rows > 0)
    takes &= np.any([*has.values(), np.zeros_like(takes)], axis=0)
    taken = selected(columns, takes, outputs)
    if taken is None:
        return None
    requests = taken.requests
    row_offsets = np.zeros(len(requests.num_rows) + 1, np.int64)
    np.cumsum(requests.num_rows, out=row_offsets[1:])
    return ScoredBlock(
        model=block.model,
        version=block.version,
        arm=arm,
        keys=requests.draws.view(np.uint64).copy(),
        id_offsets=requests.id_offsets.astype(np.int64),
        ids=requests.ids.tobytes(),
        row_offsets=row_offsets,
        scores={
            output.name: numbers.copy()
            for output, numbers in zip(outputs, requests.outputs, strict=True)
            if output.name in has
        },
        has={name: marks[takes] for name, marks in has.items() if not marks[takes].all()},
    )


def scored_shadow(pair: ShadowPair) -> ScoredBlock | None:
    """Return the answer of a shadow, whose request has an ID; None if it has no scores."""
    scores = {}
    for output, data in zip(pair.got_outputs, pair.got, strict=True):
        if _is_score(output) and pair.num_rows and len(data) == 4 * pair.num_rows:
            numbers = np.frombuffer(data, "<f4")
            if np.isfinite(numbers).all():
                scores[output.name] = numbers
    if not scores:
        return None
    name = pair.request_id.encode()
    return ScoredBlock(
        model=pair.model,
        version=pair.shadow,
        arm="shadow",
        keys=np.array([key_of(pair.request_id)]),
        id_offsets=np.array([0, len(name)], np.int64),
        ids=name,
        row_offsets=np.array([0, pair.num_rows], np.int64),
        scores=scores,
    )


def _is_score(output: Output) -> bool:
    return not output.is_integer and output.batch_dims == ROWS_FIRST and output.shape in ((), (1,))


def _has_scores(numbers: NDArray[np.float32], num_rows: NDArray[np.int64]) -> Bools:
    """Return which requests have finite numbers alone, bool ``[Q]``."""
    has = np.ones(len(num_rows), np.bool_)
    is_finite = np.isfinite(numbers)
    if not is_finite.all():
        has[np.repeat(np.arange(len(num_rows)), num_rows)[~is_finite]] = False
    return has
