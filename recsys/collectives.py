"""Collectives that need more than one call of ``torch.distributed``.

Shape letters: N number of rows, W world size.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch import distributed as dist


def gather_rows(rows: Tensor, group: dist.ProcessGroup) -> list[Tensor]:
    """Return each rank's rows, in the order of the ranks. Every rank of the group must call it.

    Takes two collectives: the numbers of rows, which are read to size the buffers, and the rows, padded to
    the largest number.

    Args:
        rows: ``[N, ...]`` of this rank, on a device that the group's backend can send from; only N may differ.
        group: The ranks.
    """
    world_size = dist.get_world_size(group)
    num_rows = torch.tensor([len(rows)], device=rows.device)
    gathered = [torch.empty_like(num_rows) for _ in range(world_size)]
    dist.all_gather(gathered, num_rows, group=group)
    sizes: list[int] = torch.cat(gathered).tolist()
    padded = rows.new_zeros(max(sizes), *rows.shape[1:])
    padded[: len(rows)] = rows
    parts = [torch.empty_like(padded) for _ in range(world_size)]
    dist.all_gather(parts, padded, group=group)
    return [part[:size] for part, size in zip(parts, sizes, strict=True)]
