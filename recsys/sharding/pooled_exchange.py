"""The way of pooled embeddings over a process group: every type's outputs in one all-to-all, assembled as they land.

Shape letters: B batch, D embedding dim, E (feature, table) pairs, W world size.

A rank sends each other rank the rows of that rank's batch, all its columns side by side. What lands is put together
once: columns beside columns, parts of sums added. Gradients take the same way back, written straight into what is
sent, and divided by W there. Partial sums that meet in hosts have come another way (``host_exchange``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor
from torch import distributed as dist

from recsys.sharding.exchange import Buffers, Exchange
from recsys.sharding.group_dist import RankInput
from recsys.sharding.host_exchange import HostColumns
from recsys.sharding.layout import HOME, Layout, pooled_pieces


@dataclass(frozen=True)
class _Source:
    """Columns of a rank's output, or of what is at home: ``rank`` is HOME then, and ``group`` says which."""

    rank: int
    group: int
    start: int


class PooledColumns:
    """Which columns lie where: in what each rank sends, and in the assembled output.

    Args:
        layout: of the collection.
        rank: this one.
        world_size: W.
        hosts: of the groups that meet in hosts: their sums come home beside the home groups' outputs.
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
        self.home_dims = [group_dims[g] for g, group in enumerate(layout.groups) if group.rank == HOME]
        num_home = len(self.home_dims)
        if hosts is not None:
            self.home_dims += hosts.home_dims
        starts = {}
        for groups in of_rank.values():
            for g, start in zip(groups, accumulate((group_dims[g] for g in groups), initial=0), strict=False):
                starts[g] = start
        self.pieces: list[tuple[int, int, tuple[_Source, ...], int | None]] = []
        at = 0
        for piece in pooled_pieces(layout):
            # Of a host's ranks, all of whose parts are in one sum, one source remains.
            sources = dict.fromkeys(
                _Source(HOME, num_home + meeting[g], start)
                if g in meeting
                else _Source(layout.groups[g].rank, g, starts.get(g, 0) + start)
                for g, start in piece.sources
            )
            self.pieces.append((at, piece.width, tuple(sources), piece.mean_of))
            at += piece.width
        self.total_dim = at
        self.buffers = Buffers()
        self.num_pairs = len(layout.pairs)


class PooledExchange(Exchange):
    """One batch's outputs on their way, and its gradients on theirs.

    Args:
        columns: of the collection.
        inputs: of the batch.
        group: the ranks.
        dtypes: what crosses, forth and back; float32 where nothing is rounded.
    """

    def __init__(
        self,
        columns: PooledColumns,
        inputs: RankInput,
        group: dist.ProcessGroup,
        dtypes: tuple[torch.dtype, torch.dtype],
    ) -> None:
        assert inputs.batch_sizes is not None
        super().__init__(group, dtypes, columns.buffers)
        self._columns = columns
        self._num_ranks = len(inputs.batch_sizes)
        self._num_bags = inputs.strides[0]
        self._num_rows = sum(inputs.batch_sizes)
        own_dim = sum(columns.own_dims)
        self._own_sizes = [b * own_dim for b in inputs.batch_sizes]
        self._rank_sizes = [self._num_bags * dim for dim in columns.rank_dims]
        self._lengths = inputs.lengths

    def start(self, own: Sequence[Tensor], device: torch.device) -> Tensor:
        """Send this rank's outputs ``[sum of all B, D of the group]``; returns a token for ``finish``."""
        return self._start(own, device)

    def finish(self, token: Tensor, home: Sequence[Tensor]) -> Tensor:
        """Wait for what the others sent and assemble ``[B, sum of D]`` float32 with what is at home.

        Args:
            token: of ``start``.
            home: the home groups' outputs, then the sums of hosts.
        """
        return self._finish(token, home)

    def send(self, own: Sequence[Tensor]) -> None:
        """As ``Exchange``."""
        if own:
            rows = own[0] if len(own) == 1 else torch.cat([*own], dim=1)
        else:
            rows = self._lengths.new_zeros(0, dtype=torch.float32)
        self._fly(rows.reshape(-1).to(self._dtypes[0]), self._own_sizes, self._rank_sizes)

    def assemble(self, home: Sequence[Tensor]) -> Tensor:
        """As ``Exchange``."""
        landed = self._by_rank(self._land())
        parts = []
        for _, width, sources, mean_of in self._columns.pieces:
            found = [self._source(source, landed, home).narrow(1, source.start, width) for source in sources]
            total = found[0]
            for other in found[1:]:
                total = total + other
            parts.append(total if mean_of is None else total / self._bag_sizes(mean_of))
        shape = (self._num_bags, self._columns.total_dim)
        assembled = self._columns.buffers.take(shape, torch.float32, self._lengths.device)
        return torch.cat(parts, dim=1, out=assembled)

    def send_back(self, gradient: Tensor) -> list[Tensor]:
        """Put gradients ``[B, sum of D]`` on their way; returns those of the home groups."""
        flat = self._columns.buffers.take((sum(self._rank_sizes),), self._dtypes[1], gradient.device)
        by_rank = self._by_rank(flat)
        home = [gradient.new_empty(self._num_bags, dim) for dim in self._columns.home_dims]
        for start, width, sources, mean_of in self._columns.pieces:
            columns = gradient.narrow(1, start, width)
            if mean_of is not None:
                columns = columns / self._bag_sizes(mean_of)
            for source in sources:
                target = self._source(source, by_rank, home).narrow(1, source.start, width)
                if source.rank == HOME:
                    # The ranks' gradients of a table that each has are averaged by whoever keeps them equal, those of
                    # hosts' sums on their own way back.
                    target.copy_(columns)
                else:
                    torch.mul(columns, 1.0 / self._num_ranks, out=target)
        self._fly(flat, self._rank_sizes, self._own_sizes)
        return home

    def gradients(self) -> list[Tensor]:
        """As ``Exchange``."""
        dims = self._columns.own_dims
        landed = self._land().view(self._num_rows, sum(dims))
        return [part.contiguous() for part in torch.split(landed, dims, dim=1)] if dims else []

    def _by_rank(self, flat: Tensor) -> list[Tensor]:
        parts = torch.split(flat, self._rank_sizes)
        return [
            part.view(self._num_bags, dim) for part, dim in zip(parts, self._columns.rank_dims, strict=True)
        ]

    def _source(self, source: _Source, by_rank: Sequence[Tensor], home: Sequence[Tensor]) -> Tensor:
        # Home groups are the first of the layout, hosts' sums are counted on behind them.
        return home[source.group] if source.rank == HOME else by_rank[source.rank]

    def _bag_sizes(self, pair: int) -> Tensor:
        # Wider where a feature of no table has a larger batch.
        bags = self._lengths.view(self._columns.num_pairs, -1)[pair, : self._num_bags]
        return bags.clamp(min=1).to(torch.float32).unsqueeze(1)
