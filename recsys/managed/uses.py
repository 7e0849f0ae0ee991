"""What batches say of their IDs: which were used, how often, and when last; on one rank or on all.

Shape letters: N number of IDs, W world size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, distributed

from recsys.gather import gather_rows


@dataclass(frozen=True, kw_only=True)
class Uses:
    """Distinct IDs and their use.

    Attributes:
        ids: ``[N]`` int64, ascending, each once.
        counts: ``[N]`` int64, how often each was used; 1 at least.
        last_steps: ``[N]`` int64, the step of the latest use.
    """

    ids: Tensor
    counts: Tensor
    last_steps: Tensor


def uses_of(ids: Tensor, step: int) -> Uses:
    """What one batch says.

    Args:
        ids: ``[N]`` int64, in any order.
        step: the batch's number.
    """
    found, counts = torch.unique(ids, return_counts=True)
    return Uses(ids=found, counts=counts, last_steps=torch.full_like(found, step))


def merged(parts: Sequence[Uses]) -> Uses:
    """What several batches say together; their order plays no part.

    Args:
        parts: at least one.
    """
    if len(parts) == 1:
        return parts[0]
    ids, place = torch.unique(torch.cat([part.ids for part in parts]), return_inverse=True)
    counts = torch.zeros_like(ids).index_add_(0, place, torch.cat([part.counts for part in parts]))
    # Steps are counted from 1.
    last_steps = torch.zeros_like(ids).scatter_reduce_(
        0, place, torch.cat([part.last_steps for part in parts]), reduce="amax"
    )
    return Uses(ids=ids, counts=counts, last_steps=last_steps)


def of_all_ranks(uses: Uses, group: distributed.ProcessGroup) -> Uses:
    """What all ranks' batches say together: the same on every rank. Every rank of the group must call it.

    Reads the numbers of IDs: a synchronization with the device, once in an eviction interval.

    Args:
        uses: of this rank, on a device that the group's backend can send from.
        group: the ranks.
    """
    packed = torch.stack([uses.ids, uses.counts, uses.last_steps], dim=1)
    parts = [part.T.contiguous() for part in gather_rows(packed, group)]
    return merged([Uses(ids=ids, counts=counts, last_steps=last_steps) for ids, counts, last_steps in parts])
