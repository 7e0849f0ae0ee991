"""The native sender: C++ threads (``cpp_client/bench``) in this process.

``make native`` builds it as ``serve.bench.load._sender``. It sends unary gRPC calls of every protocol, in
closed and open loops, and recordings. Requests are made in Python, and its counts are returned as a
``Measured``.
"""

from __future__ import annotations

import json
import math
import time
from collections import Counter
from typing import Any

import grpc

from serve.bench.load.drive import played
from serve.bench.load.latencies import Interval, Latencies, Series
from serve.bench.load.measured import NOT_SENT, Kind, Measured
from serve.bench.load.plan import Job, LoadError, Progress, Step, Target
from serve.bench.load.pool import prepare, request_generator
from serve.bench.load.wires import PROTOCOLS, encoder
from serve.wire import predict_pb2 as wire

try:
    from serve.bench.load import _sender
except ImportError as error:
    _sender = None  # type: ignore[assignment]
    _IMPORT_ERROR = error

_CONNECT_S = 10.0
# Time for all threads to start.
_LEAD_S = 0.02
_TICK_S = 0.1


def why_not_native(target: Target) -> str:
    """Return why the native sender cannot send to a target; empty if it can."""
    if target.protocol == "rest":
        return "the native sender does not speak HTTP"
    if target.stream:
        return "the native sender does not send over streams"
    if _sender is None:
        if isinstance(_IMPORT_ERROR, ModuleNotFoundError) or "cannot import name" in str(_IMPORT_ERROR):
            return "the native sender is not built (make native builds it)"
        return f"the native sender cannot be loaded ({_IMPORT_ERROR})"
    return ""


def native_versions() -> dict[str, str]:
    """Return the versions of the native sender's libraries."""
    return {} if _sender is None else {"grpc++": _sender.GRPC_VERSION}


class NativeLoad:
    """The native sender of one run; it connects once and makes any number of measurements.

    Args:
        job: the job; ``num_processes`` is 1.
        num_threads: sending threads; an open loop has the same number of receiving threads.
    """

    def __init__(self, job: Job, num_threads: int) -> None:
        reason = why_not_native(job.target)
        if reason:
            raise LoadError(reason)
        self._job = job
        self._num_threads = num_threads
        self._kinds: list[str] = []
        self._native: Any = None
        self.num_requests = 0

    def __enter__(self) -> NativeLoad:
        return self

    def __exit__(self, *_: object) -> None:
        # Deleting the sender cancels its open calls.
        self._native = None

    def measure(self, step: Step, progress: Progress | None = None) -> Measured:
        """Make one measurement.

        Args:
            step: what to measure.
            progress: receives the seconds since the start, and the requests answered and failed so far.

        Raises:
            LoadError: there is no connection.
        """
        if self._native is None:
            self._native = self._open()
        start_s = time.monotonic() + _LEAD_S
        self._native.start(json.dumps(_step_settings(step, start_s)))
        while not self._native.wait(_TICK_S):
            if progress is not None:
                progress(time.monotonic() - start_s, *self._native.progress())
        counts = self._native.take()
        measured = measured_of(counts, self._kinds)
        if self._job.recording is not None:
            begin_s = start_s + step.warm_up_s
            measured.elapsed_s = min(counts["ended_s"], begin_s + step.duration_s) - begin_s
        return measured

    def _open(self) -> Any:
        job = self._job
        metadata = wire.ModelMetadata.FromString(job.metadata)
        encode = encoder(job.target.protocol, metadata)
        offsets_s: list[float] = []
        if job.recording is None:
            requests = prepare(metadata, job.shape, encode, request_generator(job.seed), job.seed)
        else:
            offsets_s, requests = played(job.recording, encode, 0, 1)
            offsets_s = [offset_s / (job.recording.speed or 1.0) for offset_s in offsets_s]
        self.num_requests = len(requests)
        self._kinds = sorted({request.kind for request in requests if request.kind})
        numbers = {name: number for number, name in enumerate(self._kinds)}
        plain = [
            (request.data, request.num_rows, numbers.get(request.kind, 0), request.deadline_s or 0.0)
            for request in requests
        ]
        settings = {
            **_target_settings(job.target),
            "num_kinds": len(self._kinds),
            "is_recording": job.recording is not None,
            "num_lanes": self._num_threads,
            "seed": job.seed,
        }
        native = _sender.Sender(json.dumps(settings), plain, offsets_s)
        if not native.connect(_CONNECT_S):
            raise LoadError(f"UNAVAILABLE: no connection to {job.target.address}")
        return native


def _target_settings(target: Target) -> dict[str, Any]:
    tls = target.tls
    return {
        "address": target.address,
        "method": PROTOCOLS[target.protocol].method,
        "num_connections": target.num_connections,
        "timeout_s": target.timeout_s,
        "tls": None
        if tls is None
        else {name: str(getattr(tls, name) or "") for name in ("ca", "certificate", "key")},
    }


def _step_settings(step: Step, start_s: float) -> dict[str, Any]:
    return {
        "start_s": start_s,
        "warm_up_s": step.warm_up_s,
        "duration_s": step.duration_s if math.isfinite(step.duration_s) else None,
        "num_in_flight": step.num_in_flight or 0,
        "rate_per_s": step.rate_per_s or 0.0,
        "max_in_flight": step.max_in_flight,
        "number": step.number,
    }


_CODES = {code.value[0]: code.name for code in grpc.StatusCode}


def measured_of(counts: dict[str, Any], kinds: list[str]) -> Measured:
    """Convert the native sender's counts to a ``Measured``.

    Args:
        counts: the result of ``_sender.Sender.take``.
        kinds: names of the kinds of requests, by number.
    """
    names = {code: _CODES.get(code, NOT_SENT if code < 0 else "UNKNOWN") for code in counts["errors"]}
    width_s, intervals = counts["series"]
    return Measured(
        latencies=_latencies(counts["latencies"]),
        services=_latencies(counts["services"]),
        lags=_latencies(counts["lags"]),
        errors=Counter({names[code]: count for code, (count, _) in counts["errors"].items()}),
        texts={names[code]: text for code, (_, text) in counts["errors"].items()},
        kinds={
            name: Kind(latencies=_latencies(latencies), num_failed=num_failed)
            for name, (latencies, num_failed) in zip(kinds, counts["kinds"], strict=True)
            if num_failed or latencies[0]
        },
        series=Series(
            width_s=width_s,
            intervals={
                number: Interval(latencies=_latencies(latencies), num_failed=num_failed)
                for number, (latencies, num_failed) in intervals.items()
            },
        ),
        num_in_time=counts["num_in_time"],
        num_rows=counts["num_rows"],
        cpu_shares=counts["cpu_shares"],
    )


def _latencies(counts: tuple[dict[int, int], int, int]) -> Latencies:
    return Latencies(counts=counts[0], sum_ns=counts[1], max_ns=counts[2])
