"""What the log of answers costs: a server with it and one without, in one run, and every request counted.

One artifact (DLRM, 26 INT8 tables), one load generator (recsys-bench, closed loop), all on the same cores. Servers take
turns; a ratio is of neighbouring turns. Processor time is that of the server per answered request, so that other work
on the machine does not count. At the end, what was answered is compared with the rows of the files and the drops.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyarrow import parquet

from benchmarks.measure.machine import prepare, wide_console
from benchmarks.measure.processes import Started, StepError, module, run_json, started
from benchmarks.measure.tables import table_of, tracked
from benchmarks.serving import export_dlrm
from recsys.base.cli import count
from serve.bench.environment import scrape

_EPILOG = """\
examples:
  python -m benchmarks.answer_log --check
  python -m benchmarks.answer_log --answered 1000000

Exit codes: 0 measured, 1 a server or a step failed, 2 bad usage, 3 with --check: a bar was missed.
"""
#: With the log, a server of single samples, 64 in flight, takes this share of the throughput at least.
LEAST_SHARE = 0.95
WITH, WITHOUT = "with the log", "without"


@dataclass
class Turns:
    """The figures of one server, by round."""

    requests_per_s: list[float] = field(default_factory=list)
    processor_us: list[float] = field(default_factory=list)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    args = _parser().parse_args(argv)
    machine = prepare()
    try:
        with tempfile.TemporaryDirectory() as folder:
            found = _measure(Path(folder), args)
    except (StepError, OSError) as error:
        print(f"benchmarks.answer_log: {error}", file=sys.stderr)
        return 1
    if args.json:
        settings = {name: value for name, value in vars(args).items() if name != "json"}
        print(json.dumps({"machine": machine.to_json(), "settings": settings, **found}))
    else:
        console = wide_console()
        console.print(machine.text(), soft_wrap=True)
        console.print(table_of("the log of answers", _texts(found["servers"]), texts=("server",)))
        console.print(
            f"with the log: {found['throughput_share']:.3f} of the throughput, {found['processor_share']:.3f} times "
            f"the processor time a request; answered {found['answered']:,}, written {found['written']:,} "
            f"({found['bytes_per_row']:.0f} bytes each), dropped {found['dropped']:,}, failed "
            f"{found['failed']:,}",
            soft_wrap=True,
        )
    num_chosen = found["written"] + found["dropped"] + found["failed"]
    is_counted = args.share < 1 or found["answered"] == num_chosen
    return 3 if args.check and not (is_counted and found["throughput_share"] >= LEAST_SHARE) else 0


def _texts(servers: Sequence[dict[str, Any]]) -> list[dict[str, str]]:
    return [{name: str(value) for name, value in server.items()} for server in servers]


def _measure(folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    artifact = export_dlrm(folder / "dlrm.artifact", args.table_rows)
    log = folder / "answers"
    turns = {WITH: Turns(), WITHOUT: Turns()}
    options = ("--answer-log-destination", str(log), "--answer-log-share", str(args.share))
    with _server(artifact, *options) as logging, _server(artifact) as plain:
        servers = {WITH: logging, WITHOUT: plain}
        for number in tracked(range(args.rounds), "measure"):
            order = list(servers) if number % 2 == 0 else list(servers)[::-1]
            for name in order:
                _load(servers[name], args, turns[name])
        while (answered := _answered(logging)) < args.answered:
            _load(logging, args, Turns())
        # Each request that the log is to have is either dropped by now, or waits to be written.
        last = scrape(f"127.0.0.1:{logging.ready['metrics_port']}")
    # Its files are whole: the server has stopped.
    files = [parquet.ParquetFile(path) for path in sorted(log.glob("*.parquet"))]
    rows = sum(file.metadata.num_rows for file in files)
    num_bytes = sum(path.stat().st_size for path in log.glob("*.parquet"))
    dropped = _total(last, "recsys_answer_log_requests_total", "queue_full")
    failed = _total(last, "recsys_answer_log_requests_total", "write_failed")
    mine, others = turns[WITH], turns[WITHOUT]
    return {
        "servers": [
            {
                "server": name,
                "requests/s": round(statistics.median(of.requests_per_s)),
                "processor µs a request": round(statistics.median(of.processor_us), 2),
            }
            for name, of in turns.items()
        ],
        "throughput_share": _ratio(mine.requests_per_s, others.requests_per_s),
        "processor_share": _ratio(mine.processor_us, others.processor_us),
        "answered": answered,
        "written": rows,  # single samples: each is a row
        "dropped": dropped,
        "failed": failed,
        "files": len(files),
        "bytes_per_row": num_bytes / max(rows, 1),
    }


def _ratio(mine: Sequence[float], others: Sequence[float]) -> float:
    return statistics.median(a / b for a, b in zip(mine, others, strict=True))


@contextmanager
def _server(artifact: Path, *options: str) -> Iterator[Started]:
    command = module("serve.app.cli", str(artifact), "--port", "0", "--metrics-port", "0", "--json", *options)
    with started(command) as server:
        yield server


def _load(server: Started, args: argparse.Namespace, turns: Turns) -> None:
    options = ["--in-flight", str(args.in_flight), "--connections", "4", "--duration-s", str(args.seconds)]
    began_s, num_before = server.processor_s(), _answered(server)
    figures = run_json(module("serve.bench", server.address, *options, "--json"))["measurement"]
    if figures["num_failed"]:
        raise StepError(f"{server.address}: {figures['errors']}")
    turns.requests_per_s.append(figures["requests_per_s"])
    turns.processor_us.append((server.processor_s() - began_s) / (_answered(server) - num_before) * 1e6)


def _answered(server: Started) -> int:
    return _total(
        scrape(f"127.0.0.1:{server.ready['metrics_port']}"), "recsys_requests_total", 'outcome="ok"'
    )


def _total(samples: dict[str, float], name: str, label: str) -> int:
    return int(sum(value for sample, value in samples.items() if sample.startswith(name) and label in sample))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.answer_log",
        description=__doc__,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rounds", type=count, default=6, metavar="N", help="default 6")
    parser.add_argument("--seconds", type=float, default=4.0, metavar="S", help="of each turn (default 4)")
    parser.add_argument(
        "--answered",
        type=count,
        default=1,
        metavar="N",
        help="go on until the log's server has answered so many",
    )
    parser.add_argument(
        "--share", type=float, default=1.0, metavar="S", help="of the requests (default 1: all)"
    )
    parser.add_argument("--in-flight", type=count, default=64, metavar="N", help="default 64")
    parser.add_argument("--table-rows", type=count, default=100_000, metavar="R", help="default 100000")
    parser.add_argument("--check", action="store_true", help="end with 3 if a bar is missed")
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    return parser


if __name__ == "__main__":
    sys.exit(main())
