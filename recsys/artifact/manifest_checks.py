"""Consistency checks of a manifest: signature, tables, blocks, plans and targets must agree.

Shape letters: D embedding dim, R rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from recsys.configs import BaseEmbeddingConfig
from recsys.errors import ManifestError, PlanError
from recsys.rows.layout import BlobLayout
from recsys.rows.quantize import StoredTable
from recsys.sharding.plan.device_rows import table_path
from recsys.sharding.plan.env import ShardingEnv
from recsys.sharding.plan.plan import ShardingPlan, check_plan
from recsys.signature import IdPolicy, Signature


def check_once(names: Sequence[str], at: str) -> None:
    """Check that no name occurs twice.

    Raises:
        ManifestError: A name occurs twice. All functions here raise this error.
    """
    doubled = sorted(name for name, times in Counter(names).items() if times > 1)
    if doubled:
        raise ManifestError(f"{at}: got {doubled[:8]} more than once, expected each once")


def check_columns(layout: BlobLayout, tables: Mapping[str, StoredTable]) -> None:
    """Check that each table's blocks hold each column once."""
    columns: dict[str, list[tuple[int, int]]] = {name: [] for name in tables}
    for block in layout.blocks:
        columns[block.table].append((block.column_start, block.column_end))
    for name, found in columns.items():
        at = 0
        for start, end in sorted(found):
            if start != at:
                break
            at = end
        if at != tables[name].embedding_dim or sum(end - start for start, end in found) != at:
            raise ManifestError(
                f"manifest.rows.blocks: table {name!r} got columns {sorted(found)}, expected all of its "
                f"{tables[name].embedding_dim} exactly once"
            )


def check_signature(signature: Signature, tables: Mapping[str, StoredTable]) -> None:
    """Check that inputs use tables of the artifact, with the same number of rows."""
    for i, feature in enumerate(signature.sparse):
        for j, use in enumerate(feature.tables):
            at = f"signature.sparse[{i}].tables[{j}]"
            table = tables.get(use.name)
            if table is None:
                raise ManifestError(
                    f"{at}.name: got {use.name!r}, expected one of the tables {sorted(tables)[:8]}"
                )
            if use.num_embeddings != table.num_embeddings:
                raise ManifestError(
                    f"{at}.num_embeddings: got {use.num_embeddings}, expected {table.num_embeddings}, as the table says"
                )
            if (use.id_policy is IdPolicy.ZERO) != table.zero_row:
                raise ManifestError(
                    f"{at}.id_policy: got {use.id_policy.value}, expected zero where the table stores a row of zeros, "
                    "and nowhere else"
                )


def check_ranking(signature: Signature, has_ranking: Sequence[bool], is_single_file: bool) -> None:
    """Check that targets have a ranking form if, and only if, the signature names a context.

    Args:
        signature: The signature of the model.
        has_ranking: For each target, whether it has a ranking form.
        is_single_file: A single file holds one graph.
    """
    if signature.context and is_single_file:
        raise ManifestError(
            "signature.context: got inputs in a single file, expected none: it holds one graph"
        )
    for i, has in enumerate(has_ranking):
        if has != bool(signature.context):
            expected = "a graph, because signature.context names inputs" if signature.context else "null"
            raise ManifestError(
                f"manifest.targets[{i}].ranking: got {'a graph' if has else 'none'}, expected {expected}"
            )


def check_devices(name: str, env: ShardingEnv, at: str) -> None:
    """Check that a target's name is its devices, and that their kind is supported."""
    if any(device.type == "meta" for device in env.devices):
        raise ManifestError(f"{at}.devices: got 'meta', expected cpu or cuda:N")
    expected = ",".join(str(device) for device in env.devices)
    if name != expected:
        raise ManifestError(f"{at}.name: got {name!r}, expected its devices, {expected!r}")


def check_target_plan(
    plan: ShardingPlan, world_size: int, tables: Mapping[str, StoredTable], layout: BlobLayout, at: str
) -> None:
    """Check that a target's plan places every table, in shards of whole column blocks."""
    named = {table_path(path, name) for path, group in plan.plan.items() for name in group}
    if named != set(tables):
        missing, unknown = sorted(set(tables) - named), sorted(named - set(tables))
        raise ManifestError(f"{at}.plan: missing tables {missing[:8]}, unknown tables {unknown[:8]}")
    cuts = {(block.table, block.column_start, block.column_end) for block in layout.blocks}
    for path, group in plan.plan.items():
        configs = []
        for name in group:
            table = tables[table_path(path, name)]
            configs.append(
                BaseEmbeddingConfig(
                    name=name, num_embeddings=table.num_embeddings, embedding_dim=table.embedding_dim
                )
            )
        try:
            check_plan(configs, group, world_size)
        except PlanError as error:
            raise ManifestError(f"{at}.{error}") from None
        for name, sharding in group.items():
            for shard in sharding.shards:
                if (table_path(path, name), *shard.columns) not in cuts:
                    raise ManifestError(
                        f"{at}.plan: table {name!r} got a shard of columns {shard.columns}, expected those of a block"
                    )
