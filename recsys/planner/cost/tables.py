"""The tables to plan, with their lookups per step.

Shape letters: D embedding dimension, R rows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from recsys.base.json_checks import a_list, choice, count, text
from recsys.configs import (
    BaseEmbeddingConfig,
    DataType,
    EmbeddingBagConfig,
    EmbeddingConfig,
    PoolingType,
    check_tables,
)
from recsys.embedding import FloatCollection
from recsys.errors import PlanError
from recsys.planner.constants import BATCH_SIZE
from recsys.planner.cost.constraints import ParameterConstraints, check_names
from recsys.quant import float_tables
from recsys.sharding.plan.device_rows import table_path

_FLOAT_BYTES = 4
_ID_BYTES = 8


@dataclass(frozen=True, kw_only=True)
class PlannedTable:
    """One table and the lookups of one rank's batch in it.

    Attributes:
        collection: The path of its collection.
        config: R, D, data type, features.
        constraints: The user's constraints.
        num_ids: The number of IDs of one rank's batch.
        num_bags: The number of bags that hold the IDs.
        id_bytes: The size of one ID, with its weight.
        allowed: The kernels of each sharding type that the collection's sharder has; None for all.
    """

    collection: str
    config: BaseEmbeddingConfig
    constraints: ParameterConstraints
    num_ids: float
    num_bags: float
    id_bytes: int
    allowed: Mapping[str, Collection[str]] | None = None

    def allowing(self, allowed: Mapping[str, Collection[str]]) -> PlannedTable:
        """Return the table with the kernels of each sharding type that its sharder has."""
        return replace(self, allowed=allowed)

    def allows(self, sharding_type: str) -> bool:
        """Return whether constraint and sharder allow a type."""
        asked = self.constraints.sharding_types
        return (asked is None or sharding_type in asked) and (
            self.allowed is None or sharding_type in self.allowed
        )

    def allowed_kernels(self, sharding_type: str) -> Collection[str] | None:
        """Return the kernels that the sharder has for a type; None for all."""
        return None if self.allowed is None else self.allowed.get(sharding_type, ())

    def asked_types(self, *, is_last: bool) -> Collection[str]:
        """Return the types that the constraint names; as a last resort, without any, those of the sharder."""
        asked = self.constraints.sharding_types
        if asked is None and is_last:
            asked = list(self.allowed or ())
        return asked or ()

    @property
    def is_weighted(self) -> bool:
        """Whether every ID comes with a weight."""
        return self.id_bytes > _ID_BYTES

    @property
    def path(self) -> str:
        """The table's name within the whole model."""
        return table_path(self.collection, self.config.name)

    @property
    def is_pooled(self) -> bool:
        """Whether the lookup sums rows by bag instead of returning them one by one."""
        return isinstance(self.config, EmbeddingBagConfig) and self.config.pooling is not PoolingType.NONE


def planned_tables(
    collections: Mapping[str, Sequence[BaseEmbeddingConfig]],
    constraints: Mapping[str, ParameterConstraints] | None = None,
    batch_size: int | None = None,
    weighted: frozenset[str] = frozenset(),
) -> list[PlannedTable]:
    """Return tables with their lookups.

    Args:
        collections: The tables of each collection, by path.
        constraints: Constraints by table path, or by table name.
        batch_size: Samples per rank and step; 512 by default.
        weighted: Paths of collections whose IDs have weights.

    Raises:
        PlanError: A constraint names an unknown table, or the wrong number of features.
    """
    constraints = constraints or {}
    paths = {table_path(path, t.name): t.name for path, group in collections.items() for t in group}
    check_names(constraints, set(paths) | set(paths.values()))
    default = ParameterConstraints()
    return [
        _planned(
            path,
            table,
            constraints.get(table_path(path, table.name), constraints.get(table.name, default)),
            BATCH_SIZE if batch_size is None else batch_size,
            path in weighted,
        )
        for path, group in collections.items()
        for table in group
    ]


