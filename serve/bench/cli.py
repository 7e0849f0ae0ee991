"""recsys-bench: the command line."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

from recsys.base.files import replacing
from recsys.options.kinds import COUNT, PATH, SWITCH, TEXT, number, one_of, text_like, whole
from recsys.options.table import Command, Group, Option, json_option
from serve.bench.load.plan import LoadError
from serve.bench.load.wires import PROTOCOLS
from serve.bench.report.page import page
from serve.bench.report.terminal import Display, print_result
from serve.bench.run import Result, run
from serve.bench.settings import SENDERS, ZIPF, read_settings
from serve.client.errors import PredictError
from serve.tools.client_options import TLS, timeout_option

_EPILOG = """\
example:
  recsys-bench 127.0.0.1:8500 --in-flight 64                        as fast as answers come, 64 at a time
  recsys-bench 127.0.0.1:8500 --rate 500 --html report.html         500 requests a second, answers or not
  recsys-bench 127.0.0.1:8500 --find-rate --p99-ms 20               the highest rate with a p99 of 20 ms
  recsys-bench 127.0.0.1:8500 --rate 200 --rows 1:0.9,50:0.1 --ids-per-bag genres=0-20 --zipf 1.05
  recsys-bench 127.0.0.1:8500 --rate 50 --candidates 200            ranking requests
  recsys-bench 127.0.0.1:8500 --candidates 200 --users 10000 --zipf 1.1 --metrics 127.0.0.1:8501
  recsys-bench 127.0.0.1:8500 --replay requests.capture --speed 2
  recsys-bench 127.0.0.1:8500 --sender native --processes 2 --in-flight 256 --json

A MIX is a whole number (8), a range (1-20), or several with weights (1:0.9,50:0.1).

exit codes: 0 every request was answered (of a search: a rate was found), 1 some failed or there is no server,
2 bad usage, 3 an expectation was missed, or the numbers are not valid because the client sent too late
"""


_SECONDS = number(above=0, metavar="S")
_MILLISECONDS = number(above=0, metavar="MS")
_RATE = number(above=0, metavar="R")
_MIX = text_like("1:0.9,50:0.1", "MIX")
_LOAD = (
    Option("--in-flight", COUNT, "closed loop: requests at a time (default: 64)", old=("--concurrency",)),
    Option("--rate", _RATE, "open loop: requests per second, as a Poisson process"),
    Option(
        "--find-rate",
        SWITCH,
        "search for the highest rate of an open loop within --p99-ms",
        old=("--ramp",),
    ),
    Option("--p99-ms", _MILLISECONDS, "the bound of --find-rate"),
    Option("--start-rate", _RATE, "first rate of --find-rate (default: from a closed loop)"),
    Option("--precision", number(0.001, 1), "precision of --find-rate, as a share of the rate", default=0.05),
    Option("--search-s", _SECONDS, "longest time of --find-rate (default: 24 steps, 120)"),
    Option("--replay", PATH, "send the requests of a capture, at their recorded times"),
    Option(
        "--speed",
        text_like("2", "X"),
        "speed of --replay: 2 for twice as fast, max for a closed loop (default: 1)",
    ),
    Option(
        "--max-in-flight",
        COUNT,
        "unanswered requests of an open loop; beyond that, requests fail unsent",
        default=10_000,
    ),
    Option(
        "--duration-s",
        _SECONDS,
        "measured time (default: 10; a whole capture); of a search, that of each step (default: 4)",
    ),
    Option("--warm-up-s", number(0, metavar="S"), "time before it, not measured", default=1.0),
    Option(
        "--sender",
        one_of(SENDERS),
        "native: threads of C++, faster, for single gRPC calls; python: processes, for everything; auto: native "
        "where it is built and can send what is asked for",
        default="auto",
    ),
    Option(
        "--processes",
        COUNT,
        "sending processes of the Python sender, sending threads of the native one",
        default=1,
        old=("--threads",),
    ),
    Option("--seed", whole(0, 2**32 - 1), "seed of everything that is random", default=0),
)
_REQUESTS = (
    Option("--rows", _MIX, "rows of each request (default: 1)"),
    Option(
        "--candidates",
        _MIX,
        "ranking requests: rows of each; context inputs are given once",
        old=("--ranking",),
    ),
    Option(
        "--ids-per-bag",
        text_like("genres=0-20", "[NAME=]MIX"),
        "IDs of a row in each sparse input, or in one; may be repeated (default: 1, or what the model takes)",
        repeated=True,
        default=[],
    ),
    Option(
        "--random-inputs",
        SWITCH,
        "standard normal numbers, and bags of one ID, although the model has rows like those of its training, "
        "from which numbers, sizes of bags and raw IDs are taken otherwise",
    ),
    Option(
        "--users",
        COUNT,
        "users of ranking requests, whose contexts repeat (default: a context of its own for each request); "
        "--distinct is then 4 for each user, at least",
        metavar="N",
    ),
    Option(
        "--zipf",
        ZIPF,
        "the ID, and the user, of rank k with a probability proportional to k to the power of -S; 0 is uniform",
        default=0.0,
    ),
    Option("--priority", text_like("high:0.1,normal:0.9", "MIX"), "such as high:0.1,normal:0.8,low:0.1"),
    Option("--deadline-ms", _MIX, "deadline of each request"),
    Option(
        "--distinct",
        COUNT,
        "requests that are made, then sent over and over; at most 256 MiB (default: 4096)",
    ),
    Option(
        "--payload-bytes",
        COUNT,
        "instead of requests: N bytes without meaning, for servers that answer anything",
    ),
    Option("--model", TEXT, "default: the only one that the server holds", metavar="NAME"),
    Option(
        "--version",
        TEXT,
        "default: the one that the server's routing chooses; without V, print the program's version",
        metavar="V",
        shows_version=True,
    ),
)
_CONNECTIONS = (
    Option("--protocol", one_of(tuple(PROTOCOLS)), "what the server speaks", default="recsys"),
    Option("--stream", SWITCH, "PredictStream instead of single calls"),
    Option(
        "--describe",
        TEXT,
        "source of the model's metadata, if not ADDRESS: the address of a recsys-serve, or a file that "
        "recsys-predict --metadata printed",
        metavar="WHERE",
    ),
    Option("--connections", COUNT, "connections of all processes (default: 4)"),
    timeout_option("timeout of requests without a deadline", 30.0),
)
_RESULT = (
    Option("--metrics", TEXT, "the server's metrics, for its batches and stages", metavar="HOST:PORT"),
    json_option(),
    Option("--html", PATH, "write a report with charts, in one file"),
    Option("--expect-p99-ms", _MILLISECONDS, "exit with 3 if p99 is above"),
    Option("--expect-rate", _RATE, "exit with 3 if fewer are answered per second"),
)
COMMAND = Command(
    program="recsys-bench",
    usage="recsys-bench ADDRESS [--in-flight N | --rate R | --find-rate | --replay FILE] [option ...]",
    about="Send load to a server; report its throughput and latencies, and whether they are valid.",
    epilog=_EPILOG,
    groups=(
        Group("", (Option("address", TEXT, "host:port of a server, or unix:PATH", required=True),)),
        Group("load", _LOAD),
        Group("requests", _REQUESTS),
        Group("connections", _CONNECTIONS),
        TLS,
        Group("result", _RESULT),
    ),
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    args = COMMAND.parse(argv)
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
