"""What the log of answers costs, or keeping answers for labels: a server with it and one without, in one run.

One artifact (DLRM, 26 INT8 tables), one load generator (recsys-bench, closed loop), all on the same cores. Servers take
turns; a ratio is of neighbouring turns, and its interval says what the machine's noise leaves open. Processor time is
that of the server per answered request, until it rests after the turn, so that neither other work on the machine counts
nor work that is put off is left out. At the end, what was answered is compared with the rows of the files, or the
answers that are kept, and the drops. For labels, requests come in streams, where they have IDs.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyarrow import parquet

from benchmarks.measure.bars import MISSED_TEXT, Bar
from benchmarks.measure.command import Measured, make_parser, run
from benchmarks.measure.processes import Started, StepError, module, run_json, started
from benchmarks.measure.ratios import Ratio
from benchmarks.measure.tables import table_of, tracked
from benchmarks.serving import export_dlrm
from recsys.base.cli import count
from serve.bench.environment import scrape
from serve.observe.observers import MOST_WAIT_S

_EPILOG = f"""\
examples:
  python -m benchmarks.server.answer_log --check
  python -m benchmarks.server.answer_log --answered 1000000
  python -m benchmarks.server.answer_log --what labels

Exit codes: 0 measured, 1 a server or a step failed, 2 bad usage, {MISSED_TEXT}
"""
#: With it, a server of single samples, 64 in flight, has this share of the throughput at least.
LEAST_SHARE = 0.95
#: And takes so many times the processor time at most.
MOST_TIMES = 1.05
WITH, WITHOUT = "with", "without"
_TITLES = {"log": "the log of answers", "labels": "answers kept for labels"}
# A server rests when it takes less than so much processor time in such an interval, once records wait for others no
# longer; it has to within so long.
_RESTING_S, _INTERVAL_S, _RECORDS_WAIT_S, _REST_WITHIN_S = 0.02, 0.5, MOST_WAIT_S + 0.5, 30.0


@dataclass
class Turns:
    """The figures of one server, by round."""

    requests_per_s: list[float] = field(default_factory=list)
    processor_us: list[float] = field(default_factory=list)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    return run(_parser(), argv, _measured)


def _measured(args: argparse.Namespace, folder: Path) -> Measured:
    found = _measure(folder, args)
    settings = {name: value for name, value in vars(args).items() if name != "json"}
    written = (
        f"answered {found['answered']:,}, {found['outcome']} {found['written']:,} "
        f"({found['bytes_per_row']:.0f} bytes each), dropped {found['dropped']:,}, failed {found['failed']:,}"
    )
    ratios = "with, relative to without: " + ", ".join(
        f"{name} {Ratio(**found[key])}"
        for name, key in (("throughput", "throughput_share"), ("processor time", "processor_share"))
    )
    return Measured(
        data={"settings": settings, **found},
        shown=[table_of(_TITLES[args.what], _texts(found["servers"]), texts=("server",)), ratios, written],
        bars=_bars(found, args),
    )


def _bars(found: dict[str, Any], args: argparse.Namespace) -> list[Bar]:
    bars = [
        Bar("share of the throughput without", LEAST_SHARE, found["throughput_share"]["median"]),
        Bar(
            "times the processor time of a request without",
            MOST_TIMES,
            found["processor_share"]["median"],
            is_most=True,
        ),
    ]
    if args.share == 1:
        num_missing = found["answered"] - found["written"] - found["dropped"] - found["failed"]
        bars.append(Bar("requests that are in no count", 0, abs(num_missing), is_most=True))
    return bars


def _texts(servers: Sequence[dict[str, Any]]) -> list[dict[str, str]]:
    return [{name: str(value) for name, value in server.items()} for server in servers]


def _measure(folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    artifact = export_dlrm(folder / "dlrm.artifact", args.table_rows)
    log = folder / "answers"
    turns = {WITH: Turns(), WITHOUT: Turns()}
    options = ["--answer-log-destination", str(log), "--answer-log-share", str(args.share)]
    if args.what == "labels":
        options = ["--quality-share", str(args.share)]
    with _server(artifact, *options) as logging, _server(artifact) as plain:
        servers = {WITH: logging, WITHOUT: plain}
        for number in tracked(range(args.rounds), "measure"):
            order = list(servers) if number % 2 == 0 else list(servers)[::-1]
            for name in order:
                _load(servers[name], args, turns[name])
        while (answered := _answered(logging)) < args.answered:
            _load(logging, args, Turns())
        _rest(logging)
        # Each request that the log is to have is either dropped by now, or waits to be written.
        last = scrape(f"127.0.0.1:{logging.ready['metrics_port']}")
    # Its files are whole: the server has stopped.
    files = [parquet.ParquetFile(path) for path in sorted(log.glob("*.parquet"))]
    rows = sum(file.metadata.num_rows for file in files)
    num_bytes = sum(path.stat().st_size for path in log.glob("*.parquet"))
    name = "recsys_answer_log_requests_total"
    if args.what == "labels":
        name = "recsys_feedback_answers_total"
        rows, num_bytes = _total(last, name, "kept"), int(last["recsys_feedback_held_bytes"])
    dropped, failed = _total(last, name, "queue_full"), _total(last, name, "write_failed")
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
        "throughput_share": Ratio.of(mine.requests_per_s, others.requests_per_s)._asdict(),
        "processor_share": Ratio.of(mine.processor_us, others.processor_us)._asdict(),
        "answered": answered,
        "outcome": "kept" if args.what == "labels" else "written",
        "written": rows,  # single samples: each is a row
        "dropped": dropped,
        "failed": failed,
        "files": len(files),
        "bytes_per_row": num_bytes / max(rows, 1),
    }


def _rest(server: Started) -> None:
    """Wait until a server has done what it put off."""
    until_s = time.monotonic() + _REST_WITHIN_S
    time.sleep(_RECORDS_WAIT_S)
    before_s = server.processor_s()
    while time.monotonic() < until_s:
        time.sleep(_INTERVAL_S)
        now_s = server.processor_s()
        if now_s - before_s < _RESTING_S:
            return
        before_s = now_s


@contextmanager
def _server(artifact: Path, *options: str) -> Iterator[Started]:
    command = module("serve.app.cli", str(artifact), "--port", "0", "--metrics-port", "0", "--json", *options)
    with started(command) as server:
        yield server


def _load(server: Started, args: argparse.Namespace, turns: Turns) -> None:
    options = ["--in-flight", str(args.in_flight), "--connections", "4", "--duration-s", str(args.seconds)]
    if args.what == "labels":
        options.append("--stream")
    began_s, num_before = server.processor_s(), _answered(server)
    figures = run_json(module("serve.bench", server.address, *options, "--json"))["measurement"]
    if figures["num_failed"]:
        raise StepError(f"{server.address}: {figures['errors']}")
    _rest(server)
    turns.requests_per_s.append(figures["requests_per_s"])
    turns.processor_us.append((server.processor_s() - began_s) / (_answered(server) - num_before) * 1e6)


def _answered(server: Started) -> int:
    return _total(
        scrape(f"127.0.0.1:{server.ready['metrics_port']}"), "recsys_requests_total", 'outcome="ok"'
    )


def _total(samples: dict[str, float], name: str, label: str) -> int:
    return int(sum(value for sample, value in samples.items() if sample.startswith(name) and label in sample))


def _parser() -> argparse.ArgumentParser:
    parser = make_parser("server.answer_log", __doc__, _EPILOG, has_bars=True)
    parser.add_argument(
        "--what", choices=("log", "labels"), default="log", help="what is measured (default log)"
    )
    parser.add_argument("--rounds", type=count, default=12, metavar="N", help="default 12")
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
    return parser


if __name__ == "__main__":
    sys.exit(main())
