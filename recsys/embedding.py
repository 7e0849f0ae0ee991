"""Float, unsharded embedding collections: trained on one rank, and the reference for all other paths.

Shape letters: B batch, F features, D embedding dim, R rows, N number of IDs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from recsys.base.table_modules import TableModules
from recsys.configs import (
    BaseEmbeddingConfig,
    DataType,
    EmbeddingBagConfig,
    EmbeddingConfig,
    PoolingType,
    check_tables,
    embedding_names,
    with_feature_names,
)
from recsys.jagged.conversions import maybe_td_to_kjt
from recsys.jagged.keyed import KeyedTensor
from recsys.jagged.keyed_jagged import KeyedJaggedTensor
from recsys.jagged.recorded import call_later
from recsys.jagged.tensor import JaggedTensor
from recsys.ops import is_traced

FLOAT_DTYPES = {DataType.FP32: torch.float32, DataType.FP16: torch.float16, DataType.BF16: torch.bfloat16}
_MODES = {PoolingType.SUM: "sum", PoolingType.MEAN: "mean"}


_TABLE_DEVICE: ContextVar[torch.device | str | None] = ContextVar("table_device", default=None)


@contextmanager
def tables_on(device: torch.device | str) -> Iterator[None]:
    """Set the default device of collections' tables inside the context.

    With ``"meta"`` the tables take no memory, for weights that are assigned afterwards.
    """
    token = _TABLE_DEVICE.set(device)
    try:
        yield
    finally:
        _TABLE_DEVICE.reset(token)


def select_features(kjt: KeyedJaggedTensor, features: Sequence[str]) -> dict[str, JaggedTensor]:
    """Return the features by name.

    Raises:
        ValueError: Names the features that are missing.
    """
    if is_traced(kjt):  # a graph's input: what it holds shows when the graph runs
        return {name: kjt[name] for name in dict.fromkeys(features)}
    missing = sorted(set(features) - set(kjt.keys()))
    if missing:
        raise ValueError(f"features: missing {missing}, expected {sorted(set(features))}, got {kjt.keys()}")
    return kjt.to_dict()


def pool(
    weight: Tensor, ids: JaggedTensor, pooling: PoolingType, per_id_weights: Tensor | None = None
) -> Tensor:
    """Return pooled rows, bag by bag.

    Args:
        weight: The table, ``[R, D]``.
        ids: B bags of row numbers.
        pooling: SUM or MEAN.
        per_id_weights: ``[N]``. With MEAN the weighted sum is divided by the number of IDs, as FBGEMM does
            (``nn.EmbeddingBag`` refuses the pair).

    Returns:
        ``[B, D]``, of the weight's dtype; zeros for empty bags.
    """
    mean_of_weighted = per_id_weights is not None and pooling is PoolingType.MEAN
    pooled = functional.embedding_bag(
        ids.values(),
        weight,
        ids.offsets().to(ids.values().dtype),
        mode="sum" if mean_of_weighted else _MODES[pooling],
        per_sample_weights=None if per_id_weights is None else per_id_weights.to(weight.dtype),
        include_last_offset=True,
        norm_type=2.0,  # the default, but FX would record it as an int, which TorchScript rejects
    )
    if mean_of_weighted:
        pooled = pooled / ids.lengths().clamp(min=1).to(pooled.dtype).unsqueeze(1)
    return pooled


def expand_to_full_batch(pooled: list[Tensor], names: list[str], features: KeyedJaggedTensor) -> list[Tensor]:
    """Expand pooled rows of features with batches of their own to the full batch.

    Args:
        pooled: The pooled rows of each of ``names``, ``[its batch, D]``.
        names: Features; repetitions are allowed.
        features: A batch whose inverse indices map rows of the full batch to rows of each feature's batch. The
            indices are trusted: ``KeyedJaggedTensor.validate`` checks them.

    Returns:
        ``[B, D]`` each; unchanged if the features share one batch.

    Raises:
        ValueError: Batch sizes differ and there are no inverse indices.
    """
    if is_traced(features):
        made: Any = call_later(expand_to_full_batch, pooled, list(names), features)
        return [made[i] for i in range(len(pooled))]
    inverse = features.inverse_indices_or_none()
    if inverse is not None:
        rows = dict(zip(inverse[0], inverse[1].unbind(), strict=True))
        return [part.index_select(0, rows[name]) for part, name in zip(pooled, names, strict=True)]
    if features.variable_stride_per_key():
        sizes = dict(zip(features.keys(), features.stride_per_key(), strict=True))
        found = {name: sizes[name] for name in names}
        if len(set(found.values())) > 1:
            raise ValueError(
                f"features: got batch sizes {found} without inverse_indices, expected the same for all or "
                "inverse_indices, which say how they make up one batch"
            )
    return pooled


def _empty_weight(config: BaseEmbeddingConfig, device: torch.device | str | None) -> Tensor:
    shape = (config.num_embeddings, config.embedding_dim)
    return torch.empty(shape, dtype=FLOAT_DTYPES[config.data_type], device=device)


def _initialize(weight: Tensor, config: BaseEmbeddingConfig) -> None:
    with torch.no_grad():
        if config.init_fn is not None:
            config.init_fn(weight)
        else:
            weight.uniform_(config.get_weight_init_min(), config.get_weight_init_max())


def _initialize_all(modules: TableModules, tables: Sequence[BaseEmbeddingConfig]) -> None:
    for table in tables:
        weight = cast(Tensor, modules[table.name].weight)
        if not weight.is_meta:
            _initialize(weight, table)


def with_indices(
    found: Mapping[str, JaggedTensor], tables: Sequence[BaseEmbeddingConfig], features: KeyedJaggedTensor
) -> dict[str, JaggedTensor]:
    """Return the rows of sequence embeddings with the IDs that they were looked up for, as weights."""
    feature_of = {
        name: feature
        for table, names in zip(tables, embedding_names(tables), strict=True)
        for feature, name in zip(table.feature_names, names, strict=True)
    }
    ids = select_features(features, list(feature_of.values()))
    return {
        name: JaggedTensor(found[name].values(), ids[feature].values(), found[name].lengths())
        for name, feature in feature_of.items()
    }


class EmbeddingBagCollectionInterface(nn.Module, ABC):
    """What the collections of pooled embeddings have in common: float, quantized and users' own."""

    @abstractmethod
    def forward(self, features: KeyedJaggedTensor) -> KeyedTensor:
        """Look up and pool."""

    @abstractmethod
    def embedding_bag_configs(self) -> list[EmbeddingBagConfig]:
        """Return the tables."""

    @abstractmethod
    def is_weighted(self) -> bool:
        """Return whether every ID comes with a weight."""


