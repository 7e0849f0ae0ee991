"""The sizes of bags that a model takes, where it does not take bags of any size; the rows that servers warm up with.

Tools make random rows: the signature says how many IDs each bag must hold.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import nn

from export.graph.inputs.mapping import InputMapping
from export.graph.prepared import PreparedModel
from export.verify.reference import arguments
from export.verify.samples import with_numbers_of
from recsys.artifact.batches.answers import MOST_IDS, few_rows
from recsys.artifact.batches.ranking import picked
from recsys.artifact.batches.samples import Batch, random_batch
from recsys.artifact.batches.warm_up import made_batch, warm_up_rows, warm_up_sizes
from recsys.errors import ExportError
from recsys.inputs.signature import Signature

_NUM_ROWS = 16
_SEED = 20260101


def with_bag_sizes(prepared: PreparedModel, model: nn.Module) -> PreparedModel:
    """Return the model with ``SparseInput.num_ids`` in its signature, for the inputs that need them.

    The sizes are those of the first sample for which it takes made rows, if there is one. An input does not need its
    own if the model takes both one ID and random numbers of IDs in its bags. Made rows have numbers of the samples.

    Args:
        prepared: The model, with its outputs.
        model: The float model.
    """
    plain = prepared.signature
    if _failure_of_sizes(prepared, model, plain) is None and _takes_drawn(prepared, model, plain):
        return prepared
    lengths = prepared.samples.lengths.view(len(plain.sparse), prepared.samples.num_rows)
    for sizes in dict.fromkeys(zip(*lengths.tolist(), strict=True)):
        sized = _sized(plain, sizes)
        if _failure_of_sizes(prepared, model, sized) is None:
            return replace(prepared, signature=_only_needed(prepared, model, sized))
    return prepared


def check_warm_up(prepared: PreparedModel, model: nn.Module) -> None:
    """Verify that the float model takes the rows that servers warm up with, in the numbers in which they do.

    Raises:
        ExportError: It fails on them.
    """
    signature = prepared.signature
    few = few_rows(signature, prepared.clean)
    verified = None if few is None else picked(signature, prepared.clean, few)
    failure = _failure(prepared, model, lambda num_rows: warm_up_rows(signature, verified, num_rows))
    if failure is None:
        return
    num_rows, error = failure
    failed = f"{type(error).__name__}: {error}. Servers warm up with such rows: expected it to take"
    if verified is not None:
        raise ExportError(
            f"model: forward failed on {num_rows} rows, the samples over and over: {failed} any number of rows"
        ) from error
    raise ExportError(
        f"model: forward failed on {num_rows} made rows: {failed} zeros for dense inputs, and any IDs of the tables, "
        f"as many in each bag as a sample has; or give --samples with at most {MOST_IDS} IDs in a row"
    ) from error


def _sized(signature: Signature, sizes: Sequence[int | None]) -> Signature:
    """Return the signature with sizes of bags; inputs with the lengths of another one have its size."""
    of_name = {use.name: size for use, size in zip(signature.sparse, sizes, strict=True)}
    sizes = [
        use.num_ids if use.fixed else of_name[use.same_lengths_as or use.name] for use in signature.sparse
    ]
    sparse = tuple(replace(use, num_ids=size) for use, size in zip(signature.sparse, sizes, strict=True))
    return replace(signature, sparse=sparse)


def _only_needed(prepared: PreparedModel, model: nn.Module, sized: Signature) -> Signature:
    """Return the signature without the sizes that the model does not need."""
    for i in range(len(sized.sparse)):
        sizes = [None if i == at else use.num_ids for at, use in enumerate(sized.sparse)]
        without = _sized(sized, sizes)
        if _failure_of_sizes(prepared, model, without) is None and _takes_drawn(prepared, model, without):
            sized = without
    return sized


def _takes_drawn(prepared: PreparedModel, model: nn.Module, signature: Signature) -> bool:
    """Return whether the model takes rows with bags of random sizes, where the signature names none."""
    generator = torch.Generator().manual_seed(_SEED)
    rows = random_batch(signature, _NUM_ROWS, generator, known_ids=prepared.managed.known_ids)
    rows = with_numbers_of(prepared.clean, rows, signature)
    return _failure_on(model, prepared.input_mapping, rows) is None


def _failure_of_sizes(
    prepared: PreparedModel, model: nn.Module, signature: Signature
) -> tuple[int, Exception] | None:
    """Return on how many rows with bags of these sizes the model fails, and why."""
    return _failure(
        prepared, model, lambda n: with_numbers_of(prepared.clean, made_batch(signature, n), signature)
    )


def _failure(
    prepared: PreparedModel, model: nn.Module, rows_of: Callable[[int], Batch]
) -> tuple[int, Exception] | None:
    """Return on how many rows the model fails, of the batches that warm servers up, and why."""
    for num_requests, of_each in warm_up_sizes(prepared.signature):
        num_rows = num_requests * of_each
        if num_rows == 1:
            # A float model may lose the dimension of a single row (``squeeze()``). Its graph does not, and is verified
            # on one row.
            continue
        error = _failure_on(model, prepared.input_mapping, rows_of(num_rows))
        if error is not None:
            return num_rows, error
    return None


def _failure_on(model: nn.Module, input_mapping: InputMapping, rows: Batch) -> Exception | None:
    try:
        with torch.no_grad():
            model(**arguments(input_mapping, rows))
    except Exception as error:  # user code can raise anything
        return error
    return None
