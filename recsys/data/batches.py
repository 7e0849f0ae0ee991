"""Division of an epoch's blocks into each rank's batches.

A step's rows are those of one *global batch*: W × B consecutive rows of a block's order, cut into W parts. All
ranks go through the same blocks in the same order, so they agree on every step without communication, and
take only the rows of their own parts. At the end of a block the parts are smaller and may be empty.

Shape letters: B batch, W world size.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from recsys.data.examples import Block, Examples, Ints, LabeledBatch


@dataclass(frozen=True, kw_only=True)
class Share:
    """This rank's part of every global batch."""

    rank: int = 0
    world_size: int = 1

    def bounds(self, num_rows: int) -> tuple[int, int]:
        """Return first row of this rank's part of ``num_rows``, and the end; the parts differ by one row at most."""
        return num_rows * self.rank // self.world_size, num_rows * (self.rank + 1) // self.world_size


@dataclass(frozen=True, kw_only=True)
class EpochOrder:
    """The order in which a pass goes through each block; the same for equal values.

    Attributes:
        seed: The seed of the training.
        epoch: Number of the epoch.
    """

    seed: int
    epoch: int

    def of_block(self, number: int, num_rows: int) -> Ints:
        """Return a permutation of the block's rows."""
        return np.random.default_rng([self.seed, self.epoch, number]).permutation(num_rows)


ONE_RANK = Share()


def batches(
    blocks: Iterator[Block],
    batch_size: int,
    order: EpochOrder | None = None,
    share: Share = ONE_RANK,
    first_step: int = 0,
) -> Iterator[LabeledBatch]:
    """Yield this rank's part of each global batch; every rank gets the same number of batches.

    Args:
        blocks: The examples; the same on all ranks.
        batch_size: B, of each rank; the last global batch of a block may be smaller.
        order: Shuffles the examples within each block; None keeps their order.
        share: This rank's share.
        first_step: The number of global batches to skip; blocks that are skipped as a whole are not parsed.
    """
    num_to_skip = first_step
    for number, block in enumerate(blocks):
        num_rows = len(block)
        rows = np.arange(num_rows) if order is None else order.of_block(number, num_rows)
        starts = range(0, num_rows, batch_size * share.world_size)
        left, num_to_skip = starts[num_to_skip:], max(0, num_to_skip - len(starts))
        if left:
            yield from _batches_of(block, [rows[start : start + starts.step] for start in left], share)


def _batches_of(block: Block, global_batches: list[Ints], share: Share) -> Iterator[LabeledBatch]:
    parts = [rows[slice(*share.bounds(len(rows)))] for rows in global_batches]
    examples: Examples = block.take(np.concatenate(parts))
    start = 0
    for rows, part in zip(global_batches, parts, strict=True):
        yield examples.batch_between(start, start + len(part), len(rows))
        start += len(part)


def row_chunks(num_rows: int, size: int) -> Iterator[Ints]:
    """Yield row numbers in chunks; one empty chunk if there are no rows."""
    for first in range(0, max(num_rows, 1), size):
        yield np.arange(first, min(first + size, num_rows))
