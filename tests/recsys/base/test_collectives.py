"""The ranks of hosts, as launchers tell them."""

from __future__ import annotations

import pytest
from torch import distributed as dist

from recsys.base.collectives import (
    get_group_rank,
    get_local_rank,
    get_local_size,
    get_num_groups,
    invoke_on_rank_and_broadcast_result,
    is_leader,
    run_on_leader,
)
from tests.support.ranks import live_pool

VARIABLES = [
    f"{prefix}{name}"
    for prefix, names in {
        "": ["LOCAL_WORLD_SIZE", "LOCAL_RANK"],
        "MPI_": ["LOCALNRANKS", "LOCALRANKID"],
        "OMPI_COMM_WORLD_": ["LOCAL_SIZE", "LOCAL_RANK"],
        "MV2_COMM_WORLD_": ["LOCAL_SIZE", "LOCAL_RANK"],
    }.items()
    for name in names
]


@pytest.fixture(autouse=True)
def _silent(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


def test_without_a_launcher_hosts_have_eight_ranks_or_all() -> None:
    assert [get_local_size(n) for n in (1, 8, 12, 16)] == [1, 8, 12, 8]
    assert [get_local_rank(16, rank) for rank in (3, 11)] == [3, 3]
    assert (get_group_rank(16, 11), get_num_groups(16)) == (1, 2)


@pytest.mark.parametrize("names", [VARIABLES[:2], VARIABLES[4:6]], ids=["torchrun", "open mpi"])
def test_what_a_launcher_says(names: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(names[0], "4")
    monkeypatch.setenv(names[1], "2")
    assert (get_local_size(16), get_local_rank(16, 7), get_group_rank(16, 7)) == (4, 2, 1)
    assert (get_local_size(6), get_local_rank(1, 0)) == (6, 0)


def test_a_rank_beyond_its_host_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    monkeypatch.setenv("LOCAL_RANK", "5")
    assert get_local_rank(4, 3) == 1


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
