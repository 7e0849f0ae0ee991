"""Random requests of the shape that was asked for, made before the first one is sent."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from serve.bench.ids import draw_ids
from serve.bench.mixes import Mix, Part
from serve.sampling import id_limit
from serve.wire import predict_pb2 as wire

#: Priorities by the names that options give them.
PRIORITIES = {
    "high": int(wire.PRIORITY_HIGH),
    "normal": int(wire.PRIORITY_NORMAL),
    "low": int(wire.PRIORITY_LOW),
}
_PRIORITY_NAMES = {number: name for name, number in PRIORITIES.items()}
# Distinct requests are made until they take that much; then they are sent again.
_MOST_POOL_BYTES = 256 << 20
# Rows that are drawn at a time: numpy is at its best, and no draw takes much memory.
_DRAW_ROWS = 1 << 14

_Ints = npt.NDArray[np.int64]
_ONE = Mix((Part(1, 1, 1.0),))


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What requests look like.

    Attributes:
        rows: of each request; of a ranking request its candidates.
        ranking: whether the model's context inputs are given once per request.
        ids_per_bag: IDs of a row in each sparse input.
        ids_per_bag_of: the same for inputs by name.
        zipf: exponent of the IDs' distribution; 0 for uniform.
        priorities: numbers of the wire's priorities; None says none.
        deadlines_ms: the time that the server is given for each request; None says none but the tool's timeout.
        num_distinct: requests that are made; fewer where they are large.
        model: to ask for; empty for the one that the server holds.
        version: to ask for; empty for what the server's routing chooses.
    """

    rows: Mix = _ONE
    ranking: bool = False
    ids_per_bag: Mix = _ONE
    ids_per_bag_of: Mapping[str, Mix] = field(default_factory=dict)
    zipf: float = 0.0
    priorities: Mix | None = None
    deadlines_ms: Mix | None = None
    num_distinct: int = 4096
    model: str = ""
    version: str = ""

    def kind(self, part: int, priority: int) -> str:
        """What tells a request from the others in the result; empty where all are alike."""
        words = []
        if self.priorities is not None and len(self.priorities.parts) > 1:
            words.append(_PRIORITY_NAMES[priority])
        if len(self.rows.parts) > 1:
            label = self.rows.parts[part].label
            words.append(f"{label} row" if label == "1" else f"{label} rows")
        return ", ".join(words)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A request as it goes on the wire.

    Attributes:
        data: serialized.
        num_rows: of it.
        kind: what tells it from others in the result.
        deadline_s: the time that the server is given; None for the tool's timeout.
    """

    data: bytes
    num_rows: int
    kind: str = ""
    deadline_s: float | None = None


def prepare(
    metadata: wire.ModelMetadata,
    shape: Shape,
    encode: Callable[[wire.PredictRequest], bytes],
    generator: np.random.Generator,
) -> list[Prepared]:
    """The requests that a process sends, over and over.

    Args:
        metadata: the model's, as the server gives it.
        shape: of the requests.
        encode: a request to bytes of the protocol that is spoken.
        generator: where the numbers come from.
    """
    found: list[Prepared] = []
    num_bytes = 0
    per_draw = max(_DRAW_ROWS // max(shape.rows.most, 1), 1)
    while len(found) < shape.num_distinct and num_bytes < _MOST_POOL_BYTES:
        count = min(per_draw, shape.num_distinct - len(found))
        deadlines_ms = shape.deadlines_ms.draw(count, generator) if shape.deadlines_ms else None
        for i, (request, kind) in enumerate(draw_requests(metadata, shape, count, generator)):
            deadline_s = None if deadlines_ms is None else int(deadlines_ms[i]) * 1e-3
            data = encode(request)
            num_bytes += len(data)
            found.append(Prepared(data=data, num_rows=request.num_rows, kind=kind, deadline_s=deadline_s))
    return found


def draw_requests(
    metadata: wire.ModelMetadata, shape: Shape, count: int, generator: np.random.Generator
) -> Iterator[tuple[wire.PredictRequest, str]]:
    """Valid requests with their kinds: standard normal dense inputs, weights between 0 and 1.

    Args:
        metadata: the model's, as the server gives it.
        shape: of the requests.
        count: how many; all are drawn at once.
        generator: where the numbers come from.
    """
    parts = shape.rows.draw_parts(count, generator)
    rows = shape.rows.draw_from(parts, generator)
    priorities = shape.priorities.draw(count, generator) if shape.priorities else np.zeros(count, np.int64)
    requests = [
        wire.PredictRequest(model=shape.model, version=shape.version, num_rows=num_rows, priority=priority)
        for num_rows, priority in zip(rows.tolist(), priorities.tolist(), strict=True)
    ]
    context = set(metadata.context) if shape.ranking else set()
    for dense in metadata.dense:
        is_context = dense.name in context
        borders = _borders(np.ones_like(rows) if is_context else rows)
        values = generator.standard_normal((int(borders[-1]), dense.width), np.float32).astype("<f4")
        for i, request in enumerate(requests):
            into = request.context_dense if is_context else request.dense
            into.add(name=dense.name, values=values[borders[i] : borders[i + 1]].tobytes())
    for sparse in metadata.sparse:
        is_context = sparse.name in context
        drawn = _draw_sparse(sparse, np.ones_like(rows) if is_context else rows, shape, generator)
        for request, message in zip(requests, drawn, strict=True):
            (request.context_sparse if is_context else request.sparse).append(message)
    for request, part, priority in zip(requests, parts.tolist(), priorities.tolist(), strict=True):
        yield request, shape.kind(part, priority)


def _draw_sparse(
    sparse: wire.SparseSignature, rows: _Ints, shape: Shape, generator: np.random.Generator
) -> Iterator[wire.SparseInput]:
    """One sparse input of all requests, which have that many rows of it."""
    borders = _borders(rows)
    mix = shape.ids_per_bag_of.get(sparse.name, shape.ids_per_bag)
    lengths = mix.draw(int(borders[-1]), generator)
    ends = _borders(lengths)
    ids = draw_ids(int(ends[-1]), id_limit(sparse), shape.zipf, generator).astype("<i8")
    weights = generator.random(len(ids), np.float32).astype("<f4") if sparse.weighted else None
    lengths_i32 = lengths.astype("<i4")
    for first, last in pairwise(borders.tolist()):
        start, end = ends[first], ends[last]
        yield wire.SparseInput(
            name=sparse.name,
            lengths=lengths_i32[first:last].tobytes(),
            values=ids[start:end].tobytes(),
            weights=b"" if weights is None else weights[start:end].tobytes(),
        )


def _borders(counts: _Ints) -> Any:
    """Where each run starts and the last one ends, ``[count + 1]``."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(counts, dtype=np.int64)])
