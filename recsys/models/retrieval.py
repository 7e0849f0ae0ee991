"""Retrieval: the user tower of a two-tower model and the K items whose vectors score best, in one graph.

Shape letters: B batch, C dense features, D width of the towers' vectors, K items of an answer, N number of items.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection

import torch
from torch import Tensor, nn
from torch.nn import functional

from recsys import EmbeddingBagCollection, KeyedJaggedTensor
from recsys.configs import tables_with
from recsys.inputs.schema import Schema
from recsys.managed import (
    ManagedCollisionCollection,
    ManagedCollisionEmbeddingBagCollection,
    ManagedCollisionModule,
)
from recsys.models.click import ClickModel
from recsys.models.dense import DenseTransforms
from recsys.models.dlrm import BagCollection, SparseArch
from recsys.models.zoo import TwoTowerModel, flat, towers_of


class UserTower(nn.Module):
    """The user's part of a two-tower model, with the tables of the user's features alone.

    Args:
        towers: The model, with sparse features of the user. Weights are shared with it.
        transforms: The transforms of its dense features; None without any.

    Attributes:
        width: D.
    """

    def __init__(self, towers: TwoTowerModel, transforms: DenseTransforms | None) -> None:
        super().__init__()
        self.transforms = transforms
        self.sparse_arch = SparseArch(
            bags_with(towers.sparse_arch.embedding_bag_collection, towers.user_features)
        )
        self.layers = towers.towers.user
        self.width = towers.towers.width

    def forward(self, dense_features: Tensor | None, sparse_features: KeyedJaggedTensor) -> Tensor:
        """Map ``[B, C]`` and a batch of B rows to the users' vectors ``[B, D]``."""
        if self.transforms is not None and dense_features is not None:
            dense_features = self.transforms(dense_features)
        vectors: Tensor = self.layers(flat(dense_features, self.sparse_arch(sparse_features)))
        return vectors


class RetrievalModel(nn.Module):
    """The K items that score best for a user, out of N whose vectors are constants.

    Args:
        user_tower: The user's part.
        vectors: The items' vectors, float32 ``[N, D]``; a product with a user's is a score.
        num_results: K.
        inputs: The user's columns; None for inputs without transforms.

    Attributes:
        inputs: The same; ``recsys-export`` takes ID policies, text hashes and the dense width from it.

    Raises:
        ValueError: K is not in 1 to N, or the vectors are no finite float32 ``[N, D]``.
    """

    vectors: Tensor

    def __init__(
        self, user_tower: UserTower, vectors: Tensor, num_results: int, inputs: Schema | None = None
    ) -> None:
        super().__init__()
        _check_vectors(vectors, user_tower.width)
        if not 1 <= num_results <= len(vectors):
            raise ValueError(f"top_k: got {num_results}, expected 1 to {len(vectors)}, the number of items")
        self.user_tower = user_tower
        self.num_results = num_results
        self.inputs = inputs
        self.register_buffer("vectors", vectors, persistent=False)

    def forward(self, dense_features: Tensor, sparse_features: KeyedJaggedTensor) -> dict[str, Tensor]:
        """Return ``scores``, float32, descending, and ``items``, int64, their rows of ``vectors``: ``[B, K]`` each.

        A score is the logit of the two-tower model for the user and the item.
        """
        return self._best(self.user_vectors(dense_features, sparse_features))

    def user_vectors(self, dense_features: Tensor | None, sparse_features: KeyedJaggedTensor) -> Tensor:
        """Return the users' vectors ``[B, D]``."""
        vectors: Tensor = self.user_tower(dense_features, sparse_features)
        return vectors

    def _best(self, users: Tensor) -> dict[str, Tensor]:
        best = torch.topk(functional.linear(users, self.vectors), self.num_results, dim=1)
        return {"scores": best[0], "items": best[1]}

    @property
    def dense_widths(self) -> dict[str, int]:
        """The width of each dense argument of ``forward``, where the inputs are known."""
        return {} if self.inputs is None else {"dense_features": len(self.inputs.dense)}


