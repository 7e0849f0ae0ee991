"""The layout of a sharded collection: the slots of each rank, and the assembly of outputs.

Shape letters: B batch, E (feature, table) pairs, S slots, P padded dimension, W world size.

A *pair* is a feature in one of its tables; a *slot* is a pair on one shard. Slots of one rank and one pooling (or,
without pooling, one padded dimension) form a *group*: one call of the lookup kernel. A kernel that can pools each slot
by itself. All of this is plain data, used by every transport.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from recsys.configs import FLOAT_TYPES, BaseEmbeddingConfig, EmbeddingBagConfig, PoolingType, embedding_names
from recsys.kernels.bounds import INT64_MAX
from recsys.rows.format import RowFormat
from recsys.sharding.plan.plan import ParameterSharding

#: The rank of slots of replicated tables, which are looked up on the batch's rank.
REPLICATED = -1


@dataclass(frozen=True, kw_only=True)
class Pair:
    """A feature in one of its tables."""

    feature: str
    name: str
    table: int


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A pair of a row-wise table: IDs from ``bounds[i]`` on go to shard i of ``len(bounds) - 1`` shards.

    The last bound is above every ID: IDs beyond the table were refused before, and a row of zeros after it
    (ID policy ZERO) belongs to the last shard.
    """

    pair: int
    bounds: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Slot:
    """A pair on one shard.

    Attributes:
        pair: Position of the pair.
        columns: First column, and the end.
        row_start: The shard's first row.
        rank: The shard's rank, or ``REPLICATED``.
        entry: Position of the entry that routes the IDs; None if all IDs go to this shard.
        part: Position among the entry's shards.
    """

    pair: int
    columns: tuple[int, int]
    row_start: int
    rank: int
    entry: int | None
    part: int

    @property
    def width(self) -> int:
        """Number of columns."""
        return self.columns[1] - self.columns[0]


@dataclass(frozen=True, kw_only=True)
class Group:
    """The slots of one call of the lookup kernel.

    Attributes:
        rank: The rank that runs it.
        slots: The slots, in order.
        poolings: The pooling of each.
        partial: Whether the outputs are partial sums over several shards, to add in float32.
    """

    rank: int
    slots: tuple[Slot, ...]
    poolings: tuple[PoolingType, ...]
    partial: bool = False

    @property
    def pooling(self) -> PoolingType:
        """The pooling of all slots, where it is one."""
        (pooling,) = set(self.poolings)
        return pooling


@dataclass(frozen=True, kw_only=True)
class Layout:
    """The layout of a collection."""

    tables: tuple[BaseEmbeddingConfig, ...]
    pairs: tuple[Pair, ...]
    entries: tuple[Entry, ...]
    groups: tuple[Group, ...]

    @property
    def slots(self) -> list[tuple[int, Slot]]:
        """Every slot in the groups' order, with its group's position."""
        return [(g, slot) for g, group in enumerate(self.groups) for slot in group.slots]

    @property
    def features(self) -> list[str]:
        """The pairs' features, in order."""
        return [pair.feature for pair in self.pairs]

    def table_of(self, slot: Slot) -> BaseEmbeddingConfig:
        """Return the slot's table."""
        return self.tables[self.pairs[slot.pair].table]

    def row_format(self, slot: Slot) -> RowFormat:
        """Return how the slot's rows are stored."""
        return RowFormat(data_type=self.table_of(slot).data_type, dim=slot.width)

    def output_dim(self, slot: Slot) -> int:
        """Return the columns of the slot's output: its width, padded as stored rows are."""
        return (
            slot.width if self.table_of(slot).data_type in FLOAT_TYPES else self.row_format(slot).padded_dim
        )

    def divides_mean(self, slot: Slot) -> bool:
        """Return whether the slot's bags are summed here and divided when assembled: MEAN over several shards."""
        table = self.table_of(slot)
        mean = isinstance(table, EmbeddingBagConfig) and table.pooling is PoolingType.MEAN
        return mean and slot.entry is not None


