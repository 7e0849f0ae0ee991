"""SIGTERM under load: every accepted request is answered, and the exit code says so."""

from __future__ import annotations

import asyncio
import itertools
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import grpc
import grpc.aio
import numpy as np
import pytest

from serve.client import PREDICT
from serve.client.packing import read_response
from serve.engine.reference.executor import ServedModel
from serve.wire import predict_pb2 as wire
from tests.support.serve.messages.cases import Sample, answer, assert_answers, random_sample
from tests.support.serve.spawned import Spawned, spawned

NUM_LOOPS = 32


async def _load(server: Spawned, samples: list[Sample], number: signal.Signals) -> Counter[str]:
    """Send in a closed loop, ask the server to stop after 500 answers, go on until it refuses."""
    codes: Counter[str] = Counter()
    order = itertools.cycle(enumerate(samples))
    data = [sample.request().SerializeToString() for sample in samples]
    answers: list[tuple[int, bytes]] = []

    async def loop(call: grpc.aio.UnaryUnaryMultiCallable) -> None:
        for _ in range(100_000):
            i, _ = next(order)
            try:
                answers.append((i, await call(data[i], timeout=60)))
            except grpc.aio.AioRpcError as error:
                codes[error.code().name] += 1
                return
            codes["OK"] += 1
            if codes["OK"] == 500:
                server.process.send_signal(number)

    channels = [grpc.aio.insecure_channel(server.address) for _ in range(4)]
    await asyncio.gather(*(loop(channels[i % 4].unary_unary(PREDICT)) for i in range(NUM_LOOPS)))
    for channel in channels:
        await channel.close()
    codes["checked"] = len(answers)
    return codes


@pytest.fixture
def server(server_command: list[str], tmp_path: Path) -> Iterator[Spawned]:
    with spawned(server_command, tmp_path / "log") as made:
        yield made


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_no_accepted_request_is_lost_when_the_server_is_asked_to_stop(
    server: Spawned, model: ServedModel, number: signal.Signals
) -> None:
    rng = np.random.default_rng(0)
    samples = [random_sample(model.signature, int(rng.integers(1, 5)), rng) for _ in range(16)]
    codes = asyncio.run(_load(server, samples, number))
    code, stopped = server.finish()
    assert code == 0
    assert stopped["event"] == "stopped"
    assert stopped["accepted"] == stopped["ok"] == codes["OK"] >= 500
    assert set(codes) <= {"OK", "UNAVAILABLE", "CANCELLED", "checked"}
    assert codes["UNAVAILABLE"] + codes["CANCELLED"] == NUM_LOOPS


def test_an_idle_server_stops_at_once_and_answers_before(server: Spawned, model: ServedModel) -> None:
    sample = random_sample(model.signature, 3, np.random.default_rng(1))
    with grpc.insecure_channel(server.address) as channel:
        response = channel.unary_unary(PREDICT)(sample.request().SerializeToString(), timeout=60)
    assert_answers(read_response(wire.PredictResponse.FromString(response)), answer(model, sample))
    server.process.send_signal(signal.SIGTERM)
    code, stopped = server.finish()
    assert (code, stopped["accepted"], stopped["in_time"]) == (0, 1, True)
