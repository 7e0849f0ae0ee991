"""All-to-all collectives over a process group, with and without autograd.

Everything that one rank sends to another is one flat tensor: one collective per direction.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Sequence

import torch
from torch import Tensor
from torch import distributed as dist
from torch.autograd.function import once_differentiable

_FLOAT32 = (torch.float32, torch.float32)


class Buffers:
    """A pool of host memory for exchanges; a block becomes free with the last tensor that uses it.

    Pages of new memory are mapped one by one at the first write, which takes longer than the write. On CUDA,
    torch's caching allocator keeps freed memory already.

    A lease is a NumPy view of a block. The storage of the tensor that ``take`` returns owns the view, so the view is
    finalized when the last tensor, view or autograd node that uses the storage is gone, and the block is idle again.
    """

    #: The number of idle blocks that are kept. More are in use only while several batches are in progress.
    MAX_BLOCKS = 6

    def __init__(self) -> None:
        self._idle: list[Tensor] = []

    def take(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
        """Return an uninitialized tensor. Nothing else uses its memory while the tensor or a view of it exists."""
        size = math.prod(shape)
        if device.type != "cpu" or size == 0:
            return torch.empty(shape, dtype=dtype, device=device)
        num_bytes = size * dtype.itemsize
        fitting = [block for block in self._idle if num_bytes <= block.numel() <= 2 * num_bytes]
        if fitting:
            block = min(
                reversed(fitting), key=Tensor.numel
            )  # of equal sizes the latest, which may still be cached
            self._idle = [idle for idle in self._idle if idle is not block]
        else:
            block = torch.empty(num_bytes, dtype=torch.uint8)
        lease = block.numpy()[:num_bytes]
        weakref.finalize(lease, self._give_back, block).atexit = False
        # Not a view of another tensor: the caller may change it in place inside an autograd graph.
        taken = torch.frombuffer(lease, dtype=dtype)
        return taken.set_(taken.untyped_storage(), 0, shape, torch.empty(shape, device="meta").stride())

    def _give_back(self, block: Tensor) -> None:
        # A new list: ``take`` may be iterating over the old one.
        self._idle = [*self._idle[-(self.MAX_BLOCKS - 1) :], block]


class AllToAll:
    """An all-to-all in progress. Holds the sent and received tensors until it is done.

    Args:
        sent: Flat: what goes to rank 0, then to rank 1, and so on.
        send_sizes: The number of elements for each rank.
        receive_sizes: The number of elements from each rank.
        group: The ranks.
        buffers: Where memory for the received elements is taken from; fresh memory if None.
    """

    def __init__(
        self,
        sent: Tensor,
        send_sizes: Sequence[int],
        receive_sizes: Sequence[int],
        group: dist.ProcessGroup,
        buffers: Buffers | None = None,
    ) -> None:
        self._sent = sent
        self._work = None
        if len(send_sizes) == 1:
            self._received = sent
            return
        size = sum(receive_sizes)
        self._received = (
            sent.new_empty(size) if buffers is None else buffers.take((size,), sent.dtype, sent.device)
        )
        self._work = dist.all_to_all_single(
            self._received, sent, list(receive_sizes), list(send_sizes), group=group, async_op=True
        )

    def wait(self) -> Tensor:
        """Return the received elements: flat, rank by rank."""
        if self._work is not None:
            self._work.wait()
            self._work = None
        return self._received


def graph_anchor(device: torch.device) -> Tensor:
    """Return an empty tensor that makes an autograd node run on every rank.

    A rank that has no shards, or whose shards need no gradient, must still take part in the backward
    collective.
    """
    return torch.zeros(0, device=device, requires_grad=torch.is_grad_enabled())


class FlatExchange:
    """A differentiable all-to-all of float32 numbers, in two halves, so that other work can run in between.

    The backward all-to-all returns the gradients, divided by the number of ranks.

    Args:
        send_sizes: The number of elements for each rank.
        receive_sizes: The number of elements from each rank.
        group: The ranks.
        dtypes: The dtypes on the wire, forward and backward.
    """

    def __init__(
        self,
        send_sizes: Sequence[int],
        receive_sizes: Sequence[int],
        group: dist.ProcessGroup,
        dtypes: tuple[torch.dtype, torch.dtype] = _FLOAT32,
    ) -> None:
        self.send_sizes = send_sizes
        self.receive_sizes = receive_sizes
        self.group = group
        self.dtypes = dtypes
        self.pending: AllToAll | None = None

    def start(self, sent: Tensor) -> Tensor:
        """Send ``[sum of send_sizes]``; return a token for ``finish``."""
        token: Tensor = _FlatStart.apply(self, graph_anchor(sent.device), sent)  # type: ignore[no-untyped-call]
        return token

    def finish(self, token: Tensor) -> Tensor:
        """Wait for ``[sum of receive_sizes]``, and return it as float32."""
        received: Tensor = _FlatFinish.apply(self, token)  # type: ignore[no-untyped-call]
        return received

    def wait(self) -> Tensor:
        """Wait for the all-to-all in progress."""
        assert self.pending is not None
        received = self.pending.wait().to(torch.float32)
        self.pending = None
        return received


class _FlatStart(torch.autograd.Function):
    @staticmethod
    def forward(ctx, exchange, anchor, sent):  # type: ignore[no-untyped-def]
        ctx.exchange = exchange
        flat = sent.contiguous().to(exchange.dtypes[0])
        exchange.pending = AllToAll(flat, exchange.send_sizes, exchange.receive_sizes, exchange.group)
        return anchor.new_zeros(0)

    @staticmethod
    @once_differentiable
    def backward(ctx, _):  # type: ignore[no-untyped-def]
        return None, None, ctx.exchange.wait()


class _FlatFinish(torch.autograd.Function):
    @staticmethod
    def forward(ctx, exchange, token):  # type: ignore[no-untyped-def]  # noqa: ARG004 (the edge of the graph)
        ctx.exchange = exchange
        return exchange.wait()

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient):  # type: ignore[no-untyped-def]
        exchange = ctx.exchange
        mean = (gradient / len(exchange.send_sizes)).to(exchange.dtypes[1])
        exchange.pending = AllToAll(mean, exchange.receive_sizes, exchange.send_sizes, exchange.group)
        return None, gradient.new_zeros(0)