class EmbeddingCollectionInterface(nn.Module, ABC):
    """What the collections of sequence embeddings have in common: float, quantized and users' own."""

    @abstractmethod
    def forward(self, features: KeyedJaggedTensor) -> dict[str, JaggedTensor]:
        """Look up."""

    @abstractmethod
    def embedding_configs(self) -> list[EmbeddingConfig]:
        """Return the tables."""

    @abstractmethod
    def need_indices(self) -> bool:
        """Return whether the IDs come with the rows, as weights."""

    @abstractmethod
    def embedding_dim(self) -> int:
        """Return D."""

    @abstractmethod
    def embedding_names_by_table(self) -> list[list[str]]:
        """Return the outputs' names, table by table."""


class EmbeddingBagCollection(EmbeddingBagCollectionInterface):
    """Pooled embeddings of several tables.

    Args:
        tables: The tables; several features may share one, and a feature may be looked up in several. One without
            features has the feature of its own name.
        is_weighted: Whether every ID comes with a weight.
        device: Where the tables lie; ``"meta"`` allocates nothing.

    The state dict's names are ``embedding_bags.<table>.weight``, ``[R, D]``.
    """

    def __init__(
        self,
        tables: Sequence[EmbeddingBagConfig],
        is_weighted: bool = False,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        tables = with_feature_names(tables)
        if tables:
            check_tables(tables)
        for table in tables:
            if table.pooling not in _MODES:
                raise ValueError(f"tables[{table.name!r}].pooling: got {table.pooling}, expected SUM or MEAN")
            _check_float(table)
        device = device or _TABLE_DEVICE.get()
        # Named as TorchRec names it: public code reads it.
        self._embedding_bag_configs = list(tables)
        self._is_weighted = is_weighted
        self._embedding_names = [name for names in embedding_names(tables) for name in names]
        self._dims = [table.embedding_dim for table in tables for _ in table.feature_names]
        self._features = [feature for table in tables for feature in table.feature_names]
        self._features_by_table = [table.feature_names for table in tables]
        self._is_mean = [table.pooling is PoolingType.MEAN for table in tables]
        self.embedding_bags = TableModules()
        for table in tables:
            bag = nn.EmbeddingBag(
                table.num_embeddings,
                table.embedding_dim,
                mode=_MODES[table.pooling],
                include_last_offset=True,
                _weight=_empty_weight(table, device),
            )
            _initialize(bag.weight, table)
            self.embedding_bags[table.name] = bag

    def forward(self, features: KeyedJaggedTensor) -> KeyedTensor:
        """Look up and pool.

        Args:
            features: Must hold every feature of the tables, in any order; others are ignored. A TensorDict of
                ``torch.nested`` tensors is taken too. A batch size per feature needs inverse indices, which spread
                each feature's pooled rows over the full batch.

        Returns:
            ``[B, sum of D]`` float32, one key per (table, feature) in the tables' order.

        Raises:
            ValueError: A feature is missing, or the weights are, or the inverse indices of different batch sizes.
        """
        if torch.jit.is_scripting():
            return self._scripted(features)
        else:  # noqa: RET505  (TorchScript does not read this branch)
            return self._pooled(features)

    def _scripted(self, features: KeyedJaggedTensor) -> KeyedTensor:
        """Look up in TorchScript (``recsys.scripting.scripted``), where keys share one batch."""
        jagged = features.to_dict()
        pooled = [torch.zeros(features.stride(), 0, device=features.values().device)]
        for i, bag in enumerate(self.embedding_bags.values()):
            weight: Tensor = bag.weight  # type: ignore[assignment]
            for name in self._features_by_table[i]:
                ids = jagged[name]
                values, offsets = ids.values(), ids.offsets().to(ids.values().dtype)
                if self._is_weighted:
                    scale = ids.weights().to(weight.dtype)
                    rows = functional.embedding_bag(
                        values,
                        weight,
                        offsets,
                        mode="sum",
                        per_sample_weights=scale,
                        include_last_offset=True,
                    )
                    if self._is_mean[i]:
                        rows = rows / ids.lengths().clamp(min=1).to(rows.dtype).unsqueeze(1)
                else:
                    rows = functional.embedding_bag(
                        values,
                        weight,
                        offsets,
                        mode="mean" if self._is_mean[i] else "sum",
                        include_last_offset=True,
                    )
                pooled.append(rows.float())
        return KeyedTensor(self._embedding_names, self._dims, torch.cat(pooled, dim=1))

    def _pooled(self, features: KeyedJaggedTensor) -> KeyedTensor:
        features = maybe_td_to_kjt(features)
        if not self._embedding_bag_configs:
            return KeyedTensor([], [], torch.zeros(features.stride(), 0, device=features.device()))
        jagged = select_features(features, self._features)
        if self._is_weighted:
            features.weights()
        pooled = []
        for table in self._embedding_bag_configs:
            weight = cast(Tensor, self.embedding_bags[table.name].weight)
            for name in table.feature_names:
                ids = jagged[name]
                weights = ids.weights() if self._is_weighted else None
                pooled.append(pool(weight, ids, table.pooling, weights).float())
        pooled = expand_to_full_batch(pooled, self._features, features)
        return KeyedTensor(self._embedding_names, self._dims, torch.cat(pooled, dim=1))

    def reset_parameters(self) -> None:
        """Reset the tables to their configs' initial weights; on the meta device, do nothing."""
        _initialize_all(self.embedding_bags, self._embedding_bag_configs)

    def is_weighted(self) -> bool:
        """Return whether every ID comes with a weight."""
        return self._is_weighted

    def embedding_bag_configs(self) -> list[EmbeddingBagConfig]:
        """Return the tables."""
        return self._embedding_bag_configs

    @property
    def device(self) -> torch.device:
        """Where the tables lie."""
        for table in self.embedding_bags.values():
            return table.weight.device  # type: ignore[return-value]
        return torch.device("cpu")


class EmbeddingCollection(EmbeddingCollectionInterface):
    """Sequence embeddings of several tables: one row for each ID, not pooled.

    Args:
        tables: The tables, all of the same ``embedding_dim``. One without features has the feature of its own name.
        device: Where the tables lie; ``"meta"`` allocates nothing.
        need_indices: Return each row's ID too, as the weights of the JaggedTensors.
        use_gather_select: How TorchRec's sharded collections pick rows; has no effect on results, nor here.
        use_gather_select_per_sharding: The same by sharding type.

    The state dict's names are ``embeddings.<table>.weight``, ``[R, D]``.
    """

    def __init__(
        self,
        tables: Sequence[EmbeddingConfig],
        device: torch.device | str | None = None,
        need_indices: bool = False,
        use_gather_select: bool = False,
        use_gather_select_per_sharding: Mapping[str, bool] | None = None,
    ) -> None:
        super().__init__()
        tables = with_feature_names(tables)
        if tables:
            check_tables(tables)
        self._need_indices = need_indices
        self._use_gather_select = use_gather_select
        self._use_gather_select_per_sharding = use_gather_select_per_sharding
        dims = {table.name: table.embedding_dim for table in tables}
        if len(set(dims.values())) > 1:
            raise ValueError(f"tables: got embedding_dim {dims}, expected the same for all")
        device = device or _TABLE_DEVICE.get()
        # As in EmbeddingBagCollection.
        self._embedding_configs = list(tables)
        self._embedding_names_by_table = embedding_names(tables)
        self._features = [feature for table in tables for feature in table.feature_names]
        self._features_by_table = [table.feature_names for table in tables]
        self.embeddings = TableModules()
        for table in tables:
            _check_float(table)
            embedding = nn.Embedding(
                table.num_embeddings,
                table.embedding_dim,
                _weight=_empty_weight(table, device),
            )
            _initialize(embedding.weight, table)
            self.embeddings[table.name] = embedding

    def forward(self, features: KeyedJaggedTensor) -> dict[str, JaggedTensor]:
        """Look up.

        Args:
            features: Must hold every feature of the tables, in any order; others are left alone.

        Returns:
            For each (table, feature) a JaggedTensor with values ``[N of the feature, D]`` float32. With a
            batch size per feature, each JaggedTensor has its own batch size: inverse indices are not applied.

        Raises:
            ValueError: A feature is missing.
        """
        if torch.jit.is_scripting():
            return self._scripted(features)
        else:  # noqa: RET505  (TorchScript does not read this branch)
            return self._rows(features)

    def _scripted(self, features: KeyedJaggedTensor) -> dict[str, JaggedTensor]:
        """Look up in TorchScript (``recsys.scripting.scripted``), where keys share one batch."""
        jagged = features.to_dict()
        found: dict[str, JaggedTensor] = {}
        for i, table in enumerate(self.embeddings.values()):
            weight: Tensor = table.weight  # type: ignore[assignment]
            for j, feature in enumerate(self._features_by_table[i]):
                ids = jagged[feature]
                rows = functional.embedding(ids.values(), weight)
                weights = ids.values() if self._need_indices else ids.weights_or_none()
                found[self._embedding_names_by_table[i][j]] = JaggedTensor(
                    rows.float(), weights, ids.lengths(), ids.offsets()
                )
        return found

    def _rows(self, features: KeyedJaggedTensor) -> dict[str, JaggedTensor]:
        jagged = select_features(maybe_td_to_kjt(features), self._features) if self._features else {}
        found: dict[str, JaggedTensor] = {}
        for table, names in zip(self._embedding_configs, self._embedding_names_by_table, strict=True):
            for feature, name in zip(table.feature_names, names, strict=True):
                ids = jagged[feature]
                rows = functional.embedding(ids.values(), cast(Tensor, self.embeddings[table.name].weight))
                weights = ids.values() if self._need_indices else ids.weights_or_none()
                found[name] = JaggedTensor(rows.float(), weights, ids.lengths(), ids.offsets())
        return found

    def need_indices(self) -> bool:
        """Return whether the IDs come with the rows, as weights."""
        return self._need_indices

    def use_gather_select(self) -> bool:
        """Return the argument."""
        return self._use_gather_select

    def use_gather_select_per_sharding(self) -> Mapping[str, bool] | None:
        """Return the argument."""
        return self._use_gather_select_per_sharding

    def reset_parameters(self) -> None:
        """Reset the tables to their configs' initial weights; on the meta device, do nothing."""
        _initialize_all(self.embeddings, self._embedding_configs)

    def embedding_dim(self) -> int:
        """Return D."""
        return self._embedding_configs[0].embedding_dim if self._embedding_configs else 0

    def embedding_configs(self) -> list[EmbeddingConfig]:
        """Return the tables."""
        return self._embedding_configs

    def embedding_names_by_table(self) -> list[list[str]]:
        """Return the outputs' names, table by table."""
        return self._embedding_names_by_table

    @property
    def device(self) -> torch.device:
        """Where the tables lie."""
        for table in self.embeddings.values():
            return table.weight.device  # type: ignore[return-value]
        return torch.device("cpu")


def _check_float(table: BaseEmbeddingConfig) -> None:
    if table.data_type not in FLOAT_DTYPES:
        raise ValueError(
            f"tables[{table.name!r}].data_type: got {table.data_type.value}, expected FP32, FP16 or BF16 "
            "(quantize a trained collection with recsys.quant)"
        )


#: The collections of a float model.
FloatCollection = EmbeddingBagCollection | EmbeddingCollection


def takes_weights(module: nn.Module) -> bool:
    """Return whether a module is a collection that weighs each ID."""
    return isinstance(module, EmbeddingBagCollection) and module.is_weighted()