class SparseRetrievalModel(RetrievalModel):
    """A RetrievalModel without dense features."""

    def forward(self, sparse_features: KeyedJaggedTensor) -> dict[str, Tensor]:  # type: ignore[override]
        """Return the K best items of a batch of B rows; see ``RetrievalModel.forward``."""
        return self._best(self.user_vectors(sparse_features))

    def user_vectors(self, sparse_features: KeyedJaggedTensor) -> Tensor:  # type: ignore[override]
        """Return the users' vectors ``[B, D]``."""
        return super().user_vectors(None, sparse_features)

    @property
    def dense_widths(self) -> dict[str, int]:
        """Empty."""
        return {}


def retrieval_model(model: nn.Module, vectors: Tensor, num_results: int) -> RetrievalModel:
    """Return the retrieval of a trained two-tower model's items; it shares the model's weights.

    Args:
        model: What ``recsys-train --model twotower`` trained.
        vectors: The items' vectors that it gave, float32 ``[N, D]``.
        num_results: K.

    Raises:
        ValueError: The model has no towers or no sparse features of the user, or the vectors or K do not fit.
    """
    towers = towers_of(model)
    if not towers.user_features:
        raise ValueError(
            f"model: got the sparse features {list(towers.item_features)}, which are all the items', expected one of "
            "the user at least"
        )
    inputs, transforms = None, None
    if isinstance(model, ClickModel) and model.inputs is not None:
        if model.inputs.counts:
            raise ValueError(
                f"model: got the counts {list(model.inputs.counts)} in its schema, expected none for retrieval"
            )
        inputs, transforms = model.inputs.with_sparse(towers.user_features), model.transforms
    user_tower = UserTower(towers, transforms)
    has_dense = inputs is None or inputs.dense
    return (RetrievalModel if has_dense else SparseRetrievalModel)(user_tower, vectors, num_results, inputs)


def bags_with(bags: BagCollection, features: Collection[str]) -> BagCollection:
    """Return a collection of some features alone; weights and mappings of raw IDs are shared.

    Args:
        bags: The collection, which is not changed.
        features: At least one of its features.
    """
    tables = tables_with(bags.embedding_bag_configs(), features)
    managed: dict[str, ManagedCollisionModule] = {}
    rows: nn.Module = bags
    if isinstance(bags, ManagedCollisionEmbeddingBagCollection):
        managed = bags.managed_collision_collection.managed_collision_modules()
        rows = bags.embedding_module
    assert isinstance(rows, EmbeddingBagCollection)
    part = EmbeddingBagCollection(tables, is_weighted=rows.is_weighted(), device="meta")
    for table in tables:
        part.embedding_bags[table.name] = rows.embedding_bags[table.name]
    managed = {table.name: managed[table.name] for table in tables if table.name in managed}
    if not managed:
        return part
    mapping = ManagedCollisionCollection(managed, tables)
    return ManagedCollisionEmbeddingBagCollection(part, mapping, embeddings_only=True)


def item_digest(towers: TwoTowerModel) -> str:
    """Return the SHA-256 of all weights that the items' vectors are made of: the item tower and its tables."""
    bags = bags_with(towers.sparse_arch.embedding_bag_collection, towers.item_features)
    digest = hashlib.sha256()
    for tensor in [*towers.towers.item.state_dict().values(), *bags.state_dict().values()]:
        digest.update(tensor.cpu().contiguous().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _check_vectors(vectors: Tensor, width: int) -> None:
    """Check the items' vectors.

    Raises:
        ValueError: They are of another width, or not finite.
    """
    if vectors.dim() != 2 or vectors.dtype != torch.float32 or vectors.shape[1] != width:
        raise ValueError(
            f"items: got vectors {vectors.dtype} {list(vectors.shape)}, expected torch.float32 [N, {width}], as the "
            "user tower's; write them with recsys-data item-vectors and the same model"
        )
    is_finite = vectors.isfinite().all(dim=1)
    if not bool(is_finite.all()):
        raise ValueError(
            f"items: the vector of row {int(is_finite.int().argmin())} has NaN or infinite numbers"
        )
