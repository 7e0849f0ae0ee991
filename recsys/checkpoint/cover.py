"""Coverage checks: each element of a tensor must be in exactly one shard.

Shape letters: D embedding dimension, R rows.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence

import torch
from torch import Tensor

from recsys.errors import CheckpointError

#: A box: the offset and the size in each dimension of the tensor.
Box = tuple[tuple[int, ...], tuple[int, ...]]

# Maximum cells between all cuts. Real plans have a few thousand; more indicate a malicious file.
_MAX_CELLS = 10**7


def check_cover(name: str, shape: Sequence[int], boxes: Sequence[Box]) -> None:
    """Check that shards cover a tensor exactly once. Empty shards are ignored.

    Args:
        name: The tensor's name, for messages.
        shape: The shape of the whole tensor, such as ``[R, D]``.
        boxes: The boxes of its shards.

    Raises:
        CheckpointError: A shard is outside, two overlap, or a part is missing; names the rectangle.
    """
    for offsets, sizes in boxes:
        if not (len(offsets) == len(sizes) == len(shape)) or any(
            start < 0 or size < 0 or start + size > end
            for start, size, end in zip(offsets, sizes, shape, strict=True)
        ):
            raise CheckpointError(
                f"{name!r}: a shard of {list(sizes)} at {list(offsets)} lies outside of its shape {list(shape)}"
            )
    boxes = [box for box in boxes if math.prod(box[1]) > 0]
    if math.prod(shape) == 0:
        return
    edges = [
        sorted({0, end, *(o[d] for o, _ in boxes), *(o[d] + s[d] for o, s in boxes)})
        for d, end in enumerate(shape)
    ]
    if math.prod(len(cuts) for cuts in edges) > _MAX_CELLS:
        raise CheckpointError(f"{name!r}: its {len(boxes)} shards are cut in too many places to be a plan's")
    # The number of shards in each cell between the edges.
    counts = torch.zeros([len(cuts) - 1 for cuts in edges], dtype=torch.uint8)
    for box in boxes:
        cells = counts[
            tuple(
                slice(bisect_left(cuts, start), bisect_left(cuts, start + size))
                for cuts, start, size in zip(edges, *box, strict=True)
            )
        ]
        cells += 1
        if int(cells.max()) > 1:
            raise CheckpointError(
                f"{name!r}: shards overlap at {_region(counts > 1, edges)} of its shape {list(shape)}; "
                "is a rank's file given twice, or are they of different runs?"
            )
    if bool((counts == 0).any()):
        raise CheckpointError(
            f"{name!r}: no shard holds {_region(counts == 0, edges)} of its shape {list(shape)}; "
            "is a rank's file missing?"
        )


def _region(found: Tensor, edges: Sequence[Sequence[int]]) -> str:
    """Return the first maximal rectangle of found cells, extended along the last dimension first."""
    first = found.nonzero()[0].tolist()
    spans = [(at, at + 1) for at in first]
    for d in reversed(range(len(spans))):
        while spans[d][1] < found.shape[d]:
            wider = [*spans[:d], (spans[d][0], spans[d][1] + 1), *spans[d + 1 :]]
            if not bool(found[tuple(slice(*span) for span in wider)].all()):
                break
            spans = wider
    parts = [f"{cuts[start]}:{cuts[end]}" for (start, end), cuts in zip(spans, edges, strict=True)]
    if len(parts) == 2:
        return f"rows {parts[0]}, columns {parts[1]}"
    return f"[{', '.join(parts)}]"
