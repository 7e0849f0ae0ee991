"""recsys-bench: drive load at a server and print throughput, latency and the mean batch.

A closed loop: a fixed number of requests is in flight, each answered before its successor is sent.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import multiprocessing
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import grpc
import grpc.aio
import numpy as np

from serve.client import CHANNEL_OPTIONS, PREDICT, Client
from serve.client_errors import PredictError
from serve.sampling import random_request
from serve.wire import predict_pb2 as wire

# Enough that no cache of the server's holds just the rows that are asked for.
_NUM_REQUESTS = 256
_EPILOG = """\
example:
  recsys-bench 127.0.0.1:8500 --rows 1 --in-flight 64 --duration-s 10 --metrics 127.0.0.1:8501

exit codes: 0 every request was answered, 1 some failed or there is no server, 2 bad usage
"""


@dataclass(frozen=True, kw_only=True)
class Load:
    """What one process sends.

    Attributes:
        address: ``host:port`` of the server.
        requests: serialized, sent in turn.
        num_in_flight: requests that wait for their answers at any time.
        num_connections: that they are spread over.
        warm_up_s: how long the first answers are not counted.
        duration_s: how long answers are counted, after that.
        timeout_s: of each request.
    """

    address: str
    requests: tuple[bytes, ...]
    num_in_flight: int
    num_connections: int
    warm_up_s: float
    duration_s: float
    timeout_s: float = 30.0


@dataclass(kw_only=True)
class Measured:
    """What came back: latencies of the answered requests, and the failed ones by status code."""

    latencies_s: list[float] = field(default_factory=list)
    errors: Counter[str] = field(default_factory=Counter)


async def drive(load: Load) -> Measured:
    """Send the load and measure it."""
    channels = [
        grpc.aio.insecure_channel(
            load.address, options=(*CHANNEL_OPTIONS, ("grpc.use_local_subchannel_pool", 1))
        )
        for _ in range(load.num_connections)
    ]
    measured = Measured()
    requests = itertools.cycle(load.requests)
    start_s = time.perf_counter() + load.warm_up_s
    calls = [channel.unary_unary(PREDICT) for channel in channels]
    await asyncio.gather(
        *(_loop(calls[i % len(calls)], load, requests, start_s, measured) for i in range(load.num_in_flight))
    )
    for channel in channels:
        await channel.close()
    return measured


async def _loop(call: Any, load: Load, requests: Iterator[bytes], start_s: float, measured: Measured) -> None:
    """One request after the other; only those that end within the measured time count."""
    end_s = start_s + load.duration_s
    sent_s = time.perf_counter()
    while sent_s < end_s:
        code = ""
        try:
            await call(next(requests), timeout=load.timeout_s)
        except grpc.aio.AioRpcError as error:
            code = error.code().name
        done_s = time.perf_counter()
        if start_s <= done_s < end_s:
            if code:
                measured.errors[code] += 1
            else:
                measured.latencies_s.append(done_s - sent_s)
        sent_s = done_s


def drive_process(load: Load) -> Measured:
    """The same in an event loop of its own; the entry of a worker process."""
    return asyncio.run(drive(load))


def scrape(address: str) -> dict[str, float]:
    """Each sample of a server's metrics endpoint by its name and labels.

    Raises:
        OSError: nothing answers at ``address``.
    """
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as response:
        lines = response.read().decode().splitlines()
    pairs = (line.rsplit(" ", 1) for line in lines if line and not line.startswith("#"))
    return {name: float(value) for name, value in pairs}


def mean_batch_rows(before: dict[str, float], after: dict[str, float]) -> float:
    """Rows per batch between two scrapes."""
    rows, batches = (
        after[name] - before[name] for name in ("recsys_batch_rows_sum", "recsys_batch_rows_count")
    )
    return rows / batches if batches else 0.0


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser(
        prog="recsys-bench",
        description="Drive load at a server; print throughput, latency and the mean batch.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("address", help="host:port of a server")
    top.add_argument("--rows", type=int, default=1, help="of each request (default: %(default)s)")
    top.add_argument("--ids-per-bag", type=int, default=1, help="in each sparse input (default: %(default)s)")
    top.add_argument("--in-flight", type=int, default=64, help="requests at a time (default: %(default)s)")
    top.add_argument("--connections", type=int, default=4, help="default: %(default)s")
    top.add_argument("--processes", type=int, default=1, help="that send (default: %(default)s)")
    top.add_argument("--duration-s", type=float, default=10.0, help="measured (default: %(default)s)")
    top.add_argument("--warm-up-s", type=float, default=1.0, help="not measured (default: %(default)s)")
    top.add_argument("--seed", type=int, default=0, help="of the random requests (default: %(default)s)")
    top.add_argument("--metrics", metavar="HOST:PORT", help="the server's metrics, for the mean batch")
    top.add_argument("--json", action="store_true", help="print one JSON object")
    return top


def _loads(args: argparse.Namespace) -> list[Load]:
    with Client(args.address) as client:
        metadata: wire.ModelMetadata = client.metadata()
    generator = np.random.default_rng(args.seed)
    requests = tuple(
        random_request(metadata, args.rows, args.ids_per_bag, generator).SerializeToString()
        for _ in range(_NUM_REQUESTS)
    )
    return [
        Load(
            address=args.address,
            requests=requests,
            num_in_flight=len(range(i, args.in_flight, args.processes)),
            num_connections=len(range(i, args.connections, args.processes)),
            warm_up_s=args.warm_up_s,
            duration_s=args.duration_s,
        )
        for i in range(args.processes)
    ]


def _drive_all(loads: list[Load]) -> Measured:
    if len(loads) == 1:
        return drive_process(loads[0])
    total = Measured()
    with ProcessPoolExecutor(len(loads), multiprocessing.get_context("spawn")) as pool:
        for measured in pool.map(drive_process, loads):
            total.latencies_s += measured.latencies_s
            total.errors += measured.errors
    return total


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Drive the load that the command line names; returns the figures that are printed."""
    loads = _loads(args)
    before = scrape(args.metrics) if args.metrics else {}
    measured = _drive_all(loads)
    after = scrape(args.metrics) if args.metrics else {}
    latencies_ms = np.array(measured.latencies_s) * 1e3
    p50, p95, p99 = np.percentile(latencies_ms, (50, 95, 99)).tolist() if latencies_ms.size else (None,) * 3
    return {
        "requests_per_s": latencies_ms.size / args.duration_s,
        "rows_per_s": latencies_ms.size * args.rows / args.duration_s,
        "p50_ms": p50,
        "p95_ms": p95,
        "p99_ms": p99,
        "errors": dict(measured.errors),
        "mean_batch_rows": mean_batch_rows(before, after) if args.metrics else None,
    }


