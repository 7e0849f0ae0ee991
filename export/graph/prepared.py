"""A prepared model: the data shared by all steps of an export.

Shape letters: B batch, D embedding dim.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from export.config import ExportConfig
from export.graph.inputs.computed import check_computed
from export.graph.inputs.mapping import InputMapping
from export.graph.managed import ManagedTables
from export.graph.ranking import RankingCollection
from export.tables import StoredModel
from recsys.artifact.batches.samples import Batch
from recsys.configs import BaseEmbeddingConfig, tables_with
from recsys.embedding import EmbeddingBagCollection, FloatCollection
from recsys.inputs.signature import Signature
from recsys.inputs.sketch import DataSketch
from recsys.sharding.plan.device_rows import DeviceRows, device_layouts, empty
from recsys.sharding.sharded import (
    ShardedCollection,
    ShardedEmbeddingBagCollection,
    ShardedEmbeddingCollection,
    ShardedOptions,
)

#: Called with a step's name, the number of units done and the total.
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, kw_only=True)
class PreparedModel:
    """A model and all decisions about its export, made before anything is written.

    Attributes:
        model: The float model, which is not changed.
        config: The user's options.
        collections: The embedding collections by path.
        managed: The managed collisions.
        stored: The stored tables, and each target's plan.
        input_mapping: How the model's arguments are made of the exported inputs.
        signature: The inputs and outputs; without outputs until the float model has run.
        samples: The batch that the artifact is verified with.
        clean: The samples with IDs in range, for the float model.
        samples_source: In words where the samples come from.
        num_held: How many of the samples, the first, are rows of the training with random ones behind them.
        examples: The rows that the model holds, as a request in JSON; empty without any that fit.
        data_sketch: What the model's data looks like; None if it is not known.
        dense_dtype: The dtype of the dense layers.
        weights: The float weight ``[R, D]`` of each table, by table path.
        progress: Called as the export proceeds.
        notes: What was done that nobody asked for.
    """

    model: nn.Module
    config: ExportConfig
    collections: Mapping[str, FloatCollection]
    managed: ManagedTables
    stored: StoredModel
    input_mapping: InputMapping
    signature: Signature
    samples: Batch
    clean: Batch
    samples_source: str
    num_held: int
    examples: Mapping[str, Any]
    data_sketch: DataSketch | None
    dense_dtype: torch.dtype
    weights: Mapping[str, Tensor]
    progress: Progress
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class TargetModules:
    """The replacements of a model's collections in a target's graphs, by path.

    Attributes:
        plain: The sharded collections, and the frozen mappings of managed collisions.
        ranking: The same for the ranking form; empty without a context.
    """

    plain: dict[str, nn.Module]
    ranking: dict[str, nn.Module] = field(default_factory=dict)


def target_modules(
    prepared: PreparedModel, target: str, ranks: list[DeviceRows] | None = None
) -> TargetModules:
    """Shard the collections of a target.

    Args:
        prepared: The model.
        target: The name of one of its targets.
        ranks: The rows of each rank. None if rows and mappings are set when the artifact is loaded; all tensors
            are then in host memory, for every target.
    """
    frozen = prepared.managed.frozen(with_ids=ranks is not None)
    ranks = empty_ranks(prepared.stored, target) if ranks is None else ranks
    sharded = sharded_of(prepared.collections, prepared.stored, target, ranks, prepared.dense_dtype)
    made = TargetModules(plain={**sharded, **frozen})
    if prepared.signature.context:
        made.ranking.update({**ranking_of(prepared, target, ranks, sharded), **frozen})
    return made


def _options(path: str, stored: StoredModel, dtype: torch.dtype) -> ShardedOptions:
    return ShardedOptions(
        path=path,
        is_weighted=path in stored.weighted,
        output_dtype=dtype,
        id_policies={name: stored.policies[at] for name, at in stored.paths[path].items()},
    )


def _sharded(
    path: str, collection: FloatCollection, tables: Sequence[BaseEmbeddingConfig], place: _Place
) -> ShardedCollection:
    """Shard some tables of a collection, or all of them."""
    pooled = isinstance(collection, EmbeddingBagCollection)
    kind = ShardedEmbeddingBagCollection if pooled else ShardedEmbeddingCollection
    plan = place.stored.plans[place.target].of(path)
    sharded = kind.over_devices(
        tables,
        {table.name: plan[table.name] for table in tables},
        place.ranks,
        _options(path, place.stored, place.dtype),
    )
    check_computed(sharded, place.stored.paths[path], place.stored.policies)
    return sharded


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
    """Return a target's sharded collections, by path."""
    place = _Place(stored=stored, target=target, ranks=ranks, dtype=dtype)
    return {
        path: _sharded(path, collection, stored.tables[path], place)
        for path, collection in collections.items()
    }


def ranking_of(
    prepared: PreparedModel, target: str, ranks: list[DeviceRows], wholes: Mapping[str, ShardedCollection]
) -> dict[str, RankingCollection]:
    """Return a target's collections in the ranking form, by path.

    Args:
        prepared: The model.
        target: One of its targets.
        ranks: The rows of each rank.
        wholes: The target's sharded collections, over the same ranks.
    """
    place = _Place(stored=prepared.stored, target=target, ranks=ranks, dtype=prepared.dense_dtype)
    input_mapping = prepared.input_mapping.part(prepared.signature.context)
    made = {}
    for path, collection in prepared.collections.items():
        tables = prepared.stored.tables[path]
        features = frozenset(feature for table in tables for feature in table.feature_names)
        mixed = {}
        for argument in prepared.input_mapping.collections[path]:
            context = features & frozenset(input_mapping.sparse.get(argument, ()))
            if context and context != features and context not in mixed:
                of_context, of_rows = (
                    _sharded(path, collection, tables_with(tables, part), place)
                    for part in (context, features - context)
                )
                mixed[context] = (of_context, of_rows)
        made[path] = RankingCollection(wholes[path], mixed)
    return made


def empty_ranks(stored: StoredModel, target: str) -> list[DeviceRows]:
    """Return a target's ranks, whose rows are set when the artifact is loaded."""
    devices = stored.envs[target].devices
    return empty(device_layouts(stored.layout, stored.plans[target].plan, devices), devices)


def shard_without_rows(
    collections: Mapping[str, FloatCollection], stored: StoredModel, target: str, dtype: torch.dtype
) -> dict[str, ShardedCollection]:
    """Return sharded collections of a target whose rows are set when the artifact is loaded.

    All their tensors are in host memory, for every target: they are moved then, too.
    """
    return sharded_of(collections, stored, target, empty_ranks(stored, target), dtype)
