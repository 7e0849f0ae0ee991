"""The frozen mappings of several tables as one lookup, for exported graphs.

Shape letters: F features, M managed tables, N number of IDs; P buckets of rows, in all tables; Q buckets of raw IDs, in
all tables.

The raw IDs of all tables are in one tensor of buckets (``recsys.managed.slots``), so that a batch needs the same few
operators for any number of tables, and an ID two memory reads: a third of the time of a binary search in each table
(docs/train/zero_collision.md, `python -m benchmarks.managed`). The tensor's shape depends only on the tables' sizes,
so graphs of two checkpoints are equal, and deltas change it in place.

IDs that own no row share rows: the last one of a table, or, where rows are found by hash, one that the ID's hash
selects.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from recsys.jagged.keyed_jagged import KeyedJaggedTensor
from recsys.managed.collection import ManagedCollisionCollection
from recsys.managed.hash_zch import HashZchManagedCollisionModule
from recsys.managed.module import MCHManagedCollisionModule
from recsys.managed.probing import hashed, places
from recsys.managed.slots import (
    MAX_ROWS,
    SLOTS,
    FullMappingError,
    buckets_of,
    filled,
    num_buckets_of,
)
from recsys.ops import is_traced

#: The modules whose mapping is a list of raw IDs and their rows; no others can be frozen.
FREEZABLE = (MCHManagedCollisionModule, HashZchManagedCollisionModule)
Freezable = MCHManagedCollisionModule | HashZchManagedCollisionModule


#: As ``found_rows``.
FindRows = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]


def found_rows(slots: Tensor, masks: Tensor, starts: Tensor, tables: Tensor, ids: Tensor) -> Tensor:
    """Return the row of each raw ID, ``[N]`` int64; -1 for those that own none. Traceable by FX.

    Args:
        slots: ``[Q, WIDTH]`` int64, the buckets of all tables.
        masks: ``[M]`` int64, the number of buckets of each table less one.
        starts: ``[M]`` int64, its first bucket.
        tables: ``[N]`` int64, the table of each ID.
        ids: ``[N]`` int64.
    """
    first, second = buckets_of(ids, masks.index_select(0, tables))
    start = starts.index_select(0, tables)
    # The first buckets of all IDs, then the second ones: comparing tensors of more dimensions takes three times as
    # long.
    both = slots.index_select(0, torch.cat([first + start, second + start]))
    is_equal = torch.eq(both.narrow(1, 0, SLOTS), ids.repeat(2).unsqueeze(1))
    return torch.where(is_equal, both.narrow(1, SLOTS, SLOTS), -1).amax(dim=1).view(2, -1).amax(dim=0)


@dataclass(frozen=True, kw_only=True)
class SlotTable:
    """A managed table in a lookup's buckets.

    Attributes:
        name: The table's name.
        num_rows: Its rows.
        num_buckets: Its buckets: those after the table's before it.
    """

    name: str
    num_rows: int
    num_buckets: int


class FrozenLookup(nn.Module):
    """The current mapping of a ManagedCollisionCollection's modules.

    Args:
        collection: All of its modules must be of ``FREEZABLE`` kinds. No reference to it is kept.
        slots: Its buckets, as ``filled_slots`` returns them, or a placeholder for buckets that are set later; None for
            buckets of its own.
        find_rows: How it finds the rows of raw IDs.

    Attributes:
        tables: The managed tables, in the order of their buckets.

    Raises:
        TypeError: A module is of another kind.
        ValueError: A table has too many rows; ``FullMappingError`` where an ID has no place.
    """

    slots: Tensor
    masks: Tensor
    first_slots: Tensor
    fallbacks: Tensor
    num_buckets: Tensor
    first_buckets: Tensor
    shared_sizes: Tensor
    shared_starts: Tensor
    runs: Tensor

    def __init__(
        self,
        collection: ManagedCollisionCollection,
        slots: Tensor | None = None,
        find_rows: FindRows = found_rows,
    ) -> None:
        super().__init__()
        modules = freezable_modules(collection)
        self._find_rows = find_rows
        self._table_of = {f: list(modules).index(table) for f, table in collection.table_of_feature().items()}
        self._num_tables = len(modules)
        self._hashes_of = {
            number: module.preprocess
            for number, module in enumerate(modules.values())
            if collection.need_preprocess
            and isinstance(module, MCHManagedCollisionModule)
            and module.hashes_raw_ids
        }
        self.tables = slot_tables(modules)
        sizes = torch.tensor([table.num_buckets for table in self.tables])
        # IDs of no managed table look into the first buckets, whose rows they do not get.
        self._constant("masks", torch.cat([sizes - 1, sizes.new_zeros(1)]))
        self._constant("first_slots", torch.cat([sizes.cumsum(0) - sizes, sizes.new_zeros(1)]))
        self._constant("slots", filled_slots(modules) if slots is None else slots)
        self._share_rows(list(modules.values()))

    def _share_rows(self, modules: Sequence[Freezable]) -> None:
        """Keep what IDs without a row of their own read; IDs of no managed table count as those of a last one."""
        self._is_hashed = any(isinstance(module, HashZchManagedCollisionModule) for module in modules)
        shared = [*(module.shared_rows() for module in modules), (torch.ones(1), torch.zeros(1))]
        sizes, starts = (torch.cat([part[i].cpu() for part in shared]).to(torch.int64) for i in range(2))
        if not self._is_hashed:
            self._constant("fallbacks", starts)
            return
        limits = [m.input_size() if isinstance(m, HashZchManagedCollisionModule) else 0 for m in modules]
        num_buckets = torch.tensor([part[0].numel() for part in shared])
        self._has_runs = any(limits)
        self._constant("num_buckets", num_buckets)
        self._constant("first_buckets", num_buckets.cumsum(0) - num_buckets)
        self._constant("shared_sizes", sizes)
        self._constant("shared_starts", starts)
        self._constant("runs", -(-torch.tensor([*limits, 0]) // num_buckets))

    def _shared(self, table: Tensor, ids: Tensor) -> Tensor:
        """Return the row that each ID reads if it owns none, ``[N]`` int64."""
        if not self._is_hashed:
            return self.fallbacks.index_select(0, table)
        num_buckets = self.num_buckets.index_select(0, table)
        bucket = torch.remainder(ids, num_buckets)
        if self._has_runs:
            runs = self.runs.index_select(0, table)
            run = torch.div(ids, torch.clamp(runs, min=1), rounding_mode="floor")
            run = torch.minimum(torch.clamp(run, min=0), num_buckets - 1)
            bucket = torch.where(torch.eq(runs, 0), bucket, run)
        bucket = bucket + self.first_buckets.index_select(0, table)
        sizes, starts = (part.index_select(0, bucket) for part in (self.shared_sizes, self.shared_starts))
        return starts + places(hashed(ids), sizes)

    def _constant(self, name: str, data: Tensor) -> None:
        self.register_buffer(name, data, persistent=False)

    def forward(self, features: KeyedJaggedTensor) -> KeyedJaggedTensor:
        """Replace raw IDs by rows. Reads only shapes, and is traceable by FX.

        Args:
            features: In host memory, int64; one batch for all features; lengths that sum to the number of IDs.
        """
        keys = features.keys()
        tables = [self._table_of.get(key, self._num_tables) for key in keys]
        ids, lengths = features.values(), features.lengths()
        ids_per_key = lengths.view(len(tables), features.stride()).sum(dim=1)
        table = torch.repeat_interleave(
            self._tables(tables, traced=is_traced(ids)), ids_per_key, output_size=ids.size(0)
        )
        raw_ids = ids
        for number, preprocess in self._hashes_of.items():
            raw_ids = torch.where(torch.eq(table, number), preprocess(ids), raw_ids)
        rows = self._rows(table, raw_ids)
        if self._num_tables in tables:
            rows = torch.where(torch.lt(table, self._num_tables), rows, ids)
        return KeyedJaggedTensor(
            keys,
            rows,
            weights=features.weights_or_none(),
            lengths=lengths,
            stride=features.stride(),
            length_per_key=features.length_per_key_or_none(),
        )

    def _rows(self, table: Tensor, ids: Tensor) -> Tensor:
        row = self._find_rows(self.slots, self.masks, self.first_slots, table, ids)
        return torch.where(torch.ge(row, 0), row, self._shared(table, ids))

    def _tables(self, tables: Sequence[int], *, traced: bool) -> Tensor:
        numbers = torch.tensor(tables, dtype=torch.int64)
        if traced:
            # The buffer's name in a graph identifies its tables.
            self.register_buffer("tables_" + "_".join(map(str, tables)), numbers, persistent=False)
        return numbers


def freezable_names() -> str:
    """Return the names of the kinds that can be frozen, for messages."""
    return " or a ".join(kind.__name__ for kind in FREEZABLE)


def freezable_modules(collection: ManagedCollisionCollection) -> dict[str, Freezable]:
    """Return the modules of a collection by table.

    Raises:
        TypeError: A module is of a kind that cannot be frozen.
    """
    found: dict[str, Freezable] = {}
    for table, module in collection.managed_collision_modules().items():
        if not isinstance(module, FREEZABLE):
            raise TypeError(f"table {table!r}: got a {type(module).__name__}, expected a {freezable_names()}")
        found[table] = module
    return found


def slot_tables(modules: Mapping[str, Freezable]) -> tuple[SlotTable, ...]:
    """Return the places of tables in the buckets of a lookup.

    Raises:
        ValueError: A table has too many rows.
    """
    for name, module in modules.items():
        if module.output_size() > MAX_ROWS:
            raise ValueError(f"table {name!r}: got {module.output_size()} rows, expected up to {MAX_ROWS}")
    return tuple(
        SlotTable(name=name, num_rows=size, num_buckets=num_buckets_of(size))
        for name, size in ((name, module.output_size()) for name, module in modules.items())
    )


def filled_slots(modules: Mapping[str, Freezable]) -> Tensor:
    """Return the buckets of all tables with the raw IDs that own rows, ``[Q, WIDTH]`` int64 in host memory.

    Raises:
        FullMappingError: An ID has no place.
    """
    parts = []
    for table, module in zip(slot_tables(modules), modules.values(), strict=True):
        ids, rows = module.owners()
        try:
            parts.append(filled(table.num_buckets, ids.cpu(), rows.cpu()))
        except FullMappingError as error:
            raise FullMappingError(f"table {table.name!r}: {error}") from None
    return torch.cat(parts)
