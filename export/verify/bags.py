"""The sizes of bags that a model takes, where it does not take bags of any size.

Servers make rows to warm up with, and tools make random ones: the signature says how many IDs each bag must hold.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from export.graph.prepared import PreparedModel
from export.verify.reference import arguments, float_model
from recsys.artifact.ranking import picked
from recsys.artifact.samples import Batch, made_batch, random_batch, warm_up_sizes
from recsys.errors import ExportError
from recsys.signature import Signature

_NUM_ROWS = 16
_SEED = 20260101


def with_bag_sizes(prepared: PreparedModel) -> PreparedModel:
    """Return the model with ``SparseInput.num_ids`` in its signature, for the inputs that need them.

    The sizes are those of the first sample with which it takes made rows, if there is one. An input does not need its
    own if the model takes both one ID and random numbers of IDs in its bags.
    """
    plain = prepared.signature
    if _failure(prepared, plain) is None and _takes_drawn(prepared, plain):
        return prepared
    lengths = prepared.samples.lengths.view(len(plain.sparse), prepared.samples.num_rows)
    for sizes in dict.fromkeys(zip(*lengths.tolist(), strict=True)):
        sized = _sized(plain, sizes)
        if _failure(prepared, sized) is None:
            return replace(prepared, signature=_only_needed(prepared, sized))
    return prepared


def check_made_rows(prepared: PreparedModel) -> None:
    """Verify that the model takes the rows that servers warm up with.

    Raises:
        ExportError: It fails on them.
    """
    failure = _failure(prepared, prepared.signature)
    if failure is None:
        return
    num_rows, error = failure
    raise ExportError(
        f"model: forward failed on {num_rows} made row{'s'[: num_rows - 1]}: {type(error).__name__}: {error}. "
        "Servers warm up with such rows: expected it to take zeros for dense inputs, and any IDs of the tables, as "
        "many in each bag as a sample has"
    ) from error


def _sized(signature: Signature, sizes: Sequence[int | None]) -> Signature:
    """Return the signature with sizes of bags; inputs with the lengths of another one have its size."""
    of_name = {use.name: size for use, size in zip(signature.sparse, sizes, strict=True)}
    sizes = [of_name[use.same_lengths_as or use.name] for use in signature.sparse]
    sparse = tuple(replace(use, num_ids=size) for use, size in zip(signature.sparse, sizes, strict=True))
    return replace(signature, sparse=sparse)


def _only_needed(prepared: PreparedModel, sized: Signature) -> Signature:
    """Return the signature without the sizes that the model does not need."""
    for i in range(len(sized.sparse)):
        sizes = [None if i == at else use.num_ids for at, use in enumerate(sized.sparse)]
        without = _sized(sized, sizes)
        if _failure(prepared, without) is None and _takes_drawn(prepared, without):
            sized = without
    return sized


def _takes_drawn(prepared: PreparedModel, signature: Signature) -> bool:
    """Return whether the model takes rows with bags of random sizes, where the signature names none.

    Their numbers are zeros: some stand for IDs, and random ones would be out of range.
    """
    generator = torch.Generator().manual_seed(_SEED)
    rows = random_batch(signature, _NUM_ROWS, generator, known_ids=prepared.managed.known_ids)
    zeros = tuple(torch.zeros_like(numbers) for numbers in rows.dense)
    return _failure_on(prepared, replace(rows, dense=zeros)) is None


def _failure(prepared: PreparedModel, signature: Signature) -> tuple[int, Exception] | None:
    """Return on how many made rows the model fails, of the batches with which servers warm up, and why."""
    for num_requests, num_rows in warm_up_sizes(signature):
        of_each = torch.arange(num_rows).repeat(num_requests)
        if len(of_each) == 1:
            # A float model may lose the dimension of a single row (``squeeze()``). Its graph does not, and is verified
            # on one row.
            continue
        error = _failure_on(prepared, picked(signature, made_batch(signature, num_rows), of_each))
        if error is not None:
            return len(of_each), error
    return None


def _failure_on(prepared: PreparedModel, rows: Batch) -> Exception | None:
    try:
        with torch.no_grad():
            float_model(prepared)(**arguments(prepared.binding, rows))
    except Exception as error:  # user code can raise anything
        return error
    return None
