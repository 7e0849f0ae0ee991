"""DLRMs with other interactions, and the one with a loss, by TorchRec's names and with its state dicts.

Shape letters: B batch, D embedding dimension, F features.
"""

# Annotations are not deferred: FX carries them into graphs, where TorchScript cannot read them as texts.

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from recsys.models.dlrm import DLRM, BagCollection, DenseArch, OverArch
from recsys.modules.crossnet import LowRankCrossNet

if TYPE_CHECKING:
    from recsys.as_torchrec.datasets.batch import Batch


def _flat(dense_features: Tensor, sparse_features: Tensor) -> Tensor:
    """Return the dense vector and the features' vectors side by side, ``[B, D + F * D]``."""
    return torch.cat((dense_features, sparse_features.flatten(1)), dim=1)


class InteractionDCNArch(nn.Module):
    """A cross network over the dense vector and the F feature vectors.

    Args:
        num_sparse_features: F.
        crossnet: Maps ``[B, D + F * D]`` to the same shape.
    """

    def __init__(self, num_sparse_features: int, crossnet: nn.Module) -> None:
        super().__init__()
        self.F = num_sparse_features
        self.crossnet = crossnet

    def forward(self, dense_features: Tensor, sparse_features: Tensor) -> Tensor:
        """Map ``[B, D]`` and ``[B, F, D]`` to ``[B, D + F * D]``; without features to ``[B, D]``."""
        if self.F <= 0:
            return dense_features
        crossed: Tensor = self.crossnet(_flat(dense_features, sparse_features))
        return crossed


class InteractionProjectionArch(nn.Module):
    """The dot products of two sets of vectors that are made of the dense vector and the F feature vectors.

    Args:
        num_sparse_features: F.
        interaction_branch1: Maps ``[B, D + F * D]`` to the vectors of the first set, ``[B, F1 * D]``.
        interaction_branch2: The same for the second set, ``[B, D * F2]``.
    """

    def __init__(
        self, num_sparse_features: int, interaction_branch1: nn.Module, interaction_branch2: nn.Module
    ) -> None:
        super().__init__()
        self.F = num_sparse_features
        self.interaction_branch1 = interaction_branch1
        self.interaction_branch2 = interaction_branch2

    def forward(self, dense_features: Tensor, sparse_features: Tensor) -> Tensor:
        """Map ``[B, D]`` and ``[B, F, D]`` to ``[B, D + F1 * F2]``; without features to ``[B, D]``."""
        if self.F <= 0:
            return dense_features
        vectors, dim = _flat(dense_features, sparse_features), dense_features.size(1)
        first = self.interaction_branch1(vectors).unflatten(1, (-1, dim))
        second = self.interaction_branch2(vectors).unflatten(1, (dim, -1))
        return torch.cat((dense_features, torch.bmm(first, second).flatten(1)), dim=1)


class DLRM_DCN(DLRM):
    """A DLRM with a cross network of low rank in place of the dot products (MLPerf's DLRM-DCNv2).

    Args:
        embedding_bag_collection: See ``DLRM``, for the next three too.
        dense_in_features: Number of dense features.
        dense_arch_layer_sizes: Sizes of the layers on the dense features.
        over_arch_layer_sizes: Sizes of the layers over the interactions.
        dcn_num_layers: Number of cross layers.
        dcn_low_rank_dim: The rank of their matrices.
        dense_device: Where the weights of the dense layers lie.

    Raises:
        ValueError: The sizes do not fit together.
    """

    def __init__(  # noqa: PLR0913 (TorchRec's signature)
        self,
        embedding_bag_collection: BagCollection,
        dense_in_features: int,
        dense_arch_layer_sizes: Sequence[int],
        over_arch_layer_sizes: Sequence[int],
        dcn_num_layers: int,
        dcn_low_rank_dim: int,
        dense_device: torch.device | None = None,
    ) -> None:
        super().__init__(
            embedding_bag_collection,
            dense_in_features,
            dense_arch_layer_sizes,
            over_arch_layer_sizes,
            dense_device,
        )
        num_features = self.sparse_arch.F
        width = (num_features + 1) * self.sparse_arch.D
        crossnet = LowRankCrossNet(width, dcn_num_layers, dcn_low_rank_dim)
        if dense_device is not None:
            crossnet = crossnet.to(dense_device)
        self.inter_arch = InteractionDCNArch(num_features, crossnet)
        self.over_arch = OverArch(width, over_arch_layer_sizes, dense_device)


class DLRM_Projection(DLRM):
    """A DLRM whose dot products are those of two sets of vectors, each made by layers of its own.

    Args:
        embedding_bag_collection: See ``DLRM``, for the next three too.
        dense_in_features: Number of dense features.
        dense_arch_layer_sizes: Sizes of the layers on the dense features.
        over_arch_layer_sizes: Sizes of the layers over the interactions.
        interaction_branch1_layer_sizes: Sizes of the layers of the first set; the last is a multiple of D.
        interaction_branch2_layer_sizes: The same of the second set.
        dense_device: Where the weights of the dense layers lie.

    Raises:
        ValueError: The sizes do not fit together.
    """

    def __init__(  # noqa: PLR0913 (TorchRec's signature)
        self,
        embedding_bag_collection: BagCollection,
        dense_in_features: int,
        dense_arch_layer_sizes: Sequence[int],
        over_arch_layer_sizes: Sequence[int],
        interaction_branch1_layer_sizes: Sequence[int],
        interaction_branch2_layer_sizes: Sequence[int],
        dense_device: torch.device | None = None,
    ) -> None:
        super().__init__(
            embedding_bag_collection,
            dense_in_features,
            dense_arch_layer_sizes,
            over_arch_layer_sizes,
            dense_device,
        )
        num_features, dim = self.sparse_arch.F, self.sparse_arch.D
        width = (num_features + 1) * dim
        branches, num_vectors = [], []
        for i, sizes in enumerate((interaction_branch1_layer_sizes, interaction_branch2_layer_sizes), 1):
            if not sizes or sizes[-1] % dim:
                raise ValueError(
                    f"interaction_branch{i}_layer_sizes: got {list(sizes)}, expected the last to be a multiple of the "
                    f"tables' embedding_dim, {dim}"
                )
            branches.append(DenseArch(width, sizes, dense_device))
            num_vectors.append(sizes[-1] // dim)
        self.inter_arch = InteractionProjectionArch(num_features, *branches)
        self.over_arch = OverArch(dim + num_vectors[0] * num_vectors[1], over_arch_layer_sizes, dense_device)


class DLRMTrain(nn.Module):
    """A DLRM with its loss, for a training pipeline.

    Args:
        dlrm_module: The model, of any interaction.
    """

    def __init__(self, dlrm_module: DLRM) -> None:
        super().__init__()
        self.model = dlrm_module
        self.loss_fn = nn.BCEWithLogitsLoss()

    def forward(self, batch: "Batch") -> tuple[Tensor, tuple[Tensor, Tensor, Tensor]]:
        """Return the loss, and detached the loss, the logits ``[B]`` and the labels ``[B]``."""
        logits = self.model(batch.dense_features, batch.sparse_features).squeeze(-1)
        loss = self.loss_fn(logits, batch.labels.float())
        return loss, (loss.detach(), logits.detach(), batch.labels.detach())
