"""DLRM: dense layers, pooled embeddings, their dot products, and layers on top.

Shape letters: B batch, F features, D embedding dimension.

Names, shapes and the state dict's names are TorchRec 1.8's, so its checkpoints load unchanged. The model is
that of Naumov et al., "Deep Learning Recommendation Model for Personalization and Recommendation Systems"
(arXiv 1906.00091). Nothing here depends on the contents of tensors, so the model is traceable by
``torch.fx``.
"""

# Annotations are not deferred: FX carries them into graphs, where TorchScript cannot read them as texts.

from collections.abc import Sequence
from math import comb
from typing import Any

import torch
from torch import Tensor, nn
from torch._C._functorch import is_functorch_wrapped_tensor

from recsys import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor
from recsys.kernels.operators import interaction
from recsys.managed import ManagedCollisionEmbeddingBagCollection
from recsys.modules.crosses import CrossedBags
from recsys.modules.mlp import MLP

BagCollection = EmbeddingBagCollection | ManagedCollisionEmbeddingBagCollection | CrossedBags


def check_same_dim(tables: Sequence[EmbeddingBagConfig]) -> int:
    """Return the tables' embedding dimension.

    Raises:
        ValueError: There is no table, or their dimensions differ.
    """
    dims = {table.name: table.embedding_dim for table in tables}
    if len(set(dims.values())) != 1:
        raise ValueError(
            f"tables: got embedding_dim {dims}, expected one table at least, and the same for all: their vectors are "
            "multiplied"
        )
    return tables[0].embedding_dim


class SparseArch(nn.Module):
    """Pooled embeddings, one vector per feature.

    Args:
        embedding_bag_collection: Its tables all have the same ``embedding_dim``; one of raw IDs is made with
            ``embeddings_only``.

    Raises:
        ValueError: The tables' dimensions differ.
    """

    def __init__(self, embedding_bag_collection: BagCollection) -> None:
        super().__init__()
        self.embedding_bag_collection = embedding_bag_collection
        tables = embedding_bag_collection.embedding_bag_configs()
        self.D = check_same_dim(tables)
        self._sparse_feature_names = [name for table in tables for name in table.feature_names]
        self.F = len(self._sparse_feature_names)

    def forward(self, features: KeyedJaggedTensor) -> Tensor:
        """Look up and pool: a KeyedJaggedTensor of batch size B to ``[B, F, D]``, in the tables' order."""
        pooled: Tensor = self.embedding_bag_collection(features).values()
        return pooled.reshape(-1, self.F, self.D)

    @property
    def sparse_feature_names(self) -> list[str]:
        """The F features, in the order of ``forward``'s result."""
        return self._sparse_feature_names


class DenseArch(nn.Module):
    """The layers that map dense features to the embedding dimension.

    Args:
        in_features: Number of dense features.
        layer_sizes: Sizes of the layers, the last being D.
        device: Where the weights lie.
    """

    def __init__(
        self, in_features: int, layer_sizes: Sequence[int], device: torch.device | None = None
    ) -> None:
        super().__init__()
        self.model = MLP(in_features, layer_sizes, device=device)

    def forward(self, features: Tensor) -> Tensor:
        """Map ``[B, in_features]`` to ``[B, D]``."""
        embedded: Tensor = self.model(features)
        return embedded


