"""ClickModel, which turns logits into probabilities of clicks and into numbers, and the factory that checkpoints name.

Shape letters: B batch, L labels.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
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
from recsys.inputs.columns import LabelColumn, learns_numbers
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
from recsys.modules.crosses import CrossedBags, CrossedBatch, Crossing, given_features
from recsys.ops import is_traced

SequenceCollection = EmbeddingCollection | ManagedCollisionEmbeddingCollection

_REQUIRED = ("name", "num_embeddings", "embedding_dim", "feature_names")
_OPTIONAL = ("pooling", "managed", "crossed")
_EVICTION_POLICIES: dict[str, type[MCHEvictionPolicy]] = {
    "lfu": LFU_EvictionPolicy,
    "lru": LRU_EvictionPolicy,
    "distance_lfu": DistanceLFU_EvictionPolicy,
}


#: A label's loss has a factor of 1/1000 to 1000: one that a model gets right without fail would have an infinite one.
MOST_LOG_VARIANCE = math.log(1000)


class ClickModel(nn.Module):
    """The probability of a click, or the prediction of each of L labels.

    Args:
        model: Maps ``(dense_features, sparse_features)`` to logits ``[B, L]``.
        inputs: The columns that the inputs are made of; None for inputs without transforms and one label.

    Attributes:
        inputs: The same; ``recsys-export`` takes ID policies, text hashes and the dense width from it.
        crossing: Makes the crossed features; None without any.
        uncertainty: The labels' variances, where training learns them; else None.
    """

    def __init__(self, model: nn.Module, inputs: Schema | None = None) -> None:
        super().__init__()
        self.model = model
        self.inputs = inputs
        self.transforms = None if inputs is None else DenseTransforms(inputs.dense)
        self.crossing = None if inputs is None or not inputs.crosses else Crossing(inputs.crosses)
        learns = inputs is not None and inputs.label_weights
        self.uncertainty = LabelUncertainty(num_labels_of(inputs)) if learns else None

    def forward(self, dense_features: Tensor, sparse_features: KeyedJaggedTensor) -> dict[str, Tensor]:
        """Map ``[B, number of dense features]`` and a batch of B rows to the predictions, ``[B]`` each.

        They are probabilities, or numbers in the unit of a label that is a number. They are named ``score``, or by
        their labels where there are several. Without a label, ``score`` is the logit. Tables that hash get rows or raw
        IDs; where features are crossed, raw IDs alone, of which the crossed features are made.
        """
        return self.predictions(dense_features, self._with_crosses(sparse_features))

    def predictions(
        self, dense_features: Tensor | None, sparse_features: KeyedJaggedTensor | CrossedBatch
    ) -> dict[str, Tensor]:
        """Return what ``forward`` does, of a batch as ``logits`` takes it."""
        return self._named(self.logits(dense_features, sparse_features))

    def _with_crosses(self, sparse_features: KeyedJaggedTensor) -> KeyedJaggedTensor | CrossedBatch:
        if self.crossing is None:
            return sparse_features
        found: CrossedBatch = self.crossing(sparse_features)
        return found

    def logits(
        self, dense_features: Tensor | None, sparse_features: KeyedJaggedTensor | CrossedBatch
    ) -> Tensor:
        """Return the logits, ``[B, L]``, for training; a number is one in its label's ``scale``.

        Crossed features are among the others, as training data has them, or the graph made them.
        """
        dense = self.dense_inputs(dense_features, given_features(sparse_features))
        logits: Tensor = self.model(dense, sparse_features)
        return logits

    def dense_inputs(
        self, dense_features: Tensor | None, sparse_features: KeyedJaggedTensor
    ) -> Tensor | None:
        """Return the model's dense features: the transformed ones, then the counts; None where there are none."""
        if self.inputs is not None and not self.inputs.counts and _has_no_columns(dense_features):
            return None
        if self.transforms is not None and dense_features is not None:
            dense_features = self.transforms(dense_features)
        if self.inputs is None or not self.inputs.counts:
            return dense_features
        counts = [sparse_features[name].lengths() for name in self.inputs.counts]
        found = torch.log1p(torch.stack(counts, dim=1).to(torch.float32))
        if dense_features is None:
            return found
        if not is_traced(found):
            found = found.to(dense_features.device)  # in training, sparse features stay in host memory
        return torch.cat((dense_features, found), dim=1)

    def _named(self, logits: Tensor) -> dict[str, Tensor]:
        if self.inputs is not None and not self.inputs.labels:
            return {"score": logits.select(1, 0)}
        names = ("score",) if self.inputs is None or len(self.inputs.labels) == 1 else self.inputs.label_names
        if self.inputs is None or not learns_numbers(self.inputs.labels):
            probabilities = logits.sigmoid()
            return {name: probabilities.select(1, i) for i, name in enumerate(names)}
        labels = zip(names, self.inputs.labels, strict=True)
        return {name: _prediction(logits.select(1, i), label) for i, (name, label) in enumerate(labels)}

    @property
    def dense_widths(self) -> dict[str, int]:
        """The width of each dense argument of ``forward``, where the inputs are known."""
        return {} if self.inputs is None else {"dense_features": len(self.inputs.dense)}


