"""Memory that exchanges use again: never while anyone holds a tensor in it."""

from __future__ import annotations

import pytest
import torch

from recsys.sharding.transport.exchange import Buffers

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


def test_memory_is_shared_by_dtypes_and_not_taken_for_much_less() -> None:
    buffers = Buffers()
    address = buffers.take((100,), torch.float32, CPU).data_ptr()
    assert buffers.take((10,), torch.float32, CPU).data_ptr() != address
    assert buffers.take((200,), torch.bfloat16, CPU).data_ptr() == address
    assert buffers.take((0,), torch.float32, CPU).numel() == 0


def test_a_tensor_may_be_changed_in_place_inside_a_graph() -> None:
    taken = Buffers().take((2, 3), torch.float32, CPU).fill_(1)
    assert not taken._is_view()
    weight = torch.ones(2, 3, requires_grad=True)
    taken.mul_(weight).sum().backward()
    assert weight.grad is not None
    assert torch.equal(weight.grad, torch.ones(2, 3))


def test_leases_need_no_private_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """How often torch counts a storage is not for us to know: the count changes with torch's wrappers."""
    monkeypatch.setattr(torch._C, "_storage_Use_Count", lambda _: 2)
    buffers = Buffers()
    held = buffers.take((32,), torch.float32, CPU)
    assert buffers.take((32,), torch.float32, CPU).data_ptr() != held.data_ptr()


def test_idle_memory_is_bounded() -> None:
    buffers = Buffers()
    held = [buffers.take((64,), torch.float32, CPU) for _ in range(3 * Buffers.MAX_BLOCKS)]
    del held
    for size in range(200, 200 + 3 * 256, 256):
        buffers.take((size,), torch.float32, CPU)
    assert len(buffers._idle) == Buffers.MAX_BLOCKS
