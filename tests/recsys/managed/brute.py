"""The mapping written down with dicts: what the tensors must agree with."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence


class BruteMapping:
    """Who owns a row, by the rules of ``recsys.managed.mapping.admit``, one ID at a time.

    Args:
        zch_size: rows, the last of which is nobody's.
        policy: "lfu", "lru" or "distance".
        interval: batches between two admissions.
    """

    def __init__(self, zch_size: int, policy: str, interval: int) -> None:
        self.num_slots = zch_size - 1
        self.policy = policy
        self.interval = interval
        self.row_of: dict[int, int] = {}
        self.count: Counter[int] = Counter()
        self.last: dict[int, int] = {}
        self.step = 0
        self._new_count: Counter[int] = Counter()
        self._new_last: dict[int, int] = {}

    def score(self, count: int, last: int) -> float:
        if self.policy == "lfu":
            return count
        return last if self.policy == "lru" else count / (self.step - last + 1)

    def batch(self, ids: Sequence[int]) -> set[int]:
        """Learn from a batch; the rows that changed hands."""
        self.step += 1
        self._new_count.update(ids)
        self._new_last.update(dict.fromkeys(ids, self.step))
        if self.step % self.interval:
            return set()
        for raw in list(self._new_count):
            if raw in self.row_of:
                self.count[raw] += self._new_count.pop(raw)
                self.last[raw] = self._new_last.pop(raw)
        candidates = sorted(
            self._new_count,
            key=lambda raw: (
                -self.score(self._new_count[raw], self._new_last[raw]),
                -self._new_count[raw],
                raw,
            ),
        )
        changed = set()
        old = sorted(self.row_of, key=lambda raw: (self.score(self.count[raw], self.last[raw]), -raw))
        for raw in candidates:
            if len(self.row_of) < self.num_slots:
                row = min(set(range(self.num_slots)) - set(self.row_of.values()))
            elif old and self.score(self.count[old[0]], self.last[old[0]]) < self.score(
                self._new_count[raw], self._new_last[raw]
            ):
                row = self.row_of.pop(old.pop(0))
                changed.add(row)
            else:
                break
            self.row_of[raw] = row
            self.count[raw], self.last[raw] = self._new_count[raw], self._new_last[raw]
        self._new_count, self._new_last = Counter(), {}
        return changed

    def rows(self, ids: Sequence[int]) -> list[int]:
        return [self.row_of.get(raw, self.num_slots) for raw in ids]
