"""ClickModel, which turns logits into the probability of a click, and the factory that checkpoints name.

Shape letters: B batch, L labels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from torch import Tensor, nn

from recsys import (
    EmbeddingBagCollection,
    EmbeddingBagConfig,
    EmbeddingCollection,
    EmbeddingConfig,
    KeyedJaggedTensor,
    PoolingType,
)
from recsys.configs import BaseEmbeddingConfig
from recsys.inputs.schema import Schema
from recsys.managed import (
    DistanceLFU_EvictionPolicy,
    LFU_EvictionPolicy,
    LRU_EvictionPolicy,
    ManagedCollisionCollection,
    ManagedCollisionEmbeddingBagCollection,
    ManagedCollisionEmbeddingCollection,
    ManagedCollisionModule,
    MCHEvictionPolicy,
    MCHManagedCollisionModule,
    VocabularyModule,
)
from recsys.models.dense import DenseTransforms
from recsys.models.dlrm import DLRM, BagCollection, SparseDLRM

SequenceCollection = EmbeddingCollection | ManagedCollisionEmbeddingCollection

_REQUIRED = ("name", "num_embeddings", "embedding_dim", "feature_names")
_OPTIONAL = ("pooling", "managed")
_EVICTION_POLICIES: dict[str, type[MCHEvictionPolicy]] = {
    "lfu": LFU_EvictionPolicy,
    "lru": LRU_EvictionPolicy,
    "distance_lfu": DistanceLFU_EvictionPolicy,
}


class ClickModel(nn.Module):
    """The probability of a click, or of each of L labels.

    Args:
        model: Maps ``(dense_features, sparse_features)`` to logits ``[B, L]``.
        inputs: The columns that the inputs are made of; None for inputs without transforms and one label.

    Attributes:
        inputs: The same; ``recsys-export`` takes ID policies, text hashes and the dense width from it.
    """

    def __init__(self, model: nn.Module, inputs: Schema | None = None) -> None:
        super().__init__()
        self.model = model
        self.inputs = inputs
        self.transforms = None if inputs is None else DenseTransforms(inputs.dense)

    def forward(self, dense_features: Tensor, sparse_features: KeyedJaggedTensor) -> dict[str, Tensor]:
        """Map ``[B, number of dense features]`` and a batch of B rows to the probabilities, ``[B]`` each.

        They are named ``score``, or by their labels where there are several. Without a label, ``score`` is the logit.
        """
        return self._named(self.logits(dense_features, sparse_features))

    def logits(self, dense_features: Tensor | None, sparse_features: KeyedJaggedTensor) -> Tensor:
        """Return the logits, ``[B, L]``, for training."""
        if self.transforms is not None and dense_features is not None:
            dense_features = self.transforms(dense_features)
        logits: Tensor = self.model(dense_features, sparse_features)
        return logits

    def _named(self, logits: Tensor) -> dict[str, Tensor]:
        if self.inputs is not None and not self.inputs.labels:
            return {"score": logits.select(1, 0)}
        names = ("score",) if self.inputs is None or len(self.inputs.labels) == 1 else self.inputs.label_names
        probabilities = logits.sigmoid()
        return {name: probabilities.select(1, i) for i, name in enumerate(names)}

    @property
    def dense_widths(self) -> dict[str, int]:
        """The width of each dense argument of ``forward``, where the inputs are known."""
        return {} if self.inputs is None else {"dense_features": len(self.inputs.dense)}


class SparseClickModel(ClickModel):
    """A ClickModel without dense features."""

    def forward(self, sparse_features: KeyedJaggedTensor) -> dict[str, Tensor]:  # type: ignore[override]
        """Map a batch of B rows to the probabilities, ``[B]`` each; see ``ClickModel.forward``."""
        return self._named(self.logits(None, sparse_features))

    @property
    def dense_widths(self) -> dict[str, int]:
        """Empty."""
        return {}


def click_model(model: nn.Module, inputs: Schema | None) -> ClickModel:
    """Return a ClickModel with the arguments that its inputs need."""
    has_dense = inputs is None or inputs.dense
    return ClickModel(model, inputs) if has_dense else SparseClickModel(model, inputs)


def build_dlrm(
    *,
    tables: Sequence[Mapping[str, Any]],
    dense_in_features: int,
    dense_arch_layer_sizes: Sequence[int],
    over_arch_layer_sizes: Sequence[int],
    inputs: Mapping[str, Any] | None = None,
) -> ClickModel:
    """Return a DLRM from plain data, as in a checkpoint.

    Args:
        tables: See ``bag_collection``.
        dense_in_features: Number of dense features; 0 is possible with ``inputs``.
        dense_arch_layer_sizes: The last one is the tables' ``embedding_dim``.
        over_arch_layer_sizes: The last one is the number of labels.
        inputs: The columns of the inputs, as ``Schema.to_json`` gives them.

    Raises:
        ValueError: A field is missing, unknown, of another type, or does not fit the others.
    """
    schema = schema_of(inputs)
    num_labels = num_labels_of(schema)
    check_sizes("dense_arch_layer_sizes", dense_arch_layer_sizes)
    check_sizes("over_arch_layer_sizes", over_arch_layer_sizes)
    if list(over_arch_layer_sizes)[-1:] != [num_labels]:
        raise ValueError(
            f"over_arch_layer_sizes: got {list(over_arch_layer_sizes)}, expected the last to be {num_labels}: "
            "one logit per label"
        )
    bags = bag_collection(tables)
    if schema is not None and not schema.dense:
        return click_model(SparseDLRM(bags, over_arch_layer_sizes), schema)
    check_sizes("dense_in_features", [dense_in_features])
    model = DLRM(
        bags, transformed_width(schema, dense_in_features), dense_arch_layer_sizes, over_arch_layer_sizes
    )
    return click_model(model, schema)


def schema_of(inputs: Mapping[str, Any] | None) -> Schema | None:
    """Return the columns of a factory's argument ``inputs``; None without it."""
    return None if inputs is None else Schema.from_json(inputs)


