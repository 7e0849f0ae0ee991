"""Random batches that fit a signature, and the stored rows that they read.

Shape letters: B rows of a batch, F sparse inputs, N number of IDs, R stored rows that are read, K batches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from recsys.artifact.batches.ranking import picked, ranking_batch
from recsys.artifact.batches.samples import Batch, random_dense
from recsys.artifact.manifest import Manifest
from recsys.base.hashing import rows_of_ids
from recsys.inputs.signature import IdPolicy, Signature, SparseInput, TableUse
from recsys.ops import fbgemm
from recsys.rows.layout import BlobLayout
from serve.bench.load.ids import draw_ids
from serve.bench.load.requests import Mix

#: Samples in rotation at every batch size, at least: more rows than caches hold.
_NUM_SAMPLES = 16_384
_MIN_BATCHES = 16
_MAX_BATCHES = 4096
_ONE = Mix.of(1)

_Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Shape:
    """How batches are drawn.

    Attributes:
        ids_per_bag: IDs of a row in each sparse input whose bags the model takes in any size.
        zipf: Exponent of the IDs' distribution; 0 for uniform.
        ranking: Whether each batch is one context with its candidates.
        samples: Requests whose rows make the batches instead of random ones.
        examples: Rows like those of the training, from which numbers, sizes of bags and raw IDs are taken.
        has_bag_sizes: Whether ``ids_per_bag`` counts beside the sizes of the examples' bags.
    """

    ids_per_bag: Mix = _ONE
    zipf: float = 0.0
    ranking: bool = False
    samples: Batch | None = None
    examples: Batch | None = None
    has_bag_sizes: bool = False


@dataclass(frozen=True, kw_only=True)
class RowReads:
    """Stored rows, in the order in which lookups read them.

    Attributes:
        offsets: ``[R]``, in the blob, in bytes.
        sizes: ``[R]``, in bytes.
    """

    offsets: _Ints
    sizes: _Ints

    @property
    def num_rows(self) -> int:
        """R."""
        return len(self.offsets)

    @property
    def num_bytes(self) -> int:
        """Bytes of all rows."""
        return int(self.sizes.sum())


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """A batch.

    Attributes:
        inputs: Of ``forward``, or of ``forward_ranking``.
        reads: The rows that its lookups read.
    """

    inputs: tuple[Tensor, ...]
    reads: RowReads


def num_batches(num_rows: int) -> int:
    """Return how many batches of this size are in rotation."""
    return min(max(_NUM_SAMPLES // num_rows, _MIN_BATCHES), _MAX_BATCHES)


def draw(
    manifest: Manifest, num_rows: int, shape: Shape, generator: np.random.Generator, count: int
) -> list[Drawn]:
    """Return different batches of B rows.

    IDs are within each table. Raw IDs that a table maps are not known here: few of them own a row.

    Args:
        manifest: The manifest of the model.
        num_rows: B.
        shape: How they are drawn.
        generator: Source of random numbers.
        count: The number of batches, K.
    """
    signature, layout = manifest.signature, manifest.layout
    # Drawn as one batch: thousands of small ones would take most of the time of a profile.
    together = _batch(signature, count * num_rows, shape, generator)
    batches = _split(signature, together, count)
    if not shape.ranking:
        reads = _reads(signature.sparse, together.lengths, together.values, layout, count)
        return [Drawn(inputs=tuple(b.inputs()), reads=r) for b, r in zip(batches, reads, strict=True)]
    drawn = []
    contexts = _split(signature, _batch(signature, count, shape, generator), count)
    for context, batch in zip(contexts, batches, strict=True):
        ranking = ranking_batch(signature, context, batch, torch.zeros(num_rows, dtype=torch.int64))
        reads = [
            *_reads(signature.context_sparse, ranking.context_lengths, ranking.context_values, layout),
            *_reads(signature.row_sparse, ranking.lengths, ranking.values, layout),
        ]
        drawn.append(Drawn(inputs=tuple(ranking.inputs()), reads=joined(reads)))
    return drawn


def _split(signature: Signature, together: Batch, count: int) -> list[Batch]:
    """Split a batch into K of the same size, B rows each."""
    num_features, num_rows = len(signature.sparse), together.num_rows // count
    lengths, values, weights = together.lengths, together.values, together.weights
    if num_features:
        # From [F, K, B] to [K, F, B].
        order = torch.arange(num_features * count, dtype=torch.int32).view(num_features, count).T.reshape(-1)
        lengths, values, weights = fbgemm.permute_2D_sparse_data(
            order, lengths.view(-1, num_rows), values, weights
        )
    of_batch = lengths.view(count, num_features * num_rows)
    sizes = of_batch.sum(dim=1).tolist()
    dense = [tensor.split(num_rows) for tensor in together.dense]
    parts = zip(of_batch, values.split(sizes), _split_weights(weights, sizes), strict=True)
    return [
        Batch(
            dense=tuple(tensors[i] for tensors in dense),
            lengths=bags,
            values=ids,
            weights=of_ids,
            num_rows=num_rows,
        )
        for i, (bags, ids, of_ids) in enumerate(parts)
    ]


def _split_weights(weights: Tensor | None, sizes: list[int]) -> Sequence[Tensor | None]:
    return [None] * len(sizes) if weights is None else weights.split(sizes)


def _batch(signature: Signature, num_rows: int, shape: Shape, generator: np.random.Generator) -> Batch:
    if shape.samples is not None:
        rows = torch.from_numpy(generator.integers(0, shape.samples.num_rows, num_rows, np.int64))
        return picked(signature, shape.samples, rows)
    lengths, values = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    like = _like_examples(signature, num_rows, shape, generator)
    known = [] if like is None else _by_feature(signature, like)
    of_name: dict[str, _Ints] = {}
    for i, feature in enumerate(signature.sparse):
        if known and not shape.has_bag_sizes:
            bags, ids = known[i]
        elif feature.same_lengths_as:
            bags, ids = of_name[feature.same_lengths_as], None
        else:
            mix = shape.ids_per_bag if feature.num_ids is None else Mix.of(feature.num_ids)
            bags, ids = mix.draw(num_rows, generator), None
        of_name[feature.name] = bags
        lengths.append(bags)
        if ids is None or feature.row_limit is not None:
            ids = draw_ids(int(bags.sum()), _num_ids(feature), shape.zipf, generator)
        values.append(ids)
    flat = torch.from_numpy(np.concatenate(values))
    of_torch = torch.Generator().manual_seed(int(generator.integers(2**31)))
    return Batch(
        dense=tuple(random_dense(d, num_rows, of_torch) for d in signature.dense)
        if like is None
        else like.dense,
        lengths=torch.from_numpy(np.concatenate(lengths)),
        values=flat,
        weights=torch.rand(flat.numel(), generator=of_torch) if signature.is_weighted else None,
        num_rows=num_rows,
    )


def _like_examples(
    signature: Signature, num_rows: int, shape: Shape, generator: np.random.Generator
) -> Batch | None:
    """Return random rows of the examples; None without any."""
    if shape.examples is None:
        return None
    rows = torch.from_numpy(generator.integers(0, shape.examples.num_rows, num_rows, np.int64))
    return picked(signature, shape.examples, rows)


def _by_feature(signature: Signature, batch: Batch) -> list[tuple[_Ints, _Ints]]:
    """Return the sizes of the bags and the IDs of each sparse input."""
    sizes = batch.lengths.view(len(signature.sparse), batch.num_rows)
    values = torch.split(batch.values, sizes.sum(dim=1).tolist())
    return [(bags.numpy(), ids.numpy()) for bags, ids in zip(sizes, values, strict=True)]


def _num_ids(feature: SparseInput) -> int:
    """Return how many IDs a feature has; the largest table's rows where no table's IDs are rows."""
    return feature.row_limit or max((table.num_embeddings for table in feature.tables), default=1)


def _reads(
    features: Sequence[SparseInput], lengths: Tensor, values: Tensor, layout: BlobLayout, count: int = 1
) -> list[RowReads]:
    """Return the rows that some features' bags read in each of K batches: all of the first table, then the next.

    Args:
        features: F features.
        lengths: ``[F * K * B]``, key-major.
        values: ``[N]``.
        layout: Where the rows lie.
        count: K.
    """
    sizes = (
        lengths.numpy().reshape(len(features), count, -1).sum(axis=2) if features else np.empty((0, count))
    )
    ends = np.cumsum([0, *sizes.sum(axis=1)], dtype=np.int64)
    batches, parts = [np.empty(0, np.int64)], []
    for i, feature in enumerate(features):
        ids = values.numpy()[ends[i] : ends[i + 1]]
        batch = np.repeat(np.arange(count), sizes[i])
        for table in feature.tables:
            rows = _rows_of(ids, table)
            for block in layout.blocks:
                if block.table == table.name:
                    inside = (rows >= block.row_start) & (rows < block.row_end)
                    offsets = block.offset_bytes + (rows[inside] - block.row_start) * block.row_bytes
                    parts.append(RowReads(offsets=offsets, sizes=np.full_like(offsets, block.row_bytes)))
                    batches.append(batch[inside])
    reads, batch = joined(parts), np.concatenate(batches)
    order = np.argsort(batch, kind="stable")
    starts = np.searchsorted(batch[order], np.arange(1, count))
    return [
        RowReads(offsets=reads.offsets[of_batch], sizes=reads.sizes[of_batch])
        for of_batch in np.split(order, starts)
    ]


def _rows_of(ids: _Ints, table: TableUse) -> _Ints:
    """Return the rows of IDs. A table that maps raw IDs reads its last row for those that own none."""
    if table.id_policy is IdPolicy.MAPPED:
        return np.full_like(ids, table.num_embeddings - 1)
    return rows_of_ids(ids, table.id_policy.value, table.num_embeddings)


def joined(parts: Sequence[RowReads]) -> RowReads:
    """Return the same reads as one."""
    none = np.empty(0, np.int64)
    return RowReads(
        offsets=np.concatenate([none, *(part.offsets for part in parts)]),
        sizes=np.concatenate([none, *(part.sizes for part in parts)]),
    )


def grouped(reads: Sequence[RowReads], num_rows: int) -> list[RowReads]:
    """Return the same reads in groups of at least ``num_rows``, so that a call's own time does not count."""
    groups: list[list[RowReads]] = [[]]
    count = 0
    for each in reads:
        if count >= num_rows:
            groups.append([])
            count = 0
        groups[-1].append(each)
        count += each.num_rows
    return [joined(group) for group in groups]
