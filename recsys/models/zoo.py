"""The factories of the other models: DCN-v2, DeepFM, DIN, MMoE and two towers, from plain data, as in a checkpoint.

Each takes ``tables`` and ``inputs`` as ``recsys.models.click.build_dlrm`` does, and raises ValueError for sizes that do
not fit.

Shape letters: B batch, D embedding dimension, F features, L labels, N width of the flat input.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor, nn

from recsys.jagged.keyed_jagged import KeyedJaggedTensor
from recsys.models.click import (
    ClickModel,
    bag_collection,
    check_sizes,
    click_model,
    num_labels_of,
    schema_of,
    sequence_collection,
    split_item_table,
    transformed_width,
)
from recsys.models.dcn import CrossAndDeep
from recsys.models.din import AttentionConfig, DeepInterestNetwork
from recsys.models.dlrm import BagCollection, SparseArch
from recsys.models.factorization import FactorizedNetwork
from recsys.models.mmoe import MultiGateExperts
from recsys.models.two_tower import TwoTowers

Tables = Sequence[Mapping[str, Any]]


class FlatModel(nn.Module):
    """A network over the dense features and the features' vectors, side by side.

    Args:
        bags: The tables, all of the same ``embedding_dim``.
        dense_width: Number of dense features after the transforms.

    Attributes:
        width: N.
    """

    network: nn.Module

    def __init__(self, bags: BagCollection, dense_width: int) -> None:
        super().__init__()
        self.sparse_arch = SparseArch(bags)
        self.width = dense_width + self.sparse_arch.F * self.sparse_arch.D

    def forward(self, dense_features: Tensor | None, sparse_features: KeyedJaggedTensor) -> Tensor:
        """Score a batch: logits ``[B, L]``."""
        logits: Tensor = self.network(flat(dense_features, self.sparse_arch(sparse_features)))
        return logits


class FactorizedModel(FlatModel):
    """A FlatModel whose network also takes the vectors ``[B, F, D]``."""

    def forward(self, dense_features: Tensor | None, sparse_features: KeyedJaggedTensor) -> Tensor:
        """Score a batch: logits ``[B, L]``."""
        vectors = self.sparse_arch(sparse_features)
        logits: Tensor = self.network(flat(dense_features, vectors), vectors)
        return logits


class TwoTowerModel(nn.Module):
    """Two towers over the users' and the items' features; the dense features are the user's.

    Args:
        bags: The tables, all of the same ``embedding_dim``.
        dense_width: Number of dense features after the transforms.
        item_features: The items' sparse features, at least one; the others are the user's.
        layer_sizes: Sizes of each tower's layers.

    Raises:
        ValueError: A feature is unknown, or one of the towers would have none.
    """

    user_places: Tensor
    item_places: Tensor

    def __init__(
        self, bags: BagCollection, dense_width: int, item_features: Sequence[str], layer_sizes: Sequence[int]
    ) -> None:
        super().__init__()
        self.sparse_arch = SparseArch(bags)
        if not item_features:
            raise _wrong_items(item_features, self.sparse_arch.sparse_feature_names)
        self.item_features = tuple(item_features)
        widths = place_features(self, self.sparse_arch, item_features, dense_width)
        self.towers = TwoTowers(*widths, layer_sizes)

    def forward(self, dense_features: Tensor | None, sparse_features: KeyedJaggedTensor) -> Tensor:
        """Score a batch: logits ``[B, 1]``."""
        logits: Tensor = self.towers(*self._inputs(dense_features, sparse_features))
        return logits

    def vectors(
        self, dense_features: Tensor | None, sparse_features: KeyedJaggedTensor
    ) -> tuple[Tensor, Tensor]:
        """Return the vectors of users and of items, ``[B, D]`` each, whose products are the logits, to learn from."""
        user, item = self._inputs(dense_features, sparse_features)
        return self.towers.user(user), self.towers.item_vectors(item)

    def _inputs(
        self, dense_features: Tensor | None, sparse_features: KeyedJaggedTensor
    ) -> tuple[Tensor, Tensor]:
        vectors = self.sparse_arch(sparse_features)
        user = flat(dense_features, vectors.index_select(1, self.user_places))
        return user, flat(None, vectors.index_select(1, self.item_places))

    @property
    def user_features(self) -> tuple[str, ...]:
        """The user's sparse features."""
        return tuple(name for name in self.sparse_arch.sparse_feature_names if name not in self.item_features)

    def item_vectors(self, sparse_features: KeyedJaggedTensor) -> Tensor:
        """Return the item tower's vectors, scaled so that their product with a user's is the logit, ``[B, D]``.

        Features of the user are not read, and may be empty bags.
        """
        vectors = self.sparse_arch(sparse_features)
        return self.towers.item_vectors(flat(None, vectors.index_select(1, self.item_places)))


