"""Recent answers by request ID, kept for their labels in columns: bounded in bytes and seconds.

Shape letters: K answers of a block, B rows of one answer, R rows of all.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import xxhash
from numpy.typing import NDArray

from serve.config.settings import QualityConfig

#: Memory of a block beside its numbers: objects, as CPython 3.11 and numpy have them; and of a label's marks.
BLOCK_BYTES, MARKS_BYTES = 1200, 400
# The share of the bytes for the keys of expired answers.
_EXPIRED_SHARE = 1 / 8
# A block has at most this share of the bytes, so that room is made bit by bit.
_BLOCK_SHARE = 1 / 16


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class ScoredBlock:
    """Scores of answers of one version. It owns its memory.

    Attributes:
        model: the model that answered.
        version: its version.
        arm: the version's part in the routing, ``serving``, ``canary``, ``shadow``, or ``named`` by the request.
        keys: uint64 ``[K]``: ``key_of`` each request ID.
        id_offsets: int64 ``[K + 1]``: offsets of the request IDs.
        ids: the bytes of the request IDs.
        row_offsets: int64 ``[K + 1]``: offsets of the rows.
        scores: float32 ``[R]`` by output, of outputs with one number for each row.
        has: bool ``[K]`` by output, where some answer has no scores of it.
        marks: by place and label, whether each row has one, bool ``[B]``; of labelled answers alone.
    """

    model: str
    version: str
    arm: str
    keys: NDArray[np.uint64]
    id_offsets: NDArray[np.int64]
    ids: bytes
    row_offsets: NDArray[np.int64]
    scores: Mapping[str, NDArray[np.float32]]
    has: Mapping[str, NDArray[np.bool_]] = field(default_factory=dict)
    marks: dict[tuple[int, str], NDArray[np.bool_]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def num_bytes(self) -> int:
        """Its memory, with its entries of the index and without marks of labels."""
        numbers = self.keys.nbytes + self.id_offsets.nbytes + self.row_offsets.nbytes + len(self.ids)
        has = sum(one.nbytes for one in self.has.values())
        scores = sum(one.nbytes for one in self.scores.values())
        return BLOCK_BYTES + numbers + scores + has + ENTRY_BYTES * len(self)

    def part(self, start: int, end: int) -> ScoredBlock:
        """Return a copy of some of its answers."""
        ids, rows = self.id_offsets[start : end + 1], self.row_offsets[start : end + 1]
        return ScoredBlock(
            model=self.model,
            version=self.version,
            arm=self.arm,
            keys=self.keys[start:end].copy(),
            id_offsets=ids - ids[0],
            ids=self.ids[ids[0] : ids[-1]],
            row_offsets=rows - rows[0],
            scores={name: one[rows[0] : rows[-1]].copy() for name, one in self.scores.items()},
            has={name: one[start:end].copy() for name, one in self.has.items()},
        )


@dataclass(frozen=True, slots=True, eq=False)
class KeptAnswer:
    """One answer of a block.

    Attributes:
        number: the block's number in the store.
        block: the block.
        place: its place there.
    """

    number: int
    block: ScoredBlock
    place: int

    @property
    def request_id(self) -> bytes:
        """The ID of its request."""
        start, end = self.block.id_offsets[self.place : self.place + 2].tolist()
        return self.block.ids[start:end]

    @property
    def num_rows(self) -> int:
        """B."""
        start, end = self.block.row_offsets[self.place : self.place + 2].tolist()
        return int(end - start)

    @property
    def scores(self) -> dict[str, NDArray[np.float32]]:
        """float32 ``[B]`` by output, of outputs with one finite number for each row."""
        start, end = self.block.row_offsets[self.place : self.place + 2].tolist()
        has = self.block.has
        return {
            name: numbers[start:end]
            for name, numbers in self.block.scores.items()
            if name not in has or has[name][self.place]
        }


def key_of(request_id: str) -> np.uint64:
    """Return a number by a request ID's hash: the bits of ``serve.engine.records.draw_of``."""
    draw = (xxhash.xxh64_intdigest(_encoded(request_id)) >> 11) * 2.0**-53
    return np.float64(draw).view(np.uint64)