class _PairProducts(torch.autograd.Function):
    """Products of pairs of vectors, whose backward pass is one product of matrices.

    Autograd's takes two, a sum, and a matrix of zeros that the gradients are added to.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(vectors: Tensor, pair_indices: Tensor, pair_places: Tensor) -> Tensor:  # noqa: ARG004 - saved below
        """Map ``[B, F + 1, D]`` to ``[B, F (F + 1) / 2]``."""
        products = torch.bmm(vectors, vectors.transpose(1, 2))
        return products.flatten(1).index_select(1, pair_indices)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:  # noqa: ARG004 - as torch calls it
        """Keep what the gradient needs."""
        ctx.save_for_backward(inputs[0], inputs[2])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        """Return the gradient of the vectors."""
        vectors, places = ctx.saved_tensors
        return _gradient_of_pairs(gradient, vectors, places), None, None


class _Interaction(torch.autograd.Function):
    """The dense vector and the products of pairs, by the native operator."""

    @staticmethod
    def forward(ctx: Any, dense: Tensor, sparse: Tensor, pair_places: Tensor) -> Tensor:
        """Map ``[B, D]`` and ``[B, F, D]`` to ``[B, D + F (F + 1) / 2]``."""
        operator = interaction()
        assert operator is not None
        ctx.save_for_backward(dense, sparse, pair_places)
        return operator(dense, sparse)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        """Return the gradients of the dense and of the feature vectors."""
        dense, sparse, places = ctx.saved_tensors
        dim = dense.size(1)
        vectors = torch.cat((dense.unsqueeze(1), sparse), dim=1)
        of_vectors = _gradient_of_pairs(gradient.narrow(1, dim, gradient.size(1) - dim), vectors, places)
        return (
            of_vectors.select(1, 0) + gradient.narrow(1, 0, dim),
            of_vectors.narrow(1, 1, sparse.size(1)),
            None,
        )


def _gradient_of_pairs(gradient: Tensor, vectors: Tensor, places: Tensor) -> Tensor:
    """Return the gradient of the vectors, ``[B, F + 1, D]``: of each one, the sum over its pairs."""
    num_vectors = vectors.size(1)
    of_pairs = gradient.index_select(1, places).unflatten(1, (num_vectors, num_vectors))
    of_pairs.diagonal(dim1=1, dim2=2).zero_()
    return torch.bmm(of_pairs.to(vectors.dtype), vectors)  # other types where the model computes in bfloat16


class InteractionArch(nn.Module):
    """The dot product of every pair among the dense vector and the F feature vectors.

    Args:
        num_sparse_features: F.
    """

    pair_indices: Tensor

    def __init__(self, num_sparse_features: int) -> None:
        super().__init__()
        self.F = num_sparse_features
        num_vectors = num_sparse_features + 1
        # Flat positions in a row-major [F + 1, F + 1] matrix: with 27 vectors, index_select along one dimension
        # took half the time of indexing with a pair of index tensors at batch 1 and a fifth at batch 512. The
        # device is named because the indices are in no checkpoint: a model built on the meta device needs them.
        rows, columns = torch.triu_indices(num_vectors, num_vectors, offset=1, device="cpu")
        self.register_buffer("pair_indices", rows * num_vectors + columns, persistent=False)
        # Both places of a pair in the matrix have its number. Those of the diagonal, which is no pair, have any.
        places = torch.zeros(num_vectors, num_vectors, dtype=torch.int64, device="cpu")
        places[rows, columns] = places[columns, rows] = torch.arange(len(rows), device="cpu")
        self.register_buffer("pair_places", places.flatten(), persistent=False)

    def forward(self, dense_features: Tensor, sparse_features: Tensor) -> Tensor:
        """Compute the interactions.

        Args:
            dense_features: ``[B, D]``.
            sparse_features: ``[B, F, D]``.

        Returns:
            ``[B, D + F + F (F - 1) / 2]``: the dense vector, then the pairs (0, 1), (0, 2), ..., (1, 2), ...
            where 0 is the dense vector and ``i`` feature ``i - 1``.
        """
        if self.F <= 0:
            return dense_features
        trains = not torch.jit.is_scripting() and is_trained([dense_features, sparse_features])
        if trains and _has_operator(dense_features, sparse_features):
            return self._native(dense_features, sparse_features)
        vectors = torch.cat((dense_features.unsqueeze(1), sparse_features), dim=1)
        if trains:
            pairs = self._pairs_to_train(vectors)
        else:
            products = torch.bmm(vectors, vectors.transpose(1, 2))
            pairs = products.reshape(-1, (self.F + 1) ** 2).index_select(1, self.pair_indices)
        return torch.cat((dense_features, pairs), dim=1)

    @torch.jit.unused
    def _native(self, dense_features: Tensor, sparse_features: Tensor) -> Tensor:
        result: Tensor = _Interaction.apply(dense_features, sparse_features, self.pair_places)  # type: ignore[no-untyped-call]
        return result

    @torch.jit.unused
    def _pairs_to_train(self, vectors: Tensor) -> Tensor:
        pairs: Tensor = _PairProducts.apply(vectors, self.pair_indices, self.pair_places)  # type: ignore[no-untyped-call]
        return pairs


@torch.jit.unused
def is_trained(parts: list[Tensor]) -> bool:
    """Return whether one of the vectors gets a gradient, and they are no part of a graph that is traced."""
    are_tensors = all(isinstance(part, Tensor) for part in parts)
    is_traced = not are_tensors or torch.jit.is_tracing() or torch.compiler.is_compiling()
    return not is_traced and torch.is_grad_enabled() and any(part.requires_grad for part in parts)


@torch.jit.unused
def _has_operator(dense: Tensor, sparse: Tensor) -> bool:
    """Return whether the native operator multiplies vectors: float32 in host memory, in no function transform."""
    fits = all(
        part.device.type == "cpu" and part.dtype is torch.float32 and not is_functorch_wrapped_tensor(part)
        for part in (dense, sparse)
    )
    return fits and not torch.is_autocast_enabled("cpu") and interaction() is not None


class OverArch(nn.Module):
    """The layers over the interactions; the last one is linear.

    Args:
        in_features: Width of the input.
        layer_sizes: Sizes of the layers, at least two.
        device: Where the weights lie.

    Raises:
        ValueError: Fewer than two layers.
    """

    def __init__(
        self, in_features: int, layer_sizes: Sequence[int], device: torch.device | None = None
    ) -> None:
        super().__init__()
        if len(layer_sizes) <= 1:
            raise ValueError(f"over_arch_layer_sizes: got {list(layer_sizes)}, expected two sizes at least")
        self.model = nn.Sequential(
            MLP(in_features, layer_sizes[:-1], device=device),
            nn.Linear(layer_sizes[-2], layer_sizes[-1], device=device),
        )

    def forward(self, features: Tensor) -> Tensor:
        """Map ``[B, in_features]`` to ``[B, layer_sizes[-1]]``."""
        logits: Tensor = self.model(features)
        return logits


class DLRM(nn.Module):
    """The deep learning recommendation model.

    Args:
        embedding_bag_collection: The tables, all of the same ``embedding_dim`` (D); see ``SparseArch``.
        dense_in_features: Number of dense features.
        dense_arch_layer_sizes: Sizes of the layers on the dense features, the last being D.
        over_arch_layer_sizes: Sizes of the layers over the interactions, the last being 1 for one logit.
        dense_device: Where the weights of the dense layers lie.

    Raises:
        ValueError: The sizes do not fit together.
    """

    def __init__(
        self,
        embedding_bag_collection: BagCollection,
        dense_in_features: int,
        dense_arch_layer_sizes: Sequence[int],
        over_arch_layer_sizes: Sequence[int],
        dense_device: torch.device | None = None,
    ) -> None:
        super().__init__()
        self.sparse_arch = SparseArch(embedding_bag_collection)
        dim, num_features = self.sparse_arch.D, self.sparse_arch.F
        if not dense_arch_layer_sizes or dense_arch_layer_sizes[-1] != dim:
            raise ValueError(
                f"dense_arch_layer_sizes: got {list(dense_arch_layer_sizes)}, expected the last to be the "
                f"tables' embedding_dim, {dim}"
            )
        self.dense_arch = DenseArch(dense_in_features, dense_arch_layer_sizes, dense_device)
        self.inter_arch: nn.Module = InteractionArch(num_features)
        self.over_arch = OverArch(dim + comb(num_features + 1, 2), over_arch_layer_sizes, dense_device)

    def compile_dense_path(self, compile_mode: str = "reduce-overhead") -> None:
        """Compile everything except the lookups with ``torch.compile``; names in the state dict stay.

        Args:
            compile_mode: The mode of ``torch.compile``; TorchRec's default captures CUDA graphs.
        """
        for part in (self.dense_arch, self.inter_arch, self.over_arch):
            part.compile(mode=compile_mode)

    def forward(self, dense_features: Tensor, sparse_features: KeyedJaggedTensor) -> Tensor:
        """Score a batch.

        Args:
            dense_features: ``[B, dense_in_features]``.
            sparse_features: Batch size B; must hold every feature of the tables.

        Returns:
            Logits, ``[B, 1]``.
        """
        embedded_dense = self.dense_arch(dense_features)
        embedded_sparse = self.sparse_arch(sparse_features)
        logits: Tensor = self.over_arch(self.inter_arch(embedded_dense, embedded_sparse))
        return logits


class SparseDLRM(nn.Module):
    """A DLRM without dense features: the sum of the features' vectors takes the dense vector's place.

    Args:
        embedding_bag_collection: The tables, all of the same ``embedding_dim`` (D); see ``SparseArch``.
        over_arch_layer_sizes: Sizes of the layers over the interactions.
    """

    def __init__(self, embedding_bag_collection: BagCollection, over_arch_layer_sizes: Sequence[int]) -> None:
        super().__init__()
        self.sparse_arch = SparseArch(embedding_bag_collection)
        dim, num_features = self.sparse_arch.D, self.sparse_arch.F
        self.inter_arch = InteractionArch(num_features)
        self.over_arch = OverArch(dim + comb(num_features + 1, 2), over_arch_layer_sizes)

    def forward(self, dense_features: None, sparse_features: KeyedJaggedTensor) -> Tensor:  # noqa: ARG002
        """Score a batch: logits, one per size of the last layer."""
        vectors = self.sparse_arch(sparse_features)
        logits: Tensor = self.over_arch(self.inter_arch(vectors.sum(dim=1), vectors))
        return logits