def place_features(
    model: nn.Module, arch: SparseArch, item_features: Sequence[str], dense_width: int
) -> tuple[int, int]:
    """Give a model the buffers ``user_places`` and ``item_places``, where the features of each lie among the vectors.

    Args:
        model: The model.
        arch: What looks up the vectors.
        item_features: The items' sparse features.
        dense_width: Number of dense features; they are the user's.

    Returns:
        Numbers of the user and of an item.

    Raises:
        ValueError: A feature is unknown, or the user would have none.
    """
    names = arch.sparse_feature_names
    if set(item_features) - set(names) or (set(item_features) == set(names) and not dense_width):
        raise _wrong_items(item_features, names)
    places = {True: list[int](), False: list[int]()}
    for place, name in enumerate(names):
        places[name in item_features].append(place)
    # The device is named because the places are in no checkpoint.
    model.register_buffer("user_places", torch.tensor(places[False], device="cpu"), persistent=False)
    model.register_buffer("item_places", torch.tensor(places[True], device="cpu"), persistent=False)
    return dense_width + len(places[False]) * arch.D, len(places[True]) * arch.D


def _wrong_items(item_features: Sequence[str], names: Sequence[str]) -> ValueError:
    return ValueError(
        f"item_features: got {list(item_features)}, expected some of {list(names)}, and features for the user"
    )


def towers_of(model: nn.Module) -> TwoTowerModel:
    """Return the towers of a trained model.

    Raises:
        ValueError: It has none.
    """
    towers = model.model if isinstance(model, ClickModel) else model
    if not isinstance(towers, TwoTowerModel):
        raise ValueError(
            f"model: got a {type(towers).__name__}, which has no towers, expected one of "
            "recsys-train --model twotower"
        )
    return towers


def flat(dense_features: Tensor | None, vectors: Tensor) -> Tensor:
    """Return ``[B, N]`` from dense features ``[B, C]`` and vectors ``[B, F, D]``."""
    features = vectors.flatten(1)
    return features if dense_features is None else torch.cat((dense_features, features), dim=1)


def build_dcn(
    *,
    tables: Tables,
    dense_in_features: int,
    num_cross_layers: int,
    cross_rank: int,
    deep_layer_sizes: Sequence[int],
    inputs: Mapping[str, Any] | None = None,
) -> ClickModel:
    """Return a DCN-v2; a ``cross_rank`` of 0 makes cross layers of full rank."""
    check_sizes("num_cross_layers", [num_cross_layers])
    check_sizes("cross_rank", [cross_rank] if cross_rank else [])
    check_sizes("deep_layer_sizes", deep_layer_sizes)
    schema = schema_of(inputs)
    model = FlatModel(bag_collection(tables), transformed_width(schema, dense_in_features))
    model.network = CrossAndDeep(
        model.width, num_labels_of(schema), num_cross_layers, cross_rank, deep_layer_sizes
    )
    return click_model(model, schema)


