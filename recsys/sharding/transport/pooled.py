"""Output distribution of pooled embeddings: all sharding types' outputs in one all-to-all, assembled on arrival.

Shape letters: B batch, D embedding dimension, E (feature, table) pairs, W world size.

A rank sends each other rank the rows of that rank's batch, all its columns side by side. Received outputs are
assembled once: columns are concatenated, partial sums added. Gradients are sent back the same way; they are
written directly into the send buffer and divided by W there. Partial sums that are added inside hosts are
sent separately (``hierarchical``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import torch
from torch import Tensor
from torch import distributed as dist
from torch.autograd.function import once_differentiable

from recsys.sharding.plan.layout import REPLICATED, Layout, Slot, pooled_pieces
from recsys.sharding.transport.exchange import AllToAll, Buffers, FlatExchange, graph_anchor
from recsys.sharding.transport.group_input import RankInput
from recsys.sharding.transport.hierarchical import HostColumns


@dataclass(frozen=True)
class _Source:
    """Columns of a rank's output. With ``rank`` REPLICATED, columns of a replicated group or of hosts' sums."""

    rank: int
    group: int
    start: int


#: First column of the output, width, sources, and the pair by whose bag sizes the sum is divided.
_Piece = tuple[int, int, tuple[_Source, ...], int | None]


class PooledColumns:
    """The positions of columns in each rank's sent data and in the assembled output.

    Args:
        layout: The layout of the collection.
        rank: This rank.
        world_size: W.
        hosts: The groups whose sums are added inside hosts; they are assembled like the outputs of the
            replicated groups.
    """

    def __init__(self, layout: Layout, rank: int, world_size: int, hosts: HostColumns | None = None) -> None:
        group_dims = [sum(layout.output_dim(slot) for slot in group.slots) for group in layout.groups]
        meeting = {} if hosts is None else hosts.home_of
        of_rank = {
            r: [g for g, group in enumerate(layout.groups) if group.rank == r and g not in meeting]
            for r in range(world_size)
        }
        self.rank_dims = [sum(group_dims[g] for g in of_rank[r]) for r in range(world_size)]
        self.own_dims = [group_dims[g] for g in of_rank[rank]]
        self.home_dims = [group_dims[g] for g, group in enumerate(layout.groups) if group.rank == REPLICATED]
        num_home = len(self.home_dims)
        if hosts is not None:
            self.home_dims += hosts.home_dims
        starts = {}
        for groups in of_rank.values():
            for g, start in zip(groups, accumulate((group_dims[g] for g in groups), initial=0), strict=False):
                starts[g] = start
        self.pieces: list[_Piece] = []
        at = 0
        for piece in pooled_pieces(layout):
            # A host's ranks, whose parts are all in one sum, count as one source.
            sources = dict.fromkeys(
                _Source(REPLICATED, num_home + meeting[g], start)
                if g in meeting
                else _Source(layout.groups[g].rank, g, starts.get(g, 0) + start)
                for g, start in piece.sources
            )
            self._append((at, piece.width, tuple(sources), piece.mean_of))
            at += piece.width
        self.total_dim = at
        # One rank's output of one group, in the order of the pairs: there is nothing to send or to assemble.
        only = (0, at, (_Source(rank, next(iter(of_rank[rank]), 0), 0),), None)
        self.are_one_output = world_size == 1 and self.pieces == [only] and self.own_dims == [at]
        self.buffers = Buffers()
        self.num_pairs = len(layout.pairs)

    def _append(self, piece: _Piece) -> None:
        """Append a piece; one whose columns follow those of the last one in every source makes that wider."""
        start, width, sources, mean_of = piece
        if self.pieces and mean_of is None:
            last_start, last_width, last_sources, last_mean_of = self.pieces[-1]
            after = tuple(replace(source, start=source.start + last_width) for source in last_sources)
            if last_mean_of is None and after == sources:
                self.pieces[-1] = (last_start, last_width + width, last_sources, None)
                return
        self.pieces.append((start, width, sources, mean_of))


class PooledExchange:
    """The outputs of one batch in transit, and later its gradients on the way back.

    The two halves of the exchange are autograd nodes, so that other layers run between them: forward, ``_Send`` starts
    an all-to-all and ``_Assemble`` waits for it; backward, ``_Assemble`` starts the one of the gradients and ``_Send``
    waits for that.

    Args:
        columns: The columns of the collection.
        inputs: The batch.
        group: The ranks.
        dtypes: The dtypes on the wire, forward and backward.
    """

    def __init__(
        self,
        columns: PooledColumns,
        inputs: RankInput,
        group: dist.ProcessGroup,
        dtypes: tuple[torch.dtype, torch.dtype],
    ) -> None:
        assert inputs.batch_sizes is not None
        self._columns = columns
        self._group = group
        self._dtypes = dtypes
        self._num_ranks = len(inputs.batch_sizes)
        self._num_bags = inputs.strides[0]
        self._num_rows = sum(inputs.batch_sizes)
        own_dim = sum(columns.own_dims)
        self._own_sizes = [b * own_dim for b in inputs.batch_sizes]
        self._rank_sizes = [self._num_bags * dim for dim in columns.rank_dims]
        self._lengths = inputs.lengths
        self._pending: AllToAll | None = None

    def start(self, own: Sequence[Tensor], device: torch.device) -> Tensor:
        """Send this rank's outputs ``[sum of all B, D of the group]``; return a token for ``finish``."""
        token: Tensor = _Send.apply(self, graph_anchor(device), *own)  # type: ignore[no-untyped-call]
        return token

    def finish(self, token: Tensor, home: Sequence[Tensor]) -> Tensor:
        """Wait for the other ranks' outputs, and assemble ``[B, sum of D]`` float32.

        Args:
            token: The result of ``start``.
            home: The outputs of the replicated groups, then the sums of hosts.
        """
        assembled: Tensor = _Assemble.apply(self, token, *home)  # type: ignore[no-untyped-call]
        return assembled

    def send(self, own: Sequence[Tensor]) -> None:
        """Start the all-to-all of this rank's outputs."""
        if own:
            rows = own[0] if len(own) == 1 else torch.cat([*own], dim=1)
        else:
            rows = self._lengths.new_zeros(0, dtype=torch.float32)
        self._all_to_all(rows.reshape(-1).to(self._dtypes[0]), self._own_sizes, self._rank_sizes)

    def assemble(self, home: Sequence[Tensor]) -> Tensor:
        """Wait for the outputs of all ranks, concatenate columns, and add partial sums."""
        received = self._by_rank(self._wait())
        parts = []
        for _, width, sources, mean_of in self._columns.pieces:
            found = [
                self._source(source, received, home).narrow(1, source.start, width) for source in sources
            ]
            total = found[0]
            for other in found[1:]:
                total = total + other
            parts.append(total if mean_of is None else total / self._bag_sizes(mean_of))
        shape = (self._num_bags, self._columns.total_dim)
        assembled = self._columns.buffers.take(shape, torch.float32, self._lengths.device)
        return torch.cat(parts, dim=1, out=assembled)

    def send_back(self, gradient: Tensor) -> list[Tensor]:
        """Start the all-to-all of the gradients ``[B, sum of D]``; return those of the local groups."""
        flat = self._columns.buffers.take((sum(self._rank_sizes),), self._dtypes[1], gradient.device)
        by_rank = self._by_rank(flat)
        home = [gradient.new_empty(self._num_bags, dim) for dim in self._columns.home_dims]
        for start, width, sources, mean_of in self._columns.pieces:
            columns = gradient.narrow(1, start, width)
            if mean_of is not None:
                columns = columns / self._bag_sizes(mean_of)
            for source in sources:
                target = self._source(source, by_rank, home).narrow(1, source.start, width)
                if source.rank == REPLICATED:
                    # A replicated table's hook averages its gradients; those of hosts' sums are averaged in
                    # their own backward exchange.
                    target.copy_(columns)
                else:
                    torch.mul(columns, 1.0 / self._num_ranks, out=target)
        self._all_to_all(flat, self._rank_sizes, self._own_sizes)
        return home

    def gradients(self) -> list[Tensor]:
        """Wait for the gradients of this rank's outputs."""
        dims = self._columns.own_dims
        received = self._wait().view(self._num_rows, sum(dims))
        return [part.contiguous() for part in torch.split(received, dims, dim=1)] if dims else []

    def _all_to_all(self, flat: Tensor, send_sizes: Sequence[int], receive_sizes: Sequence[int]) -> None:
        self._pending = AllToAll(flat, send_sizes, receive_sizes, self._group, self._columns.buffers)

    def _wait(self) -> Tensor:
        assert self._pending is not None
        received = self._pending.wait().to(torch.float32)
        self._pending = None
        return received

    def _by_rank(self, flat: Tensor) -> list[Tensor]:
        parts = torch.split(flat, self._rank_sizes)
        return [
            part.view(self._num_bags, dim) for part, dim in zip(parts, self._columns.rank_dims, strict=True)
        ]

    def _source(self, source: _Source, by_rank: Sequence[Tensor], home: Sequence[Tensor]) -> Tensor:
        # The replicated groups come first in the layout; the sums of hosts are numbered after them.
        return home[source.group] if source.rank == REPLICATED else by_rank[source.rank]

    def _bag_sizes(self, pair: int) -> Tensor:
        # Lengths are wider if a feature without a table has a larger batch.
        bags = self._lengths.view(self._columns.num_pairs, -1)[pair, : self._num_bags]
        return bags.clamp(min=1).to(torch.float32).unsqueeze(1)


