"""One rank calls, all have the result."""

from __future__ import annotations

from torch import distributed as dist

from recsys.leader import invoke_on_rank_and_broadcast_result, is_leader, run_on_leader
from tests.support.ranks import live_pool


def _called(rank: int, _: int) -> list[object]:
    group = dist.group.WORLD
    assert group is not None
    calls: list[int] = []

    def call(value: int, more: int = 0) -> dict[str, int]:
        calls.append(rank)
        return {"rank": rank, "value": value + more}

    alone = dist.new_group([1])
    got: list[object] = [
        invoke_on_rank_and_broadcast_result(group, 1, call, 3, more=4),
        run_on_leader(group, 0)(call)(5),
        calls,
        (is_leader(group), is_leader(group, 1), is_leader(None)),
    ]
    if rank == 1:
        got.append(invoke_on_rank_and_broadcast_result(alone, 0, call, 6))
    return got


def test_the_result_of_one_rank_is_that_of_all() -> None:
    first, second = live_pool(2).run(_called)
    assert first == [{"rank": 1, "value": 7}, {"rank": 0, "value": 5}, [0], (True, False, True)]
    assert second[:2] == first[:2]
    assert second[2:] == [[1, 1], (False, True, True), {"rank": 1, "value": 6}]
