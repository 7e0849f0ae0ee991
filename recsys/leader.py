"""What one rank does for all ranks of a group."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, cast

from torch import distributed as dist

_Args = ParamSpec("_Args")
_Result = TypeVar("_Result")


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
