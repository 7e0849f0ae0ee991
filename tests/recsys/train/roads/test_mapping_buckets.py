"""Sharded mappings on the road: one rank and two learn the same rows of raw IDs, and an export takes the checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from export.cli import main as export_main
from recsys.artifact.load import load_artifact
from recsys.checkpoint import build_model, load_checkpoint
from recsys.data.tables.dataset import table_dataset
from recsys.data.tables.schema_file import read_schema
from recsys.managed import ManagedCollisionCollection
from recsys.train.callbacks import Callback
from recsys.train.commands.train import main as train_main
from recsys.train.config import ModelConfig, TrainConfig
from recsys.train.job import TrainJob, train_over_ranks
from recsys.train.stepping.ranks import Ranks
from tests.support.ranks import live_pool

_SCHEMA = """\
[[labels]]
name = "click"

[[dense]]
name = "price"

[[tables]]
name = "user"
features = ["user"]
rows = 48
ids = "zero_collision"

[[tables]]
name = "item"
features = ["seen", "item"]
rows = 96
ids = "zero_collision"
separator = "|"
"""
_BATCH_SIZE = 64
_SIZES = {"embedding_dim": 4, "dense_layers": (8,), "over_layers": (8,), "mapping_buckets": 8}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table of raw IDs, more than there are rows for, and its schema."""
    folder = tmp_path_factory.mktemp("buckets")
    generator = np.random.default_rng(0)
    lines = ["click,price,user,seen,item"]
    for _ in range(2_000):
        user = int(generator.zipf(1.3)) % 500 * 7_919 - 1_000
        items = [str(int(generator.zipf(1.3)) % 300) for _ in range(generator.integers(0, 4))]
        lines.append(
            f"{user % 2},{generator.normal():.3f},{user},{'|'.join(items)},{generator.integers(200)}"
        )
    (folder / "clicks.csv").write_text("\n".join(lines) + "\n")
    (folder / "schema.toml").write_text(_SCHEMA)
    return folder


def train_on(rank: int, world_size: int, folder: Path, buckets: int) -> dict[str, Any]:
    """Train on some ranks; return what a rank holds of each mapping, or the error."""
    model = ModelConfig(**{**_SIZES, "mapping_buckets": buckets})  # type: ignore[arg-type]
    ranks = Ranks(rank=rank, world_size=world_size, local_world_size=world_size)
    try:
        job = TrainJob(
            dataset=table_dataset(folder / "clicks.csv", read_schema(folder / "schema.toml")),
            model=model,
            train=TrainConfig(batch_size=_BATCH_SIZE // world_size),
            checkpoint_dir=folder / f"run-{buckets}",
        )
        trained = train_over_ranks(job, ranks, Callback(), whole=True)
    except ValueError as error:
        return {"error": str(error)}
    return {"state": trained.state_dict, "plan": trained.plan.to_json()}


def test_two_ranks_learn_the_rows_of_one_and_are_exported(folder: Path) -> None:
    argv = ["--data", str(folder / "clicks.csv"), "--schema", str(folder / "schema.toml"), "--json"]
    sizes = ["--embedding-dim", "4", "--dense-layers", "8", "--over-layers", "8", "--mapping-buckets", "8"]
    batch = ["--batch-size", str(_BATCH_SIZE), "--epochs", "1", "--row-learning-rate", "0.05"]
    assert train_main([*argv, *sizes, *batch, "--out", str(folder / "one.pt")]) == 0
    alone = load_checkpoint(folder / "one.pt")

    together = live_pool(2).run(train_on, folder, 8)[0]
    (plan,) = together["plan"].values()
    assert {table["sharding_type"] for table in plan.values()} == {"row_wise"}
    assert list(together["state"]) == list(alone.state_dict)
    for name, tensor in alone.state_dict.items():
        if tensor.dtype == torch.int64:
            assert torch.equal(together["state"][name], tensor), name
        else:
            torch.testing.assert_close(together["state"][name], tensor, rtol=1e-3, atol=1e-4, msg=name)

    assert export_main([str(folder / "run-8"), "--dtype", "fp32", "--out", str(folder / "m.artifact")]) == 0
    artifact = load_artifact(folder / "m.artifact")
    assert {table.id_policy.value for f in artifact.manifest.signature.sparse for table in f.tables} == {
        "mapped"
    }
    model = build_model(alone)
    (mapping,) = [part for part in model.modules() if isinstance(part, ManagedCollisionCollection)]
    assert {
        table: len(module.owners()[0]) for table, module in mapping.managed_collision_modules().items()
    } == {
        "user": 47,
        "item": 95,
    }


@pytest.mark.parametrize(
    ("buckets", "message"),
    [
        (3, "got 3 mapping_buckets for 2 ranks, expected a multiple of the ranks"),
        (7, "mapping_buckets: got 7, expected a divisor of the 48 rows of table 'user'"),
    ],
)
def test_buckets_that_do_not_fit_are_an_error(folder: Path, buckets: int, message: str) -> None:
    for found in live_pool(2).run(train_on, folder, buckets):
        assert message in found["error"]
