"""Checkpoints of frameworks that keep objects of their own beside the weights; none of their code runs."""

from __future__ import annotations

import os
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
import torch

from export.source.ranks import read_rank_file
from recsys.errors import CheckpointError


class Kind(Enum):
    """A choice among a trainer's settings."""

    ONE = 1


class OldKind(Enum):
    """One that is pickled as Python 3.11.0 to 3.11.3 pickle all enumerations."""

    ONE = 1

    def __reduce_ex__(self, _: Any) -> Any:
        return getattr, (OldKind, self.name)


class Settings:
    """A trainer's settings, whose code must not run."""

    def __init__(self) -> None:
        self.kinds, self.names, self.more = [Kind.ONE, OldKind.ONE], ["a"], {"rate": 0.1}

    def __setstate__(self, state: Any) -> None:
        raise AssertionError("code of the checkpoint has run")


class Calls:
    """Makes a folder when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


def test_settings_are_left_out(tmp_path: Path) -> None:
    weight = torch.rand(3, 2)
    torch.save({"config": Settings(), "epoch": 3, "state_dict": {"w": weight}}, tmp_path / "model.pth")
    notes: list[str] = []
    found = read_rank_file(tmp_path / "model.pth", ["w"], notes)
    assert torch.equal(found["w"], weight)  # type: ignore[arg-type]
    assert notes[0].startswith("no objects of tests.export.source.test_others.")


def test_no_code_of_a_checkpoint_runs(tmp_path: Path) -> None:
    made = tmp_path / "made"
    torch.save({"state_dict": {"w": torch.rand(3)}, "more": Calls(made)}, tmp_path / "model.pth")
    with pytest.raises(CheckpointError, match="not readable with weights_only"):
        read_rank_file(tmp_path / "model.pth")
    assert not made.exists()
