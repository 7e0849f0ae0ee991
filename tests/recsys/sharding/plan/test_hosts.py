"""The ranks of a host, as launchers tell them."""

from __future__ import annotations

import pytest

from recsys.sharding.plan.hosts import get_group_rank, get_local_rank, get_local_size, get_num_groups


@pytest.fixture(autouse=True)
def _nothing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (
        "LOCAL_WORLD_SIZE",
        "LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
    ):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("size", "rank"),
    [("LOCAL_WORLD_SIZE", "LOCAL_RANK"), ("OMPI_COMM_WORLD_LOCAL_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK")],
)
def test_what_the_launcher_tells(monkeypatch: pytest.MonkeyPatch, size: str, rank: str) -> None:
    monkeypatch.setenv(size, "4")
    monkeypatch.setenv(rank, "3")
    assert (get_local_size(8), get_local_rank(8), get_num_groups(8)) == (4, 3, 2)
    assert [get_group_rank(8, each) for each in (0, 3, 4, 7)] == [0, 0, 1, 1]


def test_without_a_launcher_all_ranks_are_on_one_host() -> None:
    assert (get_local_size(6), get_local_rank(6, 5), get_group_rank(6, 5), get_num_groups(6)) == (6, 5, 0, 1)


def test_what_does_not_fit_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    monkeypatch.setenv("LOCAL_RANK", "4")
    assert (get_local_size(6), get_local_rank(8, 5), get_local_rank(6, 5)) == (6, 1, 4)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "0")
    assert get_local_size(6) == 6
