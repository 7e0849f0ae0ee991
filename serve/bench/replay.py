"""Captured requests, to be sent again."""

from __future__ import annotations

from pathlib import Path

from serve.bench.plan import Recording
from serve.bench.requests import Prepared
from serve.bench.wires import Encode
from serve.capture_file import CapturedRequest, CaptureReader


def played(
    recording: Recording, encode: Encode, index: int, num_processes: int
) -> tuple[list[float], list[Prepared]]:
    """The requests that one process sends, and when, in seconds after the first of the whole recording.

    They ask for the model that answered them (its present version); all of them lie in memory.

    Args:
        recording: what to play.
        encode: a request to bytes of the protocol that is spoken.
        index: of the process.
        num_processes: that share the requests, each taking every so manieth.

    Raises:
        CaptureError: the file is not a capture, or damaged.
    """
    offsets_s, requests = [], []
    with CaptureReader(recording.path) as reader:
        chosen = (one for one in reader if not recording.model or one.model == recording.model)
        first_us = -1
        for i, captured in enumerate(chosen):
            first_us = captured.time_us if first_us < 0 else first_us
            if i % num_processes == index:
                offsets_s.append(max(captured.time_us - first_us, 0) * 1e-6)
                requests.append(_prepared(captured, encode))
    return offsets_s, requests


def span(path: Path, model: str) -> tuple[int, float]:
    """How many requests of a model (empty for all) a capture holds, and the seconds from the first to the last.

    Raises:
        CaptureError: the file is not a capture, or damaged.
    """
    with CaptureReader(path) as reader:
        times_us = [one.time_us for one in reader if not model or one.model == model]
    return len(times_us), (max(times_us) - times_us[0]) * 1e-6 if times_us else 0.0


def _prepared(captured: CapturedRequest, encode: Encode) -> Prepared:
    request = captured.parse()
    request.model = captured.model
    return Prepared(data=encode(request), num_rows=request.num_rows)
