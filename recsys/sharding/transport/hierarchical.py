"""Hierarchical output distribution: partial sums are added inside a host, so 1/L of the bytes crosses hosts.

Shape letters: B batch, D embedding dimension, H hosts, L ranks per host, W world size (H * L).

Rank h * L + l has the local index l on host h. If the row shards of a table's columns are on all ranks of one
host:

1. within the host: the rank with local index l receives from each of the L ranks the partial sums for the
   batches of all H ranks with this index, and adds them;
2. across hosts: it sends the finished sums to those ranks.

Order of collectives. Forward: within, all ranks (all other outputs), and, when the result is waited for,
across. Backward: all ranks, across, within. Each of these needs the result of the one before (the gradients
of the sums come from the node that sends the others' back, those of the parts from the sums' backward
exchange), so no rank's autograd can start them in another order. Collections follow each other in autograd's
order, latest created first: nodes that only some ranks have, the lookups of their own shards, run after all
collectives of a collection and cannot change the common order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch import distributed as dist

from recsys.sharding.plan.env import ShardingEnv
from recsys.sharding.plan.layout import REPLICATED, Layout
from recsys.sharding.plan.plan import ParameterSharding
from recsys.sharding.plan.sharding_types import host_ranks
from recsys.sharding.transport.exchange import FlatExchange
from recsys.sharding.transport.group_input import RankInput


@dataclass(frozen=True, kw_only=True)
class HostGroups:
    """The groups of this rank.

    Attributes:
        within: The L ranks of its host.
        across: The H ranks of its local index, one on each host.
    """

    within: dist.ProcessGroup
    across: dist.ProcessGroup


# Process groups cost connections and are never freed, so they are created once per group and ranks per host.
_MADE: WeakKeyDictionary[dist.ProcessGroup, dict[int, HostGroups]] = WeakKeyDictionary()


def tables_by_host(params: Mapping[str, ParameterSharding], env: ShardingEnv) -> frozenset[str]:
    """Return the tables whose partial sums are added inside hosts.

    In these, each column block has one row shard on each rank of one host. There are none with one host or
    one rank per host, or if the process group is not the whole default group in its order: torch creates
    subgroups only with all ranks of the default group.

    Args:
        params: The sharding of each table; the same on every rank.
        env: The ranks of a process group.
    """
    if not 1 < env.local_world_size < env.world_size or not _is_whole(env):
        return frozenset()
    return frozenset(
        name for name, sharding in params.items() if _meets_in_hosts(sharding, env.local_world_size)
    )


def host_groups(env: ShardingEnv) -> HostGroups:
    """Return the groups of this rank. The first call creates them, on all ranks; later calls reuse them."""
    group, local = env.process_group, env.local_world_size
    assert group is not None
    made = _MADE.setdefault(group, {})
    if local not in made:
        hosts = [list(host_ranks(host, local)) for host in range(env.world_size // local)]
        backend = dist.get_backend(group)
        # Every rank creates every group, in the same order, because torch names them by a counter.
        within = [dist.new_group(ranks, backend=backend) for ranks in hosts]
        across = [dist.new_group(list(ranks), backend=backend) for ranks in zip(*hosts, strict=True)]
        host, index = divmod(env.rank, local)
        made[local] = HostGroups(within=within[host], across=across[index])
    return made[local]


class HostColumns:
    """The groups of a layout whose partial sums are added inside hosts, and the positions of their sums.

    Args:
        layout: The layout of the collection; slots of ``by_host`` tables are in separate groups.
        by_host: The result of ``tables_by_host``, not empty.
        env: The ranks.
    """

    def __init__(self, layout: Layout, by_host: frozenset[str], env: ShardingEnv) -> None:
        self.local_world_size = env.local_world_size
        self.host, self.local_index = divmod(env.rank, env.local_world_size)
        self.groups = host_groups(env)
        of_rank: list[list[int]] = [[] for _ in range(env.world_size)]
        for g, group in enumerate(layout.groups):
            if group.rank != REPLICATED and layout.table_of(group.slots[0]).name in by_host:
                of_rank[group.rank].append(g)
        dims = [
            [sum(layout.output_dim(slot) for slot in layout.groups[g].slots) for g in groups]
            for groups in of_rank
        ]
        #: For each host the columns of each of its groups.
        self.dims = dims[:: self.local_world_size]
        assert dims == [of_host for of_host in self.dims for _ in range(self.local_world_size)]
        own = [g for g, group in enumerate(layout.groups) if group.rank == env.rank]
        self._meets = [g in of_rank[env.rank] for g in own]
        starts = list(accumulate((len(of_host) for of_host in self.dims), initial=0))
        #: For each such group of the layout the position of its sum among the sums on this rank.
        self.home_of = {
            g: starts[rank // self.local_world_size] + i
            for rank, groups in enumerate(of_rank)
            for i, g in enumerate(groups)
        }

    @property
    def home_dims(self) -> list[int]:
        """The columns of the sums on this rank."""
        return [dim for of_host in self.dims for dim in of_host]

    def divided(self, own: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        """Split this rank's outputs into those sent directly and those added inside its host."""
        pairs = list(zip(own, self._meets, strict=True))
        return [rows for rows, meets in pairs if not meets], [rows for rows, meets in pairs if meets]


