"""Drift of inputs: a sample of the requests compared with the training data, over windows, beside serving."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from recsys.inputs.signature import Signature
from recsys.inputs.sketch import DataSketch
from serve.config.settings import QualityConfig
from serve.engine.answered import AnsweredBlock, chosen, num_chosen
from serve.engine.interface import Servable
from serve.engine.routes import RouteTable
from serve.quality.inputs import Counts, InputCounter, InputDrift
from serve.quality.windows import Windows
from serve.threads import Worker

_log = logging.getLogger("serve.quality")
#: What becomes of a sampled request.
RESULTS = ("compared", "dropped", "unreadable")
#: Bounds the memory; of more versions, the one without a request for the longest time goes.
MAX_VERSIONS = 16
# Bounds of the queue: what a busy server samples in a moment.
_MAX_WAITING = 1024
_MAX_WAITING_BYTES = 32 << 20
_MAX_TAKEN = 64


class WindowDrift(NamedTuple):
    """The inputs of a version over a window.

    Attributes:
        num_rows: rows of the requests that were compared.
        inputs: each input.
    """

    num_rows: int
    inputs: list[InputDrift]


@dataclass(frozen=True, slots=True)
class _Watched:
    signature: Signature
    counter: InputCounter
    windows: Windows[Counts]


class InputWatch:
    """Compares a sample of requests in a thread of its own. Thread-safe.

    Args:
        config: the settings.
        now: returns the present time in seconds; it never goes back.

    Attributes:
        table: returns the route table of a model; None if it has none. Set when the routing exists.
    """

    def __init__(self, config: QualityConfig, now: Callable[[], float] = time.monotonic) -> None:
        self._share = config.drift_share
        self._now = now
        self.table: Callable[[str], RouteTable | None] = lambda _: None
        self._lock = threading.Lock()
        self._counts = Counter[str]()
        self._watched: OrderedDict[tuple[str, str], _Watched] = OrderedDict()
        self._blocks: Worker[tuple[AnsweredBlock, int]] = Worker(
            "drift",
            self._compare_all,
            max_waiting=_MAX_WAITING,
            max_waiting_bytes=_MAX_WAITING_BYTES,
            max_taken=_MAX_TAKEN,
        )

    def offer(self, block: AnsweredBlock) -> None:
        """Queue the requests that are in the share; never blocks."""
        if not block.has_inputs:
            return
        num_requests = num_chosen(block, self._share)
        if num_requests and not self._blocks.put((block, num_requests), block.num_bytes):
            self._count("dropped", num_requests)

    def counts(self) -> dict[str, int]:
        """Return the sampled requests by one of ``RESULTS``."""
        with self._lock:
            return {result: self._counts[result] for result in RESULTS}

    def drift(self) -> dict[tuple[str, str], dict[str, WindowDrift]]:
        """Return the inputs by model and version, and by window, of windows with requests."""
        with self._lock:
            totals = {key: (one.counter, one.windows.totals()) for key, one in self._watched.items()}
        return {
            key: {
                window: WindowDrift(int(total.numbers[0]), counter.drift(total))
                for window, total in by_window.items()
                if total.numbers[0]
            }
            for key, (counter, by_window) in totals.items()
        }

    def close(self) -> None:
        """Compare the waiting requests and end the thread; idempotent. Blocks."""
        self._blocks.close()

    def _count(self, result: str, number: int) -> None:
        with self._lock:
            self._counts[result] += number

    def _compare_all(self, blocks: list[tuple[AnsweredBlock, int]]) -> None:
        for block, num_requests in blocks:
            try:
                self._compare(block)
            except Exception:
                # A bug here must not end the thread silently.
                _log.exception("requests could not be compared with the training data")
                self._count("unreadable", num_requests)
            else:
                self._count("compared", num_requests)

    def _compare(self, block: AnsweredBlock) -> None:
        requests = chosen(block.columns(), self._share, block.signature.outputs)
        assert requests is not None
        watched = self._watched_of(block)
        counts = watched.counter.empty()
        servable = self._servable(block.model, block.version)
        if servable is None:
            watched.counter.add(counts, requests)
        else:
            watched.counter.add(counts, requests, servable.num_owned)
        with self._lock:
            watched.windows.add(lambda total: total.merge(counts))

    def _watched_of(self, block: AnsweredBlock) -> _Watched:
        key = (block.model, block.version)
        with self._lock:
            watched = self._watched.get(key)
            # A version that was loaded again may be another artifact.
            if watched is None or watched.signature is not block.signature:
                counter = InputCounter(block.signature, self._sketch_of(*key))
                windows = Windows(counter.empty, self._now)
                watched = self._watched[key] = _Watched(block.signature, counter, windows)
                if len(self._watched) > MAX_VERSIONS:
                    self._watched.popitem(last=False)
            self._watched.move_to_end(key)
        return watched

    def _servable(self, model: str, version: str) -> Servable | None:
        table = self.table(model)
        return None if table is None else table.servables.get(version)

    def _sketch_of(self, model: str, version: str) -> DataSketch | None:
        servable = self._servable(model, version)
        return None if servable is None else servable.info.data_sketch
