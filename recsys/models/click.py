"""ClickModel, which turns logits into the probability of a click, and the factory that checkpoints name.

Shape letters: B batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from torch import Tensor, nn

from recsys import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor, PoolingType
from recsys.managed import (
    DistanceLFU_EvictionPolicy,
    LFU_EvictionPolicy,
    LRU_EvictionPolicy,
    ManagedCollisionCollection,
    ManagedCollisionEmbeddingBagCollection,
    ManagedCollisionModule,
    MCHEvictionPolicy,
    MCHManagedCollisionModule,
)
from recsys.models.dlrm import DLRM, BagCollection

_REQUIRED = ("name", "num_embeddings", "embedding_dim", "feature_names")
_OPTIONAL = ("pooling", "managed")
_EVICTION_POLICIES: dict[str, type[MCHEvictionPolicy]] = {
    "lfu": LFU_EvictionPolicy,
    "lru": LRU_EvictionPolicy,
    "distance_lfu": DistanceLFU_EvictionPolicy,
}


class ClickModel(nn.Module):
    """The probability of a click.

    Args:
        model: Maps ``(dense_features, sparse_features)`` to logits ``[B, 1]``.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, dense_features: Tensor, sparse_features: KeyedJaggedTensor) -> dict[str, Tensor]:
        """Map ``[B, number of dense features]`` and a batch of B rows to the probabilities ``{"score": [B]}``."""
        return {"score": self.logits(dense_features, sparse_features).sigmoid()}

    def logits(self, dense_features: Tensor, sparse_features: KeyedJaggedTensor) -> Tensor:
        """Return the logits, ``[B]``, for training."""
        logits: Tensor = self.model(dense_features, sparse_features)
        return logits.squeeze(1)


def build_dlrm(
    *,
    tables: Sequence[Mapping[str, Any]],
    dense_in_features: int,
    dense_arch_layer_sizes: Sequence[int],
    over_arch_layer_sizes: Sequence[int],
) -> ClickModel:
    """Return a DLRM from plain data, as in a checkpoint.

    Args:
        tables: For each its ``name``, ``num_embeddings``, ``embedding_dim``, ``feature_names`` and, if it is
            not "SUM", its ``pooling`` ("SUM" or "MEAN"). A table of raw IDs has ``managed`` too: an object
            with ``eviction`` ("lfu", "lru" or "distance_lfu") and ``interval``, batches between two
            admissions.
        dense_in_features: Number of dense features.
        dense_arch_layer_sizes: The last one is the tables' ``embedding_dim``.
        over_arch_layer_sizes: The last one is 1.

    Raises:
        ValueError: A field is missing, unknown, of another type, or does not fit the others.
    """
    if not isinstance(tables, Sequence) or not all(isinstance(table, Mapping) for table in tables):
        raise ValueError("tables: expected a list of objects")
    _check_sizes("dense_in_features", [dense_in_features])
    _check_sizes("dense_arch_layer_sizes", dense_arch_layer_sizes)
    _check_sizes("over_arch_layer_sizes", over_arch_layer_sizes)
    if list(over_arch_layer_sizes)[-1:] != [1]:
        raise ValueError(
            f"over_arch_layer_sizes: got {list(over_arch_layer_sizes)}, expected the last to be 1: one logit"
        )
    configs = [_table_config(table, f"tables[{i}]") for i, table in enumerate(tables)]
    managed = {
        config.name: _managed_module(config, table["managed"], f"tables[{i}].managed")
        for i, (config, table) in enumerate(zip(configs, tables, strict=True))
        if "managed" in table
    }
    tables_of_rows = EmbeddingBagCollection(tables=configs)
    bags: BagCollection = tables_of_rows
    if managed:
        mapping = ManagedCollisionCollection(managed, configs)
        bags = ManagedCollisionEmbeddingBagCollection(tables_of_rows, mapping, embeddings_only=True)
    return ClickModel(DLRM(bags, dense_in_features, dense_arch_layer_sizes, over_arch_layer_sizes))


def _check_sizes(at: str, sizes: object) -> None:
    if not isinstance(sizes, list | tuple) or not all(type(size) is int and size >= 1 for size in sizes):
        raise ValueError(f"{at}: got {str(sizes)[:80]}, expected whole numbers of at least 1")


def _table_config(table: Mapping[str, Any], at: str) -> EmbeddingBagConfig:
    wrong = sorted(map(str, set(_REQUIRED) - set(table) | set(table) - {*_REQUIRED, *_OPTIONAL}))
    if wrong:
        raise ValueError(
            f"{at}: missing or unknown fields {wrong}, expected {list(_REQUIRED)} and perhaps {list(_OPTIONAL)}"
        )
    _check_sizes(f"{at}.num_embeddings", [table["num_embeddings"]])
    _check_sizes(f"{at}.embedding_dim", [table["embedding_dim"]])
    names = table["feature_names"]
    if not isinstance(table["name"], str) or not isinstance(names, list | tuple):
        raise ValueError(f"{at}: expected a text as name and a list as feature_names")
    if not all(isinstance(name, str) for name in names):
        raise ValueError(f"{at}.feature_names: got {str(names)[:80]}, expected texts")
    pooling = table.get("pooling", "SUM")
    if pooling not in ("SUM", "MEAN"):
        raise ValueError(f"{at}.pooling: got {str(pooling)[:80]!r}, expected 'SUM' or 'MEAN'")
    return EmbeddingBagConfig(
        name=table["name"],
        num_embeddings=cast(int, table["num_embeddings"]),
        embedding_dim=cast(int, table["embedding_dim"]),
        feature_names=list(names),
        pooling=PoolingType(pooling),
    )


def _managed_module(config: EmbeddingBagConfig, managed: Any, at: str) -> ManagedCollisionModule:
    if not isinstance(managed, Mapping) or set(managed) != {"eviction", "interval"}:
        raise ValueError(f"{at}: got {str(managed)[:80]}, expected an object with 'eviction' and 'interval'")
    eviction = managed["eviction"]
    if not isinstance(eviction, str) or eviction not in _EVICTION_POLICIES:
        raise ValueError(
            f"{at}.eviction: got {str(eviction)[:80]!r}, expected one of {list(_EVICTION_POLICIES)}"
        )
    _check_sizes(f"{at}.interval", [managed["interval"]])
    return MCHManagedCollisionModule(
        config.num_embeddings, _EVICTION_POLICIES[eviction](), managed["interval"]
    )
