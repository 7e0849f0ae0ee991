"""Collectives of more than one call, calls of one rank for all, and the ranks of hosts.

Shape letters: N number of rows, W world size.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, TypeVar, cast

import torch
from torch import Tensor
from torch import distributed as dist

_Args = ParamSpec("_Args")
_Result = TypeVar("_Result")


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


def group_device(group: dist.ProcessGroup) -> torch.device:
    """Return a device that a group's backend can send from."""
    if "gloo" in dist.get_backend(group):
        return torch.device("cpu")
    return torch.device("cuda", torch.cuda.current_device())


def largest(number: int, group: dist.ProcessGroup) -> int:
    """Return the largest of the ranks' numbers. Every rank of the group must call it; its backend is one of the host.

    Args:
        number: This rank's.
        group: The ranks.
    """
    found = torch.tensor([number])
    dist.all_reduce(found, dist.ReduceOp.MAX, group=group)
    return int(found)


def send_rows(
    rows: Tensor, send_sizes: Sequence[int], receive_sizes: Sequence[int], group: dist.ProcessGroup
) -> Tensor:
    """Send rows to ranks, and return those from them, rank by rank. Every rank of the group must call it.

    Args:
        rows: ``[N, ...]``, those for rank 0 first; only N may differ between ranks.
        send_sizes: The number of rows for each rank.
        receive_sizes: The number of rows from each rank.
        group: The ranks.
    """
    received = rows.new_empty(sum(receive_sizes), *rows.shape[1:])
    dist.all_to_all_single(received, rows, list(receive_sizes), list(send_sizes), group=group)
    return received


# What launchers tell each process: torchrun, MPI's launchers.
_LOCAL_SIZES = (
    "LOCAL_WORLD_SIZE",
    "MPI_LOCALNRANKS",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
    "MV2_COMM_WORLD_LOCAL_SIZE",
)
_LOCAL_RANKS = ("LOCAL_RANK", "MPI_LOCALRANKID", "OMPI_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_RANK")
# Ranks of the usual hosts; TorchRec's number.
_USUAL_LOCAL_SIZE = 8


def get_local_size(world_size: int | None = None) -> int:
    """Return the number of ranks of a host, as the launcher says.

    Where it says nothing, 8; and all ranks where they cannot be split into such hosts.

    Args:
        world_size: The number of ranks; that of the default process group if None.
    """
    world_size = dist.get_world_size() if world_size is None else world_size
    found = _from_environment(_LOCAL_SIZES)
    local_size = _USUAL_LOCAL_SIZE if found is None else found
    return local_size if local_size > 0 and world_size % local_size == 0 else world_size


def get_local_rank(world_size: int | None = None, rank: int | None = None) -> int:
    """Return the position of a rank on its host: as the launcher says, else from the number of ranks of a host.

    Args:
        world_size: The number of ranks; that of the default process group if None.
        rank: The rank; this process's if None.
    """
    local_size = get_local_size(world_size)
    found = _from_environment(_LOCAL_RANKS)
    if found is not None and found < local_size:
        return found
    return (dist.get_rank() if rank is None else rank) % local_size


def get_group_rank(world_size: int | None = None, rank: int | None = None) -> int:
    """Return the position of a rank's host."""
    return (dist.get_rank() if rank is None else rank) // get_local_size(world_size)


def get_num_groups(world_size: int | None = None) -> int:
    """Return the number of hosts."""
    world_size = dist.get_world_size() if world_size is None else world_size
    return world_size // get_local_size(world_size)


def _from_environment(names: tuple[str, ...]) -> int | None:
    """Return the first of some variables that is a whole number."""
    return next((int(os.environ[name]) for name in names if os.environ.get(name, "").isdecimal()), None)


def is_leader(pg: dist.ProcessGroup | None, leader_rank: int = 0) -> bool:
    """Return whether this process is the leader of its group.

    Args:
        pg: The group; None for a process on its own, which is rank 0.
        leader_rank: The leader's rank in the group.
    """
    return leader_rank == (0 if pg is None else pg.rank())


def invoke_on_rank_and_broadcast_result(
    pg: dist.ProcessGroup, rank: int, func: Callable[..., _Result], *args: Any, **kwargs: Any
) -> _Result:
    """Call a function on one rank, and return its result on all. Every rank of the group must call it.

    Args:
        pg: The group.
        rank: The rank that calls, in the group.
        func: The function; its result is pickled.
        args: Its arguments.
        kwargs: Its keywords.
    """
    results = [func(*args, **kwargs) if is_leader(pg, rank) else None]
    if pg.size() > 1:
        dist.broadcast_object_list(results, group=pg, group_src=rank)
    return cast(_Result, results[0])


def run_on_leader(
    pg: dist.ProcessGroup, rank: int
) -> Callable[[Callable[_Args, _Result]], Callable[_Args, _Result]]:
    """Return a decorator of functions that one rank calls for all.

    Args:
        pg: The group.
        rank: The rank that calls, in the group.
    """

    def decorate(func: Callable[_Args, _Result]) -> Callable[_Args, _Result]:
        @functools.wraps(func)
        def call(*args: _Args.args, **kwargs: _Args.kwargs) -> _Result:
            return invoke_on_rank_and_broadcast_result(pg, rank, func, *args, **kwargs)

        return call

    return decorate
