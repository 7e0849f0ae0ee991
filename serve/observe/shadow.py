"""Shadow traffic: a second version computes requests whose answers a first one gives; both answers are compared.

The version that answers notices nothing of it: the shadow gets the request at the lowest priority, in a queue of its
own, and is left out where that is full; answers are compared in a thread of their own, and dropped.
"""

from __future__ import annotations

import numpy as np

from serve.engine.records import ShadowPair
from serve.metrics.registry import Metrics
from serve.threads import Worker

# Values are the same if they differ by no more than ABSOLUTE + RELATIVE * |value|. A float32 has a relative error of
# 6e-8, a sum of a thousand terms in another order one of some 1e-5 at worst: other batches, threads and devices stay
# below this, other rows do not.
RELATIVE_TOLERANCE = 1e-4
ABSOLUTE_TOLERANCE = 1e-6
# Pairs of answers that may wait to be compared; beyond that they are dropped, because they hold memory.
_MAX_WAITING = 1024


def same_outputs(pair: ShadowPair) -> bool:
    """Whether two versions gave the same answer: outputs of the same names and shapes, and values within tolerance.

    NaN is the same as NaN, and an infinity as the same infinity.
    """
    shapes = {output.name: output.shape for output in pair.expected_outputs}
    if shapes != {output.name: output.shape for output in pair.got_outputs}:
        return False
    got = {output.name: data for output, data in zip(pair.got_outputs, pair.got, strict=True)}
    return all(
        _same_values(data, got[output.name])
        for output, data in zip(pair.expected_outputs, pair.expected, strict=True)
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
    """Compares pairs of answers, in a thread of its own that starts with the first pair.

    Args:
        metrics: counts the results.
    """

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._pairs: Worker[ShadowPair] = Worker("shadow-comparer", self._compare, max_waiting=_MAX_WAITING)

    def compare(self, pair: ShadowPair) -> None:
        """Have a pair compared, and the result counted; never waits. Thread-safe."""
        if not self._pairs.put(pair):
            self._metrics.shadow(pair.model, pair.shadow, "dropped")

    def close(self) -> None:
        """Compare what waits, and end the thread; idempotent. Blocks."""
        self._pairs.close()

    def _compare(self, pairs: list[ShadowPair]) -> None:
        for pair in pairs:
            self._metrics.shadow(pair.model, pair.shadow, "same" if same_outputs(pair) else "different")
