"""What the small model says of itself, without a server; and a clock-free sender."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from serve.bench.load.measured import Failure
from serve.bench.load.requests import Prepared
from serve.config.models import BatchLimits
from serve.wire import predict_pb2 as wire
from tests.support.serve.models import SIGNATURE

LIMITS = BatchLimits()


def small_metadata(*context: str) -> wire.ModelMetadata:
    """Metadata of the signature that all tests of the server use."""
    made = wire.ModelMetadata(model="small", version="7", target="cpu", context=context)
    for dense in SIGNATURE.dense:
        made.dense.add(name=dense.name, width=dense.width)
    for sparse in SIGNATURE.sparse:
        entry = made.sparse.add(name=sparse.name, weighted=sparse.weighted)
        for table in sparse.tables:
            entry.tables.add(name=table.name, num_embeddings=table.num_embeddings)
        if sparse.id_limit is not None:
            entry.id_limit = sparse.id_limit
    return made


class ScriptedSender:
    """Ends each request as the test says.

    Args:
        answer: called with the number of each request, from 0; what it gives is how the request ended.
    """

    def __init__(self, answer: Callable[[int], Failure | None]) -> None:
        self._answer = answer
        self.sent: list[Prepared] = []
        self.num_in_flight = 0
        self.most_in_flight = 0

    async def open(self) -> None:
        """Nothing to connect."""

    async def send(self, request: Prepared) -> Failure | None:
        number = len(self.sent)
        self.sent.append(request)
        self.num_in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.num_in_flight)
        await asyncio.sleep(0)
        self.num_in_flight -= 1
        return self._answer(number)

    async def close(self) -> None:
        """Nothing to close."""
