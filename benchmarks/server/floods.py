"""What floods of calls do to a server: a neighbour's latency, the time of a new connection, and the server's memory.

The floods are calls that keep a few connections of several processes full: calls that are refused, good ones, calls of
unknown methods, health checks, metadata; calls whose headers are large and whose message never comes, and calls whose
message never ends. The neighbour sends one good request at a time on a connection of its own; another one opens a
connection for each request. All are measured by raw HTTP/2: before the flood, beside one that another server on the
same processors gets, in it, and after it.

The bar: a neighbour's p99 in the flood is at most twice the one before, and what the flood takes of the processors,
which is the difference between the p99 beside the flood and the one before.
"""

from __future__ import annotations

import argparse
import os
import statistics
import struct
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from benchmarks.measure.command import Measured, make_parser, names_of, run
from benchmarks.measure.processes import Started, module, started
from benchmarks.measure.tables import table_of
from benchmarks.models.dlrm import build
from export.config import ExportConfig
from export.pipeline import export_model
from recsys.artifact.load import load_artifact
from serve.bench.environment import scrape
from serve.client import PREDICT
from serve.wire import predict_pb2
from tests.conformance.support import http2
from tests.conformance.support.pipelines import Load, flooded
from tests.support.serve.messages.cases import random_sample

_EPILOG = """\
examples:
  python -m benchmarks.server.floods
  python -m benchmarks.server.floods --floods refused,headers --senders 4 --json
  python -m benchmarks.server.floods --engine reference

exit codes: 0 measured, 1 a server did not start, 2 bad usage
"""
_SERVICE = "/recsys.v1.PredictionService"
_TABLE_ROWS = 1_000
_WARM_S = 1.0
# After a flood; the server keeps memory for the next batches for less than that.
_GIVEN_BACK_S = 3.0
_PAUSE_S = 0.002
_LARGE_HEADER_BYTES = 15_000
_PART_BYTES = 60_000
_MB = 1e6


def _loads(good: bytes) -> dict[str, Load]:
    """Return the floods by name; ``good`` is a request that is answered."""
    metadata = predict_pb2.GetModelMetadataRequest().SerializeToString()
    return {
        "refused": Load(path=PREDICT, request=b""),
        "good": Load(path=PREDICT, request=good),
        "unknown": Load(path=f"{_SERVICE}/Unknown", request=b""),
        "health": Load(path="/grpc.health.v1.Health/Check", request=b""),
        "metadata": Load(path=f"{_SERVICE}/GetModelMetadata", request=metadata),
        "headers": Load(path=PREDICT, request=None, header_bytes=_LARGE_HEADER_BYTES),
        "parts": Load(path=PREDICT, request=bytes(_PART_BYTES), is_part=True),
    }


FLOODS = tuple(_loads(b""))


@dataclass(frozen=True, kw_only=True)
class Seen:
    """Figures of one phase; times in ms.

    Attributes:
        p50_ms: the neighbour's median.
        p99_ms: the neighbour's.
        num: the neighbour's requests.
        connection_ms: median of a new connection with one request.
        longest_connection_ms: the longest.
        rss_mb: the server's largest anonymous memory.
        held_mb: largest ``recsys_port_held_bytes``.
    """

    p50_ms: float
    p99_ms: float
    num: int
    connection_ms: float
    longest_connection_ms: float
    rss_mb: float
    held_mb: float


class _Neighbour:
    """A connection with one call at a time."""

    def __init__(self, address: str, request: bytes) -> None:
        self._connection = http2.RawConnection(address)
        self._connection.send(http2.hello())
        self._frames = self._connection.frames()
        self._request = request
        self._stream = 1
        # Sent with the next call: alone it would wait for the server's acknowledgement.
        self._room = b""

    def call_s(self) -> float:
        start_s = time.perf_counter()
        self._connection.send(
            self._room + http2.opened(PREDICT, self._stream) + http2.message(self._request, self._stream)
        )
        num_received = 0
        for frame in self._frames:
            num_received += len(frame.payload) * (frame.kind == http2.DATA)
            if frame.kind in (http2.GOAWAY, http2.RST_STREAM):
                raise ConnectionError(f"the neighbour got a frame of kind {frame.kind}")
            if frame.stream == self._stream and frame.flags & http2.END_STREAM:
                break
        else:
            raise ConnectionError("the neighbour's connection was closed")
        if num_received == 0:
            raise ConnectionError("the neighbour's call was refused")
        self._room = http2.frame(http2.WINDOW_UPDATE, 0, 0, struct.pack(">I", num_received))
        self._stream += 2
        return time.perf_counter() - start_s

    def close(self) -> None:
        self._connection.__exit__()


def _rss_mb(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("RssAnon:")[2].split()[0]) * 1024 / _MB


