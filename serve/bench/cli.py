"""recsys-bench: the command line."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from recsys.base.cli import Parser, VersionAction, add_program_options
from recsys.base.files import replacing
from serve.bench.load.plan import LoadError
from serve.bench.load.wires import PROTOCOLS
from serve.bench.report.page import page
from serve.bench.report.terminal import Display, print_result
from serve.bench.run import Result, run
from serve.bench.settings import SENDERS, read_settings
from serve.client.errors import PredictError
from serve.client.settings import add_tls_options

_EPILOG = """\
example:
  recsys-bench 127.0.0.1:8500 --in-flight 64                        as fast as answers come, 64 at a time
  recsys-bench 127.0.0.1:8500 --rate 500 --html report.html         500 requests a second, answers or not
  recsys-bench 127.0.0.1:8500 --find-rate --p99-ms 20               the highest rate with a p99 of 20 ms
  recsys-bench 127.0.0.1:8500 --rate 200 --rows 1:0.9,50:0.1 --ids-per-bag genres=0-20 --zipf 1.05
  recsys-bench 127.0.0.1:8500 --rate 50 --candidates 200            ranking requests
  recsys-bench 127.0.0.1:8500 --replay requests.capture --speed 2
  recsys-bench 127.0.0.1:8500 --sender native --processes 2 --in-flight 256 --json

A MIX is a whole number (8), a range (1-20), or several with weights (1:0.9,50:0.1).

