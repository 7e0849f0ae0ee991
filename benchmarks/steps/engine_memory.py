"""Start-up and memory of a server of a large artifact: one executor, two, and two servers on one artifact.

Prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.measure.processes import Started, module, run_json, started

_MB = 1e6
# Looks up every row, so that all are in the page cache and in the process's page table.
_TOUCH = ("--in-flight", "16", "--rows", "64", "--duration-s", "5")


def server_command(artifact: Path, *options: str) -> list[str]:
    """Return the server on a port that the system chooses."""
    return module("serve.app.cli", str(artifact), "--port", "0", "--no-metrics", "--json", *options)


def measure(artifact: Path, engine: str, rounds: int) -> dict[str, Any]:
    """Return all figures; times are medians."""
    rows_bytes = (artifact / "rows.bin").stat().st_size
    found: dict[str, Any] = {"rows_mb": rows_bytes / _MB}
    for name, options in (("checksums read", ()), ("sizes alone", ("--no-verify-checksums",))):
        times = [_start_s(server_command(artifact, "--engine", engine, *options)) for _ in range(rounds)]
        found[f"start to ready, {name}, s"] = statistics.median(times)
    for name, executors, servers in (("one executor", 1, 1), ("two executors", 2, 1), ("two servers", 1, 2)):
        command = server_command(
            artifact, "--engine", engine, "--no-verify-checksums", "--executors", str(executors)
        )
        with ExitStack() as stack:
            all_started = [stack.enter_context(started(command)) for _ in range(servers)]
            for server in all_started:
                run_json(module("serve.bench", server.address, "--sender", "native", *_TOUCH, "--json"))
            found[name] = _memory_mb(all_started)
    return found


def _start_s(command: list[str]) -> float:
    began_s = time.perf_counter()
    with started(command):
        return time.perf_counter() - began_s


def _memory_mb(servers: Sequence[Started]) -> dict[str, float]:
    """Return the servers' memory: sum of resident sets, each page counted once, and private pages."""
    sums = dict.fromkeys(("Rss", "Pss", "Private_Dirty", "Anonymous"), 0.0)
    for server in servers:
        for line in Path(f"/proc/{server.pid}/smaps_rollup").read_text().splitlines()[1:]:
            name, _, value = line.partition(":")
            if name in sums:
                sums[name] += int(value.split()[0]) * 1024 / _MB
    return {"resident": sums["Rss"], "each page once": sums["Pss"], "own": sums["Anonymous"]}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.steps.engine_memory", description=__doc__)
    parser.add_argument("artifact", type=Path)
    parser.add_argument("--engine", choices=("native", "reference"), default="native")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args(argv)
    print(json.dumps(measure(args.artifact, args.engine, args.rounds)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
