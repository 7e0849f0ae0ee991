"""How much time a single-sample request spends in our own Python code: everything but gRPC and the model.

The server's own handlers are called in one process, without a network: parsing, checks, queue, collation, answers and
the event loop that ties them together are all there; gRPC is not. Processor time, not wall time, so that other
processes of the machine do not count; the model's own is taken off. Then a server that only echoes says what gRPC's
asyncio server itself takes for a call. Other processes on the cores make everything slower and nothing makes it
faster: the best round says what the code costs, the median what it cost on this machine.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import grpc.aio
import numpy as np
from torch import Tensor

from benchmarks.measure.machine import prepare, wide_console
from benchmarks.measure.tables import table_of
from benchmarks.models.dlrm import build
from export.config import ExportConfig
from export.pipeline import export_model
from recsys.artifact.load import LoadedArtifact
from recsys.base.cli import count
from serve.bench.load.requests import Shape, draw_requests
from serve.config.models import ModelSettings
from serve.config.settings import ConnectionLimits, ServerConfig
from serve.engine.interface import ModelInfo, PortSettings, Servable
from serve.engine.reference.engine import ReferenceEngine, load_model
from serve.engine.reference.executor import ServedModel
from serve.engine.reference.port import Port
from serve.metrics.registry import Metrics
from serve.models.manager import ModelManager
from serve.models.repository import SingleArtifact
from serve.observe.observers import Observers
from serve.rpc.metadata import servable_metadata

_EPILOG = """\
examples:
  python -m benchmarks.serving_profile
  python -m benchmarks.serving_profile --in-flight 16 --json

