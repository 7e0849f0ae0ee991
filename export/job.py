"""One export on its way: what all its steps share.

Shape letters: B batch, D embedding dim.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from export.binding import Binding
from export.config import DENSE_DTYPES, ExportConfig
from export.graph import split_features
from export.managed import ManagedTables
from export.ranking import RankingCollection
from export.tables import StoredModel
from recsys.configs import BaseEmbeddingConfig
from recsys.embedding import EmbeddingBagCollection
from recsys.quant import FloatCollection, float_weights
from recsys.samples import Batch
from recsys.sharding.device_rows import DeviceRows, device_layouts, empty, table_path
from recsys.sharding.sharded import (
    ShardedCollection,
    ShardedEmbeddingBagCollection,
    ShardedEmbeddingCollection,
    ShardedOptions,
)
from recsys.signature import Signature

#: Rows of a random batch that an export is verified with, and its seed.
NUM_SAMPLES = 256
SAMPLES_SEED = 20260101

Progress = Callable[[str, int, int], None]


@dataclass(kw_only=True)
class Job:
    """One export on its way."""

    model: nn.Module
    config: ExportConfig
    collections: Mapping[str, FloatCollection]
    managed: ManagedTables
    stored: StoredModel
    binding: Binding
    signature: Signature
    samples: Batch
    progress: Progress

    @property
    def dense_dtype(self) -> torch.dtype:
        return DENSE_DTYPES[self.config.dense_dtype]

    def float_weights(self) -> dict[str, Tensor]:
        """Each table's float weight ``[R, D]``, by table path."""
        return {
            table_path(path, name): weight
            for path, collection in self.collections.items()
            for name, weight in float_weights(collection).items()
        }


def _options(
    path: str, collection: FloatCollection, stored: StoredModel, dtype: torch.dtype
) -> ShardedOptions:
    return ShardedOptions(
        path=path,
        is_weighted=isinstance(collection, EmbeddingBagCollection) and collection.is_weighted(),
        output_dtype=dtype,
        id_policies={t.name: stored.policies[table_path(path, t.name)] for t in stored.tables[path]},
    )


def _sharded(
    path: str, collection: FloatCollection, tables: Sequence[BaseEmbeddingConfig], place: _Place
) -> ShardedCollection:
    """Some tables of a collection, or all of them."""
    pooled = isinstance(collection, EmbeddingBagCollection)
    kind = ShardedEmbeddingBagCollection if pooled else ShardedEmbeddingCollection
    plan = place.stored.plans[place.target].of(path)
    return kind.over_devices(
        tables,
        {table.name: plan[table.name] for table in tables},
        place.ranks,
        _options(path, collection, place.stored, place.dtype),
    )


@dataclass(frozen=True, kw_only=True)
class _Place:
    stored: StoredModel
    target: str
    ranks: list[DeviceRows]
    dtype: torch.dtype


def sharded_of(
    collections: Mapping[str, FloatCollection],
    stored: StoredModel,
    target: str,
    ranks: list[DeviceRows],
    dtype: torch.dtype,
) -> dict[str, ShardedCollection]:
    """A target's sharded collections, by path."""
    place = _Place(stored=stored, target=target, ranks=ranks, dtype=dtype)
    return {
        path: _sharded(path, collection, stored.tables[path], place)
        for path, collection in collections.items()
    }


def ranking_of(
    job: Job, target: str, ranks: list[DeviceRows], wholes: Mapping[str, ShardedCollection]
) -> dict[str, RankingCollection]:
    """A target's collections in the ranking form, by path.

    Args:
        job: the export.
        target: one of its targets.
        ranks: where each rank's rows lie.
        wholes: the target's sharded collections, over the same ranks.
    """
    place = _Place(stored=job.stored, target=target, ranks=ranks, dtype=job.dense_dtype)
    binding = job.binding.part(job.signature.context)
    made = {}
    for path, collection in job.collections.items():
        tables = job.stored.tables[path]
        features = frozenset(feature for table in tables for feature in table.feature_names)
        mixed = {}
        for argument in job.binding.collections[path]:
            context = features & frozenset(binding.sparse.get(argument, ()))
            if context and context != features and context not in mixed:
                of_context, of_rows = (
                    _sharded(path, collection, _tables_of(tables, part), place)
                    for part in (context, features - context)
                )
                mixed[context] = (of_context, of_rows)
        made[path] = RankingCollection(wholes[path], mixed)
    return made


def _tables_of(tables: Sequence[BaseEmbeddingConfig], features: Collection[str]) -> list[BaseEmbeddingConfig]:
    """The tables that these features are looked up in, with no other features."""
    kept = [
        replace(table, feature_names=[name for name in table.feature_names if name in features])
        for table in tables
    ]
    return [table for table in kept if table.feature_names]


def empty_ranks(stored: StoredModel, target: str) -> list[DeviceRows]:
    """A target's ranks, whose rows are set when the artifact is loaded."""
    devices = stored.envs[target].devices
    return empty(device_layouts(stored.layout, stored.plans[target].plan, devices), devices)


def skeletons_of(
    collections: Mapping[str, FloatCollection], stored: StoredModel, target: str, dtype: torch.dtype
) -> dict[str, ShardedCollection]:
    """Sharded collections of a target whose rows are set when the artifact is loaded.

    All their tensors lie in host memory, whatever the target's devices: they are moved then, too.
    """
    return sharded_of(collections, stored, target, empty_ranks(stored, target), dtype)


def job_call(job: Job, samples: Batch, dtype: torch.dtype = torch.float32) -> dict[str, Any]:
    """The keyword arguments of the float model's ``forward`` for a batch."""
    dense: dict[str, Any] = {
        name: tensor.to(dtype) for name, tensor in zip(job.binding.dense, samples.dense, strict=True)
    }
    return {**dense, **split_features(job.binding, samples.lengths, samples.values, samples.weights)}


def in_range(job: Job) -> Tensor:
    """The samples' IDs as the float model can take them: IDs that a policy lets through are taken modulo.

    Raw IDs are what the float model takes.
    """
    ids_per_feature = job.samples.lengths.view(len(job.signature.sparse), job.samples.num_rows).sum(dim=1)
    by_feature = torch.split(job.samples.values, ids_per_feature.tolist())
    limits = [feature.row_limit for feature in job.signature.sparse]
    return torch.cat(
        [ids if limit is None else ids % limit for ids, limit in zip(by_feature, limits, strict=True)]
    )