def num_labels_of(schema: Schema | None) -> int:
    """Return the number of labels; 1 where the columns are not known.

    Raises:
        ValueError: There are none.
    """
    if schema is not None and not schema.labels:
        raise ValueError("inputs.labels: got none, expected at least one: the model learns labels")
    return 1 if schema is None else len(schema.labels)


def transformed_width(inputs: Schema | None, dense_in_features: int) -> int:
    """Return the number of dense features after the transforms.

    Raises:
        ValueError: The inputs have another number of dense columns.
    """
    if inputs is None:
        return dense_in_features
    if len(inputs.dense) != dense_in_features:
        raise ValueError(
            f"dense_in_features: got {dense_in_features}, expected {len(inputs.dense)}, the dense columns of inputs"
        )
    return sum(column.width for column in inputs.dense)


def bag_collection(tables: Sequence[Mapping[str, Any]]) -> BagCollection:
    """Return the tables of a model from plain data.

    Args:
        tables: For each its ``name``, ``num_embeddings``, ``embedding_dim``, ``feature_names`` and, if it is
            not "SUM", its ``pooling`` ("SUM" or "MEAN"). A table of raw IDs has ``managed`` too: an object
            with ``eviction`` ("lfu", "lru" or "distance_lfu") and ``interval``, batches between two
            admissions, and perhaps ``buckets``, parts of the mapping that ranks share; or with ``eviction`` "none",
            for a vocabulary that never changes.

    Raises:
        ValueError: A field is missing, unknown, of another type, or does not fit the others.
    """
    configs = table_configs(tables)
    tables_of_rows = EmbeddingBagCollection(tables=configs)
    mapping = _mapping(tables, configs)
    if mapping is None:
        return tables_of_rows
    return ManagedCollisionEmbeddingBagCollection(tables_of_rows, mapping, embeddings_only=True)


def sequence_collection(tables: Sequence[Mapping[str, Any]]) -> SequenceCollection:
    """Return tables whose rows are not pooled, from plain data; see ``bag_collection``.

    Raises:
        ValueError: A field is missing, unknown, of another type, or does not fit the others.
    """
    configs = [
        EmbeddingConfig(
            name=table.name,
            num_embeddings=table.num_embeddings,
            embedding_dim=table.embedding_dim,
            feature_names=table.feature_names,
        )
        for table in table_configs(tables)
    ]
    tables_of_rows = EmbeddingCollection(tables=configs)
    mapping = _mapping(tables, configs)
    if mapping is None:
        return tables_of_rows
    return ManagedCollisionEmbeddingCollection(tables_of_rows, mapping, embeddings_only=True)


