"""Row-wise optimizer state when a table's columns are cut another way.

A row-wise optimizer keeps one number per row *of a shard*. A table whose columns are cut into blocks has one per row
and block: the mean over the block's columns of what an element-wise optimizer would keep.

Shape letters: D embedding dim, K blocks of columns, R rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor


def recut_row_state(state: Tensor, old_widths: Sequence[int], new_widths: Sequence[int]) -> Tensor:
    """The state for new blocks of columns: the mean of the old blocks that a new one overlaps, by columns shared.

    Where blocks are joined, this is the state that the joined block would have had with the same gradients. Where one
    is split, every part starts from the whole's mean, which is all that was kept.

    Args:
        state: ``[R]`` for one block, else ``[R, K]``, with any number of the table's rows.
        old_widths: columns of each block of ``state``, from left to right; they sum to D.
        new_widths: columns of each block that is asked for.

    Returns:
        ``[R]`` for one new block, else ``[R, K]``; ``state`` itself where nothing changes.

    Raises:
        ValueError: widths that do not cover the same columns, or another number of blocks than the state has.
    """
    for name, widths in (("old_widths", old_widths), ("new_widths", new_widths)):
        if not widths or min(widths) < 1:
            raise ValueError(
                f"{name}: got {list(widths)}, expected at least one block of at least one column"
            )
    if sum(old_widths) != sum(new_widths):
        raise ValueError(
            f"new_widths: got {list(new_widths)}, which cover {sum(new_widths)} columns, expected "
            f"{sum(old_widths)} as old_widths {list(old_widths)} do"
        )
    flat = state.dim() == 1 and len(old_widths) == 1
    if not flat and tuple(state.shape[1:]) != (len(old_widths),):
        raise ValueError(
            f"state: got shape {list(state.shape)}, expected [rows, {len(old_widths)}], a column for each of "
            f"old_widths {list(old_widths)}"
        )
    if list(old_widths) == list(new_widths):
        return state
    shares = torch.tensor(_shares(old_widths, new_widths), dtype=torch.float64, device=state.device)
    # In float64, so that a split and a join give back what was there.
    made = (state.double().view(len(state), len(old_widths)) @ shares).to(state.dtype)
    return made.squeeze(1) if len(new_widths) == 1 else made


def _shares(old_widths: Sequence[int], new_widths: Sequence[int]) -> list[list[float]]:
    """For each old block its share in each new one; the shares of a new block sum to 1."""
    old, new = _bounds(old_widths), _bounds(new_widths)
    return [
        [
            max(0, min(end, new_end) - max(start, new_start)) / (new_end - new_start)
            for new_start, new_end in new
        ]
        for start, end in old
    ]


def _bounds(widths: Sequence[int]) -> list[tuple[int, int]]:
    ends = list(accumulate(widths))
    return list(zip([0, *ends], ends, strict=False))
