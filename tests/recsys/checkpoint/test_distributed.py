"""Training checkpoints over ranks: saved under one plan and world size, loaded under another, equal to the bit."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from torch import Tensor

from recsys.checkpoint.dcp_metadata import CheckpointReader
from recsys.checkpoint.run import newest
from tests.support.models.checkpoint_model import (
    DIM,
    ROWS,
    Setup,
    continued,
    dtensors,
    failing,
    full_disk,
    joined,
    loaded,
    trained,
)
from tests.support.ranks import live_pool

STEPS = 3


def _save(run: Path, world_size: int, setup: Setup, num_steps: int = STEPS) -> dict[str, Tensor]:
    return joined(live_pool(world_size).run(trained, run, setup, num_steps))


def _assert_equal(found: dict[str, Tensor], want: dict[str, Tensor]) -> None:
    assert set(found) == set(want)
    for name, tensor in want.items():
        assert torch.equal(found[name], tensor), name


_PLANS = [
    (2, Setup(plan="tw"), 4, Setup(plan="rw")),
    (4, Setup(plan="rw"), 2, Setup(plan="tw")),
    (2, Setup(plan="rw"), 4, Setup(plan="rw")),
    (4, Setup(plan="cw"), 2, Setup(plan="cw")),
    (2, Setup(plan="tw"), 4, Setup(plan="cw")),
    (2, Setup(plan="mixed"), 4, Setup(plan="mixed")),
    (4, Setup(plan="grid"), 2, Setup(plan="cw")),
    (2, Setup(plan="dp"), 4, Setup(plan="rw")),
    (4, Setup(plan="rw"), 2, Setup(plan="dp")),
    (2, Setup(plan="rw", kernel="dense"), 4, Setup(plan="tw")),
    (4, Setup(plan="cw"), 2, Setup(plan="cw", kernel="dense")),
    (2, Setup(plan="cw", numbers="weights"), 4, Setup(plan="rw", numbers="weights")),
    (4, Setup(plan="grid", numbers="weights"), 2, Setup(plan="dp", numbers="weights")),
    (2, Setup(plan="tw"), 1, Setup(plan="tw")),
]


@pytest.mark.parametrize(
    ("saved", "before", "now", "after"),
    _PLANS,
    ids=[f"{w}{a.plan}-{a.kernel}-{a.numbers} to {v}{b.plan}-{b.kernel}" for w, a, v, b in _PLANS],
)
def test_resharding_on_load_keeps_every_number(
    tmp_path: Path, saved: int, before: Setup, now: int, after: Setup
) -> None:
    want = _save(tmp_path / "run", saved, before)
    results = live_pool(now).run(loaded, tmp_path / "run", after)
    found = joined([numbers for numbers, _ in results])
    _assert_equal(found, want)
    for _, (step, shared, local) in results:
        assert (step, shared, local) == (STEPS, {"epoch": 2, "auc": 0.75}, None)


def test_joined_columns_take_the_mean_of_their_blocks(tmp_path: Path) -> None:
    want = _save(tmp_path / "run", 4, Setup(plan="cw3"))
    found = joined([n for n, _ in live_pool(2).run(loaded, tmp_path / "run", Setup(plan="cw"))])
    for table, rows in ROWS.items():
        (name,) = (n for n in want if n.endswith(f"{table}.state"))
        assert len(want[name].unique(dim=1)[0]) > 1
        halves = want[name].double().view(rows, 2, DIM // 2).mean(dim=2, keepdim=True)
        expected = halves.expand(rows, 2, DIM // 2).reshape(rows, DIM)
        torch.testing.assert_close(found[name].double(), expected, rtol=1e-6, atol=1e-12)
    _assert_equal(
        {n: t for n, t in found.items() if not n.endswith(".state")},
        {n: t for n, t in want.items() if not n.endswith(".state")},
    )


@pytest.mark.parametrize(
    "setup", [Setup(plan="mixed"), Setup(plan="rw", kernel="dense")], ids=["fused", "dense"]
)
def test_a_run_goes_on_as_if_it_had_not_stopped(tmp_path: Path, setup: Setup) -> None:
    want = _save(tmp_path / "whole", 2, setup, 6)
    _save(tmp_path / "half", 2, setup, 3)
    found = joined(live_pool(2).run(continued, tmp_path / "half", setup, (3, 6)))
    _assert_equal(found, want)


def test_the_same_ranks_find_their_own_position(tmp_path: Path) -> None:
    _save(tmp_path / "run", 2, Setup(plan="tw"))
    results = live_pool(2).run(loaded, tmp_path / "run", Setup(plan="rw"))
    assert [state[2] for _, state in results] == [{"position": 10}, {"position": 11}]


def test_a_rank_that_cannot_save_is_an_error_on_all(tmp_path: Path) -> None:
    errors = live_pool(2).run(failing, tmp_path / "run", Setup(plan="tw"), "save")
    assert errors[0] == errors[1]
    assert errors[0].startswith("CheckpointError: rank 1: training.ranks[0].local.position: got object")
    assert not (tmp_path / "run").exists()


def test_a_full_disk_is_an_error_on_all_and_the_last_checkpoint_stays(tmp_path: Path) -> None:
    _save(tmp_path, 2, Setup(plan="rw"))
    errors = live_pool(2).run(full_disk, tmp_path, Setup(plan="rw"))
    for error in errors:
        assert error == errors[0]
        assert error.startswith("CheckpointWriteError: rank 1: checkpoint of step ")
        assert (
            " cannot be written: No space left on device; free space there, or choose another disk" in error
        )
        assert "\n" not in error
    assert not list(tmp_path.glob(".saving-*"))
    assert newest(tmp_path) == tmp_path / f"step-{STEPS:08d}"
    _save(tmp_path, 2, Setup(plan="rw"), STEPS + 1)


def test_a_damaged_checkpoint_is_an_error_on_all(tmp_path: Path) -> None:
    _save(tmp_path, 2, Setup(plan="rw"))
    os.truncate(tmp_path / f"step-{STEPS:08d}" / "__1_0.distcp", 3000)
    errors = live_pool(2).run(failing, tmp_path, Setup(plan="tw"), "load")
    assert errors[0] == errors[1]
    assert "it is truncated" in errors[0]


def test_directories_of_dtensors_are_read(tmp_path: Path) -> None:
    live_pool(2).run(dtensors, tmp_path / "d")
    reader = CheckpointReader(tmp_path / "d")
    assert torch.equal(reader.read("rows", (0, 0), (7, 3)), torch.arange(21.0).view(7, 3))
    assert torch.equal(reader.read("rows", (2, 1), (4, 2)), torch.arange(21.0).view(7, 3)[2:6, 1:])
    assert torch.equal(reader.read("columns", (1, 0), (2, 5)), torch.arange(20.0).view(4, 5)[1:3])