def table_configs(tables: Sequence[Mapping[str, Any]]) -> list[EmbeddingBagConfig]:
    """Return the tables of ``bag_collection`` without their mappings.

    Raises:
        ValueError: A field is missing, unknown or of another type.
    """
    if not isinstance(tables, Sequence) or not all(isinstance(table, Mapping) for table in tables):
        raise ValueError("tables: expected a list of objects")
    return [_table_config(table, f"tables[{i}]") for i, table in enumerate(tables)]


def split_item_table(
    tables: Sequence[Mapping[str, Any]], history: str, target: str
) -> tuple[Mapping[str, Any], Sequence[Mapping[str, Any]]]:
    """Return the table of a history and a target, and the others.

    Args:
        tables: See ``bag_collection``.
        history: The feature of the history.
        target: The feature of the target.

    Raises:
        ValueError: They have not one table, or it has other features too.
    """
    table_of = {name: i for i, table in enumerate(table_configs(tables)) for name in table.feature_names}
    for field, name in (("history", history), ("target", target)):
        if name not in table_of:
            raise ValueError(f"{field}: got {name!r}, expected one of the sparse features {sorted(table_of)}")
    at = table_of[history]
    of_history, of_target = tables[at], tables[table_of[target]]
    if history == target or of_history is not of_target:
        raise ValueError(
            f"history, target: got {history!r} of table {of_history['name']!r} and {target!r} of table "
            f"{of_target['name']!r}, expected two features of one table: name both in the features of one table of "
            "the schema"
        )
    more = sorted(set(of_history["feature_names"]) - {history, target})
    if more:
        raise ValueError(
            f"table {of_history['name']!r}: got the features {more} beside history and target, expected these two "
            "alone: name others in the features of another table"
        )
    return of_history, [table for i, table in enumerate(tables) if i != at]


def check_sizes(at: str, sizes: object) -> None:
    """Check that layer sizes are whole numbers of at least 1.

    Raises:
        ValueError: They are something else; the message names them by ``at``.
    """
    if not isinstance(sizes, list | tuple) or not all(type(size) is int and size >= 1 for size in sizes):
        raise ValueError(f"{at}: got {str(sizes)[:80]}, expected whole numbers of at least 1")


def _table_config(table: Mapping[str, Any], at: str) -> EmbeddingBagConfig:
    wrong = sorted(map(str, set(_REQUIRED) - set(table) | set(table) - {*_REQUIRED, *_OPTIONAL}))
    if wrong:
        raise ValueError(
            f"{at}: missing or unknown fields {wrong}, expected {list(_REQUIRED)} and perhaps {list(_OPTIONAL)}"
        )
    check_sizes(f"{at}.num_embeddings", [table["num_embeddings"]])
    check_sizes(f"{at}.embedding_dim", [table["embedding_dim"]])
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


def _mapping(
    tables: Sequence[Mapping[str, Any]], configs: Sequence[BaseEmbeddingConfig]
) -> ManagedCollisionCollection | None:
    """Return the mapping of raw IDs to rows; None if no table has raw IDs."""
    managed = {
        config.name: _managed_module(config, table["managed"], f"tables[{i}].managed")
        for i, (config, table) in enumerate(zip(configs, tables, strict=True))
        if "managed" in table
    }
    return ManagedCollisionCollection(managed, configs) if managed else None


def _managed_module(config: BaseEmbeddingConfig, managed: Any, at: str) -> ManagedCollisionModule:
    if managed == {"eviction": "none"}:
        return VocabularyModule(config.num_embeddings)
    if not isinstance(managed, Mapping) or set(managed) - {"buckets"} != {"eviction", "interval"}:
        raise ValueError(
            f"{at}: got {str(managed)[:80]}, expected an object with 'eviction' and 'interval', and perhaps 'buckets'"
        )
    eviction = managed["eviction"]
    if not isinstance(eviction, str) or eviction not in _EVICTION_POLICIES:
        raise ValueError(
            f"{at}.eviction: got {str(eviction)[:80]!r}, expected one of {list(_EVICTION_POLICIES)}"
        )
    buckets = managed.get("buckets", 1)
    check_sizes(f"{at}.interval", [managed["interval"]])
    check_sizes(f"{at}.buckets", [buckets])
    if config.num_embeddings % buckets:
        raise ValueError(
            f"{at}.buckets: got {buckets}, expected a divisor of {config.num_embeddings}, the table's num_embeddings"
        )
    return MCHManagedCollisionModule(
        config.num_embeddings, None, _EVICTION_POLICIES[eviction](), managed["interval"], buckets=buckets
    )
