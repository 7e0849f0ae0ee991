"""Rankings of users who come back, through native servers with and without a context cache."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc

from benchmarks.measure.memory import resident
from benchmarks.measure.processes import Seen, Started, StepError, module, run_json, started
from benchmarks.measure.speed import DisagreementError
from benchmarks.ranking.cases import CASES, Case, build, export
from benchmarks.ranking.served import SERVED, bench_options, server_command
from serve.bench.load.pool import prepare, request_generator
from serve.bench.load.requests import Mix, Shape
from serve.bench.load.wires import PROTOCOLS
from serve.client import Client
from serve.wire import predict_pb2 as wire

WITHOUT, WITH = "without a cache", "with a cache"
#: How often users come back: the exponent of Zipf's law.
ZIPF = 1.1
#: Bytes of a cache, as a share of those of all users.
SHARE = 0.1
_IN_FLIGHT = 8
# Requests that are sent over and over: enough that most users occur.
_NUM_DISTINCT = 16_384
# Holds every user, to learn how large they are.
_LARGE_BYTES = 4 << 30
# Requests whose answers are compared, of so many users.
_NUM_COMPARED, _NUM_COMPARED_USERS = 100, 10


@dataclass(frozen=True, kw_only=True)
class Cached:
    """One server: medians of the rounds.

    Attributes:
        model: its name in ``CASES``.
        cache: ``WITH`` or ``WITHOUT``.
        max_bytes: of the cache.
        requests_per_s: answered.
        ratio: to the server without: the median of the rounds' ratios.
        p50_ms: of the time to an answer.
        p99_ms: likewise.
        processor_ms: of the server, for each request.
        hit_rate: hits of the cache among distinct contexts of batches; None without a cache.
        cache_bytes: that it held in the end.
        anonymous_bytes: that the server's process had allocated in the end.
    """

    model: str
    cache: str
    max_bytes: int
    requests_per_s: float
    ratio: float
    p50_ms: float
    p99_ms: float
    processor_ms: float
    hit_rate: float | None
    cache_bytes: float
    anonymous_bytes: int


@dataclass(frozen=True)
class _Server:
    """A server that runs, and its rounds."""

    started: Started
    max_bytes: int
    seen: Seen = field(default_factory=Seen)
    metrics: list[dict[str, Any]] = field(default_factory=list)
    processor_ms: list[float] = field(default_factory=list)


def measure_cached(
    names: Sequence[str],
    folder: Path,
    sizes: tuple[int, int, int],
    num_rounds: int,
    seconds: float,
) -> list[Cached]:
    """Measure servers of some models, without and with a cache, in turns.

    Args:
        names: Models; those not in ``SERVED`` are left out.
        folder: Where artifacts go.
        sizes: Rows of each table, rows of a request, and users.
        num_rounds: Turns of each server.
        seconds: Of a turn.

    Raises:
        StepError: A server or a request failed.
        DisagreementError: Answers with and without the cache differ.
    """
    num_rows, num_candidates, num_users = sizes
    found: list[Cached] = []
    for name in (name for name in names if name in SERVED):
        case = CASES[name]
        path = export(case, build(case, num_rows), folder / f"cached-{len(found)}")
        options = bench_options(case, num_candidates, _IN_FLIGHT, seconds)
        options += ["--users", str(num_users), "--zipf", str(ZIPF), "--distinct", str(_NUM_DISTINCT)]
        max_bytes = int(SHARE * num_users * _bytes_of_user(path, options))
        with ExitStack() as stack:
            servers = {}
            for cache, size in ((WITHOUT, 0), (WITH, max_bytes)):
                command = server_command(path, "--metrics-port", "0", "--context-cache-bytes", str(size))
                servers[cache] = _Server(stack.enter_context(started(command)), size)
            _compare(case, servers, num_candidates)
            for number in range(num_rounds):
                for cache in list(servers) if number % 2 == 0 else list(servers)[::-1]:
                    _turn(servers[cache], cache, options)
            found += [_result(name, cache, server, servers[WITHOUT]) for cache, server in servers.items()]
    return found


def _bytes_of_user(path: Path, options: Sequence[str]) -> float:
    """Return the bytes of a context in a cache that holds all."""
    command = server_command(path, "--metrics-port", "0", "--context-cache-bytes", str(_LARGE_BYTES))
    with started(command) as server:
        one = _Server(server, _LARGE_BYTES)
        _turn(one, WITH, options)
    figures = one.metrics[0]
    if not figures.get("contexts_computed"):
        raise StepError("the context cache: got no misses, expected one for each user")
    return float(figures["context_cache_bytes"] / figures["contexts_computed"])


def _turn(server: _Server, cache: str, options: Sequence[str]) -> None:
    metrics = f"127.0.0.1:{server.started.ready['metrics_port']}"
    before_s = server.started.processor_s()
    result = run_json(
        module("serve.bench", server.started.address, *options, "--metrics", metrics, "--warm-up-s", "0")
    )
    server.seen.add(cache, result["measurement"])
    processor_s = server.started.processor_s() - before_s
    server.processor_ms.append(1e3 * processor_s / result["measurement"]["num_answered"])
    server.metrics.append(result["server_metrics"])


def _compare(case: Case, servers: dict[str, _Server], num_candidates: int) -> None:
    """Ask all servers the same, twice: the second time the cache holds all users."""
    with Client(servers[WITHOUT].started.address) as client:
        metadata = client.metadata()
    shape = Shape(
        ranking=True,
        rows=Mix.of(num_candidates),
        ids_per_bag_of={name: Mix.of(ids) for name, ids in zip(case.context, case.ids, strict=True)},
        users=_NUM_COMPARED_USERS,
        num_distinct=_NUM_COMPARED,
    )
    requests = [
        one.data
        for one in prepare(metadata, shape, lambda request: request.SerializeToString(), request_generator(0))
    ]
    answers = {cache: _answers(server.started.address, requests * 2) for cache, server in servers.items()}
    num_different = sum(a != b for a, b in zip(answers[WITHOUT], answers[WITH], strict=True))
    if num_different:
        raise DisagreementError(
            f"answers {WITH}: {num_different} of {2 * _NUM_COMPARED} differ from those {WITHOUT}, expected none"
        )


def _answers(address: str, requests: Sequence[bytes]) -> list[list[bytes]]:
    """Return the outputs of each request, as bytes."""
    with grpc.insecure_channel(address) as channel:
        call = channel.unary_unary(
            PROTOCOLS["recsys"].method, response_deserializer=wire.PredictResponse.FromString
        )
        return [[output.SerializeToString() for output in call(request).outputs] for request in requests]


def _result(name: str, cache: str, server: _Server, without: _Server) -> Cached:
    rates = [found.get("context_cache_hit_rate") for found in server.metrics]
    hits = [rate for rate in rates if rate is not None]
    pairs = zip(server.seen.requests_per_s, without.seen.requests_per_s, strict=True)
    return Cached(
        model=name,
        cache=cache,
        max_bytes=server.max_bytes,
        ratio=statistics.median(mine / theirs for mine, theirs in pairs),
        processor_ms=statistics.median(server.processor_ms),
        hit_rate=statistics.median(hits) if hits and server.max_bytes else None,
        cache_bytes=server.metrics[-1].get("context_cache_bytes", 0.0),
        anonymous_bytes=resident(server.started.pid).anonymous_bytes,
        **server.seen.medians(),
    )
