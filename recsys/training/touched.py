"""Which rows of tables a training changes: one byte for each row, one bit of it for each consumer.

Shape letters: N number of IDs or rows, R rows.

Rows are marked where the optimizer reaches them: when a gradient arrives at a lookup in the backward pass, the rows
that it read. Rows that change in another way are marked where that happens: resets of rows with a new owner, loaded
weights. A table whose optimizer changes rows without a gradient (momentum, weight decay of all rows) is marked whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch import distributed as dist

from recsys.base.collectives import gather_rows, group_device
from recsys.embedding import EmbeddingBagCollection, EmbeddingCollection, FloatCollection
from recsys.jagged.keyed_jagged import KeyedJaggedTensor
from recsys.kernels.training import DenseLookup, TrainingLookup
from recsys.managed.embedding import BaseManagedCollisionEmbeddingCollection
from recsys.model_parallel import DistributedModelParallel, get_unwrapped_module
from recsys.quant import float_tables, float_weights
from recsys.sharding.plan.device_rows import table_path
from recsys.sharding.sharded import ShardedCollection
from recsys.sharding.table_shards import TableShards
from recsys.training.optimizers import LocalUpdates

DEFAULT_CONSUMER = "default"
#: A byte has so many bits.
MAX_CONSUMERS = 8
_ALL = 0xFF
# Rows of the whole table and the number of the table in one int64.
_ROW_BITS = 40


class _Marks:
    """The marks of consecutive rows of a table, ``[R]`` uint8 in host memory: ``[first, first + R)``.

    The array ends at a multiple of eight bytes, so that it is searched eight rows at a time.
    """

    def __init__(self, first: int, num_rows: int) -> None:
        self.first = first
        self.num_rows = num_rows
        self._bytes: NDArray[np.uint8] = np.zeros(-(-num_rows // 8) * 8, dtype=np.uint8)
        self._rows = self._bytes[:num_rows]
        # The consumers for which all rows count.
        self._whole = 0

    def mark(self, rows: Tensor) -> None:
        """Mark rows ``[N]``, counted from ``first``."""
        self._rows[rows.cpu().numpy()] = _ALL

    def mark_all(self) -> None:
        self._whole = _ALL

    def marked(self, bit: int) -> Tensor:
        """Return the rows that are marked for a consumer, int64 ``[N]``, ascending, counted from ``first``."""
        if self._whole & bit:
            return torch.arange(self.num_rows)
        words = np.flatnonzero(self._bytes.view(np.uint64))
        rows = (words[:, None] * 8 + np.arange(8)).reshape(-1)
        return torch.from_numpy(rows[(self._bytes[rows] & bit) != 0])

    def clear(self, bit: int, rows: Tensor | None = None) -> None:
        """Take the marks of a consumer away.

        Args:
            bit: The consumer's.
            rows: What ``marked`` returned, if it was just called.
        """
        self._whole &= ~bit
        if rows is None or len(rows) == self.num_rows:
            self._bytes &= ~bit & _ALL
        else:
            self._rows[rows.numpy()] &= ~bit & _ALL


class TouchedRows:
    """Tracks the rows of a model's tables that change while it is trained.

    Works for unsharded collections and for a ``DistributedModelParallel`` with tables of any sharding type and kernel.
    Takes a byte for each row that this rank holds. A row is marked when its gradient arrives in the backward pass, when
    it gets a new owner, and when weights are loaded. Lookups in eval mode, or without gradients, mark nothing. Rows
    that a program overwrites by itself must be marked with ``mark``.

    Call ``rows`` between two steps: after the optimizer's step, before the next backward pass.

    Args:
        model: The model; on several ranks, a ``DistributedModelParallel``.
        consumers: Who asks for rows; each gets those that changed since it asked last. At most 8.
        optimizer: The optimizer of tables that are not trained in the backward pass of their lookups (unsharded ones,
            and those of the dense kernel). Rows with a gradient are marked for row-wise Adagrad, and for torch's SGD
            and Adagrad without momentum and weight decay. Without it, or with another one, which may change rows that
            have no gradient, all rows of these tables count as touched at each step.

    Raises:
        ValueError: The model has no tables, or there are too many consumers or one twice.
    """

    def __init__(
        self,
        model: nn.Module,
        consumers: Sequence[str] = (DEFAULT_CONSUMER,),
        optimizer: torch.optim.Optimizer | None = None,
    ) -> None:
        if not 0 < len(consumers) <= MAX_CONSUMERS or len(set(consumers)) < len(consumers):
            raise ValueError(
                f"consumers: got {list(consumers)}, expected between 1 and {MAX_CONSUMERS} different names"
            )
        self._bits = {name: 1 << i for i, name in enumerate(consumers)}
        self._group = _group_of(model)
        self._updates = LocalUpdates(optimizer)
        #: The number of rows of each table, by its path.
        self.sizes: dict[str, int] = {}
        self._marks: dict[str, dict[tuple[int, int], _Marks]] = {}
        self._shards: dict[nn.Module, list[_Marks]] = {}
        self._removers: list[Callable[[], object]] = []
        for path, part in get_unwrapped_module(model).named_modules():
            if isinstance(part, ShardedCollection):
                self._watch_sharded(path, part)
            elif isinstance(part, (EmbeddingBagCollection, EmbeddingCollection)):
                self._watch_unsharded(path, part)
        if not self._marks:
            raise ValueError(f"model: {type(model).__name__} has no tables, expected at least one to track")
        for path, part in get_unwrapped_module(model).named_modules():
            if isinstance(part, BaseManagedCollisionEmbeddingCollection):
                self._watch_evictions(path, part)

    @property
    def tables(self) -> list[str]:
        """The paths of the tables, as an artifact names them; the same on every rank."""
        return list(self._marks)

    @property
    def consumers(self) -> list[str]:
        """Who asks for rows."""
        return list(self._bits)

    def rows(self, consumer: str = DEFAULT_CONSUMER, *, clear: bool = True) -> dict[str, Tensor]:
        """Return the touched rows of each table since the last call, over all ranks. Every rank must call it.

        Args:
            consumer: Who asks.
            clear: Whether the next call leaves these rows out.

        Returns:
            By table path: int64 ``[N]``, ascending rows of the whole table.

        Raises:
            ValueError: The consumer is unknown.
        """
        mine = self.local_rows(consumer, clear=clear)
        if self._group is None or dist.get_world_size(self._group) == 1:
            return mine
        # One collective for all tables.
        numbered = [rows | table << _ROW_BITS for table, rows in enumerate(mine.values())]
        gathered = gather_rows(torch.cat(numbered).to(group_device(self._group)), self._group)
        every = torch.unique(torch.cat(gathered).cpu())
        bounds = torch.arange(len(mine) + 1) << _ROW_BITS
        at = torch.searchsorted(every, bounds).tolist()
        mask = (1 << _ROW_BITS) - 1
        return {name: every[at[i] : at[i + 1]] & mask for i, name in enumerate(mine)}

    def local_rows(self, consumer: str = DEFAULT_CONSUMER, *, clear: bool = True) -> dict[str, Tensor]:
        """Return the touched rows that this rank knows of; otherwise as ``rows``, without communication."""
        bit = self._bit(consumer)
        found = {}
        for name, parts in self._marks.items():
            rows = []
            for marks in parts.values():
                marked = marks.marked(bit)
                if clear:
                    marks.clear(bit, marked)
                rows.append(marked + marks.first if marks.first else marked)
            found[name] = torch.cat(rows) if rows else torch.empty(0, dtype=torch.int64)
        return found

    def clear(self, consumer: str = DEFAULT_CONSUMER) -> None:
        """Take all marks of a consumer away, on this rank."""
        bit = self._bit(consumer)
        for parts in self._marks.values():
            for marks in parts.values():
                marks.clear(bit)

    def mark(self, table: str, rows: Tensor | None = None) -> None:
        """Mark rows that a program overwrites by itself, for all consumers.

        Args:
            table: The table's path.
            rows: ``[N]`` int64, rows of the whole table; None for all. Rows that other ranks hold are left to them.

        Raises:
            ValueError: The table is unknown.
        """
        if table not in self._marks:
            raise ValueError(f"table: got {table!r}, expected one of {self.tables[:8]}")
        for marks in self._marks[table].values():
            if rows is None:
                marks.mark_all()
                continue
            local = rows.cpu() - marks.first
            marks.mark(local[(local >= 0) & (local < marks.num_rows)])

    def mark_all(self) -> None:
        """Mark all rows of all tables."""
        for name in self._marks:
            self.mark(name)

    def mark_shard(self, lookup: nn.Module, shard: int, rows: Tensor) -> None:
        """Mark rows of a shard of a lookup, ``[N]`` int64, counted from the shard's first row."""
        self._shards[lookup][shard].mark(rows)

    def close(self) -> None:
        """End the tracking: the model runs as without it."""
        for remove in self._removers:
            remove()
        self._removers.clear()

    def _bit(self, consumer: str) -> int:
        if consumer not in self._bits:
            raise ValueError(f"consumer: got {consumer!r}, expected one of {self.consumers}")
        return self._bits[consumer]

    def _watch_sharded(self, path: str, collection: ShardedCollection) -> None:
        for name, table in collection.trained_tables.items():
            self.sizes[table_path(path, name)] = table.config.num_embeddings
            self._watch_table(table_path(path, name), table)

        def look(lookup: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], output: Tensor) -> None:
            if lookup in self._shards:  # copies of the model have copies of the hook
                self._look(lookup, args, kwargs, output)

        for lookup in collection.lookups:
            if lookup.trained and lookup in self._shards:
                self._removers.append(lookup.register_forward_hook(look, with_kwargs=True).remove)

    def _watch_table(self, name: str, table: TableShards) -> None:
        # Blocks of columns of the same rows share their marks.
        parts = self._marks.setdefault(name, {})
        for where, lookup, position in table.held():
            first, end = where.rows
            if (first, end) not in parts:
                parts[first, end] = _Marks(first, end - first)
            marks = parts[first, end]
            of_lookup = self._shards.setdefault(lookup, [])
            of_lookup += [marks] * (position + 1 - len(of_lookup))
            of_lookup[position] = marks
        self._removers.append(table.watch_writes(lambda rows: self.mark(name, rows)))

    def _look(
        self, lookup: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], output: Tensor
    ) -> None:
        """Mark what a lookup reads, once its gradient arrives."""
        assert isinstance(lookup, TrainingLookup)
        if not output.requires_grad:
            return
        of_shards = self._shards[lookup]
        whole = [
            isinstance(lookup, DenseLookup) and not self._updates.leave_other_rows(w) for w in lookup.weights
        ]
        values, sizes, slots = args[0], kwargs["ids_per_slot"], lookup.slots

        def mark(_gradient: Tensor) -> None:
            for shard, ids in _by_shard(slots, sizes, values):
                if whole[shard]:
                    of_shards[shard].mark_all()
                elif ids.numel():
                    of_shards[shard].mark(ids)

        output.register_hook(mark)

    def _watch_unsharded(self, path: str, collection: FloatCollection) -> None:
        names = [table_path(path, table.name) for table in float_tables(collection)]
        for name, table in zip(names, float_tables(collection), strict=True):
            self.sizes[name] = table.num_embeddings
            self._marks[name] = {(0, table.num_embeddings): _Marks(0, table.num_embeddings)}

        def mark_all(module: nn.Module, _keys: object) -> None:
            for name in names if module is collection else ():
                self.mark(name)

        def look(module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
            features = args[0] if args else kwargs.get("features")
            # Copies of the model have copies of the hook.
            trains = module is collection and module.training and torch.is_grad_enabled()
            if trains and isinstance(features, KeyedJaggedTensor):
                self._look_unsharded(path, collection, features)

        hook = collection.register_forward_pre_hook(look, with_kwargs=True)
        loaded = collection.register_load_state_dict_post_hook(mark_all)  # type: ignore[no-untyped-call]
        self._removers += [hook.remove, loaded.remove]

    def _look_unsharded(self, path: str, collection: FloatCollection, features: KeyedJaggedTensor) -> None:
        weights, jagged = float_weights(collection), features.to_dict()
        for table in float_tables(collection):
            if not weights[table.name].requires_grad:
                continue
            name = table_path(path, table.name)
            if not self._updates.leave_other_rows(weights[table.name]):
                self.mark(name)
                continue
            for feature in table.feature_names:
                if feature in jagged:
                    self.mark(name, jagged[feature].values())

    def _watch_evictions(self, path: str, managed: BaseManagedCollisionEmbeddingCollection) -> None:
        """Mark rows with a new owner of unsharded tables; sharded ones tell of them themselves."""
        if isinstance(managed.embedding_module, ShardedCollection):
            return
        inner = next(name for name, part in managed.named_modules() if part is managed.embedding_module)
        of_tables = f"{path}.{inner}" if path else inner
        managed.register_eviction_hook(lambda table, rows: self.mark(table_path(of_tables, table), rows))


def _by_shard(slots: Sequence[int], sizes: Sequence[int], values: Tensor) -> Iterator[tuple[int, Tensor]]:
    """Yield the IDs of neighbouring slots with one shard."""
    start = end = 0
    for i, size in enumerate(sizes):
        end += size
        if i + 1 == len(sizes) or slots[i + 1] != slots[i]:
            yield slots[i], values[start:end]
            start = end


def _group_of(model: nn.Module) -> dist.ProcessGroup | None:
    return model.env.process_group if isinstance(model, DistributedModelParallel) else None
