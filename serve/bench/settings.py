"""What the command line asks for, checked."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from serve.bench.mixes import Mix, parse_mix, parse_names
from serve.bench.plan import Recording
from serve.bench.requests import PRIORITIES, Shape
from serve.bench.wires import PROTOCOLS
from serve.client_settings import ClientTls, checked_address

_T = TypeVar("_T")
_IN_FLIGHT = 64
_CONNECTIONS = 4


@dataclass(frozen=True, kw_only=True)
class Settings:
    """One run.

    Attributes:
        mode: "closed", "open", "find-rate" or "replay".
        address: where requests go.
        describe: a server, or a file, that says what the model takes; empty for the address itself.
        protocol: that is spoken.
        stream: whether requests go over streams.
        tls: None for plain text.
        shape: of the requests.
        recording: instead of them.
        num_in_flight: of a closed loop; None for an open one.
        max_in_flight: of an open loop.
        rate_per_s: of an open loop; None for a search.
        num_connections: over all processes.
        num_processes: that send.
        duration_s: measured; of each step of a search the least.
        warm_up_s: not measured.
        timeout_s: of a request without a deadline.
        seed: of all that is random.
        p99_ms: the bound of a search.
        first_per_s: where a search begins; None lets a closed loop suggest it.
        precision: of a search.
        metrics: the server's metrics; empty for none.
        html: where the report goes; None for nowhere.
        expect_p99_ms: more than that ends with exit code 3.
        expect_per_s: less than that ends with exit code 3.
    """

    mode: str
    address: str
    describe: str
    protocol: str
    stream: bool
    tls: ClientTls | None
    shape: Shape
    recording: Recording | None
    num_in_flight: int | None
    max_in_flight: int
    rate_per_s: float | None
    num_connections: int
    num_processes: int
    duration_s: float
    warm_up_s: float
    timeout_s: float
    seed: int
    p99_ms: float | None
    first_per_s: float | None
    precision: float
    metrics: str
    html: Path | None
    expect_p99_ms: float | None
    expect_per_s: float | None

    def to_json(self) -> dict[str, Any]:
        """Plain data, without what only this machine knows (paths)."""
        shape = self.shape
        bags = {"ids_per_bag": str(shape.ids_per_bag)}
        bags |= {f"ids_per_bag[{name}]": str(mix) for name, mix in shape.ids_per_bag_of.items()}
        what: dict[str, Any]
        if self.recording is None:
            what = {
                "candidates" if shape.ranking else "rows": str(shape.rows),
                **bags,
                "zipf": shape.zipf,
                "priorities": _priority_text(shape.priorities),
                "num_distinct": shape.num_distinct,
            }
        else:
            what = {"replay": self.recording.path.name, "speed": self.recording.speed or "max"}
        return {
            "mode": self.mode,
            "protocol": self.protocol + (" stream" if self.stream else ""),
            "encrypted": self.tls is not None,
            **what,
            "deadlines_ms": None if shape.deadlines_ms is None else str(shape.deadlines_ms),
            "num_in_flight": self.num_in_flight,
            "asked_per_s": self.rate_per_s,
            "p99_bound_ms": self.p99_ms,
            "num_connections": self.num_connections,
            "num_processes": self.num_processes,
            "duration_s": self.duration_s if math.isfinite(self.duration_s) else None,
            "warm_up_s": self.warm_up_s,
            "timeout_s": self.timeout_s,
            "seed": self.seed,
        }


def read_settings(args: argparse.Namespace) -> Settings:
    """From the command line.

    Raises:
        ValueError: an option is out of its range, or does not go with another; the text names it.
    """
    mode = _mode(args)
    _check_ranges(args)
    _check_protocol(args, mode)
    speed = _speed(args.speed) if args.replay else None
    is_closed = mode == "closed" or (mode == "replay" and speed is None)
    if args.in_flight is not None and not is_closed:
        raise ValueError("--in-flight: expected only of a closed loop; an open one has --max-in-flight")
    num_in_flight = (args.in_flight or max(_IN_FLIGHT, args.processes)) if is_closed else None
    recording = Recording(path=args.replay, speed=speed, model=args.model or "") if args.replay else None
    duration_s = args.duration_s or (math.inf if recording else 10.0)
    return Settings(
        mode=mode,
        address=args.address,
        describe=args.describe or "",
        protocol=args.protocol,
        stream=args.stream,
        tls=_tls(args),
        shape=_shape(args),
        recording=recording,
        num_in_flight=num_in_flight,
        max_in_flight=args.max_in_flight,
        rate_per_s=args.rate,
        num_connections=_connections(args, num_in_flight),
        num_processes=args.processes,
        duration_s=duration_s,
        warm_up_s=0.0 if recording else args.warm_up_s,
        timeout_s=args.timeout_s,
        seed=args.seed,
        p99_ms=args.p99_ms,
        first_per_s=args.start_rate,
        precision=args.precision,
        metrics=args.metrics or "",
        html=args.html,
        expect_p99_ms=args.expect_p99_ms,
        expect_per_s=args.expect_rate,
    )


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
    if args.speed is not None and args.replay is None:
        raise ValueError("--speed: expected with --replay")
    return (
        {"--rate": "open", "--find-rate": "find-rate", "--replay": "replay"}[asked[0]] if asked else "closed"
    )


def _check_ranges(args: argparse.Namespace) -> None:
    for name in ("connections", "processes", "in_flight", "max_in_flight", "distinct"):
        value = getattr(args, name)
        if value is not None and value < 1:
            raise ValueError(f"{_flag(name)}: got {value}, expected at least 1")
    positive = ("duration_s", "timeout_s", "rate", "p99_ms", "start_rate", "expect_p99_ms", "expect_rate")
    for name in positive:
        value = getattr(args, name)
        if value is not None and not 0 < value < math.inf:
            raise ValueError(f"{_flag(name)}: got {value}, expected more than 0")
    if not 0 <= args.warm_up_s < math.inf:
        raise ValueError(f"--warm-up-s: got {args.warm_up_s}, expected at least 0")
    if not 0 <= args.zipf < 100:
        raise ValueError(f"--zipf: got {args.zipf}, expected 0 (uniform) to 100")
    if args.seed < 0:
        raise ValueError(f"--seed: got {args.seed}, expected at least 0")
    if not 0.001 <= args.precision <= 1:
        raise ValueError(f"--precision: got {args.precision}, expected 0.001 to 1")
    if args.html is not None and not args.html.absolute().parent.is_dir():
        raise ValueError("--html: expected a file in a folder that exists")


def _check_protocol(args: argparse.Namespace, mode: str) -> None:
    takes_more = PROTOCOLS[args.protocol].takes_more
    if args.stream and args.protocol != "recsys":
        raise ValueError(f"--stream: got --protocol {args.protocol}, expected recsys")
    if args.stream and args.deadline_ms:
        raise ValueError("--deadline-ms: got --stream too, expected single calls: a stream has one deadline")
    for name in ("candidates", "priority", "version"):
        if getattr(args, name) and not takes_more:
            raise ValueError(f"{_flag(name)}: got --protocol {args.protocol}, whose wire has no such thing")
    if args.protocol == "rest" and not args.describe:
        raise ValueError(
            "--describe: expected with --protocol rest: the gRPC address of the server, or a file"
        )
    if args.protocol == "rest" and (args.tls or args.tls_ca):
        raise ValueError("--tls: got --protocol rest, expected plain HTTP")
    checked_address(args.address)
    if args.metrics:
        _some("--metrics", checked_address, args.metrics)
    if mode == "replay" and (args.rows or args.candidates):
        raise ValueError(
            "--replay: expected without --rows and --candidates: the recording has its own requests"
        )


def _shape(args: argparse.Namespace) -> Shape:
    if args.rows and args.candidates:
        raise ValueError("--candidates: got --rows too, expected one of the two")
    general, by_name = _bags(args.ids_per_bag or ["1"])
    rows_text = args.candidates or args.rows or "1"
    priorities = _option("--priority", lambda text: parse_names(text, PRIORITIES), args.priority)
    return Shape(
        rows=_some("--candidates" if args.candidates else "--rows", parse_mix, rows_text),
        ranking=bool(args.candidates),
        ids_per_bag=general,
        ids_per_bag_of=by_name,
        zipf=args.zipf,
        priorities=priorities,
        deadlines_ms=_option("--deadline-ms", lambda text: parse_mix(text, least=1), args.deadline_ms),
        num_distinct=args.distinct,
        model=args.model or "",
        version=args.version or "",
    )


def _bags(given: Sequence[str]) -> tuple[Mix, dict[str, Mix]]:
    """``MIX`` for all inputs, ``NAME=MIX`` for one."""
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
    """Each process has one at least, and none stays without a request."""
    most = num_in_flight or args.max_in_flight
    found = args.connections or max(min(_CONNECTIONS, most), args.processes)
    if not args.processes <= found <= most:
        raise ValueError(
            f"--connections: got {found} with {args.processes} processes and {most} requests in flight, "
            "expected --processes <= --connections <= requests in flight"
        )
    return int(found)


def _speed(text: str | None) -> float | None:
    """None stands for as fast as answers come."""
    if text == "max":
        return None
    try:
        speed = float(text or "1")
    except ValueError:
        speed = math.nan
    if not 0 < speed < math.inf:
        raise ValueError(f"--speed: got {text!r}, expected a number above 0, or max")
    return speed


def _tls(args: argparse.Namespace) -> ClientTls | None:
    tls = ClientTls(ca=args.tls_ca, certificate=args.tls_certificate, key=args.tls_key)
    return tls if args.tls or tls != ClientTls() else None


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
