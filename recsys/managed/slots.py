"""The stored form of a mapping: a hash table whose size depends only on the number of rows, changed a bucket at a time.

A bucket is 64 bytes: four raw IDs, then their rows; row -1 marks a free slot. An ID is in one of two buckets that its
hash selects, so a lookup reads two cache lines however many IDs there are. Buckets are a power of two, and at most
three quarters of their slots are used; where both buckets of a new ID are full, IDs move to their other bucket until
there is room (cuckoo hashing). The IDs of different tables are in different runs of buckets.

What a lookup finds depends only on which IDs own which rows, and not on the order in which they came.

Shape letters: N raw IDs to place, K raw IDs to remove, Q buckets of a table, U buckets that may change.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from recsys.ops import multiplied_bits

#: Slots of a bucket.
SLOTS = 4
#: Numbers of a bucket: raw IDs, then rows.
WIDTH = 2 * SLOTS
#: A table has no more rows than this: bits of a hash select a bucket.
MAX_ROWS = 2**32
_FREE = -1
_HALF = 32
# Buckets that are searched for a free slot before a table counts as full. With four fifths of the slots used, a search
# looks at some dozens.
_MOST_SEARCHED = 4096
# IDs that are looked up at a time where all of a mapping are checked: each takes about 200 bytes meanwhile.
_CHECKED_IDS = 1 << 18


# Numbers that are fewer than this share of what they can be are sorted; marks for all are faster otherwise.
_SORTED_SHARE = 16


class FullMappingError(ValueError):
    """There is no slot for a raw ID in its two buckets, and none can be made."""


def num_buckets_of(num_rows: int) -> int:
    """Return the number of buckets for a table, at most three quarters full if each row has an ID.

    Args:
        num_rows: Rows of the table, from 1 to ``MAX_ROWS``.
    """
    # Some more than needed: in tables of few rows, IDs could all want the same buckets.
    return 1 << (num_rows // 3 + 15).bit_length()


def empty_slots(num_buckets: int) -> Tensor:
    """Return buckets without IDs, ``[Q, WIDTH]`` int64."""
    slots = torch.zeros(num_buckets, WIDTH, dtype=torch.int64)
    slots[:, SLOTS:] = _FREE
    return slots


def placeholder(num_buckets: int) -> Tensor:
    """Return buckets without IDs that need no memory, ``[Q, WIDTH]`` int64, for graphs that get others when loaded."""
    return torch.full((1, 1), _FREE).expand(num_buckets, WIDTH)


def buckets_of(ids: Tensor, masks: Tensor | int) -> tuple[Tensor, Tensor]:
    """Return the two buckets of each raw ID within its table; they differ. Traceable by FX.

    Args:
        ids: ``[N]`` int64.
        masks: The number of buckets less one, for each ID or all, at least 1.
    """
    hashes = multiplied_bits(ids)
    first = torch.bitwise_and(hashes, masks)
    other = torch.bitwise_or(torch.bitwise_and(torch.bitwise_right_shift(hashes, _HALF), masks), 1)
    return first, torch.bitwise_xor(first, other)


def owners_of(slots: Tensor) -> tuple[Tensor, Tensor]:
    """Return the raw IDs in some buckets, ascending, and their rows, as a module's ``owners()``."""
    ids, rows = slots[:, :SLOTS], slots[:, SLOTS:]
    is_used = rows >= 0
    ids, order = ids[is_used].sort()
    return ids, rows[is_used][order]


def rows_in(slots: Tensor, ids: Tensor) -> Tensor:
    """Return the row of each raw ID in a table's buckets, ``[N]`` int64; -1 for those that own none."""
    both = torch.stack(buckets_of(ids, slots.size(0) - 1), dim=1).view(-1)
    found = slots.index_select(0, both).view(-1, 2, WIDTH)
    is_equal = torch.eq(found[:, :, :SLOTS], ids.view(-1, 1, 1))
    return torch.where(is_equal, found[:, :, SLOTS:], _FREE).amax(dim=(1, 2))


