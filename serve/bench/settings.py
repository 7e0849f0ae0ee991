"""Checked settings of the command line."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

from recsys.base.machine import install_command
from recsys.options.kinds import number
from serve.bench.load.native import why_not_native
from serve.bench.load.plan import Recording, Target
from serve.bench.load.requests import PRIORITIES, Mix, Shape, parse_mix, parse_names
from serve.bench.load.wires import PROTOCOLS
from serve.client.settings import checked_address, checked_host_port
from serve.tools.client_options import tls_of

SENDERS = ("auto", "native", "python")
#: Exponents of the distribution of IDs; 0 is uniform.
ZIPF = number(0, 100, metavar="S")

_T = TypeVar("_T")
_IN_FLIGHT = 64
# Measured time, and that of each step of a search.
_DURATION_S = 10.0
_STEP_S = 4.0
# By default a search has the time of so many steps, of which it seldom needs more than 20, but not less than a minute:
# what waits after a step that asked too much is answered first. It needs a few steps to say anything.
_NUM_STEPS = 24
_SEARCH_S = 60.0
_LEAST_STEPS = 3
_CONNECTIONS = 4
# Requests that are made by default. With fewer for each user, rare users would be missing.
_DISTINCT, _REQUESTS_OF_USER = 4096, 4


@dataclass(frozen=True, kw_only=True)
class LoadSettings:
    """Settings of the load.

    Attributes:
        num_in_flight: unanswered requests of a closed loop; None for an open one.
        rate_per_s: rate of an open loop; None for a search or a recording.
        max_in_flight: maximum number of unanswered requests of an open loop.
        duration_s: measured time; in a search the minimum per step.
        warm_up_s: time before that, not measured.
        sender: "native" or "python".
        num_processes: processes of the Python sender, threads of the native one.
        seed: seed of everything that is random.
    """

    num_in_flight: int | None = None
    rate_per_s: float | None = None
    max_in_flight: int = 10_000
    duration_s: float = 10.0
    warm_up_s: float = 1.0
    sender: str = "python"
    num_processes: int = 1
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class SearchSettings:
    """The search for the highest rate.

    Attributes:
        p99_ms: bound of the search; None for no search.
        first_per_s: rate of the first step; None lets a closed loop suggest it.
        precision: gap between rates that is narrow enough, as a share of the rate.
        most_s: longest time of the search.
    """

    p99_ms: float | None = None
    first_per_s: float | None = None
    precision: float = 0.05
    most_s: float = 120.0


@dataclass(frozen=True, kw_only=True)
class ResultSettings:
    """Settings of the result.

    Attributes:
        metrics: address of the server's metrics; empty for none.
        html: file of the report; None for none.
        expect_p99_ms: the exit code is 3 if p99 is above.
        expect_per_s: the exit code is 3 if fewer requests are answered per second.
    """

    metrics: str = ""
    html: Path | None = None
    expect_p99_ms: float | None = None
    expect_per_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class Settings:
    """One run.

    Attributes:
        mode: "closed", "open", "find-rate" or "replay".
        target: where requests go, with the connections of all processes.
        describe: a server or a file that describes the model; empty for the target itself.
        shape: shape of the requests.
        recording: replaces them.
        load: the load.
        search: the search of mode "find-rate".
        result: the result.
        note: a note on the choice of the sender, or empty.
    """

    mode: str = "closed"
    target: Target
    describe: str = ""
    shape: Shape = field(default_factory=Shape)
    recording: Recording | None = None
    load: LoadSettings = field(default_factory=LoadSettings)
    search: SearchSettings = field(default_factory=SearchSettings)
    result: ResultSettings = field(default_factory=ResultSettings)
    note: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return plain data, without paths of this machine."""
        shape, load, target = self.shape, self.load, self.target
        return {
            "mode": self.mode,
            "protocol": target.protocol + (" stream" if target.stream else ""),
            "encrypted": target.tls is not None,
            **self._requests_to_json(),
            "deadlines_ms": None if shape.deadlines_ms is None else str(shape.deadlines_ms),
            "num_in_flight": load.num_in_flight,
            "asked_per_s": load.rate_per_s,
            "p99_bound_ms": self.search.p99_ms,
            "sender": load.sender,
            "num_connections": target.num_connections,
            "num_processes": load.num_processes,
            "duration_s": load.duration_s if math.isfinite(load.duration_s) else None,
            "warm_up_s": load.warm_up_s,
            "timeout_s": target.timeout_s,
            "seed": load.seed,
        }

    def _requests_to_json(self) -> dict[str, Any]:
        shape = self.shape
        if self.recording is not None:
            return {"replay": self.recording.path.name, "speed": self.recording.speed or "max"}
        if shape.payload_bytes:
            return {"rows": "1", "payload_bytes": shape.payload_bytes, "num_distinct": 1}
        bags = {"ids_per_bag": str(shape.ids_per_bag)}
        bags |= {f"ids_per_bag[{name}]": str(mix) for name, mix in shape.ids_per_bag_of.items()}
        return {
            "candidates" if shape.ranking else "rows": str(shape.rows),
            **bags,
            "zipf": shape.zipf,
            "users": shape.users or None,
            "priorities": _priority_text(shape.priorities),
            "num_distinct": shape.num_distinct,
        }


