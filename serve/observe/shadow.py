"""Shadow traffic: a second version also computes requests, and its outputs are compared with the answers.

The answering version is not affected: the shadow gets the request at the lowest priority, in a queue of its
own, and not at all if that queue is full. A separate thread compares the answers and drops them.
"""

from __future__ import annotations

import numpy as np

from serve.engine.records import ShadowPair
from serve.metrics.registry import Metrics
from serve.threads import Worker

# Values are the same if they differ by no more than ABSOLUTE + RELATIVE * |value|. A float32 has a relative
# error of 6e-8, and a sum of a thousand terms in another order one of about 1e-5 at worst. Differences from
# other batches, threads and devices stay within this; wrong rows do not.
RELATIVE_TOLERANCE = 1e-4
ABSOLUTE_TOLERANCE = 1e-6
# Maximum number of waiting pairs; more are dropped, because they hold memory.
_MAX_WAITING = 1024


def same_outputs(pair: ShadowPair) -> bool:
    """Return whether outputs have the same names, shapes and types, equal integers, and floats within tolerance.

    NaN equals NaN, and an infinity equals the same infinity.
    """
    expected = {output.name: output for output in pair.expected_outputs}
    if expected != {output.name: output for output in pair.got_outputs}:
        return False
    got = {output.name: data for output, data in zip(pair.got_outputs, pair.got, strict=True)}
    return all(
        data == got[output.name] or (not output.is_integer and _same_floats(data, got[output.name]))
        for output, data in zip(pair.expected_outputs, pair.expected, strict=True)
    )


def _same_floats(expected: bytes, got: bytes) -> bool:
    return len(expected) == len(got) and np.allclose(
        np.frombuffer(got, "<f4"),
        np.frombuffer(expected, "<f4"),
        rtol=RELATIVE_TOLERANCE,
        atol=ABSOLUTE_TOLERANCE,
        equal_nan=True,
    )


class Comparer:
    """Compares pairs of outputs in a thread of its own, which starts with the first pair.

    Args:
        metrics: counts the results.
    """

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._pairs: Worker[ShadowPair] = Worker("shadow-comparer", self._compare, max_waiting=_MAX_WAITING)

    def compare(self, pair: ShadowPair) -> None:
        """Queue a pair to compare and count; never blocks. Thread-safe."""
        if not self._pairs.put(pair):
            self._metrics.shadow(pair.model, pair.shadow, "dropped")

    def close(self) -> None:
        """Compare the waiting pairs and end the thread; idempotent. Blocks."""
        self._pairs.close()

    def _compare(self, pairs: list[ShadowPair]) -> None:
        for pair in pairs:
            self._metrics.shadow(pair.model, pair.shadow, "same" if same_outputs(pair) else "different")
