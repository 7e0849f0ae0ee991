"""Exports with a context, ranking batches, and the comparison of an artifact's two forms.

Shape letters: B rows, Q contexts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from export.config import ExportConfig
from export.pipeline import export_model
from recsys.artifact.batches.ranking import RankingBatch, expand, ranking_batch
from recsys.artifact.batches.samples import random_batch
from recsys.artifact.load import LoadedArtifact, load_artifact
from recsys.inputs.signature import Signature
from tests.support.models.export_models import assert_close

#: Rows of each context.
BATCHES: dict[str, list[int]] = {
    "one context": [60],
    "one row": [1],
    "several": [7, 1, 20, 2],
    "contexts without rows": [0, 3, 0, 5, 0],
    "no rows": [0, 0],
    "no contexts": [],
}


def random_ranking_batch(
    signature: Signature,
    rows_per_context: Sequence[int],
    generator: torch.Generator,
    max_ids_per_bag: int = 4,
    known_ids: Mapping[str, Tensor] | None = None,
) -> RankingBatch:
    """Random contexts and rows, as ``random_batch`` makes them.

    Args:
        signature: what the model takes; its context must not be empty.
        rows_per_context: for each of the Q contexts its number of rows; these follow one another.
        generator: where the numbers come from.
        max_ids_per_bag: bags have 0 to so many IDs.
        known_ids: as in ``random_batch``.
    """
    contexts = random_batch(signature, len(rows_per_context), generator, max_ids_per_bag, known_ids)
    rows = random_batch(signature, sum(rows_per_context), generator, max_ids_per_bag, known_ids)
    numbers = torch.arange(len(rows_per_context))
    counts = torch.tensor(rows_per_context, dtype=torch.int64)
    return ranking_batch(signature, contexts, rows, torch.repeat_interleave(numbers, counts))


def ranked(model: nn.Module, path: Path, context: Sequence[str], **options: Any) -> LoadedArtifact:
    """Export with a context, and load the first target, with the operators that the artifact names."""
    export_model(model, path, ExportConfig(context=tuple(context), **options))
    return load_artifact(path, scripted=True)


def batch_of(artifact: LoadedArtifact, rows_per_context: Sequence[int], seed: int = 0) -> RankingBatch:
    """Random contexts and rows; the rows in no order."""
    generator = torch.Generator().manual_seed(seed)
    made = random_ranking_batch(artifact.signature, rows_per_context, generator)
    order = torch.randperm(made.row_context.numel(), generator=generator)
    return replace(made, row_context=made.row_context[order])


def assert_equal_forms(artifact: LoadedArtifact, batch: RankingBatch) -> None:
    """Up to roundings: layers that run on contexts sum in another order than on rows."""
    assert_close(
        artifact.forward_ranking(*batch.inputs()),
        artifact.forward(*expand(artifact.signature, batch).inputs()),
    )