def _check(args: argparse.Namespace) -> None:
    for name, least in (("rows", 0), ("ids_per_bag", 0), ("connections", 1), ("processes", 1)):
        if getattr(args, name) < least:
            raise ValueError(
                f"--{name.replace('_', '-')}: got {getattr(args, name)}, expected at least {least}"
            )
    if args.in_flight < args.connections or args.connections < args.processes:
        raise ValueError("expected --processes <= --connections <= --in-flight")
    if not args.duration_s > 0 or not args.warm_up_s >= 0:
        raise ValueError("expected --duration-s above 0 and --warm-up-s of at least 0")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    args = parser().parse_args(argv)
    try:
        _check(args)
    except ValueError as error:
        print(f"recsys-bench: {error}", file=sys.stderr)
        return 2
    try:
        figures = run(args)
    except (PredictError, OSError) as error:
        print(f"recsys-bench: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("recsys-bench: interrupted, nothing was measured", file=sys.stderr)
        return 1
    if args.json:
        print(json.dumps(figures))
    else:
        for name, value in figures.items():
            print(f"{name:>16}: {value:.3f}" if isinstance(value, float) else f"{name:>16}: {value}")
    return 1 if figures["errors"] or not figures["requests_per_s"] else 0


if __name__ == "__main__":
    sys.exit(main())
