"""Where a rank stands among the ranks of its host, from what the launcher tells in the environment."""

from __future__ import annotations

import os
from collections.abc import Sequence

from torch import distributed as dist

# torchrun, Intel MPI, Open MPI, MVAPICH2
_SIZES = ("LOCAL_WORLD_SIZE", "MPI_LOCALNRANKS", "OMPI_COMM_WORLD_LOCAL_SIZE", "MV2_COMM_WORLD_LOCAL_SIZE")
_RANKS = ("LOCAL_RANK", "MPI_LOCALRANKID", "OMPI_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_RANK")


def get_local_size(world_size: int | None = None) -> int:
    """Return the number of ranks on this host: all of them where the launcher does not tell, or tells no divisor.

    Args:
        world_size: The number of ranks; by default that of the process group.
    """
    world_size = dist.get_world_size() if world_size is None else world_size
    size = _told(_SIZES)
    return size if size and world_size % size == 0 else world_size


def get_local_rank(world_size: int | None = None, rank: int | None = None) -> int:
    """Return the number of a rank on its host, whose ranks follow each other where the launcher does not tell.

    Args:
        world_size: The number of ranks; by default that of the process group.
        rank: The rank; by default this process's in the process group.
    """
    size, local_rank = get_local_size(world_size), _told(_RANKS)
    if local_rank is not None and local_rank < size:
        return local_rank
    return (dist.get_rank() if rank is None else rank) % size


def get_group_rank(world_size: int | None = None, rank: int | None = None) -> int:
    """Return the number of a rank's host.

    Args:
        world_size: The number of ranks; by default that of the process group.
        rank: The rank; by default this process's in the process group.
    """
    return (dist.get_rank() if rank is None else rank) // get_local_size(world_size)


def get_num_groups(world_size: int | None = None) -> int:
    """Return the number of hosts.

    Args:
        world_size: The number of ranks; by default that of the process group.
    """
    world_size = dist.get_world_size() if world_size is None else world_size
    return world_size // get_local_size(world_size)


def _told(names: Sequence[str]) -> int | None:
    values = (os.environ.get(name, "") for name in names)
    return next((int(value) for value in values if value.isdecimal()), None)
