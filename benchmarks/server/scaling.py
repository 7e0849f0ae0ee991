"""The native engine on 1 to 96 processors, in simulated time: its real policy with costs that were measured here.

Polling threads and executors share the processors and wait for the queue's lock, which each round of requests takes
(``python -m benchmarks.server.locks``). A closed loop gives the throughput and the share of idle time, an open one at
70 % of it the latencies. What it leaves out: memory bandwidth, the kernel's network, and that a lock costs more the
more processors take it in turn.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.measure.command import Measured, make_parser, run
from benchmarks.measure.processes import run_json
from benchmarks.measure.tables import table_of
from serve.config.settings import ServerConfig

_EPILOG = """\
examples:
  make native native-peers && python -m benchmarks.server.scaling
  python -m benchmarks.server.scaling --svg docs/images/scaling.svg

Exit codes: 0 simulated, 1 a run failed, 2 bad usage.
"""
PROCESSORS = (1, 2, 4, 8, 16, 32, 64, 96)
_OPEN_SHARE = 0.7


@dataclass(frozen=True, kw_only=True)
class Work:
    """Requests of one kind, with the processor time in µs that they were measured to take.

    Attributes:
        name: what they are.
        rows: rows of each.
        in_flight: unanswered requests for each processor.
        read: of the polling thread until the request is in the queue.
        answer: of the polling thread for the answer.
        fixed: of an executor for each batch.
        row: of an executor for each row.
    """

    name: str
    rows: int
    in_flight: int
    read: float
    answer: float
    fixed: float
    row: float


#: One processor's time on an AMD EPYC (Zen 4), by ``/proc/PID/task``.
SMALL = Work(name="single rows, small model", rows=1, in_flight=64, read=5.5, answer=2.0, fixed=3.0, row=0.2)
SINGLES = Work(name="single rows, DLRM", rows=1, in_flight=64, read=11.0, answer=4.0, fixed=20.0, row=5.1)
PAGES = Work(name="pages of 32 rows, DLRM", rows=32, in_flight=8, read=22.0, answer=6.0, fixed=20.0, row=5.1)
RANKINGS = Work(
    name="rankings of 500, DLRM", rows=500, in_flight=4, read=290.0, answer=40.0, fixed=30.0, row=5.5
)
WORKS = (SMALL, SINGLES, PAGES, RANKINGS)


@dataclass(frozen=True, kw_only=True)
class Found:
    """What one server does.

    Attributes:
        work: the kind of requests.
        processors: how many it has.
        polling_threads: how many of its threads poll.
        requests_per_s: in a closed loop.
        idle: share of the processors' time, in that loop.
        lock: share of the time for which the queue's lock is held, in that loop.
        p50_ms: at 70 % of that rate.
        p99_ms: likewise.
    """

    work: str
    processors: int
    polling_threads: int
    requests_per_s: float
    idle: float
    lock: float
    p50_ms: float
    p99_ms: float


def default_polling_threads(processors: int) -> int:
    """Return how many polling threads a server has by default."""
    return ServerConfig().polling_threads_of(processors)


def simulate(
    program: Path, work: Work, processors: int, *, polling_threads: int = 0, num_requests: int = 20_000
) -> Found:
    """Simulate one server.

    Args:
        program: recsys-scaling.
        work: the requests.
        processors: of the machine.
        polling_threads: 0 for the default.
        num_requests: how many are answered; fewer of many rows.

    Raises:
        StepError: the program failed.
    """
    threads = polling_threads or default_polling_threads(processors)
    numbers = {**asdict(work), "processors": processors, "polling_threads": threads, "requests": num_requests}
    name = numbers.pop("name")
    numbers["in_flight"] = work.in_flight * processors
    closed = _run(program, numbers)
    opened = _run(program, {**numbers, "rate": _OPEN_SHARE * closed["requests_per_s"]})
    return Found(
        work=name,
        processors=processors,
        polling_threads=threads,
        requests_per_s=closed["requests_per_s"],
        idle=max(closed["idle"], 0.0),
        lock=closed["lock"],
        p50_ms=opened["p50_ms"],
        p99_ms=opened["p99_ms"],
    )


def _run(program: Path, numbers: dict[str, float]) -> dict[str, float]:
    words = [word for key, value in numbers.items() for word in (key, str(value))]
    return run_json([str(program.resolve()), *words])


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    return run(_parser(), argv, _measured)


def _measured(args: argparse.Namespace, _folder: Path) -> Measured:
    program = args.build / "recsys-scaling"
    found = [
        simulate(program, work, processors, num_requests=args.requests // (1 if work.rows == 1 else 4))
        for work in WORKS
        for processors in PROCESSORS
    ]
    if args.svg is not None:
        args.svg.write_text(picture(found))
    rows = [
        {
            "requests": one.work,
            "processors": str(one.processors),
            "polling": str(one.polling_threads),
            "requests/s": f"{one.requests_per_s:,.0f}",
            "p50 ms": f"{one.p50_ms:.2f}",
            "p99 ms": f"{one.p99_ms:.2f}",
            "idle": f"{one.idle:.0%}",
            "lock held": f"{one.lock:.1%}",
        }
        for one in found
    ]
    table = table_of("simulated servers", rows, sections="requests")
    return Measured(data={"servers": [asdict(one) for one in found]}, shown=[table])


_COLORS = (("#0969da", "#58a6ff"), ("#1a7f37", "#3fb950"), ("#9a6700", "#d29922"), ("#8250df", "#bc8cff"))
_LEFT, _TOP, _WIDTH, _HEIGHT = 60, 20, 420, 230


def picture(found: Sequence[Found]) -> str:
    """Return a picture of the throughput by processors, as a multiple of one processor's, for light and dark pages."""
    names = list(dict.fromkeys(one.work for one in found))
    largest = max(PROCESSORS)

    def point(processors: float, multiple: float) -> str:
        return f"{_LEFT + _WIDTH * processors / largest:.1f},{_TOP + _HEIGHT * (1 - multiple / largest):.1f}"

    height = _TOP + _HEIGHT + 60 + 22 * len(names)
    light = "".join(f" .s{i} {{ stroke: {a}; }}" for i, (a, _) in enumerate(_COLORS))
    dark = "".join(f" .s{i} {{ stroke: {b}; }}" for i, (_, b) in enumerate(_COLORS))
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 520 {height}" width="520" height="{height}" role="img" '
        'aria-labelledby="title">',
        '  <title id="title">Throughput by processors, as a multiple of that of one processor</title>',
        "  <style>",
        "    .page { fill: #f6f8fa; } .axis { stroke: #57606a; } .even { stroke: #8c959f; stroke-dasharray: 4 4; }",
        f"    polyline, .key {{ fill: none; stroke-width: 2; }}{light}",
        '    text { font: 14px system-ui, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; fill: #1f2328; }',
        "    @media (prefers-color-scheme: dark) {",
        "      .page { fill: #161b22; } .axis { stroke: #8b949e; } text { fill: #e6edf3; }",
        f"     {dark}",
        "    }",
        "  </style>",
        f'  <rect class="page" width="520" height="{height}" rx="8"/>',
        f'  <polyline class="axis" points="{point(0, largest)} {point(0, 0)} {point(largest, 0)}"/>',
        f'  <polyline class="even" points="{point(0, 0)} {point(largest, largest)}"/>',
    ]
    for number in (16, 32, 64, 96):
        x, y = point(number, 0).split(",")
        lines.append(f'  <text x="{x}" y="{float(y) + 20:.1f}" text-anchor="middle">{number}</text>')
        x, y = point(0, number).split(",")
        lines.append(
            f'  <text x="{float(x) - 8:.1f}" y="{float(y) + 5:.1f}" text-anchor="end">{number} ×</text>'
        )
    lines.append(
        f'  <text x="{_LEFT + _WIDTH / 2}" y="{_TOP + _HEIGHT + 40}" text-anchor="middle">processors</text>'
    )
    for i, name in enumerate(names):
        of = [one for one in found if one.work == name]
        points = " ".join(point(one.processors, one.requests_per_s / of[0].requests_per_s) for one in of)
        lines.append(f'  <polyline class="s{i}" points="{points}"/>')
        at = _TOP + _HEIGHT + 62 + 22 * i
        lines.append(f'  <line class="key s{i}" x1="{_LEFT}" y1="{at}" x2="{_LEFT + 30}" y2="{at}"/>')
        lines.append(f'  <text x="{_LEFT + 40}" y="{at + 5}">{name}</text>')
    return "\n".join([*lines, "</svg>", ""])


def _parser() -> argparse.ArgumentParser:
    parser = make_parser("server.scaling", __doc__, _EPILOG)
    parser.add_argument("--requests", type=int, default=40_000, help="of each run (default: 40 000)")
    parser.add_argument("--svg", type=Path, help="the file of the picture")
    parser.add_argument(
        "--build",
        type=Path,
        default=Path("build/native"),
        help="folder of the native build (default: %(default)s)",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
