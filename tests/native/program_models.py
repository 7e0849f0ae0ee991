"""Models of the zoo, exported to programs, and inputs for them.

Shape letters: B batch, F features.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from export.config import ExportConfig
from export.pipeline import export_model
from recsys.artifact.batches.ranking import ranking_batch
from recsys.artifact.load import LoadedArtifact, load_artifact
from recsys.models import click, zoo
from tests.support.models.export_models import batch_of

NUM_DENSE = 5
FEATURES = [f"f{i}" for i in range(5)]
TABLES = [
    {"name": f"t{i}", "num_embeddings": 40 + 9 * i, "embedding_dim": 24, "feature_names": [name]}
    for i, name in enumerate(FEATURES)
]
SIZES = (0, 1, 2, 5, 48, 49, 300)


def dlrm() -> nn.Module:
    return click.build_dlrm(
        tables=TABLES,
        dense_in_features=NUM_DENSE,
        dense_arch_layer_sizes=[33, 24],
        over_arch_layer_sizes=[17, 1],
    )


def low_rank_dcn() -> nn.Module:
    return zoo.build_dcn(
        tables=TABLES, dense_in_features=NUM_DENSE, num_cross_layers=2, cross_rank=7, deep_layer_sizes=[9, 4]
    )


def full_rank_dcn() -> nn.Module:
    return zoo.build_dcn(
        tables=TABLES, dense_in_features=NUM_DENSE, num_cross_layers=3, cross_rank=0, deep_layer_sizes=[9]
    )


def deepfm() -> nn.Module:
    return zoo.build_deepfm(tables=TABLES, dense_in_features=NUM_DENSE, deep_layer_sizes=[9, 4])


def mmoe() -> nn.Module:
    return zoo.build_mmoe(
        tables=TABLES,
        dense_in_features=NUM_DENSE,
        num_experts=3,
        expert_layer_sizes=[8, 4],
        tower_layer_sizes=[4],
    )


def two_towers() -> nn.Module:
    return zoo.build_two_tower(
        tables=TABLES, dense_in_features=NUM_DENSE, item_features=["f1", "f3"], tower_layer_sizes=[8, 4]
    )


MODELS = {make.__name__: make for make in (dlrm, low_rank_dcn, full_rank_dcn, deepfm, mmoe, two_towers)}


def loaded(folder: Path, model: nn.Module, **options: Any) -> tuple[LoadedArtifact, LoadedArtifact]:
    """Export a model, and return its TorchScript and its program."""
    torch.manual_seed(0)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.1)
    if isinstance(model, click.ClickModel):
        options = {"dense_widths": {"dense_features": NUM_DENSE}, **options}
    export_model(model.eval(), folder, ExportConfig(**options))
    return load_artifact(folder, scripted=True), load_artifact(folder)


def row_alone(lengths: Tensor, values: Tensor, num_rows: int, row: int) -> tuple[Tensor, Tensor]:
    """Return the lengths and values of one row of a batch."""
    bags = values.split(lengths.tolist())
    return lengths.view(-1, num_rows)[:, row].contiguous(), torch.cat(bags[row::num_rows])


def ranking_inputs(artifact: LoadedArtifact, rows: tuple[int, ...]) -> list[Tensor]:
    """Return a batch of contexts with so many rows each."""
    row_context = torch.repeat_interleave(torch.arange(len(rows)), torch.tensor(rows, dtype=torch.int64))
    contexts, candidates = (
        batch_of(artifact.signature, num, seed=seed) for seed, num in enumerate((len(rows), sum(rows)))
    )
    return list(ranking_batch(artifact.signature, contexts, candidates, row_context).inputs())


#: Relative to the largest output: products of numbers that are rounded to 24, 8 and 7 bits.
TOLERANCES = {"float32": 1e-5, "bfloat16": 2.0**-6, "int8": 2.0**-5}


def assert_near(found: Tensor, expected: Tensor, dtype: str) -> None:
    """Compare with what torch computes."""
    assert found.shape == expected.shape
    if expected.numel():
        largest = max(1.0, float(expected.abs().max()))
        assert float((found - expected).abs().max()) <= TOLERANCES[dtype] * largest
