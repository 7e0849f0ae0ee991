"""The requests that a process sends over and over, and the users whose contexts they have."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from serve.bench.load.ids import Zipf
from serve.bench.load.requests import Prepared, Shape, draw_requests
from serve.wire import predict_pb2 as wire

# Distinct requests are generated up to this size; then they are repeated.
_MOST_POOL_BYTES = 256 << 20
# Rows drawn at a time: enough for numpy to be fast, few enough to need little memory.
_DRAW_ROWS = 1 << 14
# Users whose contexts are drawn together.
_BLOCK_USERS = 256
# Separate these uses of the seed from others (numpy's SeedSequence).
_REQUESTS, _USERS = 0, 4


def request_generator(seed: int, index: int = 0) -> np.random.Generator:
    """Return the random generator for one process's requests."""
    return np.random.default_rng([seed, index, _REQUESTS, 0])


class Users:
    """Users, each with a context that is the same in every request and process.

    Args:
        metadata: metadata of the model, from the server.
        shape: shape of the requests.
        seed: seed of everything that is random.
    """

    def __init__(self, metadata: wire.ModelMetadata, shape: Shape, seed: int) -> None:
        self._shape = Shape(
            ranking=True,
            ids_per_bag=shape.ids_per_bag,
            ids_per_bag_of=shape.ids_per_bag_of,
            zipf=shape.zipf,
            texts=shape.texts,
            like_examples=shape.like_examples,
            has_bag_sizes=shape.has_bag_sizes,
        )
        self._num = shape.users
        self._seed = seed
        self._contexts = wire.ModelMetadata()
        self._contexts.CopyFrom(metadata)
        for inputs in (self._contexts.dense, self._contexts.sparse):
            kept = [one for one in inputs if one.name in metadata.context]
            del inputs[:]
            inputs.extend(kept)
        self._known: dict[int, wire.PredictRequest] = {}

    def draw(self, count: int, generator: np.random.Generator) -> list[wire.PredictRequest]:
        """Return the contexts of so many random users."""
        if self._shape.zipf:
            users = Zipf(self._num, self._shape.zipf).draw(count, generator) - 1
        else:
            users = generator.integers(0, self._num, count, np.int64)
        self._learn(np.unique(users))
        return [self._known[user] for user in users.tolist()]

    def _learn(self, users: npt.NDArray[np.int64]) -> None:
        missing = [user for user in users.tolist() if user not in self._known]
        for block in sorted({user // _BLOCK_USERS for user in missing}):
            generator = np.random.default_rng([self._seed, block, _USERS, 0])
            drawn = draw_requests(self._contexts, self._shape, _BLOCK_USERS, generator)
            of_block = [request for request, _ in drawn]
            for user in missing:
                if user // _BLOCK_USERS == block:
                    self._known[user] = of_block[user % _BLOCK_USERS]


def prepare(
    metadata: wire.ModelMetadata,
    shape: Shape,
    encode: Callable[[wire.PredictRequest], bytes],
    generator: np.random.Generator,
    seed: int = 0,
) -> list[Prepared]:
    """Return the requests that a process sends repeatedly.

    Args:
        metadata: metadata of the model, from the server.
        shape: shape of the requests.
        encode: turns a request into bytes of the protocol.
        generator: source of random numbers.
        seed: seed of the users, the same in every process.
    """
    if shape.payload_bytes:
        return [Prepared(data=b"\xff" * shape.payload_bytes, num_rows=1)]
    users = Users(metadata, shape, seed) if shape.users else None
    found: list[Prepared] = []
    num_bytes = 0
    per_draw = max(_DRAW_ROWS // max(shape.rows.most, 1), 1)
    while len(found) < shape.num_distinct and num_bytes < _MOST_POOL_BYTES:
        count = min(per_draw, shape.num_distinct - len(found))
        deadlines_ms = shape.deadlines_ms.draw(count, generator) if shape.deadlines_ms else None
        contexts = None if users is None else users.draw(count, generator)
        for i, (request, kind) in enumerate(draw_requests(metadata, shape, count, generator, contexts)):
            deadline_s = None if deadlines_ms is None else int(deadlines_ms[i]) * 1e-3
            data = encode(request)
            num_bytes += len(data)
            found.append(Prepared(data=data, num_rows=request.num_rows, kind=kind, deadline_s=deadline_s))
    return found
