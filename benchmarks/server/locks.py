"""Where a server's native engine holds locks, how often for each request and how long, and the bound in processors.

A library for ``LD_PRELOAD`` (cpp_client/bench/locks) times every mutex; another run without it gives the processor
time of a request. A lock that all threads share is held by one at a time, so requests a second are at most one over the
time for which a request holds it, and processors at most the processor time of a request over that.
"""

from __future__ import annotations

import argparse
import itertools
import math
import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from benchmarks.measure.command import Measured, make_parser, run
from benchmarks.measure.processes import StepError, module, run_json, started
from benchmarks.measure.tables import table_of
from recsys.base.cli import count

_EPILOG = """\
examples:
  make native native-peers && python -m benchmarks.server.locks model.artifact
  python -m benchmarks.server.locks model.artifact --polling-threads 2 --in-flight 256 --json

Exit codes: 0 measured, 1 a server or a step failed, 2 bad usage.
"""
_WARM_UP_S = 0.3
# Which threads may wait for each other at a function's lock: what all share, by the lock's name; the rest is of a loop
# or of a stripe.
_SHARED = {
    "Executor": "queue",
    "ExecutorThreads": "queue",
    "Slots": "slots",
    "Records": "records",
    "Ring": "records",
}
_OWN = {"Outbox": "a polling thread's", "RequestMemory": "a stripe's", "Routes": "a stripe's"}
_OWN |= {"VersionCounters": "a stripe's"}


@dataclass
class Held:
    """What one function does with its lock, for each request.

    Attributes:
        function: its name.
        lock: the lock's, or whose it is.
        num: times.
        held_ns: time for which it is held, without what is measured of a lock around nothing, and without holds above
            20 µs, in which the thread has lost its processor.
        waited_ns: time until it is held.
        longest_us: the longest time for which it was held.
    """

    function: str
    lock: str
    num: float
    held_ns: float
    waited_ns: float
    longest_us: float


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    return run(_parser(), argv, _measured)


def _measured(args: argparse.Namespace, _folder: Path) -> Measured:
    rounds = [(_request_us(args), _held(args)) for _ in range(args.rounds)]
    bounds_of_rounds = [_bounds(request_us, held) for request_us, held in rounds]
    bounds = {
        lock: median(found.get(lock, math.inf) for found in bounds_of_rounds)
        for lock in sorted({lock for found in bounds_of_rounds for lock in found})
    }
    request_us = median(request_us for request_us, _ in rounds)
    held = _medians([held for _, held in rounds])
    rows = [
        {
            "function": one.function,
            "lock": one.lock,
            "a request": f"{one.num:.2f}",
            "held, ns": f"{one.held_ns:.0f}",
            "waited, ns": f"{one.waited_ns:.0f}",
            "longest, µs": f"{one.longest_us:.0f}",
        }
        for one in held
    ]
    title = f"locks for each request; {request_us:.1f} µs of processor time a request"
    least_first = sorted(bounds.items(), key=lambda item: item[1])
    return Measured(
        data={
            "request_us": request_us,
            "held": [asdict(one) for one in held],
            "bounds": bounds,
            "bounds_of_rounds": bounds_of_rounds,
        },
        shown=[
            table_of(title, rows, texts=("function", "lock")),
            *(
                f"{lock}: at most {bound:.0f} processors (rounds: "
                f"{', '.join(f'{found.get(lock, math.inf):.0f}' for found in bounds_of_rounds)})"
                for lock, bound in least_first
            ),
        ],
    )


def _bounds(request_us: float, held: Sequence[Held]) -> dict[str, float]:
    """Return the processors that each lock that all threads share allows."""
    of_lock: dict[str, float] = defaultdict(float)
    for one in held:
        if one.lock in _SHARED.values():
            of_lock[one.lock] += one.held_ns
    return {lock: 1e3 * request_us / held_ns for lock, held_ns in of_lock.items() if held_ns}


def _medians(rounds: Sequence[Sequence[Held]]) -> list[Held]:
    """Return each function's medians, the longest held first; where a round lacks it, it did nothing there."""
    of_function = defaultdict[str, list[Held]](list)
    for one in itertools.chain.from_iterable(rounds):
        of_function[one.function].append(one)

    def of(found: list[Held], name: str) -> float:
        return float(median([getattr(one, name) for one in found] + [0.0] * (len(rounds) - len(found))))

    numbers = ("num", "held_ns", "waited_ns", "longest_us")
    held = [
        Held(function, found[0].lock, *(of(found, name) for name in numbers))
        for function, found in of_function.items()
    ]
    return sorted(held, key=lambda one: -one.held_ns)