def read_settings(args: argparse.Namespace) -> Settings:
    """Return the settings of a command line.

    Raises:
        ValueError: an option is out of range or conflicts with another; the message names it.
    """
    mode = _mode(args)
    if args.html is not None and not args.html.absolute().parent.is_dir():
        raise ValueError("--html: expected a file in a folder that exists")
    _check_protocol(args, mode)
    speed = _speed(args.speed) if args.replay else None
    recording = Recording(path=args.replay, speed=speed, model=args.model or "") if args.replay else None
    num_in_flight = _num_in_flight(args, mode, speed)
    target = Target(
        address=args.address,
        protocol=args.protocol,
        stream=args.stream,
        num_connections=_connections(args, num_in_flight),
        timeout_s=args.timeout_s,
        tls=tls_of(args),
    )
    sender, note = _sender(args.sender, target)
    usual_s = math.inf if recording else _STEP_S if mode == "find-rate" else _DURATION_S
    duration_s = args.duration_s or usual_s
    return Settings(
        mode=mode,
        target=target,
        describe=args.describe or "",
        shape=_shape(args),
        recording=recording,
        load=LoadSettings(
            num_in_flight=num_in_flight,
            rate_per_s=args.rate,
            max_in_flight=args.max_in_flight,
            duration_s=duration_s,
            warm_up_s=0.0 if recording else args.warm_up_s,
            sender=sender,
            num_processes=args.processes,
            seed=args.seed,
        ),
        search=_search(args, duration_s),
        result=ResultSettings(
            metrics=args.metrics or "",
            html=args.html,
            expect_p99_ms=args.expect_p99_ms,
            expect_per_s=args.expect_rate,
        ),
        note=note,
    )


def _search(args: argparse.Namespace, duration_s: float) -> SearchSettings:
    """Return the search's settings; its steps take ``duration_s`` and the warm-up."""
    step_s = duration_s + args.warm_up_s
    most_s = args.search_s or max(_NUM_STEPS * step_s, _SEARCH_S)
    if args.find_rate and most_s < _LEAST_STEPS * step_s:
        raise ValueError(
            f"--search-s: got {most_s:g}, expected at least {_LEAST_STEPS * step_s:g}: {_LEAST_STEPS} times "
            "--duration-s and --warm-up-s"
        )
    return SearchSettings(
        p99_ms=args.p99_ms, first_per_s=args.start_rate, precision=args.precision, most_s=most_s
    )


def _sender(asked: str, target: Target) -> tuple[str, str]:
    """Return the sender, and for "auto" the reason if it is not the native one."""
    if asked == "python":
        return "python", ""
    reason = why_not_native(target)
    if not reason:
        return "native", ""
    if asked == "native":
        raise ValueError(f"--sender native: {reason}; expected python or auto")
    return "python", f"using the Python sender: {reason}"


def _mode(args: argparse.Namespace) -> str:
    asked = [
        name
        for name, is_asked in (
            ("--rate", args.rate is not None),
            ("--find-rate", args.find_rate),
            ("--replay", args.replay is not None),
        )
        if is_asked
    ]
    if len(asked) > 1:
        raise ValueError(f"{asked[1]}: got {asked[0]} too, expected one of --rate, --find-rate and --replay")
    if args.find_rate and args.p99_ms is None:
        raise ValueError("--find-rate: expected a bound, such as --p99-ms 20")
    if args.p99_ms is not None and not args.find_rate:
        raise ValueError("--p99-ms: expected with --find-rate; --expect-p99-ms checks any other run")
    if args.search_s is not None and not args.find_rate:
        raise ValueError("--search-s: expected with --find-rate; --duration-s sets the time of any other run")
    if args.speed is not None and args.replay is None:
        raise ValueError("--speed: expected with --replay")
    return (
        {"--rate": "open", "--find-rate": "find-rate", "--replay": "replay"}[asked[0]] if asked else "closed"
    )


def _num_in_flight(args: argparse.Namespace, mode: str, speed: float | None) -> int | None:
    """Return the requests in flight of a closed loop; None for an open one."""
    is_closed = mode == "closed" or (mode == "replay" and speed is None)
    if args.in_flight is not None and not is_closed:
        raise ValueError("--in-flight: expected only of a closed loop; an open one has --max-in-flight")
    return int(args.in_flight or max(_IN_FLIGHT, args.processes)) if is_closed else None