Exit codes: 0 measured, 2 bad usage.
"""
_MAX_MESSAGE_BYTES = 4 << 20
_NUM_REQUESTS = 1024
_ECHO = "/benchmarks.Echo/Echo"


@dataclass(frozen=True, kw_only=True)
class Spent:
    """Processor time per request, in µs.

    Attributes:
        loop_us: our code in the event loop's thread, the loop itself included.
        executor_us: our code in the executor's thread, without the model.
        model_us: the scripted model.
        batch_requests: requests of a batch, on average.
    """

    loop_us: float
    executor_us: float
    model_us: float
    batch_requests: float

    @property
    def ours_us(self) -> float:
        """All of our code."""
        return self.loop_us + self.executor_us


class TimedModel:
    """A model that notes the processor time of its calls, and that of the thread which makes them."""

    def __init__(self, model: LoadedArtifact) -> None:
        self._model = model
        self.signature = model.signature
        self.model_s = 0.0
        self.num_calls = 0
        self.thread_s: list[float] = []

    def forward(self, *inputs: Tensor) -> dict[str, Tensor]:
        """See ``ServedModel``."""
        start_s = time.thread_time()
        outputs = self._model.forward(*inputs)
        end_s = time.thread_time()
        self.model_s += end_s - start_s
        self.num_calls += 1
        self.thread_s = [*self.thread_s[:1], end_s]
        return outputs

    def forward_ranking(self, *inputs: Tensor) -> dict[str, Tensor]:
        """See ``ServedModel``."""
        return self._model.forward_ranking(*inputs)

    def reset(self) -> None:
        """Count from the next call on."""
        self.model_s, self.num_calls, self.thread_s = 0.0, 0, self.thread_s[-1:]


class NoCall:
    """What a handler needs of a call."""

    def time_remaining(self) -> float:
        """A client with a deadline far away."""
        return 60.0

    async def abort(self, code: object, text: str) -> None:
        """Nothing may go wrong here."""
        raise RuntimeError(f"{code}: {text}")


def measure(path: Path, num_in_flight: int, seconds: float) -> Spent:
    """Drive the handlers and take the times."""
    return asyncio.run(_measure(path, num_in_flight, seconds))


async def _measure(path: Path, num_in_flight: int, seconds: float) -> Spent:
    metrics = Metrics()
    timed: list[TimedModel] = []

    def load(where: Path, settings: ModelSettings) -> tuple[ServedModel, ModelInfo]:
        artifact, info = load_model(where, settings)
        assert isinstance(artifact, LoadedArtifact)
        timed.append(TimedModel(artifact))
        return timed[0], info

    engine = ReferenceEngine(Observers(ServerConfig(), metrics), load)
    manager = ModelManager(
        SingleArtifact(path), engine, lambda _: ModelSettings(verify_checksums=False), metrics
    )
    await manager.rescan()
    # Its handlers alone: no connection is opened.
    settings = PortSettings(host="127.0.0.1", port=0, connections=ConnectionLimits())
    service = Port(engine.gateway, settings, {})
    data = _requests(manager.route("", "", 0.5).primary)
    model, call = timed[0], NoCall()
    done = 0
    end_s = time.perf_counter() + 0.5

    async def loop(requests: itertools.cycle[bytes]) -> None:
        nonlocal done
        while time.perf_counter() < end_s:
            await service.predict(next(requests), call)
            done += 1

    requests = itertools.cycle(data)
    await asyncio.gather(*(loop(requests) for _ in range(num_in_flight)))
    done = 0
    model.reset()
    began_s, end_s = time.thread_time(), time.perf_counter() + seconds
    await asyncio.gather(*(loop(requests) for _ in range(num_in_flight)))
    loop_s = time.thread_time() - began_s
    first_s, last_s = model.thread_s
    spent = Spent(
        loop_us=loop_s / done * 1e6,
        executor_us=(last_s - first_s - model.model_s) / done * 1e6,
        model_us=model.model_s / done * 1e6,
        batch_requests=done / model.num_calls,
    )
    await manager.close(60)
    return spent


def _requests(servable: Servable) -> list[bytes]:
    metadata = servable_metadata(servable, _MAX_MESSAGE_BYTES)
    generator = np.random.default_rng(0)
    return [r.SerializeToString() for r, _ in draw_requests(metadata, Shape(), _NUM_REQUESTS, generator)]


async def _echo(data: bytes, num_in_flight: int, seconds: float) -> float:
    """Processor time of a call to a handler that does nothing, client and server together, in µs."""

    async def answer(_: bytes, __: object) -> bytes:
        return b"\0" * 100

    server = grpc.aio.server()
    handlers = {"Echo": grpc.unary_unary_rpc_method_handler(answer)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("benchmarks.Echo", handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    num_calls = 0
    end_s = time.perf_counter() + seconds

    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        call = channel.unary_unary(_ECHO)

        async def loop() -> None:
            nonlocal num_calls
            while time.perf_counter() < end_s:
                await call(data)
                num_calls += 1

        began_s = time.process_time()
        await asyncio.gather(*(loop() for _ in range(num_in_flight)))
        spent_s = time.process_time() - began_s
    await server.stop(None)
    return spent_s / num_calls * 1e6


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    args = _parser().parse_args(argv)
    machine = prepare()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "dlrm.artifact"
        export_model(build(args.table_rows), path, ExportConfig(name="dlrm"))
        rows = []
        for num_in_flight in args.in_flight:
            rounds = [measure(path, num_in_flight, args.seconds) for _ in range(args.rounds)]
            spent = Spent(
                **{
                    name: statistics.median(asdict(one)[name] for one in rounds)
                    for name in Spent.__dataclass_fields__
                }
            )
            best_us = min(one.ours_us for one in rounds)
            rows.append(
                {
                    "in_flight": num_in_flight,
                    **asdict(spent),
                    "ours_us": spent.ours_us,
                    "ours_best_us": best_us,
                }
            )
    echo_us = asyncio.run(_echo(bytes(1024), 64, args.seconds))
    if args.json:
        print(json.dumps({"machine": machine.to_json(), "rows": rows, "echo_us": echo_us}))
        return 0
    console = wide_console()
    console.print(machine.text(), soft_wrap=True)
    shown = [
        {
            "in flight": str(row["in_flight"]),
            "event loop": f"{row['loop_us']:.1f}",
            "executor": f"{row['executor_us']:.1f}",
            "our code": f"{row['ours_us']:.1f}",
            "best round": f"{row['ours_best_us']:.1f}",
            "model": f"{row['model_us']:.1f}",
            "requests a batch": f"{row['batch_requests']:.1f}",
        }
        for row in rows
    ]
    console.print(table_of("processor time of a single-sample request, in µs", shown))
    console.print(f"gRPC itself, echo over asyncio, client and server together: {echo_us:.0f} µs a call")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.serving_profile",
        description=__doc__,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--in-flight", type=count, nargs="+", default=[1, 16, 64], metavar="N", help="default 1 16 64"
    )
    parser.add_argument("--rounds", type=count, default=5, metavar="N", help="default 5")
    parser.add_argument("--seconds", type=float, default=1.0, metavar="S", help="of each round (default 1)")
    parser.add_argument("--table-rows", type=count, default=100_000, metavar="R", help="default 100000")
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    return parser


if __name__ == "__main__":
    sys.exit(main())
