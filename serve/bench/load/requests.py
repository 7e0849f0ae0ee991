"""Random requests of a given shape, generated before the first one is sent.

Options give weighted numbers as ``8``, ``1:0.9,50:0.1``, ``0-20``, ``high:0.1,normal:0.9``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from serve.bench.load.ids import draw_ids
from serve.client.sampling import id_limit, takes_texts, text_of
from serve.wire import predict_pb2 as wire

#: Priorities by the names that options give them.
PRIORITIES = {
    "high": int(wire.PRIORITY_HIGH),
    "normal": int(wire.PRIORITY_NORMAL),
    "low": int(wire.PRIORITY_LOW),
}
_PRIORITY_NAMES = {number: name for name, number in PRIORITIES.items()}
_MOST = 10**9

_Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Part:
    """One choice: the whole numbers from ``least`` to ``most``, each as likely as the others."""

    least: int
    most: int
    weight: float

    @property
    def label(self) -> str:
        """Return the choice in the option's form."""
        return str(self.least) if self.least == self.most else f"{self.least}-{self.most}"


@dataclass(frozen=True)
class Mix:
    """A weighted mix of ranges of integers.

    Attributes:
        parts: one or more, with weights above 0.
    """

    parts: tuple[Part, ...]

    @classmethod
    def of(cls, number: int) -> Mix:
        """Return the mix of one number."""
        return cls((Part(number, number, 1.0),))

    @property
    def most(self) -> int:
        """The largest number that can be drawn."""
        return max(part.most for part in self.parts)

    @property
    def mean(self) -> float:
        """The mean of the numbers that are drawn."""
        total = sum(part.weight for part in self.parts)
        return sum(part.weight * (part.least + part.most) / 2 for part in self.parts) / total

    def draw_parts(self, count: int, generator: np.random.Generator) -> npt.NDArray[np.int64]:
        """Return the number of the part for each draw, ``[count]``."""
        if len(self.parts) == 1:
            return np.zeros(count, np.int64)
        weights = np.array([part.weight for part in self.parts])
        return generator.choice(len(self.parts), count, p=weights / weights.sum()).astype(np.int64)

    def draw_from(
        self, parts: npt.NDArray[np.int64], generator: np.random.Generator
    ) -> npt.NDArray[np.int64]:
        """Return a number of each given part, ``[count]``."""
        least = np.array([part.least for part in self.parts], np.int64)
        most = np.array([part.most for part in self.parts], np.int64)
        return generator.integers(least[parts], most[parts] + 1)

    def draw(self, count: int, generator: np.random.Generator) -> npt.NDArray[np.int64]:
        """Return numbers, ``[count]``."""
        return self.draw_from(self.draw_parts(count, generator), generator)

    def __str__(self) -> str:
        if len(self.parts) == 1:
            return self.parts[0].label
        return ",".join(f"{part.label}:{part.weight:g}" for part in self.parts)


def parse_mix(text: str, *, least: int = 0) -> Mix:
    """Return a mix of whole numbers.

    Args:
        text: parts separated by commas; a part is ``N`` or ``N-M``, with ``:WEIGHT`` where there is more than one.
        least: the smallest number that is allowed.

    Raises:
        ValueError: the text does not have that form.
    """
    parts = []
    for choice, weight in _weighted(text):
        match = re.fullmatch(r"([0-9]{1,10})(?:-([0-9]{1,10}))?", choice)
        first = int(match[1]) if match else -1
        last = int(match[2]) if match and match[2] else first
        if not least <= first <= last <= _MOST:
            raise ValueError(
                f"got {choice[:40]!r}, expected a whole number from {least} to {_MOST}, or a range such as 1-20"
            )
        parts.append(Part(first, last, weight))
    return Mix(tuple(parts))


def parse_names(text: str, numbers: Mapping[str, int]) -> Mix:
    """Return a mix of names.

    Args:
        text: ``NAME`` or ``NAME:WEIGHT,NAME:WEIGHT``.
        numbers: the number of each name.

    Raises:
        ValueError: the text does not have that form.
    """
    parts = []
    for choice, weight in _weighted(text):
        if choice not in numbers:
            raise ValueError(f"got {choice[:40]!r}, expected one of {', '.join(numbers)}")
        parts.append(Part(numbers[choice], numbers[choice], weight))
    return Mix(tuple(parts))


def _weighted(text: str) -> Sequence[tuple[str, float]]:
    """Return each choice with its weight; a single one needs none."""
    pieces = [piece.strip() for piece in text.split(",")]
    found = []
    for piece in pieces:
        choice, colon, weight_text = piece.partition(":")
        if not colon and len(pieces) > 1:
            raise ValueError(f"got {piece[:40]!r}, expected CHOICE:WEIGHT where there are several choices")
        try:
            weight = float(weight_text) if colon else 1.0
        except ValueError:
            weight = math.nan
        if not 0 < weight < math.inf:
            raise ValueError(
                f"got the weight {weight_text[:40]!r} of {choice[:40]!r}, expected a number above 0"
            )
        found.append((choice, weight))
    return found


