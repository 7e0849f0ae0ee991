"""Rows by hash: an ID lies in the first row on its way that is its own or free.

Shape letters: K number of buckets, M new IDs, N number of IDs, P probes, Z rows of the table.

Rows are divided into buckets. An ID selects a bucket, and its hash a row in it: MurmurHash3's 64 bits modulo the
bucket's rows. Its way goes on from there, row by row, and around at the bucket's end.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import cast

import torch
from torch import Tensor

from recsys.ops import fmix64

# Constants of MurmurHash3's 128-bit hash for 64-bit machines (Austin Appleby, MurmurHash3.cpp, public domain), as
# signed numbers. The hash is that of 16 bytes: an ID, and zeros, whose block leaves nothing of its own.
_FACTORS = (0x87C37B91114253D5 - 2**64, 0x4CF5AD432745937F)
_ADDED = (0x52DCE729, 0x38495AB5)
_NUM_BYTES = 16
#: The identity of a row without an owner.
FREE_ROW = -1
# New IDs that are placed at once; bounds the memory of [M, P].
_MOST_AT_ONCE = 1 << 13


def turns(buckets: Tensor, num_buckets: int) -> Tensor:
    """Return when each new ID asks for a row, ``[M]`` int64, for the memory of those that ask at once.

    A bucket's turns depend on its own IDs alone, so its rows do not depend on the buckets that are placed with it.

    Args:
        buckets: ``[M]`` int64, the bucket of each ID.
        num_buckets: K.
    """
    order = torch.argsort(buckets, stable=True)
    in_order = buckets[order]
    first = torch.searchsorted(in_order, in_order)
    number = torch.empty_like(buckets)
    number[order] = torch.arange(buckets.numel(), device=buckets.device) - first
    return torch.div(number, max(1, _MOST_AT_ONCE // num_buckets), rounding_mode="floor")


def segments_of(zch_size: int, num_buckets: int, given: Sequence[int] | None) -> list[int]:
    """Return the first row of each bucket, and Z.

    Args:
        zch_size: Z.
        num_buckets: K.
        given: The same; None for equal buckets.

    Raises:
        ValueError: They do not fit each other.
    """
    if num_buckets < 1:
        raise ValueError(f"total_num_buckets: got {num_buckets}, expected 1 or more")
    if given is None:
        if zch_size < 1 or zch_size % num_buckets:
            raise ValueError(
                f"zch_size: got {zch_size}, expected a multiple of total_num_buckets ({num_buckets}), or "
                "output_segments"
            )
        return list(range(0, zch_size + 1, zch_size // num_buckets))
    segments = list(given)
    is_ascending = all(start < end for start, end in pairwise(segments))
    if len(segments) != num_buckets + 1 or segments[0] != 0 or segments[-1] != zch_size or not is_ascending:
        raise ValueError(
            f"output_segments: got {segments[:8]}, expected {num_buckets + 1} ascending rows from 0 to {zch_size}"
        )
    return segments


def num_reserved_rows(zch_size: int, num_buckets: int, opt_in_prob: int, percent: float) -> int:
    """Return how many rows of each bucket are reserved for IDs without one.

    Args:
        zch_size: Z.
        num_buckets: K.
        opt_in_prob: Percent of the new IDs that may get a row; -1: all, without reserved rows.
        percent: Percent of the rows that are reserved.

    Raises:
        ValueError: A number is out of range, or no row would be reserved.
    """
    if not 0 <= percent < 100:
        raise ValueError(f"percent_reserved_slots: got {percent}, expected at least 0 and less than 100")
    if opt_in_prob == -1:
        return 0
    if not 0 < opt_in_prob <= 100:
        raise ValueError(f"opt_in_prob: got {opt_in_prob}, expected 1 to 100, or -1 for all new IDs")
    num_reserved = math.floor(zch_size * percent / 100 / num_buckets)
    if num_reserved < 1:
        raise ValueError(
            f"percent_reserved_slots: got {percent}, expected enough for a row in each of {num_buckets} buckets of "
            f"{zch_size} rows, since opt_in_prob is given"
        )
    return num_reserved


def bucket_of(ids: Tensor, num_buckets: int, input_hash_size: int) -> Tensor:
    """Return the bucket of each ID, ``[N]`` int64. Traceable by FX.

    Args:
        ids: ``[N]`` int64.
        num_buckets: K.
        input_hash_size: The limit of the IDs, which are divided into K equal runs; 0: the ID modulo K. IDs beyond the
            limit belong to the first or the last run.
    """
    if input_hash_size == 0:
        return torch.remainder(ids, num_buckets)
    run = -(-input_hash_size // num_buckets)
    return torch.clamp(torch.div(ids, run, rounding_mode="floor"), 0, num_buckets - 1)


def hashed(ids: Tensor) -> Tensor:
    """Return the hash of each int64, as 64 bits of an int64. The graph holds only plain operators; products wrap."""
    block = _rotated(ids * _FACTORS[0], 31) * _FACTORS[1]
    first = _rotated(block, 27) * 5 + _ADDED[0]
    second = torch.bitwise_xor(first * 5 + _ADDED[1], _NUM_BYTES)
    first = torch.bitwise_xor(first, _NUM_BYTES) + second
    second = fmix64(second + first)
    first = fmix64(first) + second
    return torch.bitwise_xor(first, second + first)


def _rotated(bits: Tensor, by: int) -> Tensor:
    low = torch.bitwise_and(torch.bitwise_right_shift(bits, 64 - by), 2**by - 1)
    return torch.bitwise_or(torch.bitwise_left_shift(bits, by), low)


def places(hashes: Tensor, sizes: Tensor) -> Tensor:
    """Return unsigned hashes modulo sizes, all ``[N]`` int64. Traceable by FX."""
    upper = torch.bitwise_and(torch.bitwise_right_shift(hashes, 1), 2**63 - 1)
    return torch.remainder(torch.remainder(upper, sizes) * 2 + torch.bitwise_and(hashes, 1), sizes)


@dataclass(frozen=True, kw_only=True)
class Ways:
    """The rows that IDs may have.

    Attributes:
        sizes: ``[N]`` int64, the rows of each ID's bucket, at least 1.
        starts: ``[N]`` int64, its first row.
        num_reserved: Rows at the end of each bucket, fewer than ``sizes``, that no ID gets.
    """

    sizes: Tensor
    starts: Tensor
    num_reserved: int = 0


def find_rows(
    ids: Tensor, identities: Tensor, num_probes: int, ways: Ways, *, disable_fallback: bool = False
) -> Tensor:
    """Return the row of each ID, ``[N]`` int64. Traceable by FX, but not by ``torch.export``.

    Args:
        ids: ``[N]`` int64.
        identities: ``[Z, 1]`` int64, the owner of each row.
        num_probes: How many rows are compared.
        ways: The rows that each ID may have.
        disable_fallback: Return -1 for an ID that owns none of them. Otherwise it gets the first row of its way, or
            with reserved rows one of these, by its hash.
    """
    found = torch.ops.fbgemm.zero_collision_hash(
        ids,
        identities,
        num_probes,
        circular_probe=True,
        readonly=True,
        local_sizes=ways.sizes,
        offsets=ways.starts,
        disable_fallback=disable_fallback,
        # With 100 percent nothing is drawn, and the rows are reserved all the same.
        opt_in_prob=100 if ways.num_reserved else -1,
        num_reserved_slots=ways.num_reserved or -1,
    )
    return cast(Tensor, found[0])


@dataclass(frozen=True, kw_only=True)
class NewIds:
    """IDs that ask for a row.

    Attributes:
        ids: ``[M]`` int64, each once.
        sizes: ``[M]`` int64, the rows of the ID's bucket that it may get.
        starts: ``[M]`` int64, the bucket's first row.
        turns: ``[M]`` int64, from 0, ascending within a bucket: IDs of one turn ask at once.
        expiries: ``[M]`` int32, the hour from which on the ID may lose its row; None if none is ever lost.
    """

    ids: Tensor
    sizes: Tensor
    starts: Tensor
    turns: Tensor
    expiries: Tensor | None

    def at(self, numbers: Tensor) -> NewIds:
        """Return some of them."""
        return NewIds(
            ids=self.ids[numbers],
            sizes=self.sizes[numbers],
            starts=self.starts[numbers],
            turns=self.turns[numbers],
            expiries=None if self.expiries is None else self.expiries[numbers],
        )


@dataclass(frozen=True, kw_only=True)
class Owners:
    """The owners of all rows: views of a module's buffers, which ``place`` overwrites.

    Attributes:
        identities: ``[Z, 1]`` int64; ``FREE_ROW`` without an owner.
        expiries: ``[Z, 1]`` int32, the hour from which on the owner may lose the row; None if none is ever lost.
        hour: The present hour.
        oldest_first: The expired owner that expired first loses its row, if no row on the way is free.
            Otherwise the first row on the way that is free or expired is taken.
    """

    identities: Tensor
    expiries: Tensor | None
    hour: int
    oldest_first: bool


def place(owners: Owners, new: NewIds, num_probes: int) -> tuple[Tensor, Tensor, Tensor]:
    """Give rows to new IDs. Reads tensors, so it synchronizes with a device.

    Where several IDs ask for one row, the first gets it, and the others go on.

    Args:
        owners: Changed in place.
        new: None of them owns a row.
        num_probes: P, how many rows an ID may ask for.

    Returns:
        The row of each new ID, ``[M]`` int64, -1 for IDs that got none; the rows that had another owner, int64; and
        these owners, int64.
    """
    rows = torch.full_like(new.ids, -1)
    evicted, former = [], []
    for turn in range(int(new.turns.max()) + 1 if new.turns.numel() else 0):
        waiting = (new.turns == turn).nonzero().flatten()
        while waiting.numel():
            asked = _asked(owners, new.at(waiting), num_probes)
            waiting, asked = waiting[asked >= 0], asked[asked >= 0]
            is_first = _first_of_each(asked)
            taken, by = asked[is_first], waiting[is_first]
            before = owners.identities[taken, 0]
            evicted.append(taken[before != FREE_ROW])
            former.append(before[before != FREE_ROW])
            owners.identities[taken, 0] = new.ids[by]
            if owners.expiries is not None and new.expiries is not None:
                owners.expiries[taken, 0] = new.expiries[by]
            rows[by] = taken
            waiting = waiting[~is_first]
    return rows, torch.cat([rows[:0], *evicted]), torch.cat([rows[:0], *former])


def _asked(owners: Owners, new: NewIds, num_probes: int) -> Tensor:
    """Return the row that each ID asks for now, ``[M]`` int64; -1 if there is none on its way."""
    home = places(hashed(new.ids), new.sizes)
    steps = torch.arange(num_probes, device=home.device)
    way = (home.unsqueeze(1) + steps).remainder(new.sizes.unsqueeze(1)) + new.starts.unsqueeze(1)
    is_free = owners.identities[way, 0] == FREE_ROW
    is_wanted = is_free
    choice = is_free.to(torch.uint8).argmax(dim=1)
    if owners.expiries is not None and new.expiries is not None:
        expiries = owners.expiries[way, 0]
        is_expired = ~is_free & (expiries < owners.hour) & (expiries < new.expiries.unsqueeze(1))
        is_wanted = is_free | is_expired
        if owners.oldest_first:
            never = torch.iinfo(torch.int32).max
            oldest = torch.where(is_expired, expiries, never).argmin(dim=1)
            choice = torch.where(is_free.any(dim=1), choice, oldest)
        else:
            choice = is_wanted.to(torch.uint8).argmax(dim=1)
    asked = way.gather(1, choice.unsqueeze(1)).squeeze(1)
    return torch.where(is_wanted.any(dim=1), asked, -1)


def _first_of_each(values: Tensor) -> Tensor:
    """Return which values, ``[M]`` int64, are the first of their kind, a mask ``[M]``."""
    kinds, kind = torch.unique(values, return_inverse=True)
    numbers = torch.arange(values.numel(), device=values.device)
    first = torch.full_like(kinds, values.numel()).scatter_reduce_(0, kind, numbers, reduce="amin")
    return first[kind] == numbers