def changed_buckets(slots: Tensor, ids: Tensor, rows: Tensor, removed: Tensor) -> tuple[Tensor, Tensor]:
    """Return what a table's buckets hold once IDs were removed and others placed. Nothing changes yet.

    Args:
        slots: ``[Q, WIDTH]`` int64, in host memory.
        ids: ``[N]`` int64, each once, in none of the slots unless they are removed too.
        rows: ``[N]`` int64, their rows.
        removed: ``[K]`` int64, IDs in the slots.

    Returns:
        The numbers of the buckets that change, ``[U]`` int64, ascending, and their new contents, ``[U, WIDTH]`` int64.

    Raises:
        FullMappingError: An ID has no place.
    """
    work = _Work(slots, torch.cat([removed, ids]))
    work.remove(removed.numpy(), slice(0, removed.numel()))
    work.place(ids.numpy(), rows.numpy(), slice(removed.numel(), None))
    return work.changes()


class _Work:
    """Copies of the buckets that some IDs can be in.

    Args:
        slots: The table's buckets.
        ids: The IDs.
    """

    def __init__(self, slots: Tensor, ids: Tensor) -> None:
        self._slots: Any = slots.numpy()
        self._both = np.stack([part.numpy() for part in buckets_of(ids, slots.size(0) - 1)], axis=1)
        self._touched, self._places = _distinct(self._both, len(slots))
        self._copies: Any = self._slots[self._touched]
        # Copies of further buckets, in which IDs make room.
        self._more: dict[int, Any] = {}

    def remove(self, ids: Any, part: slice) -> None:
        """Free the slots of IDs, whose buckets are a part of all."""
        places = self._places[part]
        for choice in range(2):
            place = places[:, choice]
            found = self._copies[place]
            is_there = (found[:, :SLOTS] == ids[:, None]) & (found[:, SLOTS:] >= 0)
            which, slot = is_there.nonzero()
            self._copies[place[which], slot] = 0
            self._copies[place[which], SLOTS + slot] = _FREE

    def place(self, ids: Any, rows: Any, part: slice) -> None:
        """Give each ID a slot."""
        places = self._places[part]
        num_free = (self._copies[:, SLOTS:] < 0).sum(axis=1)
        pending = np.arange(len(ids))
        while pending.size:
            free = num_free[places[pending]]
            is_full = free.max(axis=1) == 0
            if is_full.any():
                for i in pending[is_full].tolist():
                    self._make_room(int(ids[i]), int(rows[i]), self._both[part][i].tolist())
                num_free = (self._copies[:, SLOTS:] < 0).sum(axis=1)
                pending = pending[~is_full]
                continue
            chosen = places[pending, (free[:, 1] > free[:, 0]).astype(np.int64)]
            order = np.argsort(chosen, kind="stable")
            pending, chosen = pending[order], chosen[order]
            # How many before it want the same bucket.
            nth = np.arange(len(chosen)) - np.searchsorted(chosen, chosen)
            fits = nth < num_free[chosen]
            self._fill(chosen[fits], nth[fits], ids[pending[fits]], rows[pending[fits]])
            np.subtract.at(num_free, chosen[fits], 1)
            pending = np.sort(pending[~fits])

    def _fill(self, places: Any, nth: Any, ids: Any, rows: Any) -> None:
        """Put IDs into the nth free slots of buckets."""
        is_used = self._copies[places, SLOTS:] >= 0
        slot = np.argsort(is_used, axis=1, kind="stable")[np.arange(len(places)), nth]
        self._copies[places, slot] = ids
        self._copies[places, SLOTS + slot] = rows

    def _bucket(self, number: int) -> Any:
        """Return the copy of a bucket, to be changed."""
        at = int(np.searchsorted(self._touched, number))
        if at < len(self._touched) and self._touched[at] == number:
            return self._copies[at]
        if number not in self._more:
            self._more[number] = self._slots[number].copy()
        return self._more[number]

    def _make_room(self, raw_id: int, row: int, both: list[int]) -> None:
        """Place an ID whose buckets are full: move others to their other bucket, as few as possible."""
        # Each entry: a bucket, the entry before it, and the slot there whose ID can move here.
        path: list[tuple[int, int, int]] = [(bucket, -1, -1) for bucket in both]
        seen = set(both)
        mask = len(self._slots) - 1
        for at, (number, _, _) in enumerate(path):
            bucket = self._bucket(number)
            (free,) = (bucket[SLOTS:] < 0).nonzero()
            if free.size:
                self._shift(path, at, int(free[0]), (raw_id, row))
                return
            if len(path) > _MOST_SEARCHED:
                break
            first, second = buckets_of(torch.from_numpy(bucket[:SLOTS].copy()), mask)
            for slot, other in enumerate((first + second - number).tolist()):
                if other not in seen:
                    seen.add(other)
                    path.append((other, at, slot))
        raise FullMappingError(
            f"raw ID {raw_id}: its buckets are full, and so are those that their IDs could move to"
        )

    def _shift(self, path: list[tuple[int, int, int]], at: int, free: int, last: tuple[int, int]) -> None:
        """Move the ID before a free slot into it, and so on, and put the last ID into the slot at the start."""
        number, before, slot = path[at]
        while before >= 0:
            from_bucket, to_bucket = self._bucket(path[before][0]), self._bucket(number)
            to_bucket[free], to_bucket[SLOTS + free] = from_bucket[slot], from_bucket[SLOTS + slot]
            free = slot
            number, before, slot = path[before]
        bucket = self._bucket(number)
        bucket[free], bucket[SLOTS + free] = last

    def changes(self) -> tuple[Tensor, Tensor]:
        """Return the buckets that differ from the table's."""
        numbers = np.concatenate([self._touched, np.array(sorted(self._more), dtype=np.int64)])
        copies = np.concatenate([self._copies, *(self._more[one][None] for one in sorted(self._more))])
        is_changed = (copies != self._slots[numbers]).any(axis=1)
        numbers, copies = numbers[is_changed], copies[is_changed]
        order = np.argsort(numbers)
        return torch.from_numpy(numbers[order]), torch.from_numpy(copies[order])