class Found(NamedTuple):
    """What is known of the answers to the requests of an ID.

    Attributes:
        answers: those that are kept, the last one of each version.
        has_expired: whether one was too old.
    """

    answers: list[KeptAnswer]
    has_expired: bool


class AnswerStore:
    """Keeps answers until they are too old or too many; the oldest go first, a block at a time. Thread-safe.

    A second answer of the same version to the same request ID replaces the first. The keys of answers that
    were too old stay for a while, so that labels that come late are told from those for answers that were never kept.

    Args:
        config: bounds of bytes and seconds.
        now: returns the present time in seconds; it never goes back.
    """

    def __init__(self, config: QualityConfig, now: Callable[[], float] = time.monotonic) -> None:
        self._within_s = config.within_s
        self._max_bytes = config.max_bytes * (1 - _EXPIRED_SHARE)
        self._max_expired = int(config.max_bytes * _EXPIRED_SHARE / ENTRY_BYTES)
        self._now = now
        self._lock = threading.Lock()
        self._blocks: OrderedDict[int, tuple[float, ScoredBlock]] = OrderedDict()
        # Blocks that were too old, with the number of their answers.
        self._expired: OrderedDict[int, int] = OrderedDict()
        self._num_expired = 0
        self._index = _KeyIndex(self._known)
        self._next = 0
        self._bytes = 0
        self._counts = Counter[str]()

    @property
    def num_bytes(self) -> int:
        """Memory of what is kept."""
        with self._lock:
            return self._bytes + self._num_expired * ENTRY_BYTES

    def counts(self) -> dict[str, int]:
        """Return answers by what became of them: ``kept``, ``expired``, ``pushed_out``, ``too_large``."""
        with self._lock:
            return {name: self._counts[name] for name in ("kept", "expired", "pushed_out", "too_large")}

    def put(self, answers: ScoredBlock) -> None:
        """Keep answers."""
        now_s = self._now()
        with self._lock:
            self._let_go(now_s)
            for block in self._parts(answers):
                if block.num_bytes > self._max_bytes:
                    self._counts["too_large"] += len(block)
                    continue
                self._blocks[self._next] = now_s, block
                self._index.add(block.keys, self._next)
                self._next += 1
                self._bytes += block.num_bytes
                self._counts["kept"] += len(block)
                self._make_room()

    def get(self, request_ids: Sequence[str]) -> list[Found]:
        """Return for each ID the answers that are kept, and whether others were too old, as long as that is known."""
        keys = np.array([key_of(one) for one in request_ids], np.uint64)
        with self._lock:
            self._let_go(self._now())
            all_entries = self._index.find(keys)
            return [self._found(one, entries) for one, entries in zip(request_ids, all_entries, strict=True)]

    def _found(self, request_id: str, entries: Sequence[tuple[int, int]]) -> Found:
        name = _encoded(request_id)
        answers: dict[tuple[str, str], KeptAnswer] = {}
        for number, place in entries:
            if number in self._blocks:
                answer = KeptAnswer(number, self._blocks[number][1], place)
                if answer.request_id == name:
                    answers[answer.block.model, answer.block.version] = answer
        return Found([*answers.values()], any(number in self._expired for number, _ in entries))

    def marks(self, answer: KeptAnswer, label: str) -> NDArray[np.bool_]:
        """Return whether each row of an answer has a label of this name, bool ``[B]``, to be written to."""
        key = answer.place, label
        with self._lock:
            marks = answer.block.marks.get(key)
            if marks is None:
                marks = np.zeros(answer.num_rows, dtype=np.bool_)
                if answer.number in self._blocks:  # otherwise it has expired meanwhile
                    answer.block.marks[key] = marks
                    self._bytes += _bytes_of_marks(marks)
                    self._make_room()
            return marks

    def _known(self) -> NDArray[np.int64]:
        return np.array([*self._expired, *self._blocks], np.int64)

    def _parts(self, answers: ScoredBlock) -> Iterator[ScoredBlock]:
        """Yield a block in parts that are small beside the room, or of one answer."""
        most = self._max_bytes * _BLOCK_SHARE
        if answers.num_bytes <= most or len(answers) == 1:
            if len(answers):
                yield answers
            return
        half = len(answers) // 2
        yield from self._parts(answers.part(0, half))
        yield from self._parts(answers.part(half, len(answers)))

    def _make_room(self) -> None:
        """Let the oldest go while all take too much. The caller holds the lock."""
        while self._blocks and self._bytes > self._max_bytes:
            _, (_, oldest) = self._blocks.popitem(last=False)
            self._forget(oldest, "pushed_out")

    def _let_go(self, now_s: float) -> None:
        """Let answers go that are too old. The caller holds the lock."""
        while self._blocks:
            number, (time_s, oldest) = next(iter(self._blocks.items()))
            if now_s - time_s <= self._within_s:
                break
            del self._blocks[number]
            self._forget(oldest, "expired")
            self._expired[number] = len(oldest)
            self._num_expired += len(oldest)
            while self._num_expired > self._max_expired:
                self._num_expired -= self._expired.popitem(last=False)[1]

    def _forget(self, block: ScoredBlock, result: str) -> None:
        self._bytes -= block.num_bytes + sum(map(_bytes_of_marks, block.marks.values()))
        self._counts[result] += len(block)


