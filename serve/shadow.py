"""Shadow traffic: a second version computes requests whose answers a first one gives; both answers are compared.

The version that answers notices nothing of it: the shadow gets the request at the lowest priority, in a queue of its
own, and is left out where that is full; answers are compared in a thread of their own, and dropped.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from serve.batching import Pending, Priority
from serve.errors import DrainingError, QueueFullError, RequestError
from serve.hosted import HostedModel
from serve.model_metrics import ModelMetrics
from serve.raw import RawRequestLike
from serve.request_check import CheckedRequest
from serve.work import Answer, Rows, Work

# Values are the same if they differ by no more than ABSOLUTE + RELATIVE * |value|. A float32 has a relative error of
# 6e-8, a sum of a thousand terms in another order one of some 1e-5 at worst: other batches, threads and devices stay
# below this, other rows do not.
RELATIVE_TOLERANCE = 1e-4
ABSOLUTE_TOLERANCE = 1e-6
# Pairs of answers that may wait to be compared; beyond that they are dropped, because they hold memory.
_MAX_WAITING = 1024


def same_rows(expected: Rows, got: Rows) -> bool:
    """Whether two versions gave the same answer: outputs of the same names and shapes, and values within tolerance.

    NaN is the same as NaN, and an infinity as the same infinity.
    """
    outputs = {output.name: output.shape for output in expected.signature.outputs}
    others = {output.name: output.shape for output in got.signature.outputs}
    if outputs != others or expected.num_rows != got.num_rows:
        return False
    values = {output.name: v for output, v in zip(got.signature.outputs, got.values, strict=True)}
    return all(
        _same_values(mine, values[output.name])
        for output, mine in zip(expected.signature.outputs, expected.values, strict=True)
    )


def _same_values(expected: bytes, got: bytes) -> bool:
    if expected == got:
        return True
    return len(expected) == len(got) and np.allclose(
        np.frombuffer(got, "<f4"),
        np.frombuffer(expected, "<f4"),
        rtol=RELATIVE_TOLERANCE,
        atol=ABSOLUTE_TOLERANCE,
        equal_nan=True,
    )


class Comparer:
    """Compares pairs of answers, in a thread of its own that starts with the first pair."""

    def __init__(self) -> None:
        self._pairs: queue.Queue[tuple[Rows, Rows, ModelMetrics] | None] = queue.Queue(_MAX_WAITING)
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def compare(self, expected: Rows, got: Rows, metrics: ModelMetrics) -> None:
        """Have a pair compared, and the result counted; never waits. Thread-safe."""
        try:
            self._pairs.put_nowait((expected, got, metrics))
        except queue.Full:
            metrics.shadow("dropped")
            return
        if self._thread is None:
            self._start()

    def close(self) -> None:
        """Compare what waits, and end the thread; idempotent. Blocks."""
        with self._lock:
            thread, self._thread = self._thread, None
        if thread is not None:
            self._pairs.put(None)
            thread.join()

    def _start(self) -> None:
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="shadow-comparer", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        while (pair := self._pairs.get()) is not None:
            expected, got, metrics = pair
            metrics.shadow("same" if same_rows(expected, got) else "different")


@dataclass(frozen=True, slots=True)
class Shadow:
    """A version that computes in the shadow.

    Attributes:
        hosted: the version.
        comparer: compares its answers.
        alike: versions whose checks make the same of every request.
    """

    hosted: HostedModel
    comparer: Comparer
    alike: frozenset[str] = frozenset()

    def twin(self, version: str, checked: CheckedRequest, encode: Callable[[Rows], bytes]) -> ShadowTwin:
        """A request's twin; to be made before the request joins its own queue.

        Args:
            version: that answers.
            checked: the request, as that version has it.
            encode: writes the client's answer.
        """
        # The check takes a hundred times as long as the copy, and the event loop waits for both.
        return ShadowTwin(self, encode, checked.copy() if version in self.alike else None)


class ShadowTwin:
    """One request on its second way.

    Counted with the shadow's metrics: ``same`` and ``different`` where both versions answered; ``failed`` where the
    shadow refused the request (as wrong for its signature) or failed on it; ``dropped`` where its queue was full.
    Where the version that answers failed there is nothing to compare, and nothing is counted.

    Args:
        shadow: the version beside the one that answers.
        encode: writes the client's answer.
        checked: the request as the shadow may have it; None where the shadow's own checks come first.
    """

    __slots__ = ("_checked", "_encode", "_lock", "_rows", "_shadow")

    def __init__(
        self, shadow: Shadow, encode: Callable[[Rows], bytes], checked: CheckedRequest | None
    ) -> None:
        self._shadow = shadow
        self._encode = encode
        self._checked = checked
        self._lock = threading.Lock()
        self._rows: dict[str, Rows] = {}

    def encode(self, rows: Rows) -> bytes:
        """Write the client's answer, and remember it for the comparison."""
        answer = self._encode(rows)
        self._arrived("primary", rows)
        return answer

    def submit(self, raw: RawRequestLike, num_bytes: int) -> None:
        """Let the request join the shadow's queue. Never raises.

        Args:
            raw: the request.
            num_bytes: of it as it came over the wire.
        """
        hosted = self._shadow.hosted
        try:
            checked, self._checked = self._checked, None
            if checked is None:
                checked = hosted.checker.check(raw)
            hosted.executor.submit(
                Pending(
                    payload=Work(checked=checked, encode=self._encode_shadow, answer=self._answered),
                    num_rows=checked.num_rows,
                    num_ids=checked.num_ids,
                    num_bytes=max(num_bytes, checked.spread_bytes),
                    priority=Priority.LOW,
                )
            )
        except (QueueFullError, DrainingError):
            hosted.metrics.shadow("dropped")
        except RequestError:
            hosted.metrics.shadow("failed")

    def _encode_shadow(self, rows: Rows) -> bytes:
        self._arrived("shadow", rows)
        return b""

    def _answered(self, answer: Answer) -> None:
        if isinstance(answer, Exception):
            self._shadow.hosted.metrics.shadow("failed")

    def _arrived(self, who: str, rows: Rows) -> None:
        with self._lock:
            self._rows[who] = rows
            if len(self._rows) < 2:
                return
        both, self._rows = self._rows, {}
        self._shadow.comparer.compare(both["primary"], both["shadow"], self._shadow.hosted.metrics)
