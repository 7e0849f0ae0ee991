"""Twenty thousand requests of every kind: nothing is lost, nothing is wrong, nothing grows.

``RECSYS_SOAK_REQUESTS`` asks for more: ``make soak`` for 200 000.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import grpc
import grpc.aio
import numpy as np
import pytest

from serve.client import PREDICT, PREDICT_STREAM
from serve.client.packing import read_response
from serve.wire import predict_pb2 as wire
from tests.conformance.support.artifacts import CONTEXT, Exported
from tests.conformance.support.harness import ServerUnderTest
from tests.support.serve.messages.cases import assert_answers

pytestmark = pytest.mark.engine

NUM_REQUESTS = int(os.environ.get("RECSYS_SOAK_REQUESTS", "20000"))
# What fills caches, arenas and connections for the first time.
NUM_FIRST = min(40_000, NUM_REQUESTS // 3)
_IN_FLIGHT = 64
_SAMPLED = 50


@dataclass(frozen=True)
class Kind:
    """A request, and what must come of it: an answer, or a refusal where there is none."""

    data: bytes
    answer: dict[str, np.ndarray] | None


@dataclass
class Soak:
    """Requests of every kind in turn.

    Attributes:
        ended: requests by how they ended.
    """

    kinds: list[Kind]
    ended: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._numbers = itertools.count()

    def next(self) -> tuple[int, Kind]:
        number = next(self._numbers)
        return number, self.kinds[number % len(self.kinds)]

    def check(self, number: int, kind: Kind, data: bytes) -> None:
        """An answer to one request; some are compared."""
        assert kind.answer is not None
        if number % _SAMPLED < 2:
            assert_answers(read_response(wire.PredictResponse.FromString(data)), kind.answer)
        self.ended["ok"] += 1

    def refuse(self, kind: Kind, code: int, text: str) -> None:
        """A refusal of one request."""
        assert kind.answer is None, text
        assert code == grpc.StatusCode.INVALID_ARGUMENT.value[0], text
        self.ended["invalid"] += 1

    async def unary(self, address: str, num_requests: int) -> None:
        async with grpc.aio.insecure_channel(address, options=_OWN) as channel:
            call = channel.unary_unary(PREDICT)
            left = itertools.count(num_requests, -1)

            async def one_after_the_other() -> None:
                while next(left) > 0:
                    number, kind = self.next()
                    try:
                        data = await call(kind.data, timeout=60)
                    except grpc.aio.AioRpcError as error:
                        self.refuse(kind, error.code().value[0], error.details() or "")
                    else:
                        self.check(number, kind, data)

            await asyncio.gather(*(one_after_the_other() for _ in range(_IN_FLIGHT)))

    async def stream(self, address: str, num_requests: int) -> None:
        async with grpc.aio.insecure_channel(address, options=_OWN) as channel:
            sent: dict[str, tuple[int, Kind]] = {}

            async def requests() -> AsyncIterator[bytes]:
                for _ in range(num_requests):
                    number, kind = self.next()
                    sent[str(number)] = number, kind
                    # Fields of a message may come in pieces.
                    yield kind.data + wire.PredictRequest(request_id=str(number)).SerializeToString()

            async for data in channel.stream_stream(PREDICT_STREAM)(requests()):
                answer = wire.StreamResponse.FromString(data)
                number, kind = sent.pop(answer.request_id)
                if answer.WhichOneof("result") == "error":
                    self.refuse(kind, answer.error.code, answer.error.message)
                else:
                    self.check(number, kind, answer.response.SerializeToString())
            assert not sent

    async def run(self, address: str, num_requests: int) -> None:
        """Half of them over a stream, the others one by one."""
        streamed = num_requests // 2
        await asyncio.gather(self.stream(address, streamed), self.unary(address, num_requests - streamed))


_OWN = (("grpc.use_local_subchannel_pool", 1),)


def kinds_of(small: Exported) -> list[Kind]:
    """Single rows and many, ranking requests, wrong ones."""
    kinds = []
    for seed in range(60):
        sample = small.sample((1, 1, 2, 5, 30)[seed % 5], seed)
        kinds.append(Kind(sample.request().SerializeToString(), small.answer(sample)))
    for seed in range(20):
        sample = small.sample(1, 100 + seed)
        request = sample.request()
        for given, shared in (
            (request.dense, request.context_dense),
            (request.sparse, request.context_sparse),
        ):
            moved = [message for message in given if message.name in CONTEXT]
            for message in moved:
                given.remove(message)
            shared.extend(moved)
        kinds.append(Kind(request.SerializeToString(), small.answer(sample)))
    for seed in range(10):
        request = small.sample(2, 200 + seed).request()
        request.num_rows = 3 + seed
        kinds.append(Kind(request.SerializeToString(), None))
    order = np.random.default_rng(0).permutation(len(kinds))
    return [kinds[i] for i in order]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_requests_of_every_kind_leave_nothing_behind(server: ServerUnderTest, small: Exported) -> None:
    soak = Soak(kinds_of(small))
    asyncio.run(soak.run(server.address, NUM_FIRST))
    before = server.rss_bytes()
    asyncio.run(soak.run(server.address, NUM_REQUESTS - NUM_FIRST))
    after = server.rss_bytes()
    assert soak.ended["ok"] + soak.ended["invalid"] == NUM_REQUESTS
    assert server.total("recsys_requests_accepted_total") == soak.ended["ok"]
    assert server.total("recsys_requests_total", outcome="ok") == soak.ended["ok"]
    assert server.total("recsys_requests_total", outcome="invalid") == soak.ended["invalid"]
    assert server.total("recsys_requests_total") == NUM_REQUESTS
    assert [server.total(f"recsys_pending_{what}") for what in ("rows", "ids", "bytes")] == [0, 0, 0]
    assert after < 1.02 * before, (before, after)