def _has_no_columns(dense_features: Tensor | None) -> bool:
    """Return whether dense features have width 0, as batches in training have them without dense columns."""
    return dense_features is not None and not is_traced(dense_features) and dense_features.size(1) == 0


def _prediction(logits: Tensor, label: LabelColumn) -> Tensor:
    """Return what a label's logits ``[B]`` predict."""
    if not label.is_number:
        return logits.sigmoid()
    mean, std = label.scale
    return logits * std + mean


class LabelUncertainty(nn.Module):
    """The logarithms of the labels' variances, which weigh their losses in training; no output reads them.

    Args:
        num_labels: L.

    Attributes:
        log_variances: ``[L]``; the last step may have left the bounds.
    """

    def __init__(self, num_labels: int) -> None:
        super().__init__()
        self.log_variances = nn.Parameter(torch.zeros(num_labels))

    def reset_parameters(self) -> None:
        """Set all variances to 1."""
        nn.init.zeros_(self.log_variances)

    def bounded(self) -> Tensor:
        """Return the logarithms ``[L]``, between ``-MOST_LOG_VARIANCE`` and that.

        Those that a step brought beyond are set to the bound, so that the next gradient may bring them back.
        """
        with torch.no_grad():
            self.log_variances.clamp_(-MOST_LOG_VARIANCE, MOST_LOG_VARIANCE)
        return self.log_variances


class SparseClickModel(ClickModel):
    """A ClickModel without dense features."""

    def forward(self, sparse_features: KeyedJaggedTensor) -> dict[str, Tensor]:  # type: ignore[override]
        """Map a batch of B rows to the probabilities, ``[B]`` each; see ``ClickModel.forward``."""
        return self.predictions(None, self._with_crosses(sparse_features))

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
    if schema is not None and not schema.dense and not schema.counts:
        return click_model(SparseDLRM(bags, over_arch_layer_sizes), schema)
    check_sizes("dense_in_features", [dense_in_features] if schema is None or schema.dense else [])
    width = transformed_width(schema, dense_in_features)
    return click_model(DLRM(bags, width, dense_arch_layer_sizes, over_arch_layer_sizes), schema)


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
    """Return the number of dense features after the transforms, counts included.

    Raises:
        ValueError: The inputs have another number of dense columns.
    """
    if inputs is None:
        return dense_in_features
    if len(inputs.dense) != dense_in_features:
        raise ValueError(
            f"dense_in_features: got {dense_in_features}, expected {len(inputs.dense)}, the dense columns of inputs"
        )
    return sum(column.width for column in inputs.dense) + len(inputs.counts)


def bag_collection(tables: Sequence[Mapping[str, Any]]) -> BagCollection:
    """Return the tables of a model from plain data.

    Args:
        tables: For each its ``name``, ``num_embeddings``, ``embedding_dim``, ``feature_names`` and, if it is
            not "SUM", its ``pooling`` ("SUM" or "MEAN"). A table of raw IDs has ``managed`` too: an object
            with ``eviction`` ("lfu", "lru" or "distance_lfu") and ``interval``, batches between two
            admissions, and perhaps ``buckets``, parts of the mapping that ranks share; or with ``eviction`` "none",
            for a vocabulary that never changes. Tables of crossed features have ``crossed``, true, and are the
            last.

    Raises:
        ValueError: A field is missing, unknown, of another type, or does not fit the others.
    """
    table_configs(tables)
    given = [table for table in tables if not table.get("crossed")]
    crossed = tables[len(given) :]
    if not crossed:
        return _given_bags(tables)
    if not given or not all(table.get("crossed") is True for table in crossed):
        raise ValueError('tables: expected the crossed ones, with "crossed": true, behind others')
    return CrossedBags(_given_bags(given), EmbeddingBagCollection(tables=table_configs(crossed)))


def _given_bags(
    tables: Sequence[Mapping[str, Any]],
) -> EmbeddingBagCollection | ManagedCollisionEmbeddingBagCollection:
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
