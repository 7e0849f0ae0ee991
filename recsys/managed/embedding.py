"""Collections of raw IDs: managed collision modules in front of tables.

Shape letters: B batch, D embedding dimension, N number of IDs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from torch import Tensor, nn

from recsys.configs import EmbeddingBagConfig, EmbeddingConfig
from recsys.embedding import EmbeddingBagCollection, EmbeddingCollection
from recsys.jagged.keyed_jagged import KeyedJaggedTensor
from recsys.managed.collection import ManagedCollisionCollection
from recsys.managed.fresh_rows import reset_rows

EvictionHook = Callable[[str, Tensor], None]


class BaseManagedCollisionEmbeddingCollection(nn.Module):
    """The base of the pooled and the sequence collection.

    The modules' names in state dicts are TorchRec's: ``_embedding_module`` for the tables, and
    ``_managed_collision_collection`` for the mapping. A sharded collection may replace ``_embedding_module``;
    it is called with the mapped batch, and its result is returned unchanged.

    Args:
        embedding_module: The tables.
        managed_collision_collection: Made for the same tables.
        return_remapped_features: Return the mapped batch too.
        allow_in_place_embed_weight_update: Has no effect: rows may always be overwritten between steps.
        embeddings_only: Return only the tables' result and no tuple, so that this can replace a collection.

    Raises:
        ValueError: The tables are not the same, or both options are set.
    """

    def __init__(
        self,
        embedding_module: EmbeddingBagCollection | EmbeddingCollection,
        managed_collision_collection: ManagedCollisionCollection,
        return_remapped_features: bool = False,
        allow_in_place_embed_weight_update: bool = False,
        *,
        embeddings_only: bool = False,
    ) -> None:
        super().__init__()
        del allow_in_place_embed_weight_update
        if return_remapped_features and embeddings_only:
            raise ValueError("embeddings_only: got it with return_remapped_features, expected one of them")
        tables: list[Any] = [*_configs(embedding_module)]
        if tables != managed_collision_collection.embedding_configs():
            raise ValueError(
                "managed_collision_collection: got other embedding_configs than the embedding module's "
                f"{[table.name for table in tables]}, expected the same"
            )
        self._embedding_module: nn.Module = embedding_module
        self._managed_collision_collection = managed_collision_collection
        self._return_remapped_features = return_remapped_features
        self._embeddings_only = embeddings_only
        self._hooks: list[EvictionHook] = []

    def forward(self, features: KeyedJaggedTensor, mutate_miss_lengths: bool = True) -> Any:
        """Map raw IDs and look up rows. In training mode, rows with a new owner are initialized first.

        Args:
            features: Must hold every feature of the tables; raw IDs for those of managed tables.
            mutate_miss_lengths: Has no effect: IDs without a row of their own are mapped to the last row.

        Returns:
            With ``embeddings_only`` what the tables return; otherwise, as TorchRec, a pair of this and of the
            mapped batch, or None without ``return_remapped_features``.

        Raises:
            ValueError: A feature is missing, or IDs are not integers.
        """
        del mutate_miss_lengths
        remapped = self._managed_collision_collection(features)
        if self.training:
            self._start_afresh()
        embeddings = self._embedding_module(remapped)
        if self._embeddings_only:
            return embeddings
        return embeddings, (remapped if self._return_remapped_features else None)

    def register_eviction_hook(self, hook: EvictionHook) -> None:
        """Register a function to call with a table's name and its rows with a new owner, int64 ``[N]``.

        It is called in ``forward`` in training mode, after the weights were reset and before they are looked up;
        see ``reset_optimizer_rows``. Where ranks hold parts of a mapping, each is told the rows of its own.
        """
        self._hooks.append(hook)

    def _start_afresh(self) -> None:
        mapping = self._managed_collision_collection
        modules = mapping.managed_collision_modules()
        configs = {config.name: config for config in mapping.embedding_configs()}
        for table, rows in mapping.evict().items():
            if rows is None:
                continue
            module = modules[table]
            reset_rows(
                self._embedding_module, configs[table], rows, module.current_step(), module.bucket_ends()
            )
            for hook in self._hooks:
                hook(table, rows)

    @property
    def managed_collision_collection(self) -> ManagedCollisionCollection:
        """The mapping."""
        return self._managed_collision_collection

    @property
    def embedding_module(self) -> nn.Module:
        """The tables, or the sharded collection that replaced them."""
        return self._embedding_module


class ManagedCollisionEmbeddingBagCollection(BaseManagedCollisionEmbeddingCollection):
    """Pooled embeddings of raw IDs. See the base for the arguments."""

    def __init__(
        self,
        embedding_bag_collection: EmbeddingBagCollection,
        managed_collision_collection: ManagedCollisionCollection,
        return_remapped_features: bool = False,
        allow_in_place_embed_weight_update: bool = False,
        *,
        embeddings_only: bool = False,
    ) -> None:
        super().__init__(
            embedding_bag_collection,
            managed_collision_collection,
            return_remapped_features,
            allow_in_place_embed_weight_update,
            embeddings_only=embeddings_only,
        )

    def embedding_bag_configs(self) -> list[EmbeddingBagConfig]:
        """Return the tables."""
        return cast(list[EmbeddingBagConfig], self._managed_collision_collection.embedding_configs())


class ManagedCollisionEmbeddingCollection(BaseManagedCollisionEmbeddingCollection):
    """Sequence embeddings of raw IDs. See the base for the arguments."""

    def __init__(
        self,
        embedding_collection: EmbeddingCollection,
        managed_collision_collection: ManagedCollisionCollection,
        return_remapped_features: bool = False,
        allow_in_place_embed_weight_update: bool = False,
        *,
        embeddings_only: bool = False,
    ) -> None:
        super().__init__(
            embedding_collection,
            managed_collision_collection,
            return_remapped_features,
            allow_in_place_embed_weight_update,
            embeddings_only=embeddings_only,
        )

    def embedding_configs(self) -> list[EmbeddingConfig]:
        """Return the tables."""
        return cast(list[EmbeddingConfig], self._managed_collision_collection.embedding_configs())


def _configs(module: EmbeddingBagCollection | EmbeddingCollection) -> list[Any]:
    if isinstance(module, EmbeddingBagCollection):
        return [*module.embedding_bag_configs()]
    return [*module.embedding_configs()]
