"""The parts of a mapping that ranks hold, some of its buckets each, and how ranks ask each other.

A batch takes three all-to-alls for all mappings together: how many IDs go where, the IDs with what the owners learn of
them, and their rows. Each rank sends an ID once, however often its batch has it.

Shape letters: K buckets, M distinct IDs of a rank's batch, N number of IDs, W ranks, Z rows of the table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch import distributed as dist

from recsys.base.collectives import send_rows
from recsys.ops import joined


@dataclass(frozen=True, kw_only=True)
class MappingPart:
    """The buckets of a mapping that a rank holds, with the rows of the table that belong to them.

    Attributes:
        buckets: The first bucket, and the one after the last.
        rows: The first row, and the one after the last.
        owners: ``[K]`` int64, the rank that holds each bucket.
    """

    buckets: tuple[int, int]
    rows: tuple[int, int]
    owners: Tensor


def cut(module: nn.Module, names: Sequence[str], num_rows: int, part: MappingPart | None) -> None:
    """Replace a module's buffers that have an entry for each row by those of a part.

    Args:
        module: It is whole, or has a part if this is None.
        names: The names of the buffers.
        num_rows: Z.
        part: The part; None for whole buffers, which lie on the meta device.
    """
    for name in names:
        buffer = module.get_buffer(name)
        if part is not None:
            setattr(module, name, buffer[slice(*part.rows)].clone())
        else:
            setattr(module, name, buffer.new_empty(num_rows, *buffer.shape[1:], device="meta"))


@runtime_checkable
class Divisible(Protocol):
    """A managed collision module whose buckets may lie on several ranks."""

    @property
    def part(self) -> MappingPart | None:
        """The part that this rank holds; None for all of it."""

    def hold(self, part: MappingPart | None) -> None:
        """Drop what belongs to other ranks; None: be whole again, on the meta device."""

    #: Of the hooks that make state dicts of parts.
    hook_ids: tuple[int, int]

    def part_buffers(self) -> Sequence[str]:
        """Return the names of the buffers that have an entry for each row."""

    def bucket_ends(self) -> Sequence[int]:
        """Return the row after the last of each bucket, K numbers."""

    def buckets_of(self, ids: Tensor) -> Tensor:
        """Return the bucket of each ID, ``[N]`` int64."""

    def uses(self, ids: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Return what the owners of a batch's IDs learn from it.

        Args:
            ids: ``[N]`` int64 by feature.

        Returns:
            ``[M, columns]`` int64, the distinct IDs, ascending, in the first column; and the place of each ID of all
            features among them, ``[sum of N]`` int64.
        """

    def learn(self, uses: Tensor) -> None:
        """Learn from one batch of all ranks: their ``uses`` of this rank's buckets, one after another."""

    def rows_here(self, ids: Tensor) -> Tensor:
        """Return the row in the whole table of each ID of this rank's buckets, ``[N]`` int64."""


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
