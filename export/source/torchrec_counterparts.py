"""TorchRec's modules as ours, which share their weights.

Shape letters: Z rows of a table.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from enum import Enum
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from recsys.configs import BaseEmbeddingConfig, DataType, EmbeddingBagConfig, EmbeddingConfig, PoolingType
from recsys.embedding import FLOAT_DTYPES, EmbeddingBagCollection, EmbeddingCollection
from recsys.errors import ExportError
from recsys.managed import (
    HashZchManagedCollisionModule,
    LFU_EvictionPolicy,
    ManagedCollisionCollection,
    ManagedCollisionEmbeddingBagCollection,
    ManagedCollisionEmbeddingCollection,
    MCHManagedCollisionModule,
)
from recsys.managed.frozen import Freezable, freezable_names
from recsys.managed.mapping import FREE
from recsys.modules import feature_processors, position_weighted
from recsys.modules.regroup import KTRegroupAsDict

# What a table of TorchRec's says that no float table here can be.
_REFUSED = ("use_virtual_table",)
Config = TypeVar("Config", bound=BaseEmbeddingConfig)
E = TypeVar("E", bound=Enum)


def _pooled(path: str, theirs: Any) -> EmbeddingBagCollection:
    tables = [_table(path, config, EmbeddingBagConfig) for config in theirs.embedding_bag_configs()]
    ours = EmbeddingBagCollection(tables, is_weighted=theirs.is_weighted(), device=torch.device("meta"))
    _share(theirs.embedding_bags, ours.embedding_bags)
    return ours


def _sequences(path: str, theirs: Any) -> EmbeddingCollection:
    tables = [_table(path, config, EmbeddingConfig) for config in theirs.embedding_configs()]
    ours = EmbeddingCollection(tables, device=torch.device("meta"), need_indices=theirs.need_indices())
    _share(theirs.embeddings, ours.embeddings)
    return ours


def _managed_pooled(path: str, theirs: Any) -> ManagedCollisionEmbeddingBagCollection:
    tables = _pooled(path, theirs._embedding_module)
    mapping = _mapping(path, theirs._managed_collision_collection, [*tables.embedding_bag_configs()])
    return ManagedCollisionEmbeddingBagCollection(
        tables, mapping, return_remapped_features=theirs._return_remapped_features
    )


def _managed_sequences(path: str, theirs: Any) -> ManagedCollisionEmbeddingCollection:
    tables = _sequences(path, theirs._embedding_module)
    mapping = _mapping(path, theirs._managed_collision_collection, [*tables.embedding_configs()])
    return ManagedCollisionEmbeddingCollection(
        tables, mapping, return_remapped_features=theirs._return_remapped_features
    )


def _table(path: str, theirs: Any, kind: type[Config]) -> Config:
    """Return our configuration of a table of TorchRec's."""
    at = f"{path!r}: table {theirs.name!r}"
    for name in _REFUSED:
        if getattr(theirs, name, False):
            raise ExportError(
                f"{at}: got {name}={getattr(theirs, name)!r}, expected a table that lies in memory"
            )
    given = {f.name: getattr(theirs, f.name) for f in fields(kind) if hasattr(theirs, f.name)}
    given["feature_names"] = list(theirs.feature_names)
    given["init_fn"] = None  # the weights are there already
    given["data_type"] = _same_named(theirs.data_type, DataType, at)
    if "pooling" in given:
        given["pooling"] = _same_named(theirs.pooling, PoolingType, at)
    if given["data_type"] not in FLOAT_DTYPES:
        raise ExportError(
            f"{at}: got data_type {given['data_type'].value}, expected a float model: the export quantizes it"
        )
    return kind(**given)


def _same_named(theirs: Any, kind: type[E], at: str) -> E:
    name = getattr(theirs, "name", str(theirs))
    if name not in kind.__members__:
        raise ExportError(f"{at}: got {name}, expected one of {', '.join(kind.__members__)}")
    return kind[name]


def _share(theirs: Any, ours: Any) -> None:
    """Let our tables hold TorchRec's weights themselves."""
    for name, module in theirs.items():
        ours[name].weight = module.weight


