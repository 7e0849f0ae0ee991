"""Memory that exchanges use again: never while anyone holds a tensor in it."""

from __future__ import annotations

import torch

from recsys.sharding.exchange import Buffers

CPU = torch.device("cpu")


def test_memory_is_used_again_once_nobody_holds_it() -> None:
    buffers = Buffers()
    first = buffers.take((4, 8), torch.float32, CPU)
    assert first.shape == (4, 8)
    assert first.is_contiguous()
    address = first.data_ptr()
    part = first[1]
    second = buffers.take((32,), torch.float32, CPU)
    assert second.data_ptr() != address
    del first
    assert buffers.take((32,), torch.float32, CPU).data_ptr() != address  # a view is held still
    del part
    assert buffers.take((30,), torch.float32, CPU).data_ptr() == address


def test_a_graph_holds_what_it_needs() -> None:
    buffers = Buffers()
    factor = buffers.take((8,), torch.float32, CPU).fill_(3)
    address = factor.data_ptr()
    weight = torch.ones(8, requires_grad=True)
    loss = (weight * factor).sum()
    del factor
    assert buffers.take((8,), torch.float32, CPU).data_ptr() != address
    loss.backward()
    assert weight.grad is not None
    assert torch.equal(weight.grad, torch.full((8,), 3.0))


def test_other_dtypes_and_much_smaller_sizes_get_memory_of_their_own() -> None:
    buffers = Buffers()
    address = buffers.take((100,), torch.float32, CPU).data_ptr()
    half = buffers.take((100,), torch.float16, CPU)
    small = buffers.take((10,), torch.float32, CPU)
    assert address not in (half.data_ptr(), small.data_ptr())
    assert buffers.take((0,), torch.float32, CPU).numel() == 0


def test_what_lies_idle_is_bounded() -> None:
    buffers = Buffers()
    held = [buffers.take((64,), torch.float32, CPU) for _ in range(3 * Buffers.MAX_BLOCKS)]
    del held
    for size in range(200, 200 + 3 * 256, 256):
        buffers.take((size,), torch.float32, CPU)
    assert len(buffers._blocks) <= Buffers.MAX_BLOCKS
