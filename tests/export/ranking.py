"""Exports with a context, ranking batches, and the comparison of an artifact's two forms.

Shape letters: B rows, Q contexts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from export.config import ExportConfig
from export.pipeline import export_model
from recsys.artifact import LoadedArtifact, load_artifact
from recsys.ranking import RankingBatch, expand, random_ranking_batch

#: Rows of each context.
BATCHES: dict[str, list[int]] = {
    "one context": [60],
    "one row": [1],
    "several": [7, 1, 20, 2],
    "contexts without rows": [0, 3, 0, 5, 0],
    "no rows": [0, 0],
    "no contexts": [],
}


def ranked(model: nn.Module, path: Path, context: Sequence[str], **options: Any) -> LoadedArtifact:
    """Export with a context, and load the first target."""
    export_model(model, path, ExportConfig(context=tuple(context), **options))
    return load_artifact(path)


def batch_of(artifact: LoadedArtifact, rows_per_context: Sequence[int], seed: int = 0) -> RankingBatch:
    """Random contexts and rows; the rows in no order."""
    generator = torch.Generator().manual_seed(seed)
    made = random_ranking_batch(artifact.signature, rows_per_context, generator)
    order = torch.randperm(made.row_context.numel(), generator=generator)
    return replace(made, row_context=made.row_context[order])


def assert_equal_forms(artifact: LoadedArtifact, batch: RankingBatch) -> None:
    """Bit by bit, whatever stands behind the pooled embeddings."""
    found = artifact.forward_ranking(*batch.inputs())
    expected = artifact.forward(*expand(artifact.signature, batch).inputs())
    assert list(found) == list(expected)
    for name, want in expected.items():
        assert found[name].dtype == torch.float32
        assert torch.equal(found[name], want), name