_ONE = Mix.of(1)


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The shape of requests.

    Attributes:
        rows: rows of each request; of a ranking request its candidates.
        ranking: whether to give the model's context inputs once per request.
        ids_per_bag: IDs of a row in each sparse input whose bags the model takes in any size.
        ids_per_bag_of: the same for inputs by name, whatever the model says.
        zipf: exponent of the distribution of IDs, and of users; 0 for uniform.
        users: contexts of ranking requests that there are; 0 for one of its own for each.
        priorities: numbers of the wire's priorities; None for requests without one.
        deadlines_ms: deadline of each request; None for the tool's timeout.
        num_distinct: number of requests to generate; fewer if they are large.
        payload_bytes: size of a meaningless message to send instead of all that, for servers that answer any;
            0 for none.
        model: model of each request; empty for the server's only model.
        version: version of each request; empty to let the server's routing choose.
        texts: whether inputs whose texts the server hashes get texts, as their clients send; else IDs.
        like_examples: whether numbers, sizes of bags and raw IDs are those of the model's examples, where it has any.
        has_bag_sizes: whether ``ids_per_bag`` counts beside the sizes of the examples' bags.
    """

    rows: Mix = _ONE
    ranking: bool = False
    ids_per_bag: Mix = _ONE
    ids_per_bag_of: Mapping[str, Mix] = field(default_factory=dict)
    zipf: float = 0.0
    users: int = 0
    priorities: Mix | None = None
    deadlines_ms: Mix | None = None
    num_distinct: int = 4096
    payload_bytes: int = 0
    model: str = ""
    version: str = ""
    texts: bool = True
    like_examples: bool = True
    has_bag_sizes: bool = False

    def kind(self, part: int, priority: int) -> str:
        """Return the name of a request's kind in the result; empty where all requests are alike."""
        words = []
        if self.priorities is not None and len(self.priorities.parts) > 1:
            words.append(_PRIORITY_NAMES[priority])
        if len(self.rows.parts) > 1:
            label = self.rows.parts[part].label
            words.append(f"{label} row" if label == "1" else f"{label} rows")
        return ", ".join(words)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A serialized request.

    Attributes:
        data: serialized message.
        num_rows: rows of the request.
        kind: name of its kind in the result; empty where all requests are alike.
        deadline_s: None for the tool's timeout.
    """

    data: bytes
    num_rows: int
    kind: str = ""
    deadline_s: float | None = None


def draw_requests(
    metadata: wire.ModelMetadata,
    shape: Shape,
    count: int,
    generator: np.random.Generator,
    contexts: Sequence[wire.PredictRequest] | None = None,
) -> Iterator[tuple[wire.PredictRequest, str]]:
    """Yield valid requests with their kinds: weights between 0 and 1, and standard normal dense inputs.

    Where the metadata has examples, dense inputs, sizes of bags and the bags of tables that map raw IDs are those of
    random rows of them. Other IDs are drawn from whole tables, because a few rows would be in the caches.

    Args:
        metadata: metadata of the model, as the server gives it.
        shape: shape of the requests.
        count: number of requests; all are drawn at once.
        generator: source of random numbers.
        contexts: requests with the context inputs of each of them; None to draw these too.
    """
    parts = shape.rows.draw_parts(count, generator)
    rows = shape.rows.draw_from(parts, generator)
    priorities = shape.priorities.draw(count, generator) if shape.priorities else np.zeros(count, np.int64)
    requests = [
        wire.PredictRequest(model=shape.model, version=shape.version, num_rows=num_rows, priority=priority)
        for num_rows, priority in zip(rows.tolist(), priorities.tolist(), strict=True)
    ]
    context = set(metadata.context) if shape.ranking else set()
    examples = metadata.examples if shape.like_examples and metadata.examples.num_rows else None
    for request, known in zip(requests, contexts or (), strict=contexts is not None):
        request.context_dense.extend(known.context_dense)
        request.context_sparse.extend(known.context_sparse)
    for dense in metadata.dense:
        is_context = dense.name in context
        if is_context and contexts is not None:
            continue
        borders = _borders(np.ones_like(rows) if is_context else rows)
        values = _draw_dense(dense, int(borders[-1]), examples, generator)
        for i, request in enumerate(requests):
            into = request.context_dense if is_context else request.dense
            into.add(name=dense.name, values=values[borders[i] : borders[i + 1]].tobytes())
    equal: dict[str, _Ints] = {}
    for sparse in metadata.sparse:
        is_context = sparse.name in context
        if is_context and contexts is not None:
            continue
        of_example = next((s for s in examples.sparse if s.name == sparse.name), None) if examples else None
        of_rows = np.ones_like(rows) if is_context else rows
        group = [
            s
            for s in metadata.sparse
            if (sparse.same_lengths_as or sparse.name) in (s.name, s.same_lengths_as)
        ]
        lengths = None
        if len(group) > 1:
            if group[0].name not in equal:
                # An input that is given once has as many in all rows of a request, and so have the others.
                is_once = any(s.name in context for s in group)
                of_users = _lengths_of(contexts, [s.name for s in group]) if is_once and contexts else None
                drawn_lengths = (
                    _mix_of(group[0], shape).draw(len(rows) if is_once else int(rows.sum()), generator)
                    if of_users is None
                    else of_users
                )
                equal[group[0].name] = np.repeat(drawn_lengths, rows) if is_once else drawn_lengths
            lengths = equal[group[0].name]
            lengths = lengths[_borders(rows)[:-1]] if is_context else lengths
        drawn = _draw_sparse(sparse, of_rows, shape, generator, of_example, lengths)
        for request, message in zip(requests, drawn, strict=True):
            (request.context_sparse if is_context else request.sparse).append(message)
    for request, part, priority in zip(requests, parts.tolist(), priorities.tolist(), strict=True):
        yield request, shape.kind(part, priority)


def _lengths_of(contexts: Sequence[wire.PredictRequest], names: Sequence[str]) -> _Ints:
    """Return the number of IDs of each context in one of some inputs."""
    name = next(sparse.name for sparse in contexts[0].context_sparse if sparse.name in names)
    found = [sparse.lengths for known in contexts for sparse in known.context_sparse if sparse.name == name]
    return np.frombuffer(b"".join(found), "<i4").astype(np.int64)


def _draw_dense(
    dense: wire.DenseSignature,
    count: int,
    examples: wire.PredictRequest | None,
    generator: np.random.Generator,
) -> npt.NDArray[np.float32]:
    """Return rows of a dense input, ``[count, width]``."""
    held = next((d for d in examples.dense if d.name == dense.name), None) if examples else None
    if held is None or not examples:
        return generator.standard_normal((count, dense.width), np.float32).astype("<f4")
    known = np.frombuffer(held.values, "<f4").reshape(examples.num_rows, dense.width)
    return known[generator.integers(0, examples.num_rows, count)]


def _draw_sparse(
    sparse: wire.SparseSignature,
    rows: _Ints,
    shape: Shape,
    generator: np.random.Generator,
    example: wire.SparseInput | None = None,
    lengths: _Ints | None = None,
) -> Iterator[wire.SparseInput]:
    """Yield one sparse input of all requests; ``rows`` says how many rows each request has of it.

    ``lengths`` are given where they are those of another input.
    """
    borders = _borders(rows)
    is_chosen = lengths is not None or sparse.name in shape.ids_per_bag_of or shape.has_bag_sizes
    sizes = None if is_chosen or example is None else _sizes(example)
    if sizes is not None:
        assert example is not None
        chosen = generator.integers(0, len(sizes), int(borders[-1]))
        is_mapped = any(table.id_policy == wire.ID_POLICY_MAPPED for table in sparse.tables)
        if is_mapped and (shape.texts or not example.strings):
            yield from _picked_bags(example, chosen, borders)
            return
    if lengths is None:
        lengths = _mix_of(sparse, shape).draw(int(borders[-1]), generator) if sizes is None else sizes[chosen]
    ends = _borders(lengths)
    ids = draw_ids(int(ends[-1]), id_limit(sparse), shape.zipf, generator).astype("<i8")
    weights = generator.random(len(ids), np.float32).astype("<f4") if sparse.weighted else None
    lengths_i32 = lengths.astype("<i4")
    texts = [text_of(i).encode() for i in ids.tolist()] if shape.texts and takes_texts(sparse) else None
    for first, last in pairwise(borders.tolist()):
        start, end = ends[first], ends[last]
        yield wire.SparseInput(
            name=sparse.name,
            lengths=lengths_i32[first:last].tobytes(),
            values=ids[start:end].tobytes() if texts is None else b"",
            strings=None if texts is None else texts[start:end],
            weights=b"" if weights is None else weights[start:end].tobytes(),
        )


def _mix_of(sparse: wire.SparseSignature, shape: Shape) -> Mix:
    """Return the mix of the numbers of IDs in an input's bags."""
    mix = shape.ids_per_bag_of.get(sparse.name)
    if mix is None:
        mix = Mix.of(sparse.num_ids) if sparse.HasField("num_ids") else shape.ids_per_bag
    return mix


def _sizes(example: wire.SparseInput) -> _Ints:
    """Return the number of IDs of each row of an input."""
    return np.frombuffer(example.lengths, "<i4").astype(np.int64)


def _picked_bags(example: wire.SparseInput, chosen: _Ints, borders: _Ints) -> Iterator[wire.SparseInput]:
    """Yield the input of each request with the bags of the chosen rows of an example."""
    sizes = _sizes(example)
    ends = _borders(sizes).tolist()
    ids = np.frombuffer(example.values, "<i8")
    for first, last in pairwise(borders.tolist()):
        rows = chosen[first:last].tolist()
        bags = [slice(ends[row], ends[row + 1]) for row in rows]
        yield wire.SparseInput(
            name=example.name,
            lengths=sizes[rows].astype("<i4").tobytes(),
            values=b"" if example.strings else b"".join(ids[bag].tobytes() for bag in bags),
            strings=[text for bag in bags for text in example.strings[bag]],
        )


def _borders(counts: _Ints) -> Any:
    """Return where each run starts and where the last one ends, ``[count + 1]``."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(counts, dtype=np.int64)])
