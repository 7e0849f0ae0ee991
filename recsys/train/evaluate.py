"""Held-out metrics, the same on every rank: each scores its share, and all ranks receive all scores.

Shape letters: L labels, N number of examples, W world size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import torch
from torch import Tensor
from torch import distributed as dist

from recsys.base.collectives import gather_rows
from recsys.data.batches import ONE_RANK, Share, batches
from recsys.data.examples import Dataset, LabeledBatch
from recsys.data.prefetch import prefetched
from recsys.metrics.exact import Metrics, measure
from recsys.metrics.ranked import RankMetrics
from recsys.models.click import ClickModel

_BATCH_SIZE = 4096
_PREFETCH = 2

HeldOut = Metrics | RankMetrics
Scorer = Callable[[Iterable[LabeledBatch]], Iterator[tuple[Tensor, Tensor, Tensor | None]]]


def evaluate(model: ClickModel, dataset: Dataset) -> dict[str, Metrics]:
    """Return the metrics of a model in this process on the held-out examples, by label."""

    @torch.no_grad()
    def score(held_out: Iterable[LabeledBatch]) -> Iterator[tuple[Tensor, Tensor, Tensor | None]]:
        for batch in held_out:
            yield model.logits(batch.dense, batch.kjt), batch.labels, batch.weights

    return evaluate_shares(score, dataset)


def evaluate_shares(
    scorer: Scorer, dataset: Dataset, share: Share = ONE_RANK, group: dist.ProcessGroup | None = None
) -> dict[str, Metrics]:
    """Return the metrics, by label, over all ranks' shares of the held-out examples. Every rank must call it.

    Args:
        scorer: Yields each batch's logits and labels ``[B, L]``, and its weights ``[B]``, or None without any.
        dataset: The examples.
        share: This rank's.
        group: The ranks; None for one process.

    Raises:
        ValueError: The model's logits are not finite.
    """
    with prefetched(batches(dataset.held_out(), _BATCH_SIZE, share=share), _PREFETCH) as held_out:
        scored = [_stacked(*batch) for batch in scorer(held_out)]
    rows = torch.cat(scored)
    if group is not None:
        rows = torch.cat(gather_rows(rows, group))
    scores = rows.cpu().numpy()
    return {
        name: measure(*(scores[:, kind, i] for kind in range(scores.shape[1])))
        for i, name in enumerate(dataset.schema.label_names)
    }


def _stacked(logits: Tensor, labels: Tensor, weights: Tensor | None) -> Tensor:
    """Return ``[B, 2, L]``, or ``[B, 3, L]`` with weights."""
    parts = [logits.float(), labels]
    if weights is not None:
        parts.append(weights.unsqueeze(1).expand_as(labels))
    return torch.stack(parts, dim=1)
