"""At least 10 000 spoiled requests to a live server: each gets an answer or a clear status, neighbours are right."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import grpc.aio
import numpy as np
import pytest

from recsys.inputs.signature import Signature
from serve.bench import scrape
from serve.client import PREDICT
from serve.client.packing import read_response
from serve.engine.reference.executor import ServedModel
from serve.wire import predict_pb2 as wire
from tests.support.serve.messages.cases import Sample, answer, assert_answers, random_sample
from tests.support.serve.messages.mutations import MUTATIONS
from tests.support.serve.spawned import spawned

NUM_SPOILED = 12_000
NUM_IN_FLIGHT = 64
NUM_CONNECTIONS = 4
# A good request after every few spoiled ones, so that they share batches with those that pass the checks.
SPOILED_PER_GOOD = 4
# Stacks, source files, addresses: nothing that a client should read.
INTERNALS = re.compile(r"Traceback|\.py\b|site-packages|0x[0-9a-f]{6}")
REFUSALS = {"INVALID_ARGUMENT", "NOT_FOUND"}


@dataclass
class Seen:
    """What came back: answers to good requests, and for spoiled ones the codes by mutation and the answers."""

    good: list[tuple[int, bytes]] = field(default_factory=list)
    codes: Counter[tuple[str, str]] = field(default_factory=Counter)
    answered: list[tuple[bytes, bytes]] = field(default_factory=list)
    texts: set[str] = field(default_factory=set)


async def _send(address: str, good: list[bytes], spoiled: list[tuple[str, bytes]]) -> Seen:
    seen = Seen()
    work: list[tuple[str, int, bytes]] = []
    for i, (name, data) in enumerate(spoiled):
        work.append((name, i, data))
        if i % SPOILED_PER_GOOD == 0:
            which = (i // SPOILED_PER_GOOD) % len(good)
            work.append(("", which, good[which]))
    work.reverse()
    channels = [
        grpc.aio.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)])
        for _ in range(NUM_CONNECTIONS)
    ]

    async def loop(call: grpc.aio.UnaryUnaryMultiCallable) -> None:
        while work:
            name, which, data = work.pop()
            try:
                response = await call(data, timeout=60)
            except grpc.aio.AioRpcError as error:
                seen.codes[name, error.code().name] += 1
                seen.texts.add(error.details() or "")
                continue
            seen.codes[name, "OK"] += 1
            if name:
                seen.answered.append((data, response))
            else:
                seen.good.append((which, response))

    calls = [channel.unary_unary(PREDICT) for channel in channels]
    await asyncio.gather(*(loop(calls[i % NUM_CONNECTIONS]) for i in range(NUM_IN_FLIGHT)))
    for channel in channels:
        await channel.close()
    return seen


def sample_from(signature: Signature, data: bytes) -> Sample:
    """A spoiled request that passed the checks, unpacked with plain loops."""
    request = wire.PredictRequest.FromString(data)
    num_rows = request.num_rows
    dense = {
        d.name: np.frombuffer(d.values, "<f4").reshape(num_rows, -1).tolist() if num_rows else []
        for d in request.dense
    }
    sparse: dict[str, list[list[int]]] = {}
    weights: dict[str, list[list[float]]] = {}
    for use in request.sparse:
        # The model has no hashes: texts that passed are decimal numbers.
        ids = np.frombuffer(use.values, "<i8").tolist() or [int(text) for text in use.strings]
        given = np.frombuffer(use.weights, "<f4").tolist()
        sparse[use.name], weights[use.name], start = [], [], 0
        for length in np.frombuffer(use.lengths, "<i4").tolist():
            sparse[use.name].append(ids[start : start + length])
            weights[use.name].append(given[start : start + length])
            start += length
        assert start == len(ids)
    assert set(dense) == {d.name for d in signature.dense}
    return Sample(num_rows, dense, sparse, weights)


def is_moderate(sample: Sample) -> bool:
    """Whether sums of its numbers are independent of their order up to rounding."""
    numbers = [
        x for part in (sample.dense, sample.weights) for rows in part.values() for row in rows for x in row
    ]
    return all(abs(x) < 100 for x in numbers)


@pytest.mark.slow
def test_spoiled_requests_get_a_clear_status_and_hurt_nobody(
    server_command: list[str], model: ServedModel, tmp_path: Path
) -> None:
    rng = np.random.default_rng(2024)
    samples = [random_sample(model.signature, int(rng.integers(0, 5)), rng) for _ in range(64)]
    good = [sample.request().SerializeToString() for sample in samples]
    spoiled = [
        (mutate.__name__, mutate(good[rng.integers(len(good))], rng))
        for mutate in (MUTATIONS[i % len(MUTATIONS)] for i in range(NUM_SPOILED))
    ]
    expected = [answer(model, sample) for sample in samples]
    with spawned(server_command, tmp_path / "log") as server:
        seen = asyncio.run(_send(server.address, good, spoiled))
        assert server.process.poll() is None
        counted = scrape(server.metrics_address)
        server.process.terminate()
        code, stopped = server.finish()
    assert (code, stopped["failed"]) == (0, 0)
    failed = [value for name, value in counted.items() if 'outcome="failed"' in name]
    assert failed
    assert sum(failed) == 0

    assert sum(seen.codes.values()) == NUM_SPOILED + NUM_SPOILED // SPOILED_PER_GOOD
    assert {code for _, code in seen.codes} == {"OK"} | REFUSALS
    for mutate in MUTATIONS:
        refused = sum(seen.codes[mutate.__name__, code] for code in REFUSALS)
        assert refused > 0, f"{mutate.__name__} never spoiled a request"

    assert len(seen.good) == NUM_SPOILED // SPOILED_PER_GOOD
    for which, response in seen.good:
        assert_answers(read_response(wire.PredictResponse.FromString(response)), expected[which])
    assert len(seen.answered) > 500
    for data, response in seen.answered:
        sample = sample_from(model.signature, data)
        outputs = read_response(wire.PredictResponse.FromString(response))
        assert all(len(values) == sample.num_rows for values in outputs.values())
        if is_moderate(sample):
            assert_answers(outputs, answer(model, sample))
    for text in seen.texts:
        assert not INTERNALS.search(text), text
        assert len(text) < 1000, text
