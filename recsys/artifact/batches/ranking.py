"""Ranking batches: the inputs of the ranking form, made of plain batches and expanded to plain ones.

Shape letters: B rows, Q contexts, Fc sparse inputs of the context, Fr the others, N number of IDs.

``expand`` defines the meaning of a ranking batch: a model must return the same for both. It works bag by bag
and is the reference for the exported ranking form, which shares no code with it; it is not optimized.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from recsys.artifact.batches.samples import Batch
from recsys.inputs.signature import Signature, SparseInput


@dataclass(frozen=True, kw_only=True)
class RankingBatch:
    """The inputs of ``forward_ranking``; see ``recsys.inputs.signature``.

    Attributes:
        dense: float32, ``[Q, width]`` for inputs of the context, ``[B, width]`` for others.
        context_lengths: int64 ``[Fc * Q]``, key-major.
        context_values: int64 ``[N of the contexts]``.
        context_weights: float32, one per value, if the model is weighted.
        lengths: int64 ``[Fr * B]``, key-major.
        values: int64 ``[N of the rows]``.
        weights: float32, one per value, if the model is weighted.
        row_context: int64 ``[B]``, ``0 <= number < Q``.
    """

    dense: tuple[Tensor, ...]
    context_lengths: Tensor
    context_values: Tensor
    context_weights: Tensor | None
    lengths: Tensor
    values: Tensor
    weights: Tensor | None
    row_context: Tensor

    def inputs(self) -> list[Tensor]:
        """Return the arguments of ``forward_ranking`` in order."""
        context = (self.context_lengths, self.context_values, self.context_weights)
        rows = (self.lengths, self.values, self.weights)
        return [*self.dense, *(t for t in (*context, *rows) if t is not None), self.row_context]


def ranking_batch(signature: Signature, contexts: Batch, rows: Batch, row_context: Tensor) -> RankingBatch:
    """Return the context inputs of one batch combined with the other inputs of another.

    Args:
        signature: The signature of both batches.
        contexts: Q rows; only context inputs are used.
        rows: B rows; context inputs are not used.
        row_context: ``[B]`` int64, ``0 <= number < Q``.
    """
    of_context = _joined(_bags(signature.sparse, contexts), [s.name for s in signature.context_sparse])
    of_rows = _joined(_bags(signature.sparse, rows), [s.name for s in signature.row_sparse])
    return RankingBatch(
        dense=tuple(
            (contexts if d.name in signature.context else rows).dense[i]
            for i, d in enumerate(signature.dense)
        ),
        context_lengths=of_context.lengths,
        context_values=of_context.values,
        context_weights=of_context.weights if signature.is_weighted else None,
        lengths=of_rows.lengths,
        values=of_rows.values,
        weights=of_rows.weights if signature.is_weighted else None,
        row_context=row_context,
    )


def picked(signature: Signature, batch: Batch, rows: Tensor) -> Batch:
    """Return rows of a batch by number, in any order and with repetitions.

    Args:
        signature: The signature of the batch.
        batch: A batch of any size.
        rows: ``[n]`` int64, row numbers.
    """
    features = torch.arange(len(signature.sparse)).unsqueeze(1)
    bags = (features * batch.num_rows + rows).view(-1)
    lengths = batch.lengths.index_select(0, bags)
    starts = (batch.lengths.cumsum(0) - batch.lengths).index_select(0, bags)
    # Where an ID lies in the batch, less where it lies in what is picked: the same for all IDs of a bag.
    moved = starts - (lengths.cumsum(0) - lengths)
    places = torch.arange(int(lengths.sum())) + moved.repeat_interleave(lengths)
    return Batch(
        dense=tuple(tensor.index_select(0, rows) for tensor in batch.dense),
        lengths=lengths,
        values=batch.values.index_select(0, places),
        weights=None if batch.weights is None else batch.weights.index_select(0, places),
        num_rows=rows.numel(),
    )


def expand(signature: Signature, batch: RankingBatch) -> Batch:
    """Return the plain batch of a ranking batch: every row with a copy of its context's inputs.

    Args:
        signature: The signature of the batch.
        batch: The batch; it must fit the signature.

    Raises:
        IndexError: A row's context is not in ``[0, Q)``.
    """
    numbers = batch.row_context.tolist()
    of_context = _split(
        signature.context_sparse, batch.context_lengths, batch.context_values, batch.context_weights
    )
    bags = _split(signature.row_sparse, batch.lengths, batch.values, batch.weights)
    bags |= {name: [each[number] for number in numbers] for name, each in of_context.items()}
    ids = _joined(bags, [s.name for s in signature.sparse])
    return Batch(
        dense=tuple(
            tensor.index_select(0, batch.row_context) if d.name in signature.context else tensor
            for d, tensor in zip(signature.dense, batch.dense, strict=True)
        ),
        lengths=ids.lengths,
        values=ids.values,
        weights=ids.weights if signature.is_weighted else None,
        num_rows=len(numbers),
    )


@dataclass(frozen=True, kw_only=True)
class _Ids:
    lengths: Tensor
    values: Tensor
    weights: Tensor


_Bag = tuple[Tensor, Tensor]


def _bags(features: Sequence[SparseInput], batch: Batch) -> dict[str, list[_Bag]]:
    return _split(features, batch.lengths, batch.values, batch.weights)


def _split(
    features: Sequence[SparseInput], lengths: Tensor, values: Tensor, weights: Tensor | None
) -> dict[str, list[_Bag]]:
    """Return the bags of each feature: IDs and weights (1.0 without weights)."""
    given = torch.ones(values.numel()) if weights is None else weights
    sizes = lengths.tolist()
    bags = list(zip(torch.split(values, sizes), torch.split(given, sizes), strict=True)) if sizes else []
    num_bags = len(bags) // len(features) if features else 0
    return {s.name: bags[i * num_bags : (i + 1) * num_bags] for i, s in enumerate(features)}


def _joined(bags: Mapping[str, Sequence[_Bag]], names: Sequence[str]) -> _Ids:
    """Return the flat tensors of some features, in this order."""
    flat = [bag for name in names for bag in bags[name]]
    return _Ids(
        lengths=torch.tensor([ids.numel() for ids, _ in flat], dtype=torch.int64),
        values=torch.cat([torch.empty(0, dtype=torch.int64), *(ids for ids, _ in flat)]),
        weights=torch.cat([torch.empty(0), *(weights for _, weights in flat)]),
    )
