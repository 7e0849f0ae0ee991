"""The tracker of rows that lookups of a training touched, by TorchRec's names, over ``recsys.training.TouchedRows``."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from torch import Tensor, nn

from recsys.embedding import EmbeddingBagCollection, EmbeddingCollection
from recsys.model_parallel import get_unwrapped_module
from recsys.quant import float_tables
from recsys.sharding.plan.device_rows import table_path
from recsys.sharding.sharded import ShardedCollection, ShardedEmbeddingBagCollection
from recsys.training import TouchedRows


class TrackingMode(Enum):
    """What is tracked of touched rows: here their numbers alone."""

    ID_ONLY = "id_only"
    EMBEDDING = "embedding"
    MOMENTUM_LAST = "momentum_last"
    MOMENTUM_DIFF = "momentum_diff"
    ROWWISE_ADAGRAD = "rowwise_adagrad"


@dataclass
class UniqueRows:
    """Touched rows of a table.

    Attributes:
        ids: ``[N]`` int64, ascending rows of the whole table.
        states: None: only numbers are tracked.
    """

    ids: Tensor
    states: Tensor | None


class ModelDeltaTracker:
    """The rows of a model's tables that its training touches, on this rank.

    Rows count when their gradient arrives, and also when they are reset or loaded; TorchRec counts lookups. Their
    numbers are those of the whole table; TorchRec gives those of the shard.

    Args:
        model: The model.
        consumers: Who asks for rows; each gets those since it asked last. At most 8.
        delete_on_read: Has no effect on results: a row takes one byte, read or not.
        auto_compact: Has no effect: rows are kept once.
        mode: ``TrackingMode.ID_ONLY``.
        fqns_to_skip: Parts of paths, such as names of tables; tables with one in their path are left out.

    Raises:
        ValueError: Another mode.
    """

    DEFAULT_CONSUMER: str = "default"

    def __init__(
        self,
        model: nn.Module,
        consumers: list[str] | None = None,
        delete_on_read: bool = True,
        auto_compact: bool = False,
        mode: TrackingMode = TrackingMode.ID_ONLY,
        fqns_to_skip: Iterable[str] = (),
    ) -> None:
        del delete_on_read, auto_compact
        if mode is not TrackingMode.ID_ONLY:
            raise ValueError(
                f"mode: got {mode}, expected TrackingMode.ID_ONLY: the rows' numbers are in the model"
            )
        self._touched = TouchedRows(model, consumers or [self.DEFAULT_CONSUMER])
        self._modules: dict[str, nn.Module] = {}
        self._names: dict[str, str] = {}
        self._features: dict[str, list[str]] = {}
        skipped = set(fqns_to_skip)
        for path, part in get_unwrapped_module(model).named_modules():
            if isinstance(part, ShardedCollection):
                tables = list(part.layout.tables)
                is_pooled = isinstance(part, ShardedEmbeddingBagCollection)
            elif isinstance(part, (EmbeddingBagCollection, EmbeddingCollection)):
                tables = list(float_tables(part))
                is_pooled = isinstance(part, EmbeddingBagCollection)
            else:
                continue
            for table in tables:
                name = f"{table_path(path, 'embedding_bags' if is_pooled else 'embeddings')}.{table.name}"
                if skipped.isdisjoint(name.split(".")):
                    self._names[table_path(path, table.name)] = name
                    self._features[name] = list(table.feature_names)
                    self._modules[path] = part

    def get_unique_ids(self, consumer: str | None = None) -> dict[str, Tensor]:
        """Return the touched rows that this rank knows of since the last call, by the table's name in state dicts.

        Args:
            consumer: Who asks; "default" if None.

        Raises:
            ValueError: The consumer is unknown.
        """
        rows = self._touched.local_rows(consumer or self.DEFAULT_CONSUMER)
        return {self._names[table]: found for table, found in rows.items() if table in self._names}

    def get_unique(
        self,
        consumer: str | None = None,
        top_percentage: float | None = 1.0,
        per_table_percentage: dict[str, tuple[float, str]] | None = None,
        sorted_by_indices: bool | None = True,
    ) -> dict[str, UniqueRows]:
        """Return the same as ``get_unique_ids``, in TorchRec's form.

        Args:
            consumer: As there.
            top_percentage: 1.0: without states, no row is above another.
            per_table_percentage: None.
            sorted_by_indices: Has no effect: rows ascend.

        Raises:
            ValueError: A part of the rows is asked for.
        """
        del sorted_by_indices
        if top_percentage not in (None, 1.0) or per_table_percentage:
            raise ValueError(
                f"top_percentage: got {top_percentage} and {per_table_percentage}, expected 1.0 and None: only numbers "
                "of rows are tracked"
            )
        return {name: UniqueRows(ids, None) for name, ids in self.get_unique_ids(consumer).items()}

    def get_tracked_modules(self) -> dict[str, nn.Module]:
        """Return the collections by path."""
        return self._modules

    def fqn_to_feature_names(self) -> dict[str, list[str]]:
        """Return the features of each table, by its name in state dicts."""
        return self._features

    def clear(self, consumer: str | None = None) -> None:
        """Forget the touched rows of a consumer, or of all."""
        for one in self._touched.consumers if consumer is None else [consumer]:
            self._touched.clear(one)

    def step(self) -> None:
        """Do nothing: rows belong to no batch."""