class HostExchange:
    """The two hops of one batch's partial sums; gradients are sent back the same way, divided by L and by H.

    Args:
        columns: The columns of the collection.
        inputs: The inputs of the batch.
        dtypes: The dtypes of each hop, forward and backward; sums are float32.
    """

    def __init__(
        self, columns: HostColumns, inputs: RankInput, dtypes: tuple[torch.dtype, torch.dtype]
    ) -> None:
        assert inputs.batch_sizes is not None
        self._columns = columns
        self._batch_sizes = inputs.batch_sizes
        self._num_bags = inputs.strides[0]
        num_local, num_hosts = columns.local_world_size, len(columns.dims)
        # The ranks of each local index, host by host.
        self._receivers = [
            [host * num_local + index for host in range(num_hosts)] for index in range(num_local)
        ]
        own_dim = sum(columns.dims[columns.host])
        sums = [self._batch_sizes[rank] * own_dim for rank in self._receivers[columns.local_index]]
        parts = [sum(self._batch_sizes[rank] * own_dim for rank in ranks) for ranks in self._receivers]
        self._num_sums = sum(sums)
        self._home_sizes = [self._num_bags * dim for dim in columns.home_dims]
        landing = [self._num_bags * sum(of_host) for of_host in columns.dims]
        self._within = FlatExchange(parts, [self._num_sums] * num_local, columns.groups.within, dtypes)
        self._across = FlatExchange(sums, landing, columns.groups.across, dtypes)

    def start(self, own: Sequence[Tensor], device: torch.device) -> Tensor:
        """Send this rank's parts ``[sum of all B, D of the group]`` within the host; returns a token for ``finish``."""
        parts = [torch.split(rows, self._batch_sizes) for rows in own]
        ordered = [part[rank].reshape(-1) for ranks in self._receivers for rank in ranks for part in parts]
        return self._within.start(torch.cat(ordered) if ordered else torch.zeros(0, device=device))

    def finish(self, token: Tensor) -> list[Tensor]:
        """Wait, add, send the sums across hosts, and wait: ``[B, D]`` float32 for each group of each host."""
        found = self._within.finish(token).view(self._columns.local_world_size, self._num_sums)
        flat = self._across.finish(self._across.start(found.sum(dim=0)))
        pieces = torch.split(flat, self._home_sizes)
        return [
            piece.view(self._num_bags, dim)
            for piece, dim in zip(pieces, self._columns.home_dims, strict=True)
        ]


def _is_whole(env: ShardingEnv) -> bool:
    group = env.process_group
    return group is not None and dist.get_process_group_ranks(group) == list(range(dist.get_world_size()))


def _meets_in_hosts(sharding: ParameterSharding, local_world_size: int) -> bool:
    by_columns: dict[tuple[int, int], list[int]] = {}
    for shard in sharding.shards:
        by_columns.setdefault(shard.columns, []).append(shard.rank)
    return bool(by_columns) and all(
        sorted(ranks) == list(host_ranks(ranks[0] // local_world_size, local_world_size))
        for ranks in by_columns.values()
    )