def _check_protocol(args: argparse.Namespace, mode: str) -> None:
    takes_more = PROTOCOLS[args.protocol].takes_more
    if args.stream and args.protocol != "recsys":
        raise ValueError(f"--stream: got --protocol {args.protocol}, expected recsys")
    if args.stream and args.deadline_ms:
        raise ValueError("--deadline-ms: got --stream too, expected single calls: a stream has one deadline")
    for name in ("candidates", "priority", "version"):
        if getattr(args, name) and not takes_more:
            raise ValueError(f"{_flag(name)}: --protocol {args.protocol} has no field for it")
    if args.protocol == "rest" and not args.describe:
        raise ValueError(
            "--describe: expected with --protocol rest: the gRPC address of the server, or a file"
        )
    if args.protocol == "rest" and find_spec("aiohttp") is None:
        raise ValueError(f"--protocol rest: needs the package aiohttp: {install_command(extra='rest')}")
    if args.protocol == "rest" and (args.tls or args.tls_ca):
        raise ValueError("--tls: got --protocol rest, expected plain HTTP")
    (checked_host_port if args.protocol == "rest" else checked_address)(args.address)
    if args.metrics:
        _some("--metrics", checked_host_port, args.metrics)
    if mode == "replay" and (args.rows or args.candidates):
        raise ValueError(
            "--replay: expected without --rows and --candidates: the recording has its own requests"
        )
    if args.payload_bytes is not None:
        _check_payload(args, mode)


def _check_payload(args: argparse.Namespace, mode: str) -> None:
    """Check the options of a meaningless payload, which is sent to a gRPC method unchanged."""
    if args.protocol == "rest" or args.stream or mode == "replay":
        raise ValueError("--payload-bytes: expected single gRPC calls, without --stream and --replay")
    for name in ("rows", "candidates", "ids_per_bag", "priority", "describe", "model", "version"):
        if getattr(args, name):
            raise ValueError(f"--payload-bytes: got {_flag(name)} too, expected one of the two")


def _shape(args: argparse.Namespace) -> Shape:
    if args.rows and args.candidates:
        raise ValueError("--candidates: got --rows too, expected one of the two")
    if args.users and not args.candidates:
        raise ValueError("--users: expected with --candidates: users are contexts of ranking requests")
    general, by_name = _bags(args.ids_per_bag or ["1"])
    rows_text = args.candidates or args.rows or "1"
    priorities = _option("--priority", lambda text: parse_names(text, PRIORITIES), args.priority)
    return Shape(
        rows=_some("--candidates" if args.candidates else "--rows", parse_mix, rows_text),
        ranking=bool(args.candidates),
        ids_per_bag=general,
        ids_per_bag_of=by_name,
        zipf=args.zipf,
        users=args.users or 0,
        priorities=priorities,
        deadlines_ms=_option("--deadline-ms", lambda text: parse_mix(text, least=1), args.deadline_ms),
        num_distinct=args.distinct or max(_DISTINCT, _REQUESTS_OF_USER * (args.users or 0)),
        payload_bytes=args.payload_bytes or 0,
        model=args.model or "",
        version=args.version or "",
        texts=args.protocol != "torchrec",
        like_examples=not args.random_inputs,
        has_bag_sizes=any("=" not in text for text in args.ids_per_bag or ()),
    )


def _bags(given: Sequence[str]) -> tuple[Mix, dict[str, Mix]]:
    """Parse ``MIX`` for all inputs and ``NAME=MIX`` for one."""
    general = parse_mix("1")
    by_name = {}
    for text in given:
        name, equals, mix_text = text.rpartition("=")
        mix = _some("--ids-per-bag", parse_mix, mix_text)
        if equals:
            by_name[name] = mix
        else:
            general = mix
    return general, by_name


def _connections(args: argparse.Namespace, num_in_flight: int | None) -> int:
    """Return the connections: at least one per process, at most one per request in flight."""
    most = num_in_flight or args.max_in_flight
    found = args.connections or max(min(_CONNECTIONS, most), args.processes)
    if not args.processes <= found <= most:
        raise ValueError(
            f"--connections: got {found} with {args.processes} processes and {most} requests in flight, "
            "expected --processes <= --connections <= requests in flight"
        )
    return int(found)


def _speed(text: str | None) -> float | None:
    """Return the speed; None for as fast as answers arrive."""
    if text == "max":
        return None
    try:
        speed = float(text or "1")
    except ValueError:
        speed = math.nan
    if not 0 < speed < math.inf:
        raise ValueError(f"--speed: got {text!r}, expected a number above 0, or max")
    return speed


def _priority_text(mix: Mix | None) -> str | None:
    if mix is None:
        return None
    names = {number: name for name, number in PRIORITIES.items()}
    return ",".join(f"{names[part.least]}:{part.weight:g}" for part in mix.parts)


def _option(name: str, parse: Callable[[str], _T], text: str | None) -> _T | None:
    return _some(name, parse, text) if text else None


def _some(name: str, parse: Callable[[str], _T], text: str) -> _T:
    try:
        return parse(text)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"
