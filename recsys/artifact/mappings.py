"""The mappings of an artifact: which raw IDs own which rows of managed tables, as a part beside the rows.

A part holds the Q buckets of a collection's managed tables, one table after the other: 64 bytes a bucket, little-endian
int64: four raw IDs, then their rows; row -1 is a free slot. With ``h`` MurmurHash3's ``fmix64`` of an ID without its
last step (the shift), the ID is in bucket ``a = h mod num_buckets`` of its table, or in ``a xor (((h >> 32) mod
num_buckets) or 1)``. Graphs and programs read the buckets in a tensor, which deltas change in place.

Shape letters: N raw IDs, Q buckets, R rows of a table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

import torch
from torch import Tensor

from recsys.base.json_checks import check_once, wrong
from recsys.errors import ManifestError
from recsys.managed.changes import MappingChange
from recsys.managed.frozen import SlotTable
from recsys.managed.slots import MAX_ROWS, SLOTS, WIDTH, changed_buckets, fault_in, rows_in

#: Bytes of a bucket.
BUCKET_BYTES = 8 * WIDTH


@dataclass(frozen=True, kw_only=True)
class MappingInfo:
    """A mapping in the manifest.

    Attributes:
        path: The path of the tensor of buckets in the graphs and programs, int64 ``[Q, 8]``.
        part: The part that holds them.
        tables: The managed tables in the order of their buckets: ``name`` in the manifest, ``num_rows``, and
            ``num_buckets``, a power of two from 2 to 2^32.
    """

    path: str
    part: str
    tables: tuple[SlotTable, ...]

    @property
    def num_buckets(self) -> int:
        """The buckets of all tables."""
        return sum(table.num_buckets for table in self.tables)


def check_mappings(
    found: Sequence[MappingInfo], num_embeddings: Mapping[str, int], size_of: Mapping[str, int]
) -> None:
    """Check the mappings of an untrusted manifest against its tables and parts.

    Args:
        found: The mappings.
        num_embeddings: The rows of its tables, by name.
        size_of: The bytes of its parts, by name.

    Raises:
        ManifestError: A field is wrong.
    """
    for i, info in enumerate(found):
        _check_mapping(info, f"manifest.mappings[{i}]", size_of)
    check_once([info.path for info in found], "manifest.mappings")
    check_once([info.part for info in found], "manifest.mappings")
    tables = [table for info in found for table in info.tables]
    check_once([table.name for table in tables], "manifest.mappings.tables")
    for table in tables:
        if num_embeddings.get(table.name, table.num_rows) != table.num_rows:
            raise wrong(
                f"manifest.mappings: table {table.name!r}",
                "num_rows",
                table.num_rows,
                f"{num_embeddings[table.name]}, as the table says",
            )


def _check_mapping(info: MappingInfo, at: str, size_of: Mapping[str, int]) -> None:
    if not info.tables:
        raise wrong(at, "tables", [], "one table at least")
    for i, table in enumerate(info.tables):
        _check_table(table, f"{at}.tables[{i}]")
    size = size_of.get(info.part)
    if size != info.num_buckets * BUCKET_BYTES:
        raise wrong(
            at, "part", info.part, f"a part of {info.num_buckets * BUCKET_BYTES} bytes, as the tables say"
        )


def _check_table(table: SlotTable, at: str) -> None:
    if table.num_rows > MAX_ROWS:
        raise wrong(at, "num_rows", table.num_rows, f"at most {MAX_ROWS}")
    if table.num_buckets < 2 or table.num_buckets > MAX_ROWS or table.num_buckets & (table.num_buckets - 1):
        raise wrong(at, "num_buckets", table.num_buckets, f"a power of two from 2 to {MAX_ROWS}")


@dataclass(frozen=True, kw_only=True)
class LoadedTable:
    """A managed table of a loaded mapping.

    Attributes:
        info: Its place among the buckets.
        slots: Its buckets, ``[Q, WIDTH]`` int64 in host memory; a view.
    """

    info: SlotTable
    slots: Tensor

    @cached_property
    def is_owned(self) -> Tensor:
        """Which rows a raw ID owns, ``[R]`` bool; kept up to date by those who write the buckets."""
        rows = self.slots[:, SLOTS:]
        owned = torch.zeros(self.info.num_rows, dtype=torch.bool)
        owned[rows[rows >= 0]] = True
        return owned


@dataclass(frozen=True, kw_only=True)
class LoadedMapping:
    """A mapping of a loaded model.

    Attributes:
        info: Its entry in the manifest.
        slots: ``[Q, WIDTH]`` int64 in host memory, which graphs and programs read.
    """

    info: MappingInfo
    slots: Tensor

    @cached_property
    def tables(self) -> Sequence[LoadedTable]:
        """Its tables."""
        ends = list(accumulate(table.num_buckets for table in self.info.tables))
        return [
            LoadedTable(info=table, slots=self.slots[end - table.num_buckets : end])
            for table, end in zip(self.info.tables, ends, strict=True)
        ]


def loaded_mapping(info: MappingInfo, data: bytes) -> LoadedMapping:
    """Return a mapping in memory of its own.

    Args:
        info: Its entry in the manifest.
        data: The part, whose size and digest were compared.

    Raises:
        ManifestError: It holds no mapping.
    """
    slots = torch.frombuffer(bytearray(data), dtype=torch.int64).view(-1, WIDTH)
    loaded = LoadedMapping(info=info, slots=slots)
    for table in loaded.tables:
        fault = fault_in(table.slots, table.info.num_rows)
        if fault:
            raise ManifestError(f"part {info.part!r}: mapping of table {table.info.name!r}: {fault}")
    return loaded


def tables_of(mappings: Sequence[LoadedMapping]) -> dict[str, LoadedTable]:
    """Return the managed tables by name."""
    return {table.info.name: table for mapping in mappings for table in mapping.tables}


@dataclass(frozen=True, kw_only=True)
class PlannedChange:
    """The change of a managed table, to be written once to the state that it was planned for.

    Attributes:
        table: The table.
        buckets: ``[N]`` int64, which buckets change, ascending.
        contents: ``[N, WIDTH]`` int64, what they hold then.
        freed: int64, the rows that raw IDs lose.
        taken: int64, the rows that raw IDs get.
    """

    table: LoadedTable
    buckets: Tensor
    contents: Tensor
    freed: Tensor
    taken: Tensor


def planned(table: LoadedTable, change: MappingChange, *, is_compacted: bool = False) -> PlannedChange:
    """Check a change against the present state of a table. Nothing changes yet.

    Args:
        table: The table.
        change: The change.
        is_compacted: Whether it stands for a chain of changes, which may evict raw IDs that came within it.

    Raises:
        ValueError: An evicted ID owns no row, or a row would have two IDs.
        FullMappingError: An ID has no place.
    """
    lost, before = rows_in(table.slots, change.evicted), rows_in(table.slots, change.raw_ids)
    evicted = change.evicted[lost >= 0]
    if not is_compacted and evicted.numel() < lost.numel():
        raw_id = int(change.evicted[lost < 0][0])
        raise ValueError(f"got raw ID {raw_id} as evicted, expected one that owns a row")
    is_moved = before >= 0
    freed = torch.cat([lost[lost >= 0], before[is_moved]])
    is_owned = table.is_owned[change.rows]
    is_owned &= ~torch.isin(change.rows, freed)
    for raw_id, row in zip(
        change.raw_ids[is_owned][:1].tolist(), change.rows[is_owned][:1].tolist(), strict=True
    ):
        raise ValueError(f"got row {row} for raw ID {raw_id}, expected a row that no other raw ID owns")
    removed = torch.cat([evicted, change.raw_ids[is_moved]])
    buckets, contents = changed_buckets(table.slots, change.raw_ids, change.rows, removed)
    return PlannedChange(table=table, buckets=buckets, contents=contents, freed=freed, taken=change.rows)
