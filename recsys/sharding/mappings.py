"""Sharded mappings of raw IDs: each rank holds the buckets of the rows of a table that it holds.

Shape letters: K buckets, R rows, W world size.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed._shard.sharded_tensor.api import ShardedTensor

from recsys.managed.embedding import BaseManagedCollisionEmbeddingCollection
from recsys.managed.parts import Divisible, MappingPart
from recsys.sharding.plan.env import ShardingEnv
from recsys.sharding.plan.plan import ParameterSharding
from recsys.sharding.plan.sharding_types import row_parts
from recsys.sharding.sharded import ShardedCollection
from recsys.sharding.table_shards import Rectangle, copy_into, sharded_tensor


def tables_to_divide(model: nn.Module, world_size: int) -> list[tuple[str, str]]:
    """Return the tables whose mappings have buckets that all ranks can share, if the tables are cut by rows.

    Each is named by the path of its collection and its name.

    Args:
        model: A model whose tables are not sharded.
        world_size: W.
    """
    found: list[tuple[str, str]] = []
    for path, module in model.named_modules() if world_size > 1 else ():
        if isinstance(module, BaseManagedCollisionEmbeddingCollection):
            collection = module.managed_collision_collection
            modules = collection.managed_collision_modules()
            for config in collection.embedding_configs():
                mapping = modules.get(config.name)
                if isinstance(mapping, Divisible) and config.num_embeddings >= world_size:
                    ends = set(mapping.bucket_ends())
                    if all(end in ends for _, end in row_parts(config, world_size)):
                        found.append((f"{path}._embedding_module".removeprefix("."), config.name))
    return found


def divide_mappings(model: nn.Module, env: ShardingEnv) -> list[str]:
    """Drop from each rank what others hold of the mappings of raw IDs. Without communication.

    A mapping of several buckets is divided where the plan gives each rank one run of whole rows of its table, and cuts
    them at the ends of buckets. Every other mapping stays whole on every rank.

    In state dicts the buffers of a divided mapping are ShardedTensors of the whole ones, which load as well.

    Args:
        model: A model whose tables are sharded.
        env: The ranks.

    Returns:
        The tables of the divided mappings.
    """
    divided = []
    for module in model.modules():
        if not isinstance(module, BaseManagedCollisionEmbeddingCollection):
            continue
        tables = module.embedding_module
        if not isinstance(tables, ShardedCollection):
            continue
        for table, mapping in module.managed_collision_collection.managed_collision_modules().items():
            shards = _shards(mapping, tables.trained_tables[table].sharding, env.world_size)
            if not shards or not isinstance(mapping, Divisible):
                continue
            saves = mapping.register_state_dict_post_hook(  # type: ignore[no-untyped-call]
                partial(_save, shards=shards)
            )
            loads = mapping._register_load_state_dict_pre_hook(  # type: ignore[no-untyped-call]
                _load, with_module=True
            )
            mapping.hold(_part(mapping, shards, env.rank))
            mapping.hook_ids = (saves.id, loads.id)
            divided.append(table)
    return divided


def make_mappings_whole(model: nn.Module) -> None:
    """Make the mappings whole of a model that was copied out of its ranks: on the meta device, without a state."""
    for mapping in model.modules():
        if isinstance(mapping, Divisible) and mapping.part is not None:
            saves, loads = mapping.hook_ids
            del mapping._state_dict_hooks[saves], mapping._load_state_dict_pre_hooks[loads]
            mapping.hold(None)


def _shards(mapping: nn.Module, sharding: ParameterSharding, world_size: int) -> dict[int, tuple[int, int]]:
    """Return the rows of each rank, first and end, if they are its buckets; empty if the mapping stays whole."""
    if world_size == 1 or sharding.is_replicated or not isinstance(mapping, Divisible):
        return {}
    ends = set(mapping.bucket_ends())
    rows = {shard.rank: shard.rows for shard in sharding.shards}
    has_all_columns = len({shard.columns for shard in sharding.shards}) == 1
    is_one_each = len(sharding.shards) == len(rows) == world_size and has_all_columns
    return rows if is_one_each and all(start < end and end in ends for start, end in rows.values()) else {}


def _part(mapping: Divisible, shards: Mapping[int, tuple[int, int]], rank: int) -> MappingPart:
    ends = torch.tensor(list(mapping.bucket_ends()))
    owners = torch.empty_like(ends)
    for owner, (start, end) in shards.items():
        owners[(ends > start) & (ends <= end)] = owner
    mine = (owners == rank).nonzero().flatten().tolist()
    return MappingPart(buckets=(mine[0], mine[-1] + 1), rows=shards[rank], owners=owners)


def _rectangle(rows: tuple[int, int], tensor: Tensor) -> Rectangle:
    more = tuple(tensor.shape[1:])
    return (rows[0], *(0 for _ in more)), (rows[1] - rows[0], *more)


def _save(
    mapping: Any,
    state: dict[str, Any],
    prefix: str,
    _metadata: object,
    *,
    shards: Mapping[int, tuple[int, int]],
) -> None:
    """Replace the part of each buffer in a state dict by the whole one, as a ShardedTensor."""
    num_rows = max(end for _, end in shards.values())
    assert mapping.process_group is not None
    for name in mapping.part_buffers():
        tensor = getattr(mapping, name)
        state[prefix + name] = sharded_tensor(
            (num_rows, *tensor.shape[1:]),
            tensor.dtype,
            {_rectangle(rows, tensor): rank for rank, rows in shards.items()},
            {_rectangle(mapping.part.rows, tensor): tensor},
            ShardingEnv.from_process_group(mapping.process_group, tensor.device, len(shards)),
        )


def _load(mapping: Any, state: dict[str, Any], prefix: str, *_: object) -> None:
    """Replace whole buffers in a state dict by this rank's part of them.

    Raises:
        ValueError: One lacks the part.
    """
    for name in mapping.part_buffers():
        source = state.get(prefix + name)
        if source is None:
            continue
        target = getattr(mapping, name)
        if not isinstance(source, ShardedTensor) and source.is_meta:
            continue
        part = torch.empty_like(target)
        copy_into({_rectangle(mapping.part.rows, target): part}, source, prefix + name)
        state[prefix + name] = part