def build_deepfm(
    *,
    tables: Tables,
    dense_in_features: int,
    deep_layer_sizes: Sequence[int],
    inputs: Mapping[str, Any] | None = None,
) -> ClickModel:
    """Return a DeepFM."""
    check_sizes("deep_layer_sizes", deep_layer_sizes)
    schema = schema_of(inputs)
    model = FactorizedModel(bag_collection(tables), transformed_width(schema, dense_in_features))
    model.network = FactorizedNetwork(
        model.width, model.sparse_arch.D, num_labels_of(schema), deep_layer_sizes
    )
    return click_model(model, schema)


def build_din(
    *,
    tables: Tables,
    dense_in_features: int,
    attention: Mapping[str, Any],
    over_layer_sizes: Sequence[int],
    inputs: Mapping[str, Any] | None = None,
) -> ClickModel:
    """Return a DIN.

    Args:
        tables: As for ``build_dlrm``. One has the history and the target and no other feature; its rows are not
            pooled.
        dense_in_features: Number of dense features.
        attention: The fields of ``recsys.models.din.AttentionConfig``.
        over_layer_sizes: Sizes of the layers before the logits.
        inputs: As for ``build_dlrm``.
    """
    check_sizes("over_layer_sizes", over_layer_sizes)
    config = _attention(attention)
    schema = schema_of(inputs)
    of_items, others = split_item_table(tables, config.history, config.target)
    model = DeepInterestNetwork(
        sequence_collection([of_items]),
        bag_collection(others) if others else None,
        transformed_width(schema, dense_in_features),
        config,
        [*over_layer_sizes, num_labels_of(schema)],
    )
    return click_model(model, schema)


def build_mmoe(
    *,
    tables: Tables,
    dense_in_features: int,
    num_experts: int,
    expert_layer_sizes: Sequence[int],
    tower_layer_sizes: Sequence[int],
    inputs: Mapping[str, Any] | None = None,
) -> ClickModel:
    """Return an MMoE."""
    check_sizes("num_experts", [num_experts])
    check_sizes("expert_layer_sizes", expert_layer_sizes)
    check_sizes("tower_layer_sizes", tower_layer_sizes)
    schema = schema_of(inputs)
    model = FlatModel(bag_collection(tables), transformed_width(schema, dense_in_features))
    model.network = MultiGateExperts(
        model.width, num_labels_of(schema), num_experts, expert_layer_sizes, tower_layer_sizes
    )
    return click_model(model, schema)


def build_two_tower(
    *,
    tables: Tables,
    dense_in_features: int,
    item_features: Sequence[str],
    tower_layer_sizes: Sequence[int],
    inputs: Mapping[str, Any] | None = None,
) -> ClickModel:
    """Return two towers; they have one label."""
    check_sizes("tower_layer_sizes", tower_layer_sizes)
    schema = schema_of(inputs)
    if num_labels_of(schema) != 1:
        raise ValueError(
            f"inputs.labels: got {num_labels_of(schema)}, expected one: two towers give one score"
        )
    width = transformed_width(schema, dense_in_features)
    return click_model(TwoTowerModel(bag_collection(tables), width, item_features, tower_layer_sizes), schema)


def _attention(data: Mapping[str, Any]) -> AttentionConfig:
    names = [field.name for field in fields(AttentionConfig)]
    if not isinstance(data, Mapping) or sorted(data) != sorted(names):
        raise ValueError(f"attention: got {str(data)[:200]}, expected an object with {names}")
    for name in ("history", "target"):
        if not isinstance(data[name], str):
            raise ValueError(f"attention.{name}: got {str(data[name])[:80]}, expected the name of a feature")
    check_sizes("attention.max_history", [data["max_history"]])
    check_sizes("attention.layer_sizes", data["layer_sizes"])
    if type(data["softmax"]) is not bool:
        raise ValueError(f"attention.softmax: got {str(data['softmax'])[:80]}, expected true or false")
    return AttentionConfig(**data)
