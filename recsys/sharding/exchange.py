"""All-to-all over a process group, in one piece of memory, forth and back again.

Everything that crosses is one flat tensor per rank and direction: one collective, whatever it holds.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor
from torch import distributed as dist
from torch.autograd.function import once_differentiable


class Buffers:
    """Host memory that exchanges use again, as soon as nobody holds a tensor in it any more.

    The pages of fresh memory are mapped one by one as they are first written, which costs more than the writing. On
    CUDA the caching allocator keeps memory already.
    """

    #: More than these are kept only while several batches are under way at once.
    MAX_BLOCKS = 6

    def __init__(self) -> None:
        self._blocks: list[Tensor] = []

    def take(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
        """A tensor that is not initialized."""
        size = math.prod(shape)
        if device.type != "cpu" or size == 0:
            return torch.empty(shape, dtype=dtype, device=device)
        fitting = [
            block
            for block in self._blocks
            if block.dtype == dtype and size <= block.numel() <= 2 * size and _is_free(block)
        ]
        if fitting:
            block = min(fitting, key=Tensor.numel)
        else:
            block = torch.empty(size, dtype=dtype)
            free = [idle for idle in self._blocks if _is_free(idle)]
            dropped = free[: max(0, len(self._blocks) + 1 - self.MAX_BLOCKS)]
            self._blocks = [kept for kept in self._blocks if all(kept is not d for d in dropped)] + [block]
        # No view of the block: whoever gets it may change it in place.
        taken = torch.empty(0, dtype=dtype)
        return taken.set_(block.untyped_storage(), 0, shape, torch.empty(shape, device="meta").stride())


def _is_free(block: Tensor) -> bool:
    """Whether nobody but the buffers holds memory: the block itself, and the storage that is asked."""
    return bool(torch._C._storage_Use_Count(block.untyped_storage()._cdata) == 2)


class InFlight:
    """An all-to-all under way; holds on to what it sends and receives.

    Args:
        sent: flat, what goes to rank 0, then to rank 1, and so on.
        send_sizes: how much of it goes to each rank.
        receive_sizes: how much comes from each.
        group: the ranks.
        buffers: where memory for what comes is taken from; fresh memory if None.
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
        """What came, flat, rank by rank."""
        if self._work is not None:
            self._work.wait()
            self._work = None
        return self._received


class Exchange(ABC):
    """What crosses in both directions, seen by autograd, in two halves so that there is work between them.

    Args:
        group: the ranks.
        dtypes: what crosses, forth and back; float32 where nothing is rounded.
        buffers: as ``InFlight``.
    """

    def __init__(
        self,
        group: dist.ProcessGroup,
        dtypes: tuple[torch.dtype, torch.dtype],
        buffers: Buffers | None = None,
    ) -> None:
        self._group = group
        self._dtypes = dtypes
        self._buffers = buffers
        self._flight: InFlight | None = None

    @abstractmethod
    def send(self, own: Sequence[Tensor]) -> None:
        """Put this rank's outputs on their way."""

    @abstractmethod
    def assemble(self, home: Sequence[Tensor]) -> Tensor:
        """Wait for the others' outputs and put all together."""

    @abstractmethod
    def send_back(self, gradient: Tensor) -> list[Tensor]:
        """Put gradients of what was assembled on their way; returns those of ``home``."""

    @abstractmethod
    def gradients(self) -> list[Tensor]:
        """Wait for the gradients of this rank's outputs."""

    def _start(self, own: Sequence[Tensor], device: torch.device) -> Tensor:
        # A rank whose shards need no gradient, or that has none, takes part in the way back all the same.
        asks = torch.zeros(0, device=device, requires_grad=torch.is_grad_enabled())
        token: Tensor = _Start.apply(self, asks, *own)  # type: ignore[no-untyped-call]
        return token

    def _finish(self, token: Tensor, home: Sequence[Tensor]) -> Tensor:
        assembled: Tensor = _Finish.apply(self, token, *home)  # type: ignore[no-untyped-call]
        return assembled

    def _fly(self, flat: Tensor, send_sizes: Sequence[int], receive_sizes: Sequence[int]) -> None:
        self._flight = InFlight(flat, send_sizes, receive_sizes, self._group, self._buffers)

    def _land(self) -> Tensor:
        """Wait for what comes; float32."""
        assert self._flight is not None
        landed = self._flight.wait().to(torch.float32)
        self._flight = None
        return landed


class FlatExchange(Exchange):
    """A differentiable all-to-all of float32 numbers; gradients take the way back and are divided by the ranks.

    Args:
        send_sizes: how many numbers go to each rank.
        receive_sizes: how many come from each.
        group: the ranks.
        dtypes: what crosses, forth and back; float32 where nothing is rounded.
    """

    def __init__(
        self,
        send_sizes: Sequence[int],
        receive_sizes: Sequence[int],
        group: dist.ProcessGroup,
        dtypes: tuple[torch.dtype, torch.dtype],
    ) -> None:
        super().__init__(group, dtypes)
        self._send_sizes = send_sizes
        self._receive_sizes = receive_sizes

    def start(self, sent: Tensor) -> Tensor:
        """Send ``[sum of send_sizes]``; returns a token for ``finish``."""
        return self._start([sent], sent.device)

    def finish(self, token: Tensor) -> Tensor:
        """Wait for ``[sum of receive_sizes]`` float32."""
        return self._finish(token, [])

    def send(self, own: Sequence[Tensor]) -> None:
        """As ``Exchange``: one flat tensor."""
        self._fly(own[0].contiguous().to(self._dtypes[0]), self._send_sizes, self._receive_sizes)

    def assemble(self, home: Sequence[Tensor]) -> Tensor:
        """As ``Exchange``: what came, and nothing is at home."""
        del home
        return self._land()

    def send_back(self, gradient: Tensor) -> list[Tensor]:
        """As ``Exchange``."""
        mean = gradient / len(self._send_sizes)
        self._fly(mean.to(self._dtypes[1]), self._receive_sizes, self._send_sizes)
        return []

    def gradients(self) -> list[Tensor]:
        """As ``Exchange``."""
        return [self._land()]


class _Start(torch.autograd.Function):
    @staticmethod
    def forward(ctx, exchange, asks, *own):  # type: ignore[no-untyped-def]
        ctx.exchange = exchange
        exchange.send(own)
        return asks.new_zeros(0)

    @staticmethod
    @once_differentiable
    def backward(ctx, _):  # type: ignore[no-untyped-def]
        return None, None, *ctx.exchange.gradients()


class _Finish(torch.autograd.Function):
    @staticmethod
    def forward(ctx, exchange, token, *home):  # type: ignore[no-untyped-def]  # noqa: ARG004 (the graph's edge)
        ctx.exchange = exchange
        return exchange.assemble(home)

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient):  # type: ignore[no-untyped-def]
        home = ctx.exchange.send_back(gradient)
        return None, gradient.new_zeros(0), *home
