"""The transport over a process group: each rank has its own batch and receives all of its embeddings.

Shape letters: B batch, D embedding dimension, E (feature, table) pairs, S slots, N number of IDs, W world size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from recsys.sharding.plan.env import ShardingEnv
from recsys.sharding.plan.layout import REPLICATED, Layout
from recsys.sharding.transport.awaitable import Awaitable, Deferred
from recsys.sharding.transport.exchange import FlatExchange
from recsys.sharding.transport.group_input import GroupDist, RankInput, RoutedBatch
from recsys.sharding.transport.hierarchical import HostColumns, HostExchange
from recsys.sharding.transport.inputs import CheckedIds, DistInput, Routed, Router
from recsys.sharding.transport.pooled import PooledColumns, PooledExchange, VariableExchange

_WIRE_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


@dataclass(frozen=True, kw_only=True)
class CommsConfig:
    """The dtypes of embeddings and their gradients on the wire between ranks. IDs are not converted.

    Attributes:
        forward: float32, float16 or bfloat16.
        backward: The dtype of the gradients; bfloat16 keeps their range, float16 may lose small ones.

    Raises:
        ValueError: Another dtype.
    """

    forward: torch.dtype = torch.float32
    backward: torch.dtype = torch.float32

    def __post_init__(self) -> None:
        for name in ("forward", "backward"):
            if getattr(self, name) not in _WIRE_DTYPES:
                raise ValueError(
                    f"comms.{name}: got {getattr(self, name)}, expected float32, float16 or bfloat16"
                )

    @property
    def dtypes(self) -> tuple[torch.dtype, torch.dtype]:
        """The dtypes forward and backward."""
        return self.forward, self.backward


class GroupTransport(nn.Module):
    """Sends batches to the ranks of the shards, and embeddings back.

    Args:
        layout: The layout of the collection.
        env: The ranks.
        comms: The dtypes of embeddings between ranks.
        sequence: Whether outputs are rows of single IDs.
        by_host: The tables whose partial sums are added inside hosts (``tables_by_host``), in separate
            groups.
    """

    def __init__(
        self,
        layout: Layout,
        env: ShardingEnv,
        comms: CommsConfig,
        *,
        sequence: bool,
        by_host: frozenset[str] = frozenset(),
    ) -> None:
        super().__init__()
        assert env.process_group is not None
        self._layout = layout
        self._group = env.process_group
        self._rank = env.rank
        self._world_size = env.world_size
        self._device = env.device
        self._dtypes = comms.dtypes
        self.router = Router(layout, sequence=sequence)
        self._dist = GroupDist(layout, env.process_group, env.rank, env.device, sequence=sequence)
        self._slot_pairs = [slot.pair for _, slot in layout.slots]
        self._num_home = sum(group.rank == REPLICATED for group in layout.groups)
        self._hosts = HostColumns(layout, by_host, env) if by_host else None
        self._columns = None if sequence else PooledColumns(layout, env.rank, env.world_size, self._hosts)

    def input_dist(self, checked: CheckedIds) -> Awaitable[Awaitable[DistInput]]:
        """Route IDs and send them; the first wait reads sizes, the second receives the IDs."""
        num_pairs = len(self._layout.pairs)
        if self.router.in_order:
            routed = Routed(
                lengths=checked.lengths,
                values=checked.values,
                weights=checked.weights,
                restore=[],
                offsets=checked.offsets,
            )
        else:
            routed = self.router(checked.lengths, checked.values, checked.weights)
        widest = checked.lengths.size(0) // num_pairs
        strides = checked.strides or [widest] * num_pairs
        slot_strides = [strides[pair] for pair in self._slot_pairs]
        if checked.strides is not None:
            routed = _narrowed(routed, slot_strides, widest)
        batch = RoutedBatch(
            routed=routed,
            lengths=checked.lengths,
            strides=strides,
            slot_strides=slot_strides,
            inverse=checked.inverse,
        )
        return self._dist(batch)

    def pooled(self, outputs: Sequence[Tensor], inputs: DistInput) -> Awaitable[Tensor]:
        """Return ``[B, sum of D]`` in the order of the pairs; all shards' outputs are sent in one all-to-all.

        Partial sums that are added inside hosts are an exception: their first hop starts here, the second
        when the result is waited for. If batch sizes differ between features, the result is flat: ``[B of the
        pair, D]`` pair by pair.
        """
        assert self._columns is not None
        assert isinstance(inputs, RankInput)
        home, own = list(outputs[: self._num_home]), list(outputs[self._num_home :])
        if inputs.batch_sizes is None:
            variable = VariableExchange(self._layout, self._rank, inputs, self._group, self._dtypes)
            pending = variable.start(own, self._device)
            return Deferred(lambda: variable.finish(pending, home))
        if self._columns.are_one_output and self._dtypes == CommsConfig().dtypes:
            return Deferred(lambda: own[0])
        exchange = PooledExchange(self._columns, inputs, self._group, self._dtypes)
        if self._hosts is None:
            token = exchange.start(own, self._device)
            return Deferred(lambda: exchange.finish(token, home))
        straight, meeting = self._hosts.divided(own)
        two_hops = HostExchange(self._hosts, inputs, self._dtypes)
        in_host = two_hops.start(meeting, self._device)
        token = exchange.start(straight, self._device)
        return Deferred(lambda: exchange.finish(token, [*home, *two_hops.finish(in_host)]))

    def rows(self, outputs: Sequence[Tensor], inputs: DistInput) -> Awaitable[list[list[Tensor]]]:
        """Return for each group and slot of the layout the rows of this rank's batch, ``[N of the slot, width]``."""
        assert isinstance(inputs, RankInput)
        home, own = outputs[: self._num_home], list(outputs[self._num_home :])
        counts = _Counts(inputs.sent)
        found: list[list[Tensor]] = []
        widths, sizes = [], []
        for group in self._layout.groups:
            per_slot = counts.take(len(group.slots))
            widths.append(self._layout.output_dim(group.slots[0]))
            sizes.append(per_slot)
        for i in range(self._num_home):
            found.append(list(torch.split(home[i], sizes[i])))
        remote = range(self._num_home, len(self._layout.groups))
        if self._world_size == 1:
            found += [list(torch.split(own[g - self._num_home], sizes[g])) for g in remote]
            return Deferred(lambda: found)
        receive_sizes = [0] * self._world_size
        for g in remote:
            receive_sizes[self._layout.groups[g].rank] += sum(sizes[g]) * widths[g]
        flat, send_sizes = self._by_receiver(own, inputs)
        exchange = FlatExchange(send_sizes, receive_sizes, self._group, self._dtypes)
        token = exchange.start(flat)

        def finish() -> list[list[Tensor]]:
            pieces = torch.split(exchange.finish(token), [sum(sizes[g]) * widths[g] for g in remote])
            for g, piece in zip(remote, pieces, strict=True):
                found.append(list(torch.split(piece.view(-1, widths[g]), sizes[g])))
            return found

        return Deferred(finish)

    def _by_receiver(self, own: list[Tensor], inputs: RankInput) -> tuple[Tensor, list[int]]:
        """Return the outputs of this rank's groups, by receiving rank, then by group."""
        groups = [group for group in self._layout.groups if group.rank == self._rank]
        if not groups:
            return torch.zeros(0, device=self._device), [0] * self._world_size
        widths = [self._layout.output_dim(group.slots[0]) for group in groups]
        # Number of IDs by sending rank and this rank's slot.
        arrived = inputs.arrived
        send_sizes = [0] * self._world_size
        parts: list[list[Tensor]] = [[] for _ in send_sizes]
        start = 0
        for rows, group, width in zip(own, groups, widths, strict=True):
            slots = range(start, start + len(group.slots))
            start += len(group.slots)
            pieces = torch.split(rows, [of_rank[i] for i in slots for of_rank in arrived])
            for s, of_rank in enumerate(arrived):
                parts[s] += pieces[s :: self._world_size]
                send_sizes[s] += width * sum(of_rank[i] for i in slots)
        if len(own) == 1 and len(groups[0].slots) == 1:
            return own[0].reshape(-1), send_sizes
        return torch.cat([piece.reshape(-1) for of_rank in parts for piece in of_rank]), send_sizes


class _Counts:
    """An iterator over consecutive parts of a list of numbers."""

    def __init__(self, counts: Sequence[int]) -> None:
        self._counts = counts
        self._at = 0

    def take(self, number: int) -> list[int]:
        taken = list(self._counts[self._at : self._at + number])
        self._at += number
        return taken


def _narrowed(routed: Routed, strides: Sequence[int], widest: int) -> Routed:
    """Remove the empty bags after the batches of features with smaller batch sizes."""
    rows = routed.lengths.view(len(strides), widest)
    kept = torch.cat([rows[i, :stride] for i, stride in enumerate(strides)])
    return Routed(lengths=kept, values=routed.values, weights=routed.weights, restore=routed.restore)