def make_layout(
    tables: Sequence[BaseEmbeddingConfig],
    plan: Mapping[str, ParameterSharding],
    world_size: int,
    *,
    separate_sums: bool = False,
    kernels: Mapping[str, int] | None = None,
    mixed: Collection[str] = (),
) -> Layout:
    """Lay out a collection whose plan has been checked.

    Args:
        tables: The tables of the collection.
        plan: The sharding of each table.
        world_size: W.
        separate_sums: Whether to keep partial sums in separate groups, for lookups with outputs narrower than
            float32.
        kernels: The kernel of each table, if there are several.
        mixed: The tables whose kernel sums bags of one slot and averages those of another in one call.
    """
    kernels = kernels or {}
    names = embedding_names(tables)
    pairs = tuple(
        Pair(feature=feature, name=names[t][f], table=t)
        for t, table in enumerate(tables)
        for f, feature in enumerate(table.feature_names)
    )
    entries: list[Entry] = []
    slots: list[Slot] = []
    for p, pair in enumerate(pairs):
        table = tables[pair.table]
        slots += _slots_of(p, table, plan[table.name], entries)
    draft = Layout(tables=tuple(tables), pairs=pairs, entries=tuple(entries), groups=())
    by_group: dict[tuple[int, int, int, bool, int], list[Slot]] = {}
    poolings = list(PoolingType)
    for slot in slots:
        pooling, padded_dim = _call_of(draft, slot)
        partial = separate_sums and slot.entry is not None and pooling is not PoolingType.NONE
        kernel = kernels.get(draft.table_of(slot).name, 0)
        same = PoolingType.SUM if draft.table_of(slot).name in mixed else pooling
        key = (slot.rank, poolings.index(same), padded_dim, partial, kernel)
        by_group.setdefault(key, []).append(slot)

    def shard(slot: Slot) -> tuple[int, tuple[int, int], int]:
        return pairs[slot.pair].table, slot.columns, slot.row_start

    # FBGEMM 1.8's Adagrads on CPU fail, or are wrong, if a shard's slots are not adjacent.
    groups = []
    for key in sorted(by_group):
        ordered = tuple(sorted(by_group[key], key=shard))
        of_slots = tuple(_call_of(draft, slot)[0] for slot in ordered)
        groups.append(Group(rank=key[0], slots=ordered, poolings=of_slots, partial=key[3]))
    assert all(group.rank < world_size for group in groups)
    return Layout(tables=draft.tables, pairs=pairs, entries=draft.entries, groups=tuple(groups))


def _slots_of(
    pair: int, table: BaseEmbeddingConfig, sharding: ParameterSharding, entries: list[Entry]
) -> list[Slot]:
    if sharding.is_replicated:
        columns = (0, table.embedding_dim)
        return [Slot(pair=pair, columns=columns, row_start=0, rank=REPLICATED, entry=None, part=0)]
    by_columns: dict[tuple[int, int], list[tuple[int, int, int]]] = {}
    for shard in sharding.shards:
        by_columns.setdefault(shard.columns, []).append((*shard.rows, shard.rank))
    slots = []
    for columns, parts in sorted(by_columns.items()):
        parts.sort()
        entry = None
        if len(parts) > 1:
            wanted = Entry(pair=pair, bounds=(*(start for start, _, _ in parts), INT64_MAX))
            if wanted not in entries:
                entries.append(wanted)
            entry = entries.index(wanted)
        slots += [
            Slot(pair=pair, columns=columns, row_start=start, rank=rank, entry=entry, part=i)
            for i, (start, _, rank) in enumerate(parts)
        ]
    return slots


def _call_of(layout: Layout, slot: Slot) -> tuple[PoolingType, int]:
    """Return the pooling of the kernel's call, and the padded dimension if the call needs one for all its slots."""
    table = layout.table_of(slot)
    if not isinstance(table, EmbeddingBagConfig):
        return PoolingType.NONE, layout.output_dim(slot)
    return (PoolingType.SUM if layout.divides_mean(slot) else table.pooling), 0


@dataclass(frozen=True, kw_only=True)
class OutputPiece:
    """Columns of the assembled output: the sum of the same number of columns of some groups' outputs.

    Attributes:
        sources: For each addend the group and its first column.
        width: Number of columns.
        mean_of: The pair by whose bag sizes the sum is divided, or None.
    """

    sources: tuple[tuple[int, int], ...]
    width: int
    mean_of: int | None


def pooled_pieces(layout: Layout) -> list[OutputPiece]:
    """Return the pieces of pooled outputs in the order of the pairs; adjacent ones are merged if possible."""
    found: dict[tuple[int, tuple[int, int]], list[tuple[int, int]]] = {}
    mean_of: dict[tuple[int, tuple[int, int]], int | None] = {}
    for g, group in enumerate(layout.groups):
        start = 0
        for slot in group.slots:
            key = (slot.pair, slot.columns)
            found.setdefault(key, []).append((g, start))
            mean_of[key] = slot.pair if layout.divides_mean(slot) else None
            start += layout.output_dim(slot)
    pieces: list[OutputPiece] = []
    for key in sorted(found):
        width = key[1][1] - key[1][0]
        piece = OutputPiece(sources=tuple(found[key]), width=width, mean_of=mean_of[key])
        merged = _merged(pieces[-1], piece) if pieces else None
        if merged is None:
            pieces.append(piece)
        else:
            pieces[-1] = merged
    return pieces


def _merged(left: OutputPiece, right: OutputPiece) -> OutputPiece | None:
    follows = tuple((group, start + left.width) for group, start in left.sources) == right.sources
    if not follows or left.mean_of != right.mean_of:
        return None
    return OutputPiece(sources=left.sources, width=left.width + right.width, mean_of=left.mean_of)