def _distinct(numbers: Any, limit: int) -> tuple[Any, Any]:
    """Return the distinct ones of some numbers below a limit, ascending, and the place of each number among them."""
    if numbers.size * _SORTED_SHARE < limit:
        found, places = np.unique(numbers, return_inverse=True)
        return found, places.reshape(numbers.shape)
    is_there = np.zeros(limit, dtype=np.bool_)
    is_there[numbers] = True
    return np.flatnonzero(is_there), (np.cumsum(is_there) - 1)[numbers]


def filled(num_buckets: int, ids: Tensor, rows: Tensor) -> Tensor:
    """Return the buckets of a table, ``[Q, WIDTH]`` int64.

    Args:
        num_buckets: Q, from ``num_buckets_of``.
        ids: ``[N]`` int64 in host memory, each once.
        rows: ``[N]`` int64, their rows.

    Raises:
        FullMappingError: An ID has no place.
    """
    slots = empty_slots(num_buckets)
    buckets, contents = changed_buckets(slots, ids, rows, ids[:0])
    slots[buckets] = contents
    return slots


def fault_in(slots: Tensor, num_rows: int) -> str:
    """Return what is wrong with a table's buckets of a file; empty if nothing is.

    Args:
        slots: ``[Q, WIDTH]`` int64 in host memory.
        num_rows: Rows of the table.
    """
    rows = slots[:, SLOTS:]
    if bool((rows < _FREE).any()) or bool((rows >= num_rows).any()):
        return f"got rows {int(rows.min())} to {int(rows.max())}, expected -1 to {num_rows - 1}"
    is_used = rows >= 0
    used = rows[is_used]
    if used.numel() and int(torch.bincount(used, minlength=1).max()) > 1:
        return "got a row of two raw IDs, expected each once"
    ids = slots[:, :SLOTS][is_used]
    number = torch.arange(len(slots)).unsqueeze(1).expand(-1, SLOTS)[is_used]
    first, second = buckets_of(ids, len(slots) - 1)
    if not bool(((number == first) | (number == second)).all()):
        return "got a raw ID in another bucket than its hash selects"
    # An ID that is there twice finds one of its rows.
    parts = zip(ids.split(_CHECKED_IDS), used.split(_CHECKED_IDS), strict=True)
    if not all(torch.equal(rows_in(slots, part), rows) for part, rows in parts):
        return "got a raw ID with two rows, expected each once"
    return ""
