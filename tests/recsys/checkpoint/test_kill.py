"""kill -9 of a rank, in training and in a save: the run that is resumed ends with the same weights, bit for bit."""

from __future__ import annotations

import os
import signal
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest
import torch
from torch import Tensor

from recsys.checkpoint.run import LATEST_NAME, newest, steps
from tests.support.children.checkpoint import SAVE_EVERY, STOP_AT, Part, main
from tests.support.models.checkpoint_model import joined
from tests.support.ranks import FORKS

WORLD_SIZE, STEPS = 2, 7
# A rank that waits for a dead one gets an error at once; this only bounds a test that fails.
_TIMEOUT_S = 200

Ranks = list[tuple[BaseProcess, Connection]]


def _start(folder: Path, run: Path, stops: dict[int, str]) -> Ranks:
    folder.mkdir()
    ranks: Ranks = []
    for rank in range(WORLD_SIZE):
        part = Part(
            rank=rank,
            world_size=WORLD_SIZE,
            folder=folder,
            run=run,
            num_steps=STEPS,
            stop=stops.get(rank, "-"),
        )
        ours, theirs = FORKS.Pipe()
        process = FORKS.Process(target=main, args=(part, theirs), daemon=True)
        process.start()
        theirs.close()
        ranks.append((process, ours))
    return ranks


def _said(rank: tuple[BaseProcess, Connection]) -> object:
    assert rank[1].poll(_TIMEOUT_S), "the rank says nothing"
    return rank[1].recv()


def _end(ranks: Ranks) -> None:
    for process, pipe in ranks:
        process.kill()
        process.join()
        pipe.close()


def _complete(folder: Path, run: Path) -> tuple[int, dict[str, Tensor]]:
    """Run to the end: the step it started from, and the numbers it came to."""
    ranks = _start(folder, run, {})
    try:
        first = [_said(rank) for rank in ranks]
        for process, _ in ranks:
            process.join(_TIMEOUT_S)
        assert [process.exitcode for process, _ in ranks] == [0, 0]
    finally:
        _end(ranks)
    assert first[0] == first[1]
    found = [torch.load(folder / f"numbers{rank}.pt", weights_only=True) for rank in range(WORLD_SIZE)]
    return int(str(first[0])), joined(found)


def _killed(folder: Path, run: Path, rank: int, stop: str) -> None:
    """Kill a rank where it stops; the other one ends by itself, with an error."""
    ranks = _start(folder, run, {rank: stop})
    victim, other = ranks[rank][0], ranks[1 - rank][0]
    try:
        assert _said(ranks[rank]) == 0
        assert _said(ranks[rank]) == "stopped"
        assert victim.pid is not None
        os.kill(victim.pid, signal.SIGKILL)
        victim.join(_TIMEOUT_S)
        other.join(_TIMEOUT_S)
        assert victim.exitcode == -signal.SIGKILL
        assert other.exitcode == 1
    finally:
        _end(ranks)
    assert not (folder / f"numbers{1 - rank}.pt").exists()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tensor]:
    """The numbers of the run that nobody killed."""
    folder = tmp_path_factory.mktemp("whole")
    first, numbers = _complete(folder / "ranks", folder / "run")
    assert first == 0
    return numbers


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rank", "stop", "resumed_from"),
    [
        (1, "step", STOP_AT),
        (1, "files", STOP_AT - SAVE_EVERY),
        (0, "publish", STOP_AT - SAVE_EVERY),
        (0, "latest", STOP_AT - SAVE_EVERY),
    ],
    ids=[
        "in a step",
        "while a file is written",
        "before the directory has its name",
        "before it is the newest",
    ],
)
def test_a_killed_run_resumes_to_the_same_weights(
    tmp_path: Path, whole: dict[str, Tensor], rank: int, stop: str, resumed_from: int
) -> None:
    run = tmp_path / "run"
    _killed(tmp_path / "killed", run, rank, stop)
    half_written = [path.name for path in run.glob(".saving-*")]
    assert bool(half_written) == (stop in ("files", "publish"))
    if stop == "files":
        (partial,) = run.glob(".saving-*")
        assert not (partial / ".metadata").exists()
        assert list(partial.glob("*.distcp"))
    found = newest(run)
    assert found is not None
    assert found.name == f"step-{resumed_from:08d}"
    first, numbers = _complete(tmp_path / "resumed", run)
    assert first == resumed_from
    assert set(numbers) == set(whole)
    for name, tensor in whole.items():
        assert torch.equal(numbers[name], tensor), name
    assert {path.name for path in run.iterdir()} == {LATEST_NAME, *(path.name for path in steps(run))}
