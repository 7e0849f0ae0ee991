"""SimpleDeepFMNN: TorchRec's small DeepFM, with its names, shapes and state dict.

``recsys-train --model deepfm`` trains another network, that of ``recsys.models.factorization``.

Shape letters: B batch, D embedding dimension, F features, H width of the deep part.
"""

# Annotations are not deferred: FX carries them into graphs, where TorchScript cannot read them as texts.

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from recsys import KeyedJaggedTensor, KeyedTensor
from recsys.as_torchrec.modules.deepfm import DeepFM, FactorizationMachine
from recsys.models.dlrm import BagCollection, check_same_dim


class SparseArch(nn.Module):
    """Pooled embeddings.

    Args:
        embedding_bag_collection: The tables.
    """

    def __init__(self, embedding_bag_collection: BagCollection) -> None:
        super().__init__()
        self.embedding_bag_collection = embedding_bag_collection

    def forward(self, features: KeyedJaggedTensor) -> KeyedTensor:
        """Look up and pool."""
        pooled: KeyedTensor = self.embedding_bag_collection(features)
        return pooled


class DenseArch(nn.Module):
    """Two layers that map dense features to the embedding dimension.

    Args:
        in_features: Number of dense features.
        hidden_layer_size: Width of the first layer.
        embedding_dim: D.
    """

    def __init__(self, in_features: int, hidden_layer_size: int, embedding_dim: int) -> None:
        super().__init__()
        self.model = nn.Sequential(
            nn.Linear(in_features, hidden_layer_size),
            nn.ReLU(),
            nn.Linear(hidden_layer_size, embedding_dim),
            nn.ReLU(),
        )

    def forward(self, features: Tensor) -> Tensor:
        """Map ``[B, in_features]`` to ``[B, D]``."""
        embedded: Tensor = self.model(features)
        return embedded


class FMInteractionArch(nn.Module):
    """The dense vector, the deep part and the factorization machine, side by side.

    Args:
        fm_in_features: Width of the dense vector and all features' vectors side by side.
        sparse_feature_names: The F features.
        deep_fm_dimension: H.
    """

    def __init__(
        self, fm_in_features: int, sparse_feature_names: Sequence[str], deep_fm_dimension: int
    ) -> None:
        super().__init__()
        self.sparse_feature_names = list(sparse_feature_names)
        self.deep_fm = DeepFM(nn.Sequential(nn.Linear(fm_in_features, deep_fm_dimension), nn.ReLU()))
        self.fm = FactorizationMachine()

    def forward(self, dense_features: Tensor, sparse_features: KeyedTensor) -> Tensor:
        """Map ``[B, D]`` and the features' vectors to ``[B, D + H + 1]``; without features to ``[B, D]``."""
        if not self.sparse_feature_names:
            return dense_features
        vectors = [dense_features, *(sparse_features[name] for name in self.sparse_feature_names)]
        return torch.cat((dense_features, self.deep_fm(vectors), self.fm(vectors)), dim=1)


class OverArch(nn.Module):
    """A linear layer and a sigmoid.

    Args:
        in_features: Width of the input.
    """

    def __init__(self, in_features: int) -> None:
        super().__init__()
        self.model = nn.Sequential(nn.Linear(in_features, 1), nn.Sigmoid())

    def forward(self, features: Tensor) -> Tensor:
        """Map ``[B, in_features]`` to probabilities ``[B, 1]``."""
        probabilities: Tensor = self.model(features)
        return probabilities


class SimpleDeepFMNN(nn.Module):
    """A DeepFM over dense features and pooled embeddings.

    Args:
        num_dense_features: Number of dense features.
        embedding_bag_collection: The tables, all of the same ``embedding_dim`` (D).
        hidden_layer_size: Width of the first dense layer.
        deep_fm_dimension: Width of the deep part.

    Raises:
        ValueError: The tables' dimensions differ.
    """

    def __init__(
        self,
        num_dense_features: int,
        embedding_bag_collection: BagCollection,
        hidden_layer_size: int,
        deep_fm_dimension: int,
    ) -> None:
        super().__init__()
        tables = embedding_bag_collection.embedding_bag_configs()
        dim = check_same_dim(tables)
        names = [name for table in tables for name in table.feature_names]
        self.sparse_arch = SparseArch(embedding_bag_collection)
        self.dense_arch = DenseArch(num_dense_features, hidden_layer_size, dim)
        self.inter_arch = FMInteractionArch((1 + len(names)) * dim, names, deep_fm_dimension)
        self.over_arch = OverArch(dim + deep_fm_dimension + 1)

    def forward(self, dense_features: Tensor, sparse_features: KeyedJaggedTensor) -> Tensor:
        """Score a batch: probabilities ``[B, 1]``.

        Args:
            dense_features: ``[B, num_dense_features]``.
            sparse_features: Batch size B; must hold every feature of the tables.
        """
        vectors = self.sparse_arch(sparse_features)
        probabilities: Tensor = self.over_arch(self.inter_arch(self.dense_arch(dense_features), vectors))
        return probabilities