def _observe(server: Started, request: bytes, seconds: float) -> Seen:
    """Measure for so many seconds, all at once."""
    end_s = time.monotonic() + seconds
    took: list[float] = []
    connections: list[float] = []
    held: list[float] = []
    rss: list[float] = []

    def neighbour() -> None:
        client = _Neighbour(server.address, request)
        while time.monotonic() < end_s:
            took.append(client.call_s())
            time.sleep(_PAUSE_S)
        client.close()

    def newcomer() -> None:
        while time.monotonic() < end_s:
            start_s = time.perf_counter()
            client = _Neighbour(server.address, request)
            client.call_s()
            connections.append(time.perf_counter() - start_s)
            client.close()
            time.sleep(0.05)

    def memory() -> None:
        while time.monotonic() < end_s:
            rss.append(_rss_mb(server.pid))
            found = scrape(f"127.0.0.1:{server.ready['metrics_port']}")
            held.append(found.get("recsys_port_held_bytes", 0.0) / _MB)
            time.sleep(0.1)

    threads = [threading.Thread(target=one) for one in (neighbour, newcomer, memory)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return Seen(
        p50_ms=statistics.median(took) * 1e3,
        p99_ms=float(np.quantile(took, 0.99)) * 1e3,
        num=len(took),
        connection_ms=statistics.median(connections) * 1e3,
        longest_connection_ms=max(connections) * 1e3,
        rss_mb=max(rss),
        held_mb=max(held),
    )


def _measure(name: str, artifact: Path, request: bytes, args: argparse.Namespace) -> dict[str, Any]:
    load = _loads(request)[name]
    load = replace(load, num_senders=args.senders, num_connections=args.connections, depth=args.depth)
    command = module("serve.app.cli", str(artifact), "--engine", args.engine, "--port", "0")
    command += ["--metrics-port", "0", "--json", "--log-requests", args.log]
    with Path(os.devnull).open("w") as log, started(command, log) as server:
        _observe(server, request, _WARM_S)
        before = _observe(server, request, args.seconds)
        with started(command, log) as other, flooded(other.address, load):
            time.sleep(_WARM_S)
            beside = _observe(server, request, args.seconds)
        began_s = time.monotonic()
        with flooded(server.address, load) as answered:
            time.sleep(_WARM_S)
            during = _observe(server, request, args.seconds)
        lasted_s = time.monotonic() - began_s
        _observe(server, request, _GIVEN_BACK_S)
        after = _observe(server, request, _WARM_S)
    return {
        "flood": name,
        "before": asdict(before),
        "beside": asdict(beside),
        "during": asdict(during),
        "after": asdict(after),
        "answered_per_s": sum(answered) / lasted_s,
        "bar_ms": 2 * before.p99_ms + max(beside.p99_ms - before.p99_ms, 0.0),
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    return run(_parser(), argv, _measured)


def _measured(args: argparse.Namespace, folder: Path) -> Measured:
    artifact = folder / "dlrm"
    export_model(build(_TABLE_ROWS), artifact, ExportConfig())
    sample = random_sample(load_artifact(artifact).signature, 1, np.random.default_rng(0))
    request = sample.request().SerializeToString()
    found = [_measure(name, artifact, request, args) for name in args.floods]
    return Measured(data={"engine": args.engine, "floods": found}, shown=[_table(found)])


def _table(found: Sequence[dict[str, Any]]) -> Table:
    rows = []
    for one in found:
        for phase in ("before", "beside", "during", "after"):
            seen = Seen(**one[phase])
            rate = bar = ""
            if phase == "during":
                rate = f"{one['answered_per_s']:,.0f}"
                bar = f"{one['bar_ms']:.2f} {'met' if seen.p99_ms <= one['bar_ms'] else 'not met'}"
            row = {
                "flood": one["flood"],
                "": phase,
                "p50 ms": f"{seen.p50_ms:.2f}",
                "p99 ms": f"{seen.p99_ms:.2f}",
                "bar": bar,
                "connection ms": f"{seen.connection_ms:.2f}",
                "longest": f"{seen.longest_connection_ms:.2f}",
                "memory MB": f"{seen.rss_mb:.0f}",
                "held MB": f"{seen.held_mb:.1f}",
                "calls/s": rate,
            }
            rows.append(row)
    return table_of("before, beside, in and after the flood", rows, texts=("flood", ""))


def _parser() -> argparse.ArgumentParser:
    parser = make_parser("server.floods", __doc__, _EPILOG)
    parser.add_argument("--engine", choices=("native", "reference"), default="native", help="default native")
    parser.add_argument(
        "--floods", type=names_of(FLOODS), default=list(FLOODS), metavar="NAMES", help="default all"
    )
    parser.add_argument("--senders", type=int, default=8, metavar="N", help="processes (default 8)")
    parser.add_argument("--connections", type=int, default=4, metavar="N", help="of each (default 4)")
    parser.add_argument("--depth", type=int, default=900, metavar="N", help="calls of each (default 900)")
    parser.add_argument("--seconds", type=float, default=4.0, metavar="S", help="of each phase (default 4)")
    parser.add_argument("--log", choices=("none", "errors", "all"), default="errors", help="default errors")
    return parser


if __name__ == "__main__":
    sys.exit(main())
