"""Messages between a training and the process that publishes: Python objects, whose tensors are not copied.

A message is one block of a socket for its form, and one for each tensor's bytes. Other threads run while these are
sent, which they would not while the interpreter pickles them.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


class _Pickler(pickle.Pickler):
    def reducer_override(self, obj: Any) -> Any:
        if type(obj) is not Tensor:
            return NotImplemented
        flat = obj.detach().contiguous().reshape(-1).view(torch.uint8)
        return _tensor_of, (flat.numpy(), obj.dtype, tuple(obj.shape))


def _tensor_of(data: NDArray[np.uint8], dtype: torch.dtype, shape: Sequence[int]) -> Tensor:
    return torch.from_numpy(data).view(dtype).reshape(shape)


def send(pipe: Connection, message: Any) -> None:
    """Send a message. Its tensors lie in host memory, and do not change until it is sent.

    Raises:
        OSError: The other end is closed.
    """
    file, buffers = io.BytesIO(), list[pickle.PickleBuffer]()
    _Pickler(file, protocol=5, buffer_callback=buffers.append).dump(message)
    views = [buffer.raw() for buffer in buffers]
    pipe.send_bytes(pickle.dumps((file.getvalue(), [view.nbytes for view in views])))
    for view in views:
        pipe.send_bytes(view)


def receive(pipe: Connection) -> Any:
    """Wait for a message, and return it.

    Raises:
        EOFError: The other end is closed.
    """
    form, sizes = pickle.loads(pipe.recv_bytes())
    buffers = [bytearray(size) for size in sizes]
    for buffer in buffers:
        if len(buffer):
            pipe.recv_bytes_into(buffer)
        else:
            pipe.recv_bytes()
    return pickle.loads(form, buffers=buffers)