class _Send(torch.autograd.Function):
    @staticmethod
    def forward(ctx, exchange, anchor, *own):  # type: ignore[no-untyped-def]
        ctx.exchange = exchange
        exchange.send(own)
        return anchor.new_zeros(0)

    @staticmethod
    @once_differentiable
    def backward(ctx, _):  # type: ignore[no-untyped-def]
        return None, None, *ctx.exchange.gradients()


class _Assemble(torch.autograd.Function):
    @staticmethod
    def forward(ctx, exchange, token, *home):  # type: ignore[no-untyped-def]  # noqa: ARG004 (the edge of the graph)
        ctx.exchange = exchange
        return exchange.assemble(home)

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient):  # type: ignore[no-untyped-def]
        home = ctx.exchange.send_back(gradient)
        return None, gradient.new_zeros(0), *home


class VariableExchange:
    """The outputs of one batch in transit, with a batch size per slot.

    Args:
        layout: The layout of the collection.
        rank: This one.
        inputs: The inputs of the batch.
        group: The ranks.
        dtypes: The dtypes on the wire, forward and backward.
    """

    def __init__(
        self,
        layout: Layout,
        rank: int,
        inputs: RankInput,
        group: dist.ProcessGroup,
        dtypes: tuple[torch.dtype, torch.dtype],
    ) -> None:
        assert inputs.slot_batch_sizes is not None
        self._layout = layout
        self._inputs = inputs
        self._world_size = dist.get_world_size(group)
        self._own_slots = [s for g in layout.groups if g.rank == rank for s in g.slots]
        self._per_group = [len(g.slots) for g in layout.groups if g.rank == rank]
        receive_sizes = [0] * self._world_size
        for _, slot in layout.slots:
            if slot.rank != REPLICATED:
                receive_sizes[slot.rank] += self._size(slot)
        # By own group and rank: the number of output elements of the group for the rank.
        self._found = self._numbers_found(inputs.slot_batch_sizes)
        send_sizes = [sum(of_group[s] for of_group in self._found) for s in range(self._world_size)]
        self._exchange = FlatExchange(send_sizes, receive_sizes, group, dtypes)

    def _size(self, slot: Slot) -> int:
        return self._inputs.strides[slot.pair] * self._layout.output_dim(slot)

    def _numbers_found(self, batch_sizes: list[list[int]]) -> list[list[int]]:
        found, at = [], 0
        for num_slots in self._per_group:
            slots = range(at, at + num_slots)
            found.append(
                [
                    sum(batch_sizes[i][s] * self._layout.output_dim(self._own_slots[i]) for i in slots)
                    for s in range(self._world_size)
                ]
            )
            at += num_slots
        return found

    def start(self, own: Sequence[Tensor], device: torch.device) -> Tensor:
        """Send this rank's flat outputs; return a token for ``finish``."""
        if not own:
            return self._exchange.start(torch.zeros(0, device=device))
        parts = [torch.split(flat, sizes) for flat, sizes in zip(own, self._found, strict=True)]
        ordered = [part for of_rank in zip(*parts, strict=True) for part in of_rank]
        return self._exchange.start(torch.cat(ordered))

    def finish(self, token: Tensor, home: Sequence[Tensor]) -> Tensor:
        """Wait for the outputs and assemble them: flat, pair by pair ``[B of the pair, D]``."""
        flat = torch.cat([*(part.reshape(-1) for part in home), self._exchange.finish(token)])
        slots = [slot for _, slot in self._layout.slots]
        pieces = torch.split(flat, [self._size(slot) for slot in slots])
        found: dict[tuple[int, tuple[int, int]], Tensor] = {}
        for slot, piece in zip(slots, pieces, strict=True):
            rows = piece.view(self._inputs.strides[slot.pair], self._layout.output_dim(slot))
            key = (slot.pair, slot.columns)
            found[key] = found[key] + rows if key in found else rows
        # Columns that are cut by rows; other columns of the same table may not be.
        for pair, columns in {(s.pair, s.columns) for s in slots if self._layout.divides_mean(s)}:
            found[pair, columns] = found[pair, columns] / self._bag_sizes(pair)
        pooled = []
        for p in range(len(self._layout.pairs)):
            rows = torch.cat([found[key] for key in sorted(key for key in found if key[0] == p)], dim=1)
            pooled.append(rows.reshape(-1))
        return torch.cat(pooled)

    def _bag_sizes(self, pair: int) -> Tensor:
        lengths = self._inputs.lengths.view(len(self._layout.pairs), -1)[pair, : self._inputs.strides[pair]]
        return lengths.clamp(min=1).to(torch.float32).unsqueeze(1)