def _planned(
    path: str, table: BaseEmbeddingConfig, asked: ParameterConstraints, batch_size: int, is_weighted: bool
) -> PlannedTable:
    num_features = max(table.num_features(), 1)
    at = f"constraints[{table_path(path, table.name)!r}]"
    if asked.feature_names is not None and list(asked.feature_names) != list(table.feature_names):
        raise PlanError(
            f"{at}.feature_names: got {list(asked.feature_names)}, expected the table's {list(table.feature_names)}"
        )
    factors = _per_feature(asked.pooling_factors, 1.0, num_features, f"{at}.pooling_factors")
    poolings = _per_feature(asked.num_poolings, 1.0, num_features, f"{at}.num_poolings")
    batches = _per_feature(asked.batch_sizes, batch_size, num_features, f"{at}.batch_sizes")
    return PlannedTable(
        collection=path,
        config=table,
        constraints=asked,
        num_ids=sum(f * p * b for f, p, b in zip(factors, poolings, batches, strict=True)),
        num_bags=sum(p * b for p, b in zip(poolings, batches, strict=True)),
        id_bytes=_ID_BYTES + (_FLOAT_BYTES if is_weighted or asked.is_weighted else 0),
    )


def _per_feature(
    values: Sequence[float] | None, default: float, num_features: int, at: str
) -> Sequence[float]:
    if values is None:
        return [default] * num_features
    if len(values) == 1:
        return [values[0]] * num_features
    if len(values) != num_features:
        raise PlanError(f"{at}: got {len(values)} numbers, expected one or {num_features} (one per feature)")
    return values


def as_sharders_allow(
    tables: Iterable[PlannedTable],
    collections: Mapping[str, nn.Module],
    sharders: Sequence[Any],
    compute_device: str,
) -> list[PlannedTable]:
    """Return the tables with the sharding types and kernels that their collections' sharders have."""
    found = []
    for table in tables:
        for sharder in sharders:
            if isinstance(collections[table.collection], sharder.module_type) and hasattr(
                sharder, "sharding_types"
            ):
                kinds = sharder.sharding_types(compute_device)
                table = table.allowing(
                    {kind: sharder.compute_kernels(kind, compute_device) for kind in kinds}
                )
        found.append(table)
    return found


def collection_tables(
    collections: Mapping[str, FloatCollection], data_type: DataType | None = None
) -> dict[str, list[BaseEmbeddingConfig]]:
    """Return the tables of each collection; with a data type, as they will be stored."""
    return {
        path: [t if data_type is None else replace(t, data_type=data_type) for t in float_tables(collection)]
        for path, collection in collections.items()
    }


def tables_from_json(data: Any, data_type: DataType | None = None) -> dict[str, list[BaseEmbeddingConfig]]:
    """Return tables of collections from plain data, for models that do not exist yet.

    Args:
        data: A list of objects with ``name``, ``num_embeddings``, ``embedding_dim``, and optionally
            ``feature_names`` (by default the table's name), ``pooling`` (SUM; NONE for single rows),
            ``data_type`` (FP32) and ``collection`` (the path; by default the model itself).
        data_type: If given, overrides the data type of all tables.

    Raises:
        PlanError: A field is wrong; the message names it, what was found and what was expected.
    """
    found: dict[str, list[BaseEmbeddingConfig]] = {}
    try:
        for at, item in a_list({"tables": data}, "tables", ""):
            path, table = _table(item, at.lstrip("."), data_type)
            found.setdefault(path, []).append(table)
        for group in found.values():
            check_tables(group)
    except ValueError as error:
        raise PlanError(str(error).lstrip(".")) from None
    if not found:
        raise PlanError("tables: got none, expected at least one")
    return found


def _table(item: Any, at: str, data_type: DataType | None) -> tuple[str, BaseEmbeddingConfig]:
    name = text(item, "name", at)
    pooling = (
        PoolingType(choice(item, "pooling", at, tuple(p.value for p in PoolingType)))
        if "pooling" in item
        else None
    )
    stored = (
        DataType(choice(item, "data_type", at, tuple(t.value for t in DataType)))
        if "data_type" in item
        else None
    )
    features = [str(f) for _, f in a_list(item, "feature_names", at)] if "feature_names" in item else [name]
    path = item.get("collection", "")
    if not isinstance(path, str):
        raise PlanError(f"{at}.collection: got {str(path)[:80]!r}, expected a text")
    num_embeddings, embedding_dim = count(item, "num_embeddings", at), count(item, "embedding_dim", at)
    if pooling is PoolingType.NONE:
        table: BaseEmbeddingConfig = EmbeddingConfig(
            name=name, num_embeddings=num_embeddings, embedding_dim=embedding_dim, feature_names=features
        )
    else:
        table = EmbeddingBagConfig(
            name=name,
            num_embeddings=num_embeddings,
            embedding_dim=embedding_dim,
            feature_names=features,
            pooling=pooling or PoolingType.SUM,
        )
    return path, replace(table, data_type=data_type or stored or DataType.FP32)
