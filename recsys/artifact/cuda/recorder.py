"""Work of a CUDA device, recorded as CUDA graphs and replayed."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any, Protocol

import torch

# torch.cuda.graph wants some calls before a capture. TorchScript profiles in the first, and optimizes in the second.
_NUM_WARM_UPS = 3
# Held to record: torch.cuda.graph waits for the whole device, which would break another thread's capture.
_capturing = threading.Lock()
# Torch 2.11 to 2.13: c10::cuda has a pool of 32 streams per device and priority.
_NUM_STREAMS = 32


class Recorder(Protocol):
    """Records work of a device.

    Attributes:
        device: The device.
    """

    device: torch.device

    def record(self, work: Callable[[], None]) -> Callable[[], None]:
        """Return a function that does the work again on the same memory, and returns when it is done.

        All works are recorded before the first is repeated. Different works may be repeated by different threads.
        """


_recorders: weakref.WeakSet[CudaRecorder] = weakref.WeakSet()


class CudaRecorder:
    """Records work as CUDA graphs.

    All of them run on one stream, one after the other, so that they can share the memory of intermediate results, and
    cuBLAS's. No other recorder has the stream: work that it starts there would become part of a capture.

    Args:
        device: A CUDA device.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._pool: Any = None
        with _capturing:
            self.stream = _unused_stream(device)
            _recorders.add(self)

    def record(self, work: Callable[[], None]) -> Callable[[], None]:
        """Record work, after some calls of it.

        Raises:
            RuntimeError: CUDA cannot record it, for example because it reads results back.
        """
        graph, done = torch.cuda.CUDAGraph(), torch.cuda.Event()
        with _capturing:
            self.stream.wait_stream(torch.cuda.current_stream(self.device))
            # A capture that fails leaves its stream current: this one resets it.
            with torch.cuda.stream(self.stream):
                # On the same stream, so that cuBLAS's memory for it does not belong to the graph.
                for _ in range(_NUM_WARM_UPS):
                    work()
                self.stream.synchronize()
                try:
                    # Other threads go on using the device meanwhile.
                    with torch.cuda.graph(
                        graph, pool=self._pool, stream=self.stream, capture_error_mode="thread_local"
                    ):
                        work()
                except RuntimeError as error:
                    raise RuntimeError(
                        f"cuda_graph_rows: got a model whose work cannot be recorded ({str(error).splitlines()[0]}), "
                        "expected one that reads nothing back from the device; leave it out otherwise"
                    ) from error
        self._pool = graph.pool()

        def replay() -> None:
            with torch.cuda.stream(self.stream):
                graph.replay()
                done.record()
            done.synchronize()

        return replay


def _unused_stream(device: torch.device) -> torch.cuda.Stream:
    """Return a stream of a device that no recorder has: torch hands the same ones out in turn.

    Raises:
        RuntimeError: There is none.
    """
    used = {recorder.stream.cuda_stream for recorder in _recorders}
    for _ in range(_NUM_STREAMS):
        stream = torch.cuda.Stream(device)
        if stream.cuda_stream not in used:
            return stream
    raise RuntimeError(
        f"cuda_graph_rows: got more than {_NUM_STREAMS} models and deltas with CUDA graphs on {device}, expected fewer"
    )
