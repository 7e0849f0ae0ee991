"""Recent answers by request ID, kept for their labels: bounded in bytes and seconds.

Shape letters: B rows of a request.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from serve.config.settings import QualityConfig

#: Memory of an answer and of an ID beside their numbers: objects and entries of tables, as CPython 3.11 has them.
ANSWER_BYTES = 600
EXPIRED_BYTES = 150
# The share of the bytes for IDs whose answers were let go.
_EXPIRED_SHARE = 1 / 8


@dataclass(slots=True, eq=False, kw_only=True)
class KeptAnswer:
    """The scores of one answer.

    Attributes:
        request_id: the ID of its request.
        model: the model that answered.
        version: its version.
        arm: the version's part in the routing, one of ``serve.quality.monitor.ARMS``.
        num_rows: B.
        scores: float32 ``[B]`` by output, of outputs with one number for each row.
        labelled: by label, whether each row has one, ``[B]``.
    """

    request_id: str
    model: str
    version: str
    arm: str
    num_rows: int
    scores: Mapping[str, NDArray[np.float32]]
    labelled: dict[str, NDArray[np.bool_]] = field(default_factory=dict)

    @property
    def num_bytes(self) -> int:
        """Its memory, with the marks of one label."""
        # A character takes up to four bytes.
        texts = 4 * len(self.request_id)
        return ANSWER_BYTES + texts + sum(scores.nbytes for scores in self.scores.values()) + self.num_rows


@dataclass(slots=True, eq=False)
class _Kept:
    """The answers to the requests of one ID."""

    time_s: float
    num_bytes: int
    answers: list[KeptAnswer]


class AnswerStore:
    """Keeps answers until they are too old or too many; the oldest go first. Thread-safe.

    An ID that comes again is as new as its last answer. A second answer of the same version takes the place of the
    first. Of answers that were too old the IDs stay for a while, so that labels that come late are told from those for
    answers that were never kept.

    Args:
        config: bounds of bytes and seconds.
        now: returns the present time in seconds; it never goes back.
    """

    def __init__(self, config: QualityConfig, now: Callable[[], float] = time.monotonic) -> None:
        self._max_bytes, self._within_s = config.max_bytes, config.within_s
        self._now = now
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, _Kept] = OrderedDict()
        self._expired: OrderedDict[str, None] = OrderedDict()
        self._bytes = 0
        self._counts = Counter[str]()

    @property
    def num_bytes(self) -> int:
        """Memory of what is kept."""
        with self._lock:
            return self._bytes + len(self._expired) * EXPIRED_BYTES

    def counts(self) -> dict[str, int]:
        """Return answers by what became of them: ``kept``, ``expired``, ``pushed_out``, ``replaced``, ``too_large``."""
        with self._lock:
            return {
                name: self._counts[name]
                for name in ("kept", "expired", "pushed_out", "replaced", "too_large")
            }

    def put(self, answer: KeptAnswer) -> None:
        """Keep an answer."""
        request_id, num_bytes = answer.request_id, answer.num_bytes
        now_s = self._now()
        with self._lock:
            self._let_go(now_s)
            if num_bytes > self._max_bytes * (1 - _EXPIRED_SHARE):
                self._counts["too_large"] += 1
                return
            kept = self._kept.get(request_id)
            if kept is None:
                kept = self._kept[request_id] = _Kept(now_s, 0, [])
            else:
                self._kept.move_to_end(request_id)
                kept.time_s = now_s
                self._replace(kept, answer)
            kept.answers.append(answer)
            kept.num_bytes += num_bytes
            self._bytes += num_bytes
            self._counts["kept"] += 1
            while self._kept and self._bytes > self._max_bytes * (1 - _EXPIRED_SHARE):
                _, oldest = self._kept.popitem(last=False)
                self._bytes -= oldest.num_bytes
                self._counts["pushed_out"] += len(oldest.answers)

    def get(self, request_id: str) -> list[KeptAnswer]:
        """Return the answers to the requests of an ID; none where no answer is kept."""
        with self._lock:
            self._let_go(self._now())
            kept = self._kept.get(request_id)
            return [] if kept is None else list(kept.answers)

    def has_expired(self, request_id: str) -> bool:
        """Return whether an ID had an answer that is too old, as long as that is known."""
        with self._lock:
            return request_id in self._expired

    def _replace(self, kept: _Kept, answer: KeptAnswer) -> None:
        for i, other in enumerate(kept.answers):
            if (other.model, other.version) == (answer.model, answer.version):
                del kept.answers[i]
                kept.num_bytes -= other.num_bytes
                self._bytes -= other.num_bytes
                self._counts["replaced"] += 1
                return

    def _let_go(self, now_s: float) -> None:
        """Let answers go that are too old. The caller holds the lock."""
        while self._kept:
            request_id, oldest = next(iter(self._kept.items()))
            if now_s - oldest.time_s <= self._within_s:
                break
            del self._kept[request_id]
            self._bytes -= oldest.num_bytes
            self._counts["expired"] += len(oldest.answers)
            self._expired[request_id] = None
            if len(self._expired) * EXPIRED_BYTES > self._max_bytes * _EXPIRED_SHARE:
                self._expired.popitem(last=False)
