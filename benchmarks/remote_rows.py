"""Requests of 128 rows whose tables lie in Redis nodes behind a cache of hot rows, beside rows of the local file.

26 tables of dimension 64 in INT8; one ID for each row and table, of a Zipf distribution whose frequent IDs are spread
over the tables. Servers take turns; each is asked by a few clients, which make new requests all the time.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import torch
from rich.table import Table
from torch import Tensor, nn

from benchmarks.measure.command import FAILURES, Measured, make_parser, run
from benchmarks.measure.processes import Started, StepError, module, started
from benchmarks.measure.tables import table_of, tracked
from benchmarks.steps.rows import BATCH_SIZE, DIM, NUM_TABLES, ROW_BYTES, zipf_ids
from export.config import ExportConfig
from export.pipeline import export_model
from recsys import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor
from recsys.artifact.store.nodes import Nodes, StoreError
from recsys.artifact.store.push import push_artifact
from recsys.configs import DataType
from recsys.options.kinds import NAMES, SIZE
from serve.bench.environment import scrape
from serve.client import PREDICT
from serve.client.packing import build_request

_EPILOG = """\
example:
  python -m benchmarks.remote_rows --gb 4 --cache-bytes 1GiB

Needs redis-server or valkey-server. Memory: 1.2 times --gb for the nodes, and the cache; the file of --gb is in --dir,
and the local case reads it from the system's cache as far as that reaches. Exit codes: 0 measured, 1 a step failed,
2 bad usage.
"""
_COUNTS = ("hits", "misses", "read_bytes", "failures")


class Scores(nn.Module):
    """One number from the rows of all tables."""

    def __init__(self, num_rows: int) -> None:
        super().__init__()
        tables = [
            EmbeddingBagConfig(
                name=f"t{i}", num_embeddings=num_rows, embedding_dim=DIM, feature_names=[f"f{i}"]
            )
            for i in range(NUM_TABLES)
        ]
        self.bags = EmbeddingBagCollection(tables, device=torch.device("meta"))
        # Rows that overlap in memory take next to none.
        values = torch.randn(num_rows + DIM)
        for table in self.bags.embedding_bags.values():
            table.weight = nn.Parameter(values.as_strided((num_rows, DIM), (1, 1)), requires_grad=False)
        self.layer = nn.Linear(NUM_TABLES * DIM, 1)

    def forward(self, features: KeyedJaggedTensor) -> dict[str, Tensor]:
        """Return ``score``, ``[B]``."""
        return {"score": self.layer(self.bags(features).values())[:, 0]}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    return run(_parser(), argv, _measured, {**FAILURES, StoreError: 1})


def _measured(args: argparse.Namespace, folder: Path) -> Measured:
    result = _measure(folder, args)
    return Measured(data=result, shown=[_table(result)])


def _measure(folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    artifact, num_rows = folder / "artifact", round(args.gb * 1e9) // (ROW_BYTES * NUM_TABLES)
    export_model(Scores(num_rows), artifact, ExportConfig(data_type=DataType.INT8))
    result: dict[str, Any] = {"gb": args.gb, "zipf": args.zipf, "cache_bytes": args.cache_bytes, "cases": {}}
    with _redis(args.nodes, folder) as address:
        began = time.perf_counter()
        push_artifact(artifact, address, 0)
        result["push_s"] = time.perf_counter() - began
        with Nodes(address) as nodes:
            result["nodes_bytes"] = sum(client.info("memory")["used_memory"] for client in nodes.clients)
        common = [str(artifact), "--engine", "native", "--port", "0", "--metrics-port", "0", "--json"]
        remote = ["--rows", address, "--rows-over-bytes", "0", "--rows-deadline-ms", str(args.deadline_ms)]
        cases: dict[str, list[str]] = {
            "local": [],
            "uncached": [*remote, "--rows-cache-bytes", "0"],
            "cached": [*remote, "--rows-cache-bytes", str(args.cache_bytes)],
        }
        for name in tracked([name for name in cases if name in args.cases], "remote rows"):
            command = module("serve.app.cli", *common, "--no-verify-checksums", *cases[name])
            with started(command) as server:
                result["cases"][name] = _load(server, num_rows, args)
    return result


@contextlib.contextmanager
def _redis(count: int, folder: Path) -> Iterator[str]:
    """Yield the address of so many servers, which keep nothing on the disk."""
    program = shutil.which("redis-server") or shutil.which("valkey-server")
    if program is None:
        raise StepError("needs redis-server or valkey-server: apt-get install redis-server")
    ports, processes = [], []
    try:
        for _ in range(count):
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                ports.append(probe.getsockname()[1])
            options = ("--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir", str(folder))
            command = [program, "--port", str(ports[-1]), *options]
            processes.append(subprocess.Popen(command, stdout=subprocess.DEVNULL))
        for port in ports:
            _wait_for(port)
        yield "redis://" + ",".join(f"127.0.0.1:{port}" for port in ports)
    finally:
        for process in processes:
            process.kill()
            process.wait()


def _wait_for(port: int) -> None:
    for _ in range(500):
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
            return
        time.sleep(0.02)
    raise StepError("redis-server does not listen")


def _load(server: Started, num_rows: int, args: argparse.Namespace) -> dict[str, float]:
    """Ask for ``--warm-s`` seconds, then measure for ``--seconds``."""
    metrics = f"127.0.0.1:{server.ready['metrics_port']}"
    counted, done = threading.Event(), threading.Event()

    def client(seed: int) -> list[float]:
        generator, seconds = np.random.default_rng(seed), []
        with grpc.insecure_channel(server.address) as channel:
            call = channel.unary_unary(PREDICT)
            while not done.is_set():
                ids = zipf_ids(generator, NUM_TABLES * BATCH_SIZE, num_rows, args.zipf)
                sparse = {f"f{i}": part for i, part in enumerate(ids.reshape(NUM_TABLES, BATCH_SIZE))}
                request = build_request({}, sparse).SerializeToString()
                is_counted, began = counted.is_set(), time.perf_counter()
                call(request, timeout=60)
                if is_counted:
                    seconds.append(time.perf_counter() - began)
        return seconds

    with ThreadPoolExecutor(args.clients) as pool:
        clients = [pool.submit(client, seed) for seed in range(args.clients)]
        try:
            if not any(one.done() for one in clients):
                time.sleep(args.warm_s)
            before, began = _counts(scrape(metrics)), time.perf_counter()
            counted.set()
            time.sleep(args.seconds)
            after, took = _counts(scrape(metrics)), time.perf_counter() - began
        finally:
            done.set()
        try:
            seconds = np.array([second for one in clients for second in one.result()])
        except grpc.RpcError as error:
            raise StepError(f"a request failed: {error.code().name}: {error.details()}") from None
    counts = {name: after[name] - before[name] for name in after}
    lookups = counts["hits"] + counts["misses"]
    return {
        "requests": len(seconds),
        "rows_per_s": len(seconds) * BATCH_SIZE * NUM_TABLES / took,
        "p50_ms": float(np.quantile(seconds, 0.5)) * 1e3,
        "p99_ms": float(np.quantile(seconds, 0.99)) * 1e3,
        "hit_rate": counts["hits"] / lookups if lookups else math.nan,
        "read_mb_per_s": counts["read_bytes"] / took / 1e6,
        "failures": counts["failures"],
    }


def _counts(samples: Mapping[str, float]) -> dict[str, float]:
    def total(name: str) -> float:
        return sum(value for key, value in samples.items() if key.partition("{")[0] == name)

    return {name: total(f"recsys_outside_rows_{name}_total") for name in _COUNTS}


def _table(result: dict[str, Any]) -> Table:
    rows = [
        {
            "rows": name,
            "hit rate": "" if math.isnan(case["hit_rate"]) else f"{case['hit_rate']:.1%}",
            "rows/s": f"{case['rows_per_s']:,.0f}",
            "p50 (ms)": f"{case['p50_ms']:.2f}",
            "p99 (ms)": f"{case['p99_ms']:.2f}",
            "MB/s from nodes": f"{case['read_mb_per_s']:.0f}",
        }
        for name, case in result["cases"].items()
    ]
    nodes = f"{result['nodes_bytes'] / 1e9:.1f} GB in nodes, written in {result['push_s']:.0f} s"
    cache = f"cache of {result['cache_bytes'] / 1e9:.2f} GB"
    return table_of(f"{result['gb']:g} GB of rows ({nodes}), {cache}, Zipf {result['zipf']:g}", rows)


def _parser() -> argparse.ArgumentParser:
    parser = make_parser("remote_rows", __doc__, _EPILOG)
    parser.add_argument("--gb", type=float, default=4.0, help="of rows (default 4)")
    parser.add_argument(
        "--cache-bytes", type=SIZE.parse, default=1 << 30, metavar="SIZE", help="of the cache (default 1GiB)"
    )
    parser.add_argument(
        "--cases",
        type=NAMES.parse,
        default=("local", "uncached", "cached"),
        metavar="CASE,CASE",
        help="default all",
    )
    parser.add_argument("--nodes", type=int, default=3, help="default 3")
    parser.add_argument("--zipf", type=float, default=1.05, help="exponent (default 1.05)")
    parser.add_argument("--clients", type=int, default=2, help="that ask at a time (default 2)")
    parser.add_argument(
        "--warm-s", type=float, default=30.0, metavar="S", help="before it counts (default 30)"
    )
    parser.add_argument("--seconds", type=float, default=20.0, metavar="S", help="of each case (default 20)")
    parser.add_argument(
        "--deadline-ms", type=int, default=5000, help="for rows of nodes (default 5000: none fails)"
    )
    parser.add_argument("--dir", type=Path, metavar="DIR", help="where the artifact goes meanwhile")
    return parser


if __name__ == "__main__":
    sys.exit(main())