def _mapping(path: str, theirs: Any, tables: list[BaseEmbeddingConfig]) -> ManagedCollisionCollection:
    """Return our mapping, in which each raw ID keeps its row. Reads tensors."""
    modules = {
        name: _module(f"{path!r}: table {name!r}", module)
        for name, module in theirs._managed_collision_modules.items()
    }
    return ManagedCollisionCollection(modules, tables, need_preprocess=theirs.need_preprocess)


def _module(at: str, theirs: Any) -> Freezable:
    kind = type(theirs).__name__
    makers: dict[str, Callable[[Any], Freezable]] = {
        MCHManagedCollisionModule.__name__: _listed,
        HashZchManagedCollisionModule.__name__: _hashed,
    }
    if kind not in makers:
        raise ExportError(f"{at}: got a {kind}, expected a {freezable_names()}: no other can be frozen")
    try:
        ours = makers[kind](theirs)
        ours.validate_state()
    except ValueError as error:
        raise ExportError(f"{at}: its mapping cannot be taken: {error}") from None
    return ours


def _hashed(theirs: Any) -> HashZchManagedCollisionModule:
    """Return our module of rows by hash, which never learns."""
    ours = HashZchManagedCollisionModule(
        zch_size=theirs.output_size(),
        device=theirs._hash_zch_identities.device,
        total_num_buckets=theirs.buckets(),
        max_probe=theirs.max_probe,
        input_hash_size=theirs.input_size(),
        output_segments=theirs._output_segments,
        inference_dispatch_div_train_world_size=theirs.input_mapper._inference_dispatch_div_train_world_size,
        start_bucket=theirs._start_bucket,
        end_bucket=theirs._end_bucket,
        opt_in_prob=theirs._opt_in_prob,
        percent_reserved_slots=theirs._percent_reserved_slots,
        disable_fallback=theirs.disable_fallback,
    )
    ours._hash_zch_identities = theirs._hash_zch_identities.data
    return ours


def _listed(theirs: Any) -> MCHManagedCollisionModule:
    raw_ids: Tensor = theirs._mch_sorted_raw_ids
    rows: Tensor = theirs._mch_remapped_ids_mapping - theirs._output_global_offset
    ours = MCHManagedCollisionModule(
        zch_size=theirs.output_size(),
        device=torch.device("cpu"),
        eviction_policy=LFU_EvictionPolicy(),
        eviction_interval=1,
        input_hash_size=theirs.input_size(),
        input_hash_func=theirs._input_hash_func,
    )
    if raw_ids.is_meta:
        return ours.to("meta")
    last = theirs.output_size() - 1
    with torch.no_grad():
        ours.raw_ids.copy_(raw_ids)
        ours.rows.copy_(torch.where(raw_ids == FREE, last, rows))
    return ours


def _by_position(path: str, theirs: Any) -> nn.Module:
    del path
    length = theirs.position_weight.numel()
    ours = feature_processors.PositionWeightedModule(length, device=torch.device("meta"))
    ours.position_weight = theirs.position_weight
    return ours


def _by_position_and_feature(kind: Callable[..., Any], path: str, theirs: Any) -> nn.Module:
    del path
    ours: nn.Module = kind(dict(theirs.max_feature_lengths), device=torch.device("meta"))
    weights: Any = ours.position_weights
    for name, weight in theirs.position_weights.items():
        weights[name] = weight
    return ours


def _regrouping(path: str, theirs: Any) -> KTRegroupAsDict:
    del path
    dtype = theirs._emb_dtype
    return KTRegroupAsDict(
        theirs._groups, theirs._keys, emb_dtype=None if dtype is None else DataType[dtype.name]
    )


#: How ours are made of TorchRec's module at a path; those that hold others come first.
MAKERS: dict[type[nn.Module], Callable[[str, Any], nn.Module]] = {
    ManagedCollisionEmbeddingBagCollection: _managed_pooled,
    ManagedCollisionEmbeddingCollection: _managed_sequences,
    EmbeddingBagCollection: _pooled,
    EmbeddingCollection: _sequences,
    feature_processors.PositionWeightedModule: _by_position,
    **{
        kind: partial(_by_position_and_feature, kind)
        for kind in (
            feature_processors.PositionWeightedModuleCollection,
            position_weighted.PositionWeightedModule,
            position_weighted.PositionWeightedProcessor,
        )
    },
    KTRegroupAsDict: _regrouping,
}
