"""The factories of PLE, MaskNet, FinalMLP and WuKong, from plain data, as in a checkpoint.

Each takes ``tables`` and ``inputs`` as ``recsys.models.click.build_dlrm`` does, and raises ValueError for sizes that do
not fit.

Shape letters: B batch, D embedding dimension, F features, L labels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from recsys.jagged.keyed_jagged import KeyedJaggedTensor
from recsys.models.click import (
    ClickModel,
    bag_collection,
    check_sizes,
    click_model,
    num_labels_of,
    schema_of,
    transformed_width,
)
from recsys.models.dlrm import BagCollection
from recsys.models.networks.final_mlp import TwoStreams
from recsys.models.networks.masknet import MaskNetwork
from recsys.models.networks.ple import ProgressiveExtraction
from recsys.models.networks.wukong import InteractionNetwork
from recsys.models.zoo import FactorizedModel, FlatModel, Tables, flat, place_features


class InteractionModel(FlatModel):
    """A FlatModel whose network takes the dense features and the vectors ``[B, F, D]`` apart."""

    def forward(self, dense_features: Tensor | None, sparse_features: KeyedJaggedTensor) -> Tensor:
        """Score a batch: logits ``[B, L]``."""
        logits: Tensor = self.network(dense_features, self.sparse_arch(sparse_features))
        return logits


class TwoStreamModel(FlatModel):
    """A FlatModel whose network also takes the contexts of its two gates.

    Args:
        bags: The tables, all of the same ``embedding_dim``.
        dense_width: Number of dense features after the transforms; they are the user's.
        item_features: The items' sparse features; none where both gates read all features.

    Raises:
        ValueError: A feature is unknown, or the user would have none.
    """

    user_places: Tensor
    item_places: Tensor

    def __init__(self, bags: BagCollection, dense_width: int, item_features: Sequence[str]) -> None:
        super().__init__(bags, dense_width)
        self.is_split = bool(item_features)
        widths = place_features(self, self.sparse_arch, item_features, dense_width)
        self.context_widths = widths if self.is_split else (self.width, self.width)

    def forward(self, dense_features: Tensor | None, sparse_features: KeyedJaggedTensor) -> Tensor:
        """Score a batch: logits ``[B, L]``."""
        vectors = self.sparse_arch(sparse_features)
        features = flat(dense_features, vectors)
        first = second = features
        if self.is_split:
            first = flat(dense_features, vectors.index_select(1, self.user_places))
            second = flat(None, vectors.index_select(1, self.item_places))
        logits: Tensor = self.network(features, first, second)
        return logits


def build_ple(
    *,
    tables: Tables,
    dense_in_features: int,
    experts: Mapping[str, Any],
    expert_layer_sizes: Sequence[int],
    tower_layer_sizes: Sequence[int],
    inputs: Mapping[str, Any] | None = None,
) -> ClickModel:
    """Return a PLE; ``experts`` has ``levels`` and ``number``, experts of each label, and shared ones as many."""
    num_levels, num_experts = _sizes("experts", experts, "levels", "number")
    check_sizes("expert_layer_sizes", expert_layer_sizes)
    check_sizes("tower_layer_sizes", tower_layer_sizes)
    schema = schema_of(inputs)
    model = FlatModel(bag_collection(tables), transformed_width(schema, dense_in_features))
    model.network = ProgressiveExtraction(
        model.width,
        num_labels_of(schema),
        num_levels,
        num_experts,
        expert_layer_sizes,
        tower_layer_sizes,
    )
    return click_model(model, schema)


def build_masknet(
    *,
    tables: Tables,
    dense_in_features: int,
    num_blocks: int,
    layer_sizes: Sequence[int],
    inputs: Mapping[str, Any] | None = None,
) -> ClickModel:
    """Return a MaskNet; ``layer_sizes`` are a block's, then those over all blocks before the logits."""
    check_sizes("num_blocks", [num_blocks])
    check_sizes("layer_sizes", layer_sizes)
    if len(layer_sizes) < 2:
        raise ValueError(
            f"layer_sizes: got {list(layer_sizes)}, expected a block's size and one over all at least"
        )
    schema = schema_of(inputs)
    model = FactorizedModel(bag_collection(tables), transformed_width(schema, dense_in_features))
    arch = model.sparse_arch
    model.network = MaskNetwork(
        model.width, arch.F, arch.D, num_blocks, [*layer_sizes, num_labels_of(schema)]
    )
    return click_model(model, schema)


def build_finalmlp(
    *,
    tables: Tables,
    dense_in_features: int,
    item_features: Sequence[str],
    stream_layer_sizes: Sequence[int],
    num_heads: int,
    inputs: Mapping[str, Any] | None = None,
) -> ClickModel:
    """Return a FinalMLP; without ``item_features`` both gates read all features."""
    check_sizes("stream_layer_sizes", stream_layer_sizes)
    check_sizes("num_heads", [num_heads])
    if not stream_layer_sizes or stream_layer_sizes[-1] % num_heads:
        raise ValueError(
            f"num_heads: got {num_heads}, expected a divisor of the last of stream_layer_sizes "
            f"{list(stream_layer_sizes)}"
        )
    schema = schema_of(inputs)
    model = TwoStreamModel(
        bag_collection(tables), transformed_width(schema, dense_in_features), item_features
    )
    model.network = TwoStreams(
        model.width, model.context_widths, stream_layer_sizes, num_heads, num_labels_of(schema)
    )
    return click_model(model, schema)


def build_wukong(
    *,
    tables: Tables,
    dense_in_features: int,
    interaction: Mapping[str, Any],
    layer_sizes: Sequence[int],
    inputs: Mapping[str, Any] | None = None,
) -> ClickModel:
    """Return a WuKong; ``interaction`` has ``layers``, ``vectors`` of a layer's machine, and ``rank``."""
    num_layers, num_outputs, rank = _sizes("interaction", interaction, "layers", "vectors", "rank")
    check_sizes("layer_sizes", layer_sizes)
    schema = schema_of(inputs)
    width = transformed_width(schema, dense_in_features)
    model = InteractionModel(bag_collection(tables), width)
    arch = model.sparse_arch
    model.network = InteractionNetwork(
        width, arch.F, arch.D, (num_layers, num_outputs, rank), [*layer_sizes, num_labels_of(schema)]
    )
    return click_model(model, schema)


def _sizes(at: str, data: Any, *names: str) -> list[int]:
    """Return the sizes of an object, in the order of their names."""
    if not isinstance(data, Mapping) or sorted(map(str, data)) != sorted(names):
        raise ValueError(f"{at}: got {str(data)[:200]}, expected an object with {list(names)}")
    for name in names:
        check_sizes(f"{at}.{name}", [data[name]])
    return [data[name] for name in names]
