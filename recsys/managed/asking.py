"""Asking the ranks that hold a mapping's buckets: raw IDs go to their owners, and rows come back.

A batch takes three all-to-alls for all mappings together: how many IDs go where, the IDs with what the owners learn of
them, and their rows. Each rank sends an ID once, however often its batch has it.

Shape letters: M distinct IDs of a rank's batch, N number of IDs, T divided mappings, W ranks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import torch
from torch import Tensor
from torch import distributed as dist

from recsys.base.collectives import send_rows
from recsys.managed.parts import Divisible
from recsys.ops import joined


@dataclass(frozen=True, kw_only=True)
class _Question:
    """What a rank asks about one mapping.

    Attributes:
        told: ``[M, columns]`` int64, in the order of the owners; the IDs stand in the first column.
        order: ``[M]`` int64, the place of each of these among the distinct IDs.
        places: ``[N]`` int64, the place of each ID of the batch among the distinct ones.
        sizes: ``[W]`` int64, how many go to each rank.
    """

    told: Tensor
    order: Tensor
    places: Tensor
    sizes: Tensor

    def answered(self, rows: Tensor) -> Tensor:
        """Return the row of each ID of the batch, ``[N]`` int64."""
        return torch.empty_like(rows).index_copy_(0, self.order, rows).index_select(0, self.places)


@torch.no_grad()
def ask_owners(
    modules: Sequence[Divisible],
    batch: Sequence[Mapping[str, Tensor]],
    group: dist.ProcessGroup,
    *,
    learns: bool,
) -> list[Tensor]:
    """Map the raw IDs of a batch of each rank. Every rank of the group must call it, for the same mappings.

    Reads sizes: a synchronization with the device of the IDs.

    Args:
        modules: The mappings, of which each rank holds a part.
        batch: For each of them the raw IDs by feature, ``[N]`` int64 each.
        group: The ranks.
        learns: Whether the owners learn from the batch before they answer.

    Returns:
        For each mapping the rows of all features' IDs, one feature after another, int64.
    """
    world_size = dist.get_world_size(group)
    asked = [
        _question(module, ids, world_size, learns=learns) for module, ids in zip(modules, batch, strict=True)
    ]
    sent = torch.stack([question.sizes for question in asked], dim=1)
    received = torch.empty_like(sent)
    dist.all_to_all_single(received, sent, group=group)
    to, come = sent.tolist(), received.tolist()
    widths = [question.told.size(1) for question in asked]
    by_rank = _by_rank([question.told for question in asked], to)
    flat = send_rows(by_rank, _flat_sizes(to, widths), _flat_sizes(come, widths), group)
    answers = []
    for module, told in zip(modules, _by_mapping(flat, come, widths), strict=True):
        if learns:
            module.learn(told)
        answers.append(module.rows_here(told[:, 0]))
    one = [1] * len(asked)
    flat = send_rows(_by_rank(answers, come), _flat_sizes(come, one), _flat_sizes(to, one), group)
    return [
        question.answered(rows.squeeze(1))
        for question, rows in zip(asked, _by_mapping(flat, to, one), strict=True)
    ]


def _question(module: Divisible, ids: Mapping[str, Tensor], world_size: int, *, learns: bool) -> _Question:
    assert module.part is not None
    if learns:
        told, places = module.uses(ids)
    else:
        every = joined([*ids.values()] or [module.part.owners[:0]])
        distinct, places = torch.unique(every, return_inverse=True)
        told = distinct.unsqueeze(1)
    owners = module.part.owners.to(told.device)[module.buckets_of(told[:, 0])]
    order = torch.argsort(owners, stable=True)
    return _Question(
        told=told[order],
        order=order,
        places=places,
        sizes=torch.bincount(owners, minlength=world_size),
    )


def _flat_sizes(sizes: Sequence[Sequence[int]], widths: Sequence[int]) -> list[int]:
    """Return how many numbers go to each rank."""
    return [sum(size * width for size, width in zip(of_rank, widths, strict=True)) for of_rank in sizes]


def _by_rank(parts: Sequence[Tensor], sizes: Sequence[Sequence[int]]) -> Tensor:
    """Return the numbers of all mappings for rank 0, then for rank 1, and so on, flat.

    Args:
        parts: For each mapping its lines, for rank 0 first.
        sizes: The lines for each rank, of each mapping.
    """
    split = [part.split([of_rank[i] for of_rank in sizes]) for i, part in enumerate(parts)]
    return torch.cat([of_mapping[rank].reshape(-1) for rank in range(len(sizes)) for of_mapping in split])


def _by_mapping(flat: Tensor, sizes: Sequence[Sequence[int]], widths: Sequence[int]) -> list[Tensor]:
    """Return the lines of each mapping, ``[sum of sizes, width]``, those of rank 0 first: the other way round."""
    lengths = [size * width for of_rank in sizes for size, width in zip(of_rank, widths, strict=True)]
    blocks = [flat[start:end] for start, end in pairwise(accumulate(lengths, initial=0))]
    return [torch.cat(blocks[i :: len(widths)]).view(-1, width) for i, width in enumerate(widths)]
