"""The frozen mappings of several tables as one lookup, for exported graphs.

Shape letters: F features, M managed tables, N number of IDs, K raw IDs that own rows, in all tables; P probes; Q
buckets of rows, in all tables.

The raw IDs of all tables are in one hash table, so that a batch needs the same few operators for any number
of tables, and an ID two or three memory reads: a third of the time of a binary search in each table
(docs/train/zero_collision.md, `python -m benchmarks.managed`).

An ID of table m is hashed by invertible functions: different IDs of a table have different hashes, and the
tables' salts are chosen so that IDs of different tables have different hashes too. So an entry belongs to the
ID if and only if hash and table are equal. Entries are sorted by hash; the top bits of a hash select its
bucket, and P, the size of the largest bucket, is the number of entries that a lookup compares.

IDs that own no row share rows: the last one of a table, or, where rows are found by hash, one that the ID's hash
selects.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from recsys.jagged.keyed_jagged import KeyedJaggedTensor
from recsys.managed.collection import ManagedCollisionCollection
from recsys.managed.hash_zch import HashZchManagedCollisionModule
from recsys.managed.module import MCHManagedCollisionModule
from recsys.managed.probing import hashed, places
from recsys.ops import is_traced, multiplied_bits

# Factor that makes salts of numbers: the golden ratio's fraction, odd.
_SALT = 0x9E3779B97F4A7C15
# An entry holds the table's number above this many bits of row number.
_ROW_BITS = 40
# Random hashes fill a bucket with more entries than this only in tables beyond 10^9 IDs.
_MOST_PROBES = 16
_TRIES = 64

#: The modules whose mapping is a list of raw IDs and their rows; no others can be frozen.
FREEZABLE = (MCHManagedCollisionModule, HashZchManagedCollisionModule)
Freezable = MCHManagedCollisionModule | HashZchManagedCollisionModule


class FrozenLookup(nn.Module):
    """The current mapping of a ManagedCollisionCollection's modules.

    Args:
        collection: All of its modules must be of ``FREEZABLE`` kinds. No reference to it is kept.

    Raises:
        TypeError: A module is of another kind.
        ValueError: A table has more than 2^40 rows, or all tables together own 2^31 or more.
    """

    salts: Tensor
    fallbacks: Tensor
    num_buckets: Tensor
    first_buckets: Tensor
    shared_sizes: Tensor
    shared_starts: Tensor
    runs: Tensor
    starts: Tensor
    hashes: Tensor
    entries: Tensor
    probes: Tensor

    def __init__(self, collection: ManagedCollisionCollection) -> None:
        super().__init__()
        modules = collection.managed_collision_modules()
        self._table_of = {f: list(modules).index(table) for f, table in collection.table_of_feature().items()}
        ids, entries, frozen = [], [], []
        for number, (table, module) in enumerate(modules.items()):
            if not isinstance(module, FREEZABLE):
                raise TypeError(
                    f"table {table!r}: got a {type(module).__name__}, expected a {freezable_names()}"
                )
            num_rows = module.output_size()
            if num_rows > 2**_ROW_BITS:
                raise ValueError(f"table {table!r}: got {num_rows} rows, expected up to {2**_ROW_BITS}")
            owners, rows = module.owners()
            ids.append(owners.cpu())
            entries.append((number << _ROW_BITS) + rows.cpu())
            frozen.append(module)
        salts, hashes, order, bucket_bits = _placed(ids)
        buckets = _bucket(hashes, bucket_bits)
        sizes = torch.bincount(buckets, minlength=2**bucket_bits)
        starts = (sizes.cumsum(0) - sizes).to(torch.int32)
        num_probes = max(int(sizes.max()), 1)
        # Padding after the last bucket: entries of no table.
        padding = torch.full((num_probes,), -1, dtype=torch.int64)
        self._num_tables = len(modules)
        self._bucket_bits = bucket_bits
        self._num_probes = num_probes
        self._hashes_of = {
            number: module.preprocess
            for number, module in enumerate(modules.values())
            if collection.need_preprocess
            and isinstance(module, MCHManagedCollisionModule)
            and module.hashes_raw_ids
        }
        self._constant("salts", torch.tensor([*salts, 0]))
        self._share_rows(frozen)
        self._constant("starts", starts)
        self._constant("hashes", torch.cat([hashes, padding]))
        self._constant("entries", torch.cat([torch.cat(entries)[order], padding]))
        self._constant("probes", torch.arange(num_probes))

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
        hashes = multiplied_bits(ids + self.salts.index_select(0, table))
        start = self.starts.index_select(0, _bucket(hashes, self._bucket_bits))
        places = (start.unsqueeze(1) + self.probes).view(-1)
        is_equal = torch.eq(
            self.hashes.index_select(0, places).view(-1, self._num_probes), hashes.unsqueeze(1)
        )
        place = start + is_equal.to(torch.uint8).argmax(dim=1)
        entry = self.entries.index_select(0, place)
        is_known = torch.logical_and(
            torch.eq(self.hashes.index_select(0, place), hashes),
            torch.eq(torch.bitwise_right_shift(entry, _ROW_BITS), table),
        )
        row = torch.bitwise_and(entry, 2**_ROW_BITS - 1)
        return torch.where(is_known, row, self._shared(table, ids))

    def _tables(self, tables: Sequence[int], *, traced: bool) -> Tensor:
        numbers = torch.tensor(tables, dtype=torch.int64)
        if traced:
            # The buffer's name in a graph identifies its tables.
            self.register_buffer("tables_" + "_".join(map(str, tables)), numbers, persistent=False)
        return numbers


def freezable_names() -> str:
    """Return the names of the kinds that can be frozen, for messages."""
    return " or a ".join(kind.__name__ for kind in FREEZABLE)


def _bucket(hashes: Tensor, bucket_bits: int) -> Tensor:
    """Return the top bits of hashes, in the order of the hashes as signed numbers."""
    buckets: Tensor = torch.bitwise_right_shift(hashes, 64 - bucket_bits) + 2 ** (bucket_bits - 1)
    return buckets


def _placed(ids: Sequence[Tensor]) -> tuple[list[int], Tensor, Tensor, int]:
    """Return salts for distinct hashes, the hashes ascending, their order, and the bits of a bucket."""
    num_ids = sum(part.numel() for part in ids)
    if num_ids >= 2**31:
        raise ValueError(f"raw IDs: got {num_ids} that own rows, expected fewer than 2^31")
    # Two to four buckets per ID.
    bucket_bits = max(num_ids, 1).bit_length() + 1
    for attempt in range(_TRIES):
        # Odd multiples, so that the salts' differences change with each attempt.
        salts = [_signed(_SALT * (number + 1) * (2 * attempt + 1)) for number in range(len(ids))]
        hashes, order = torch.cat(
            [multiplied_bits(part + salt) for part, salt in zip(ids, salts, strict=True)]
        ).sort()
        if bool((hashes[1:] == hashes[:-1]).any()):
            continue
        sizes = torch.bincount(_bucket(hashes, bucket_bits))
        if not sizes.numel() or int(sizes.max()) <= _MOST_PROBES:
            return salts, hashes, order, bucket_bits
    raise ValueError(f"raw IDs: found no salts for {num_ids} IDs in {_TRIES} attempts")


def _signed(number: int) -> int:
    return (number + 2**63) % 2**64 - 2**63
