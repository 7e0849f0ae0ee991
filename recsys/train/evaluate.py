"""Held-out metrics, the same on every rank: each scores its share, and all ranks receive all scores.

Shape letters: L labels, N number of examples, W world size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import torch
from torch import Tensor
from torch import distributed as dist

from recsys.collectives import gather_rows
from recsys.data.batches import ONE_RANK, Share, batches
from recsys.data.examples import Dataset, LabeledBatch
from recsys.data.metrics import Metrics, measure
from recsys.data.prefetch import Prefetch
from recsys.models.click import ClickModel

_BATCH_SIZE = 4096
_PREFETCH = 2

Scorer = Callable[[Iterable[LabeledBatch]], Iterator[tuple[Tensor, Tensor]]]


def evaluate(model: ClickModel, dataset: Dataset) -> dict[str, Metrics]:
    """Return the metrics of a model in this process on the held-out examples, by label."""

    @torch.no_grad()
    def score(held_out: Iterable[LabeledBatch]) -> Iterator[tuple[Tensor, Tensor]]:
        for batch in held_out:
            yield model.logits(batch.dense, batch.kjt), batch.labels

    return evaluate_shares(score, dataset)


def evaluate_shares(
    scorer: Scorer, dataset: Dataset, share: Share = ONE_RANK, group: dist.ProcessGroup | None = None
) -> dict[str, Metrics]:
    """Return the metrics, by label, over all ranks' shares of the held-out examples. Every rank must call it.

    Args:
        scorer: Yields each batch's logits and labels ``[B, L]``.
        dataset: The examples.
        share: This rank's.
        group: The ranks; None for one process.

    Raises:
        ValueError: The model's logits are not finite.
    """
    with Prefetch(batches(dataset.held_out(), _BATCH_SIZE, share=share), _PREFETCH) as held_out:
        scored = [torch.stack((logits.float(), labels), dim=1) for logits, labels in scorer(held_out)]
    rows = torch.cat(scored)
    if group is not None:
        rows = torch.cat(gather_rows(rows, group))
    scores = rows.cpu().numpy()
    return {
        name: measure(scores[:, 0, i], scores[:, 1, i]) for i, name in enumerate(dataset.schema.label_names)
    }
