"""When requests are due: the times of an open loop, in seconds after its start."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

_CHUNK = 1024


def poisson(rate_per_s: float, generator: np.random.Generator) -> Iterator[float]:
    """A Poisson process: as many clients that know nothing of each other make it.

    Several such processes with rates r1, r2, ... are together one with the rate r1 + r2 + ...

    Args:
        rate_per_s: mean number of arrivals in a second.
        generator: where the gaps come from.
    """
    at_s = 0.0
    while True:
        times = at_s + np.cumsum(generator.exponential(1.0 / rate_per_s, _CHUNK))
        yield from times.tolist()
        at_s = float(times[-1])


def replayed(offsets_s: Sequence[float], speed: float) -> Iterator[float]:
    """Recorded times.

    Args:
        offsets_s: ascending, from the start of the recording.
        speed: 2 lets twice as many come in a second.
    """
    return (offset_s / speed for offset_s in offsets_s)
