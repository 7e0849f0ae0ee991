"""The rows that models are warmed up with: those that the export has verified, or made ones.

Shape letters: B batch, F features, N number of IDs.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from recsys.artifact.batches.ranking import picked, ranking_batch
from recsys.artifact.batches.samples import Batch
from recsys.inputs.signature import Signature, SparseInput

#: The batches that servers warm up with: requests, and the rows of each. One request and many, because batches are put
#: together in different ways. The native engine has the same (``cpp_client/engine/core/executor/warm_up.cpp``); the
#: tests of both read ``tests/cases/warm_up_sizes.txt``.
WARM_UP_SIZES = ((1, 1), (1, 2), (2, 1), (8, 1), (32, 1), (1, 64), (128, 1))
#: The same where a batch is one request: the model may take few numbers of rows.
WARM_UP_SIZES_BY_REQUEST = ((1, 2),)


def warm_up_sizes(signature: Signature) -> tuple[tuple[int, int], ...]:
    """Return the batches that servers warm a model up with: requests, and the rows of each."""
    return WARM_UP_SIZES_BY_REQUEST if signature.by_request else WARM_UP_SIZES


def warm_up_rows(signature: Signature, verified: Batch | None, num_rows: int, first: int = 0) -> Batch:
    """Return rows that the model takes.

    Args:
        signature: The model's signature.
        verified: Rows that its export has verified; None if the artifact holds none.
        num_rows: B.
        first: The verified row to begin with. Behind the last one comes the first again.
    """
    if verified is None:
        return made_batch(signature, num_rows)
    return picked(signature, verified, torch.arange(first, first + num_rows) % verified.num_rows)


def warm_up_inputs(signature: Signature, rows: Batch, *, is_ranking: bool) -> list[Tensor]:
    """Return the arguments of ``forward`` or, with each row as its own context, of ``forward_ranking``."""
    if not is_ranking:
        return rows.inputs()
    return ranking_batch(signature, rows, rows, torch.arange(rows.num_rows)).inputs()


def made_batch(signature: Signature, num_rows: int) -> Batch:
    """Return a batch of zeros and spread IDs; see ``spread_ids``."""
    lengths, values = spread_ids(signature.sparse, num_rows)
    return Batch(
        dense=tuple(torch.zeros(num_rows, d.width) for d in signature.dense),
        lengths=torch.tensor(lengths, dtype=torch.int64).repeat_interleave(num_rows),
        values=torch.from_numpy(values),
        weights=torch.ones(values.size) if signature.is_weighted else None,
        num_rows=num_rows,
    )


def spread_ids(uses: Sequence[SparseInput], num_rows: int) -> tuple[list[int], npt.NDArray[np.int64]]:
    """Return the length of each input's bags, and the IDs of all inputs, spread over each table."""
    lengths = [1 if use.num_ids is None else use.num_ids for use in uses]
    spread = [
        np.linspace(0, (use.id_limit or 1) - 1, num_rows * length, dtype=np.int64)
        for use, length in zip(uses, lengths, strict=True)
    ]
    return lengths, np.concatenate([np.empty(0, np.int64), *spread])
