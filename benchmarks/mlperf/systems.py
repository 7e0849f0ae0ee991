"""What the load generator asks: an artifact in this process, or a native server over loopback."""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import numpy.typing as npt
import torch

from benchmarks.measure.processes import Started, started
from benchmarks.mlperf.workloads import Sample
from benchmarks.models.zoo import OUTPUT
from benchmarks.ranking.served import server_command
from recsys.artifact.load import load_artifact
from serve.wire import predict_pb2 as wire

#: Answers a query: its number in the load generator, and its scores.
Answer = Callable[[int, npt.NDArray[np.float32]], None]
# One query: its number, and the sample.
Query = tuple[int, Sample]
_METHOD = "/recsys.v1.PredictionService/Predict"
# Requests that the server has at a time in the Offline scenario: enough for all executors and the next.
_IN_FLIGHT = 8
_MOST_BYTES = 64 << 20


class System:
    """Takes queries and answers each once.

    Args:
        name: For tables.

    Attributes:
        answer: Is called with each answer, from any thread; set by who asks.
        failures: Messages of queries that failed.
    """

    answer: Answer

    def __init__(self, name: str) -> None:
        self.name = name
        self.failures: list[str] = []

    def issue(self, queries: Sequence[Query]) -> None:
        """Take queries; returns before they are answered."""
        raise NotImplementedError

    def processor_s(self) -> float:
        """Return the processor time that the system has taken so far."""
        raise NotImplementedError


class _InProcess(System):
    def __init__(self, path: Path, *, is_ranking: bool) -> None:
        super().__init__("in process")
        loaded = load_artifact(path)
        self._call = loaded.forward_ranking if is_ranking else loaded.forward
        self._queries: queue.SimpleQueue[Query | None] = queue.SimpleQueue()
        self._threads = [threading.Thread(target=self._work) for _ in range(len(os.sched_getaffinity(0)))]
        for thread in self._threads:
            thread.start()

    def issue(self, queries: Sequence[Query]) -> None:
        for query in queries:
            self._queries.put(query)

    def processor_s(self) -> float:
        times = os.times()
        return times.user + times.system

    def close(self) -> None:
        for _ in self._threads:
            self._queries.put(None)
        for thread in self._threads:
            thread.join()

    def _work(self) -> None:
        with torch.inference_mode():
            while (query := self._queries.get()) is not None:
                number, sample = query
                try:
                    scores = self._call(*sample.inputs)[OUTPUT].numpy()
                except (RuntimeError, ValueError) as error:
                    self.failures.append(str(error))
                    scores = np.zeros(0, np.float32)
                self.answer(number, scores)


class _Served(System):
    def __init__(self, server: Started) -> None:
        super().__init__("server")
        self._server = server
        self._channel = grpc.insecure_channel(
            server.address,
            options=[("grpc.max_receive_message_length", _MOST_BYTES), ("grpc.use_local_subchannel_pool", 1)],
        )
        self._call = self._channel.unary_unary(_METHOD)
        self._free = threading.Semaphore(_IN_FLIGHT)

    def issue(self, queries: Sequence[Query]) -> None:
        # One query is one user, who waits for nobody; many are the Offline scenario.
        is_bounded = len(queries) > 1
        for number, sample in queries:
            if is_bounded:
                self._free.acquire()
            self._call.future(sample.request).add_done_callback(partial(self._done, number, is_bounded))

    def processor_s(self) -> float:
        return self._server.processor_s()

    def close(self) -> None:
        self._channel.close()

    def _done(self, number: int, is_bounded: bool, done: Any) -> None:
        if is_bounded:
            self._free.release()
        if done.exception() is not None:
            self.failures.append(f"{done.code().name}: {done.details()}")
            return self.answer(number, np.zeros(0, np.float32))
        response = wire.PredictResponse.FromString(done.result())
        return self.answer(number, np.frombuffer(response.outputs[0].values, "<f4"))


@contextmanager
def opened(names: Sequence[str], path: Path, log: Path, *, is_ranking: bool) -> Iterator[list[System]]:
    """Open systems by their names in ``SYSTEMS``.

    Args:
        names: Which.
        path: The artifact.
        log: Receives the server's log.
        is_ranking: Whether samples have one context.

    Raises:
        StepError: The server did not start.
    """
    with ExitStack() as stack:
        found: list[System] = []
        for name in names:
            if name == "server":
                errors = stack.enter_context(log.open("w"))
                server = stack.enter_context(started(server_command(path, "--no-metrics"), errors))
                system: _Served | _InProcess = _Served(server)
            else:
                system = _InProcess(path, is_ranking=is_ranking)
            stack.callback(system.close)
            found.append(system)
        yield found


SYSTEMS = ("in-process", "server")