def _encoded(request_id: str) -> bytes:
    # A body of JSON may hold half a character, which no request has.
    return request_id.encode(errors="surrogatepass")


def _bytes_of_marks(marks: NDArray[np.bool_]) -> int:
    return MARKS_BYTES + marks.nbytes


Keys = NDArray[np.uint64]
Places = NDArray[np.int64]
#: Memory of an entry.
ENTRY_BYTES = 20
# So many segments of a level become one of the next: an entry is sorted again once a level.
_FAN_OUT = 8


class Segment(NamedTuple):
    """Some entries, by ascending key.

    Attributes:
        keys: uint64 ``[K]``.
        blocks: int64 ``[K]``: the number of the block that has the answer.
        places: int32 ``[K]``: its place in the block.
        level: how often its entries were put together with others.
    """

    keys: Keys
    blocks: Places
    places: NDArray[np.int32]
    level: int


class _KeyIndex:
    """Sorted segments, of which there are few. Not thread-safe.

    Args:
        known: returns the numbers of the blocks that are still known, ascending; entries of others go.
    """

    def __init__(self, known: Callable[[], Places]) -> None:
        self._known = known
        self._segments: list[Segment] = []

    def add(self, keys: Keys, block: int) -> None:
        """Add a block, whose number is larger than those before.

        Args:
            keys: of its answers, ``[K]``.
            block: its number.
        """
        order = np.argsort(keys)
        blocks = np.full(len(keys), block, np.int64)
        self._segments.append(Segment(keys[order], blocks, order.astype(np.int32), 0))
        while len(self._segments) >= _FAN_OUT and self._segments[-_FAN_OUT].level == self._segments[-1].level:
            self._segments[-_FAN_OUT:] = [self._merged(self._segments[-_FAN_OUT:])]

    def find(self, keys: Keys) -> list[list[tuple[int, int]]]:
        """Return for each key the number of the block and the place in it of each entry, the oldest first."""
        found: list[list[tuple[int, int]]] = [[] for _ in keys]
        for segment in self._segments:
            starts = np.searchsorted(segment.keys, keys, side="left")
            ends = np.searchsorted(segment.keys, keys, side="right")
            for at in np.flatnonzero(ends > starts).tolist():
                part = slice(starts[at], ends[at])
                found[at] += zip(segment.blocks[part].tolist(), segment.places[part].tolist(), strict=True)
        for entries in found:
            entries.sort()
        return found

    def _merged(self, segments: list[Segment]) -> Segment:
        blocks = np.concatenate([one.blocks for one in segments])
        known = self._known()
        at = np.minimum(np.searchsorted(known, blocks), max(len(known) - 1, 0))
        kept = np.flatnonzero(known[at] == blocks) if len(known) else np.empty(0, np.int64)
        keys = np.concatenate([one.keys for one in segments])[kept]
        places = np.concatenate([one.places for one in segments])[kept]
        order = np.argsort(keys)
        return Segment(keys[order], blocks[kept][order], places[order], segments[-1].level + 1)
