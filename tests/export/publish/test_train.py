"""Publishing by recsys-train, on one rank and on several."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from export.cli import main as export
from export.pipeline import export_model
from recsys.artifact.load import load_artifact
from recsys.checkpoint import Checkpoint, build_model
from recsys.checkpoint.single_file import empty_model
from recsys.data.batches import EpochOrder, batches
from recsys.data.sources.synthetic import synthetic
from recsys.train.commands.train import main as train
from recsys.train.config import ModelConfig, TrainConfig
from recsys.train.stepping.ranks import Ranks, process_group
from recsys.train.stepping.trainer import Trainer
from recsys.training import Publisher, PublishStatus
from tests.export.delta.test_delta import rows_of
from tests.export.publish.test_publisher import followed
from tests.recsys.train.plans import mixed_plan
from tests.support.ranks import live_pool

_SMALL = ModelConfig(embedding_dim=16, dense_layers=(8,), over_layers=(8,))
_ROWS = 1_200
_OPTIONS = ["--data", "synthetic", "--limit-rows", "4000", "--epochs", "1", "--embedding-dim", "8", "--json"]


def in_ranks(
    rank: int, world_size: int, folder: Path, kinds: Sequence[str]
) -> tuple[dict[str, Tensor] | None, list[PublishStatus]]:
    """Some steps, deltas and steps again; the whole model at the end."""
    dataset = synthetic(_ROWS)
    ranks = Ranks(rank=rank, world_size=world_size, local_world_size=world_size)
    config = TrainConfig(batch_size=20, row_weight_decay=1e-3)
    found = []
    with process_group(ranks):
        plan = mixed_plan(dataset, _SMALL.embedding_dim, kinds)
        trainer = Trainer(_SMALL.factory, _SMALL.arguments(dataset), config, ranks, plan)
        with Publisher(
            trainer.model,
            folder / "a",
            folder / "deltas",
            optimizer=trainer.optimizer,
            exported=empty_model(_SMALL.factory, _SMALL.arguments(dataset)),
        ) as publisher:
            trainer.touched = publisher.touched
            order = EpochOrder(seed=0, epoch=0)
            steps = trainer.steps(batches(dataset.train(), 20, order, trainer.share))
            for number, _ in enumerate(steps):
                if number in (0, 3, 4):
                    assert publisher.finish(), publisher.status
                    found.append(publisher.status)
            trainer.clear_untrained()
            assert publisher.finish(), publisher.status
            found.append(publisher.status)
        return trainer.whole_state_dict(), found


@pytest.mark.parametrize("kinds", [("rw", "cw", "tw", "dp"), ("tw", "rw")], ids="-".join)
def test_two_ranks(tmp_path: Path, kinds: Sequence[str]) -> None:
    dataset = synthetic(_ROWS)
    arguments = _SMALL.arguments(dataset)
    torch.manual_seed(1)
    model = empty_model(_SMALL.factory, arguments)
    start = {name: torch.randn(weight.shape) for name, weight in model.state_dict().items()}

    def export_state(state: dict[str, Tensor], path: Path) -> None:
        checkpoint = Checkpoint(factory=_SMALL.factory, arguments=arguments, state_dict=state)
        export_model(build_model(checkpoint).eval(), path)

    export_state(start, tmp_path / "a")
    (state, found), *_ = live_pool(2).run(in_ranks, tmp_path, kinds)
    assert state is not None
    export_state(state, tmp_path / "fresh")
    assert torch.equal(
        rows_of(followed(tmp_path / "a", tmp_path / "deltas")), rows_of(load_artifact(tmp_path / "fresh"))
    )
    assert [status.num_published for status in found] == [1, 2, 3, 4]
    # 40 examples of one step.
    assert found[2].num_rows <= 40 * 14
    assert found[0].num_rows > found[2].num_rows


def run(command: Any, *arguments: str | Path) -> None:
    assert command([str(argument) for argument in arguments]) == 0


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(train, *_OPTIONS, "--out", tmp_path / "old.pt")
    run(export, tmp_path / "old.pt", "--json")
    base = [option for option in _OPTIONS if option not in ("--embedding-dim", "8")]
    publishing = ["--artifact", tmp_path / "old.artifact", "--publish", tmp_path / "deltas"]
    start = ["--init-from", tmp_path / "old.pt", "--seed", "1"]
    capsys.readouterr()
    run(train, *base, *start, *publishing, "--publish-every", "100ms", "--out", tmp_path / "new.pt")
    printed = capsys.readouterr()
    assert printed.err == ""
    assert json.loads(printed.out)["out"]
    run(export, tmp_path / "new.pt", "--json")
    fresh = load_artifact(tmp_path / "new.artifact")
    assert torch.equal(rows_of(followed(tmp_path / "old.artifact", tmp_path / "deltas")), rows_of(fresh))
    capsys.readouterr()
    assert train([*base, "--out", str(tmp_path / "x.pt"), "--publish", str(tmp_path / "deltas")]) == 2
    assert "--artifact: missing" in capsys.readouterr().err
    assert train([*base, "--out", str(tmp_path / "x.pt"), "--publish-every", "5s"]) == 2
    assert "--publish-every: got it without --publish" in capsys.readouterr().err
    missing = ["--publish", str(tmp_path / "deltas"), "--artifact", str(tmp_path / "no.artifact")]
    assert train([*base, "--out", str(tmp_path / "x.pt"), *missing]) == 2
    assert "no.artifact" in capsys.readouterr().err