def _server(args: argparse.Namespace, *prefix: str) -> list[str]:
    options = ["--engine", "native", "--port", "0", "--no-metrics", "--json"]
    polling = ["--polling-threads", str(args.polling_threads)]
    return [*prefix, *module("serve.app.cli", str(args.artifact), *options, *polling)]


def _send(args: argparse.Namespace, address: str) -> int:
    """Send the load; returns about how many requests were answered, those of the warm-up included."""
    load = ["--in-flight", str(args.in_flight), "--connections", str(args.connections)]
    rows = ["--candidates" if args.ranking else "--rows", str(args.rows)]
    times = ["--duration-s", str(args.seconds), "--warm-up-s", str(_WARM_UP_S)]
    found = run_json(module("serve.bench", address, *load, *rows, *times, "--json"))["measurement"]
    if found["num_failed"]:
        raise StepError(f"requests failed: {found['errors']}")
    num_answered, duration_s = int(found["num_answered"]), float(found["duration_s"])
    return round(num_answered * (1 + _WARM_UP_S / duration_s))


def _request_us(args: argparse.Namespace) -> float:
    with started(_server(args)) as server:
        before_s = server.processor_s()
        num = _send(args, server.address)
        return 1e6 * (server.processor_s() - before_s) / num


def _held(args: argparse.Namespace) -> list[Held]:
    library = args.build.resolve() / "recsys-lock-times.so"
    if not library.exists():
        raise StepError(f"{library}: no such file; make native-peers builds it")
    with tempfile.TemporaryDirectory() as folder:
        times = Path(folder) / "times"
        with started(_server(args, "env", f"LD_PRELOAD={library}", f"RECSYS_LOCK_TIMES={times}")) as server:
            num_requests = _send(args, server.address)
        lines = [line.rsplit(" ", 5) for line in times.read_text().splitlines()]
    ours = [line for line in lines if "_engine" in Path(line[0]).name]
    names = _functions(ours[0][0], [int(line[1], 16) for line in ours]) if ours else []
    nothing = next(line for line in lines if line[0] == "nothing")
    no_wait_s, no_hold_s = (float(text) / int(nothing[2]) for text in nothing[3:5])
    of_function: dict[str, Held] = {}
    for name, (_, _, text, waited, held, longest) in zip(names, ours, strict=True):
        num = int(text)
        owner = name.split("::")[0]
        one = of_function.setdefault(name, Held(name, _SHARED.get(owner) or _OWN.get(owner, ""), 0, 0, 0, 0))
        one.num += num / num_requests
        one.held_ns += 1e9 * max(float(held) - num * no_hold_s, 0) / num_requests
        one.waited_ns += 1e9 * max(float(waited) - num * no_wait_s, 0) / num_requests
        one.longest_us = max(one.longest_us, 1e6 * float(longest))
    return [one for one in of_function.values() if one.num >= 0.001]


def _functions(module_path: str, offsets: Sequence[int]) -> list[str]:
    """Return the functions of return addresses: the outermost of ours, into which others were inlined."""
    # The call is before the address to which it returns.
    command = ["addr2line", "-Cfipe", module_path, *(hex(offset - 1) for offset in offsets)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    names: list[str] = []
    for line in done.stdout.splitlines():
        name = re.sub(r"^ *\(inlined by\) ", "", line).partition(" at ")[0]
        name = re.sub(r"\(anonymous namespace\)::|recsys::|http2::|\(.*|^.* (?=\w+::)", "", name)
        if line.startswith(" (inlined by)"):
            names[-1] = name
        else:
            names.append(name)
    return names


def _parser() -> argparse.ArgumentParser:
    parser = make_parser("server.locks", __doc__, _EPILOG)
    parser.add_argument("artifact", type=Path, help="the artifact that is served")
    parser.add_argument("--polling-threads", type=count, default=2, help="of the server (default: 2)")
    parser.add_argument("--in-flight", type=count, default=64, help="unanswered requests (default: 64)")
    parser.add_argument("--connections", type=count, default=8, help="connections (default: 8)")
    parser.add_argument("--rows", type=count, default=1, help="rows of a request (default: 1)")
    parser.add_argument("--ranking", action="store_true", help="the rows are candidates of one context")
    parser.add_argument("--rounds", type=count, default=5, help="medians of so many (default: 5)")
    parser.add_argument("--seconds", type=float, default=4.0, help="duration of each run (default: 4)")
    parser.add_argument(
        "--build",
        type=Path,
        default=Path("build/native"),
        help="folder of the native build (default: %(default)s)",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
