"""The helper that runs functions on ranks: results in order, errors with their tracebacks, and nothing left behind."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch import distributed as dist

from tests.support.ranks import RankError, RankPool, RankTimeoutError, live_pool, run_ranks


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    # Pools that other tests share may live, and may be started again.
    before = {process.pid for process in multiprocessing.active_children()}
    yield
    assert {process.pid for process in multiprocessing.active_children()} <= before


def total(rank: int, world_size: int, tensor: Tensor) -> tuple[int, int, Tensor]:
    tensor += rank
    dist.all_reduce(tensor)
    return rank, world_size, tensor


def settings(*_: int) -> dict[str, object]:
    return {
        "backend": dist.get_backend(),
        "num_threads": torch.get_num_threads(),
        "environment": [os.environ[name] for name in ("GLOO_SOCKET_IFNAME", "OMP_NUM_THREADS")],
    }


def process_id(*_: int) -> int:
    return os.getpid()


def large(rank: int, _world_size: int, num_bytes: int) -> Tensor:
    return torch.full((num_bytes,), rank, dtype=torch.uint8)


def raise_on(rank: int, _world_size: int, at: int) -> None:
    """One rank raises while the others wait for it."""
    if rank == at:
        raise KeyError("what went wrong")
    dist.barrier()


def die_on(rank: int, _world_size: int, at: int) -> None:
    if rank == at:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.barrier()


def exit_on(rank: int, _world_size: int, at: int) -> None:
    if rank == at:
        os._exit(3)
    dist.barrier()


def hang_on(rank: int, _world_size: int, at: int) -> None:
    if rank == at:
        threading.Event().wait()


def unpicklable(rank: int, _world_size: int) -> object:
    return lambda: rank


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_results_in_order(world_size: int) -> None:
    given = torch.ones(3)
    results = run_ranks(world_size, total, given)
    expected = torch.full((3,), float(sum(1 + rank for rank in range(world_size))))
    assert [result[:2] for result in results] == [(rank, world_size) for rank in range(world_size)]
    assert all(torch.equal(result[2], expected) for result in results)
    assert torch.equal(given, torch.ones(3)), "ranks work on copies"


def test_environment() -> None:
    before = dict(os.environ)
    expected = {"backend": "gloo", "num_threads": 1, "environment": ["lo", "1"]}
    assert run_ranks(1, settings) == [expected]
    assert dict(os.environ) == before


def test_pool_keeps_its_ranks() -> None:
    with RankPool(2) as pool:
        first = pool.run(process_id)
        for number in range(20):
            assert torch.equal(
                pool.run(total, torch.full((2,), number))[1][2], torch.full((2,), 2 * number + 1)
            )
        # Larger than any pipe's buffer.
        assert [int(t[-1]) for t in pool.run(large, 1 << 20)] == [0, 1]
        assert pool.run(process_id) == first
        assert pool.is_usable
    assert not pool.is_usable
    with pytest.raises(RuntimeError, match="2 ranks cannot be used: it was closed"):
        pool.run(process_id)


def test_pool_before_with() -> None:
    with pytest.raises(RuntimeError, match="have not been started; use it in a with statement"):
        RankPool(2).run(process_id)


@pytest.mark.parametrize("at", [0, 1])
def test_exception(at: int) -> None:
    with pytest.raises(
        RankError, match=rf"^rank {at} raised:\n(.|\n)*in raise_on\n(.|\n)*what went wrong"
    ) as e:
        run_ranks(2, raise_on, at)
    assert e.value.rank == at
    assert f"rank {1 - at}" not in str(e.value)


def test_result_that_cannot_travel() -> None:
    with pytest.raises(RankError, match=r"rank 0 raised:(.|\n)*[Pp]ickl"):
        run_ranks(1, unpicklable)


@pytest.mark.parametrize(
    ("function", "text"),
    [(die_on, "ended by SIGKILL"), (exit_on, "ended with exit code 3")],
    ids=["killed", "exit"],
)
def test_dead_rank(function: object, text: str) -> None:
    with pytest.raises(RankError, match=f"^rank 1: its process {text}$"):
        run_ranks(2, function, 1)  # type: ignore[arg-type]


def test_hanging_rank() -> None:
    with pytest.raises(RankTimeoutError, match=r"^ranks \[1\]: no result after 0.5 s\n(.|\n)*in hang_on"):
        run_ranks(2, hang_on, 1, timeout_s=0.5)


def test_pool_after_a_failure() -> None:
    with RankPool(2) as pool:
        ids = pool.run(process_id)
        with pytest.raises(RankError):
            pool.run(raise_on, 0)
        assert not pool.is_usable
        assert not any(Path(f"/proc/{number}").exists() for number in ids)
        with pytest.raises(RuntimeError, match=r"raise_on failed in an earlier call \(RankError\)"):
            pool.run(process_id)


def test_live_pool() -> None:
    first = live_pool(1)
    try:
        assert live_pool(1) is first, "one start for all that ask"
        with pytest.raises(RankError):
            first.run(raise_on, 0)
        second = live_pool(1)
        assert second is not first
        assert second.run(total, torch.zeros(1))[0][:2] == (0, 1)
    finally:
        live_pool(1).close()


def test_function_that_cannot_be_found() -> None:
    with RankPool(1) as pool:
        with pytest.raises(AttributeError, match="local"):
            pool.run(lambda *ranks: ranks)
        assert pool.run(total, torch.zeros(1))[0][0] == 0, "the ranks saw nothing of it"
