"""Messages to another process hold what was sent."""

from __future__ import annotations

import threading
from multiprocessing import Pipe
from typing import Any

import pytest
import torch

from recsys.training.messages import receive, send


def through_a_pipe(message: Any) -> Any:
    ours, theirs = Pipe()
    with ours, theirs:
        thread = threading.Thread(target=send, args=(ours, message))
        thread.start()
        found = receive(theirs)
        thread.join()
    return found


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.uint8])
@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (2, 3), (400, 300)])
def test_tensors(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    tensor = (torch.rand(shape) * 100).to(dtype)
    kind, found = through_a_pipe(("rows", {"a": tensor}))
    assert kind == "rows"
    assert found["a"].dtype == dtype
    assert torch.equal(found["a"], tensor)
    found["a"].zero_()


def test_views_and_parameters() -> None:
    tensor = torch.arange(12).view(3, 4)
    found = through_a_pipe([tensor.T, tensor[1:2, ::2], tensor[0].expand(5, 4)])
    assert torch.equal(found[0], tensor.T)
    assert torch.equal(found[1], tensor[1:2, ::2])
    assert torch.equal(found[2], tensor[0].expand(5, 4))
    parameter = torch.nn.Parameter(torch.rand(3))
    assert torch.equal(through_a_pipe({"w": parameter})["w"], parameter)


def test_the_other_end_is_closed() -> None:
    ours, theirs = Pipe()
    theirs.close()
    with ours, pytest.raises(EOFError):
        receive(ours)
