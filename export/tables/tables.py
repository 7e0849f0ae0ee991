"""Decisions about each table: its row type, its ID policy, and its placement for each target.

Shape letters: D embedding dim.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from export.config import ExportConfig, target_name
from recsys.configs import BaseEmbeddingConfig
from recsys.embedding import FloatCollection
from recsys.errors import ExportError
from recsys.inputs.signature import IdPolicy
from recsys.planner.devices import DeviceOptions, plan_devices
from recsys.quant import float_tables
from recsys.rows.format import row_alignment_for
from recsys.rows.layout import BlobLayout
from recsys.rows.quantize import StoredTable, plan_blob
from recsys.sharding.plan.device_rows import table_path
from recsys.sharding.plan.env import ShardingEnv
from recsys.sharding.plan.plan import ParameterSharding, ShardingPlan, ShardMetadata, check_plan
from recsys.sharding.plan.sharding_types import table_wise, without_replicas

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class StoredModel:
    """All stored tables of a model.

    Attributes:
        tables: By collection path, with stored data types.
        policies: By table path.
        stored: By table path, in the order of the rows.
        layout: The layout of the rows.
        plans: Plans by target name, with the layout's cuts.
        envs: Ranks by target name.
    """

    tables: Mapping[str, Sequence[BaseEmbeddingConfig]]
    policies: Mapping[str, IdPolicy]
    stored: Mapping[str, StoredTable]
    layout: BlobLayout
    plans: Mapping[str, ShardingPlan]
    envs: Mapping[str, ShardingEnv]


def plan_tables(
    collections: Mapping[str, FloatCollection], config: ExportConfig, mapped: Collection[str] = ()
) -> StoredModel:
    """Decide everything about the tables.

    Args:
        collections: By path.
        config: The options.
        mapped: The paths of tables whose raw IDs the model maps.

    Raises:
        ExportError: An option names an unknown table, or sets an ID policy that the model determines.
        PlanError: The plan does not fit, or nothing fits the memory.
        ValueError: A column cut does not suit a row type.
    """
    names = [
        (path, table.name) for path, collection in collections.items() for table in float_tables(collection)
    ]
    types = _by_path(config.table_data_types, config.data_type, names, "table_data_types")
    policies = _policies(config, names, mapped)
    tables = {
        path: [
            replace(table, data_type=types[table_path(path, table.name)])
            for table in float_tables(collection)
        ]
        for path, collection in collections.items()
    }
    envs = {target_name(target): ShardingEnv.over_devices(target) for target in config.targets}
    plans = {
        name: _plan(tables, env, config, config.target_plans.get(name, config.plan))
        for name, env in envs.items()
    }
    cuts = {
        table_path(path, table.name): _common_cuts([plan.of(path)[table.name] for plan in plans.values()])
        for path, group in tables.items()
        for table in group
    }
    stored = {
        name: StoredTable(
            name=name,
            num_embeddings=table.num_embeddings,
            embedding_dim=table.embedding_dim,
            data_type=table.data_type,
            column_cuts=cuts[name],
            zero_row=policies[name] is IdPolicy.ZERO,
        )
        for path, group in tables.items()
        for table in group
        for name in [table_path(path, table.name)]
    }
    refined = {
        target: ShardingPlan(
            plan={
                path: {
                    name: _refined(sharding, cuts[table_path(path, name)]) for name, sharding in group.items()
                }
                for path, group in plan.plan.items()
            }
        )
        for target, plan in plans.items()
    }
    return StoredModel(
        tables=tables,
        policies=policies,
        stored=stored,
        layout=plan_blob(stored.values()),
        plans=refined,
        envs=envs,
    )


def _policies(
    config: ExportConfig, names: Sequence[tuple[str, str]], mapped: Collection[str]
) -> dict[str, IdPolicy]:
    if IdPolicy.MAPPED in (config.id_policy, *config.table_id_policies.values()):
        raise ExportError(
            "id_policy: got 'mapped', expected reject, hash, fmix64 or zero: a table's IDs are mapped where the model "
            "holds a managed collision module for it, and nowhere else"
        )
    policies = _by_path(
        config.table_id_policies, config.id_policy or IdPolicy.REJECT, names, "table_id_policies"
    )
    for path, name in names:
        at = table_path(path, name)
        if at in mapped:
            asked = config.table_id_policies.get(at, config.table_id_policies.get(name))
            if asked is not None:
                raise ExportError(
                    f"table_id_policies: got {asked.value!r} for table {at!r}, expected none: the model maps its raw "
                    "IDs to rows, so that none is out of range"
                )
            policies[at] = IdPolicy.MAPPED
    return policies


def _by_path(
    named: Mapping[str, T], default: T, names: Sequence[tuple[str, str]], option: str
) -> dict[str, T]:
    """Return a value for each table by path; options name tables by path or by name."""
    known = {table_path(path, name) for path, name in names} | {name for _, name in names}
    unknown = sorted(set(named) - known)
    if unknown:
        raise ExportError(f"{option}: got unknown tables {unknown}, expected some of {sorted(known)[:20]}")
    return {
        table_path(path, name): named.get(table_path(path, name), named.get(name, default))
        for path, name in names
    }


def _plan(
    tables: Mapping[str, Sequence[BaseEmbeddingConfig]],
    env: ShardingEnv,
    config: ExportConfig,
    plan: ShardingPlan | None,
) -> ShardingPlan:
    if plan is None and env.world_size == 1 and config.device_memory_bytes is None:
        whole = {path: {t.name: table_wise(t, 0) for t in group} for path, group in tables.items()}
        return ShardingPlan(plan=whole)
    if plan is None:
        alignment = max(row_alignment_for(device) for device in env.devices)
        options = DeviceOptions(
            world_size=env.world_size, budget_bytes=config.device_memory_bytes, row_alignment=alignment
        )
        return plan_devices(tables, options)
    unknown = sorted(set(plan.plan) - set(tables))
    if unknown:
        raise ExportError(f"plan: got unknown collections {unknown}, expected {sorted(tables)}")
    for path, group in tables.items():
        check_plan(group, plan.of(path), env.world_size)
    return ShardingPlan(plan={path: without_replicas(group, plan.of(path)) for path, group in tables.items()})


def _common_cuts(shardings: Iterable[ParameterSharding]) -> tuple[tuple[int, int], ...]:
    """Return column blocks common to all targets' shards, because targets share the rows."""
    bounds = sorted({at for s in shardings for shard in s.shards for at in shard.columns})
    return tuple((bounds[i], bounds[i + 1]) for i in range(len(bounds) - 1))


def _refined(sharding: ParameterSharding, cuts: Sequence[tuple[int, int]]) -> ParameterSharding:
    """Return the same placement with shards also cut at other targets' column cuts."""
    shards = []
    for shard in sharding.shards:
        start, end = shard.columns
        shards += [
            ShardMetadata(
                shard_offsets=(shard.rows[0], first),
                shard_sizes=(shard.shard_sizes[0], last - first),
                rank=shard.rank,
            )
            for first, last in cuts
            if start <= first and last <= end
        ]
    return ParameterSharding(sharding_type=sharding.sharding_type, shards=tuple(shards))


def on_host(env: ShardingEnv) -> ShardingEnv:
    """Return the same ranks, all in host memory."""
    return ShardingEnv.over_devices(["cpu"] * env.world_size)
