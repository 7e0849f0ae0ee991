"""Checks of a graph's inputs, the answer to a batch without rows, and IDs that a graph computes.

Shape letters: B batch, Q contexts, F features, N number of IDs.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from recsys.errors import ComputedIdError
from recsys.inputs.bag_lengths import why_not_as_many, why_too_many
from recsys.inputs.signature import Signature

# With it the message of ``export.graph.inputs.computed`` begins.
_COMPUTED_ID = "computed ID: table '"
# The words of FBGEMM's bounds check. The servers have checked the IDs of requests before.
_BEYOND_TABLE = "Expected idx < num_rows"


def without_rows(
    signature: Signature, inputs: Sequence[Tensor], *, is_ranking: bool
) -> dict[str, Tensor] | None:
    """Return the outputs of a batch without rows, which follow from the signature; None for any other batch.

    Such a batch reaches no graph: many operations of models do not define what they make of it, such as
    ``reshape(B, -1)`` or the largest number over the batch.

    Args:
        signature: The model's signature.
        inputs: As ``recsys.inputs.signature`` describes them.
        is_ranking: Whether they are those of the ranking form.

    Raises:
        RuntimeError: It seems to have no rows, but does not fit the signature; or the model needs rows.
    """
    # Whatever its first input (in the ranking form: its last) holds, it holds none of it without rows.
    if not inputs or inputs[-1 if is_ranking else 0].shape[:1] != (0,):
        return None
    checked_inputs(signature, inputs, is_ranking=is_ranking)
    return no_rows(signature)


def check_lengths(signature: Signature, inputs: Sequence[Tensor]) -> None:
    """Check what graphs trust: bags that the model puts side by side have as many IDs, crossed features at most one.

    Args:
        signature: The model's signature.
        inputs: Those of the plain form, as ``recsys.inputs.signature`` describes them. The graph itself checks others.

    Raises:
        ValueError: Names the inputs and the row.
    """
    names = [use.name for use in signature.sparse]
    lengths = inputs[len(signature.dense)] if len(inputs) > len(signature.dense) else torch.empty(0)
    if lengths.dim() != 1 or lengths.numel() % len(names):
        return
    of_inputs = lengths.view(len(names), -1).cpu().numpy()
    for use, own in zip(signature.sparse, of_inputs, strict=True):
        at, other = f"sparse[{use.name!r}]", use.same_lengths_as
        why = "" if use.max_ids is None else why_too_many(at, own, use.max_ids)
        if other:
            why = why or why_not_as_many(at, own, other, of_inputs[names.index(other)])
        if why:
            raise ValueError(why)


def computed_id_error(error: Exception) -> ComputedIdError | None:
    """Return what a graph says of an ID that it has computed; None for any other error of a graph.

    ExportedPrograms, and graphs of earlier releases, do not say which ID, nor of which table.
    """
    # The same words stand further up, in the source that torch shows.
    _, marker, told = str(error).rpartition(_COMPUTED_ID)
    if marker:
        return ComputedIdError(marker + told.partition("\n")[0])
    is_beyond = _BEYOND_TABLE in str(error)
    return ComputedIdError("computed ID: got one that is no row of its table") if is_beyond else None


def no_rows(signature: Signature) -> dict[str, Tensor]:
    """Return the outputs of a batch without rows.

    Raises:
        RuntimeError: An output has no batch dimension, so that the signature does not tell its numbers.
    """
    if signature.without_rows is not None:
        raise RuntimeError(
            f"rows: got none, expected at least one: output {signature.without_rows.name!r} has no batch dimension"
        )
    return {
        output.name: torch.empty(output.dims(0), dtype=torch.int64 if output.is_integer else torch.float32)
        for output in signature.outputs
    }


def checked_inputs(signature: Signature, inputs: Sequence[Tensor], *, is_ranking: bool) -> list[Tensor]:
    """Return the inputs of a graph, lengths as ``[F, B]``, after checks that they fit the signature.

    Args:
        signature: The model's signature.
        inputs: As ``recsys.inputs.signature`` describes them.
        is_ranking: Whether they are those of the ranking form.

    Raises:
        RuntimeError: They do not fit the signature.
    """
    reader = _Inputs(inputs)
    dense = [reader.next(input_.name, torch.float32, 2) for input_ in signature.dense]
    parts = [signature.context_sparse, signature.row_sparse] if is_ranking else [signature.sparse]
    sparse = [reader.sparse(signature.is_weighted) for _ in parts]
    row_context = reader.next("row_context", torch.int64, 1) if is_ranking else None
    reader.end()
    num_rows = _num_bags(len(parts[-1]), sparse[-1], dense) if row_context is None else row_context.numel()
    sizes = [num_rows]
    if row_context is not None:
        of_context = [d for d, i in zip(dense, signature.dense, strict=True) if i.name in signature.context]
        num_contexts = _num_bags(len(parts[0]), sparse[0], of_context)
        sizes.insert(0, num_contexts)
        if num_rows and (int(row_context.min()) < 0 or int(row_context.max()) >= num_contexts):
            raise RuntimeError(f"row_context: got a number outside of the {num_contexts} contexts")
    for tensor, input_ in zip(dense, signature.dense, strict=True):
        size = sizes[0] if input_.name in signature.context else sizes[-1]
        if not is_ranking:
            size = num_rows
        if tuple(tensor.shape) != (size, input_.width):
            raise RuntimeError(
                f"dense input {input_.name!r}: got shape {list(tensor.shape)}, expected {[size, input_.width]}"
            )
    placed = []
    for features, size, ids in zip(parts, sizes, sparse, strict=True):
        placed += _checked_sparse(len(features), size, ids)
    return [*dense, *placed, *([] if row_context is None else [row_context])]


def _num_bags(num_features: int, ids: Sequence[Tensor], dense: Sequence[Tensor]) -> int:
    if num_features:
        return ids[0].numel() // num_features
    return dense[0].size(0) if dense else 0


def _checked_sparse(num_features: int, num_bags: int, ids: Sequence[Tensor]) -> list[Tensor]:
    lengths, values = ids[0], ids[1]
    if lengths.numel() != num_features * num_bags:
        raise RuntimeError(
            f"lengths: got {lengths.numel()}, expected {num_features * num_bags}: {num_bags} for each of "
            f"{num_features} features"
        )
    if lengths.numel() and (int(lengths.min()) < 0 or int(lengths.max()) > values.numel()):
        raise RuntimeError(f"lengths: got one below 0 or above the {values.numel()} values")
    if int(lengths.sum()) != values.numel():
        raise RuntimeError(f"lengths: got a sum of {int(lengths.sum())} for {values.numel()} values")
    for weights in ids[2:]:
        if weights.numel() != values.numel():
            raise RuntimeError(f"weights: got {weights.numel()} for {values.numel()} values")
    return [lengths.view(num_features, num_bags), *ids[1:]]


class _Inputs:
    """Takes inputs one by one."""

    def __init__(self, inputs: Sequence[Tensor]) -> None:
        self._inputs = inputs
        self._at = 0

    def next(self, name: str, dtype: torch.dtype, dim: int) -> Tensor:
        if self._at == len(self._inputs):
            raise RuntimeError(f"inputs: got {self._at}, expected {name!r} too")
        tensor = self._inputs[self._at]
        self._at += 1
        if tensor.dtype is not dtype or tensor.dim() != dim or tensor.device.type != "cpu":
            raise RuntimeError(
                f"{name}: got {tensor.dtype} {list(tensor.shape)} on {tensor.device}, expected {dtype} of {dim} "
                "dimensions in host memory"
            )
        return tensor.contiguous()

    def sparse(self, is_weighted: bool) -> list[Tensor]:
        ids = [self.next("lengths", torch.int64, 1), self.next("values", torch.int64, 1)]
        return [*ids, self.next("weights", torch.float32, 1)] if is_weighted else ids

    def end(self) -> None:
        if self._at != len(self._inputs):
            raise RuntimeError(f"inputs: got {len(self._inputs)}, expected {self._at}")