exit codes: 0 every request was answered (of a search: a rate was found), 1 some failed or there is no server,
2 bad usage, 3 an expectation was missed, or the numbers are not valid because the client sent too late
"""


def parser() -> argparse.ArgumentParser:
    """Return the command line's parser."""
    top = Parser(
        prog="recsys-bench",
        usage="recsys-bench ADDRESS [--in-flight N | --rate R | --find-rate | --replay FILE] [option ...]",
        description="Send load to a server; report its throughput and latencies, and whether they are valid.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("address", help="host:port of a server, or unix:PATH")
    _add_load(top)
    _add_requests(top)
    _add_wire(top)
    _add_result(top)
    add_program_options(top, version=False)
    return top


def _add_load(top: argparse.ArgumentParser) -> None:
    load = top.add_argument_group("load")
    load.add_argument(
        "--in-flight",
        "--concurrency",
        type=int,
        metavar="N",
        help="closed loop: requests at a time (default: 64)",
    )
    load.add_argument(
        "--rate", type=float, metavar="R", help="open loop: requests per second, as a Poisson process"
    )
    load.add_argument(
        "--find-rate",
        "--ramp",
        action="store_true",
        help="search for the highest rate of an open loop within --p99-ms",
    )
    load.add_argument("--p99-ms", type=float, metavar="MS", help="the bound of --find-rate")
    load.add_argument(
        "--start-rate",
        type=float,
        metavar="R",
        help="first rate of --find-rate (default: from a closed loop)",
    )
    load.add_argument(
        "--precision",
        type=float,
        default=0.05,
        help="precision of --find-rate, as a share of the rate (default: %(default)s)",
    )
    load.add_argument(
        "--search-s",
        type=float,
        metavar="S",
        help="longest time of --find-rate (default: 24 steps, 120)",
    )
    load.add_argument(
        "--replay", type=Path, metavar="FILE", help="send the requests of a capture, at their recorded times"
    )
    load.add_argument(
        "--speed",
        metavar="X",
        help="speed of --replay: 2 for twice as fast, max for a closed loop (default: 1)",
    )
    load.add_argument(
        "--max-in-flight",
        type=int,
        metavar="N",
        default=10_000,
        help="unanswered requests of an open loop; beyond that, requests fail unsent (default: %(default)s)",
    )
    load.add_argument(
        "--duration-s",
        type=float,
        metavar="S",
        help="measured time (default: 10; a whole capture); of a search, that of each step (default: 4)",
    )
    load.add_argument(
        "--warm-up-s",
        type=float,
        metavar="S",
        default=1.0,
        help="time before it, not measured (default: %(default)s)",
    )
    load.add_argument(
        "--sender",
        choices=SENDERS,
        default="auto",
        help="native: threads of C++, faster, for single gRPC calls; python: processes, for everything; auto: native "
        "where it is built and can send what is asked for (default: %(default)s)",
    )
    load.add_argument(
        "--processes",
        "--threads",
        type=int,
        metavar="N",
        default=1,
        help="sending processes of the Python sender, sending threads of the native one (default: %(default)s)",
    )
    load.add_argument(
        "--seed", type=int, default=0, help="seed of everything that is random (default: %(default)s)"
    )


def _add_requests(top: argparse.ArgumentParser) -> None:
    requests = top.add_argument_group("requests")
    requests.add_argument("--rows", metavar="MIX", help="rows of each request (default: 1)")
    requests.add_argument(
        "--candidates",
        "--ranking",
        metavar="MIX",
        help="ranking requests: rows of each; context inputs are given once",
    )
    requests.add_argument(
        "--ids-per-bag",
        metavar="[NAME=]MIX",
        action="append",
        help="IDs of a row in each sparse input, or in one; may be repeated (default: 1, or what the model takes)",
    )
    requests.add_argument(
        "--random-inputs",
        action="store_true",
        help="standard normal numbers, and bags of one ID, although the model has rows like those of its training, "
        "from which numbers, sizes of bags and raw IDs are taken otherwise",
    )
    requests.add_argument(
        "--zipf",
        type=float,
        metavar="S",
        default=0.0,
        help="the ID of rank k with a probability proportional to k to the power of -S (default: 0, uniform)",
    )
    requests.add_argument("--priority", metavar="MIX", help="such as high:0.1,normal:0.8,low:0.1")
    requests.add_argument("--deadline-ms", metavar="MIX", help="deadline of each request")
    requests.add_argument(
        "--distinct",
        type=int,
        metavar="N",
        default=4096,
        help="requests that are made, then sent over and over (default: %(default)s; at most 256 MiB)",
    )
    requests.add_argument(
        "--payload-bytes",
        type=int,
        metavar="N",
        help="instead of requests: N bytes without meaning, for servers that answer anything",
    )
    requests.add_argument("--model", metavar="NAME", help="default: the only one that the server holds")
    requests.add_argument(
        "--version",
        action=VersionAction,
        nargs="?",
        metavar="V",
        help="default: the one that the server's routing chooses; without V, print the program's version",
    )


def _add_wire(top: argparse.ArgumentParser) -> None:
    on_wire = top.add_argument_group("connections")
    on_wire.add_argument(
        "--protocol", choices=tuple(PROTOCOLS), default="recsys", help="default: %(default)s"
    )
    on_wire.add_argument("--stream", action="store_true", help="PredictStream instead of single calls")
    on_wire.add_argument(
        "--describe",
        metavar="WHERE",
        help="source of the model's metadata, if not ADDRESS: the address of a recsys-serve, or a file that "
        "recsys-predict --metadata printed",
    )
    on_wire.add_argument(
        "--connections", type=int, metavar="N", help="connections of all processes (default: 4)"
    )
    on_wire.add_argument(
        "--timeout-s",
        type=float,
        metavar="S",
        default=30.0,
        help="timeout of requests without a deadline (default: %(default)s)",
    )
    add_tls_options(top)


def _add_result(top: argparse.ArgumentParser) -> None:
    result = top.add_argument_group("result")
    result.add_argument(
        "--metrics", metavar="HOST:PORT", help="the server's metrics, for its batches and stages"
    )
    result.add_argument("--json", action="store_true", help="print one JSON object")
    result.add_argument("--html", type=Path, metavar="FILE", help="write a report with charts, in one file")
    result.add_argument("--expect-p99-ms", type=float, metavar="MS", help="exit with 3 if p99 is above")
    result.add_argument(
        "--expect-rate", type=float, metavar="R", help="exit with 3 if fewer are answered per second"
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    args = parser().parse_args(argv)
    try:
        settings = read_settings(args)
        if settings.note:
            print(f"recsys-bench: {settings.note}", file=sys.stderr)
        if settings.mode == "find-rate":
            step_s = settings.load.duration_s + settings.load.warm_up_s
            search_s = settings.search.most_s
            print(
                f"recsys-bench: searching for at most {search_s:g} s, in steps of {step_s:g} s or more",
                file=sys.stderr,
            )
        with Display(sys.stderr, says_steps=settings.mode == "find-rate") as display:
            result = run(settings, display.begin)
        if args.html is not None:
            with replacing(args.html) as partial:
                partial.write_text(page(result), encoding="utf-8")
    except ValueError as error:
        print(f"recsys-bench: {error}", file=sys.stderr)
        return 2
    except (LoadError, PredictError, OSError) as error:
        print(f"recsys-bench: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("recsys-bench: interrupted, nothing was measured", file=sys.stderr)
        return 1
    if args.json:
        print(json.dumps(result.to_json()))
    else:
        print_result(result)
    return _exit_code(result)


def _exit_code(result: Result) -> int:
    """Return the exit code. Failed requests are expected in a search and failures in any other run."""
    made = result.measurement
    if result.found is None and made is not None and (made.num_failed or not made.num_answered):
        return 1
    missed = result.missed()
    for text in missed:
        print(f"recsys-bench: {text}", file=sys.stderr)
    return 3 if missed else 0
