"""The softmax over items of two towers: the item of a row of label 1 among the batch's items, or drawn ones.

Shape letters: B batch, D width of the vectors, M drawn items.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import Tensor, nn
from torch import distributed as dist

from recsys.data.examples import LabeledBatch
from recsys.data.next_items import first_ids
from recsys.train.losses.candidates import Chosen, ItemPlaces, find_candidates, losses_among
from recsys.train.losses.negatives import Negatives, bags_of, on_device
from recsys.train.stepping.steps import Step
from recsys.train.stepping.tasks import StepTask


@dataclass(frozen=True, kw_only=True)
class TowerItems:
    """What is learned.

    Attributes:
        feature: The feature that tells items apart.
        negatives: What they are learned against.
    """

    feature: str
    negatives: Negatives


class TowerTask(StepTask):
    """Learns the items of two towers.

    Args:
        model: A VectorsOf, over the ranks.
        world_size: W.
        items: What is learned.
        group: The ranks whose items are candidates; None for this rank's alone.
    """

    def __init__(
        self, model: nn.Module, world_size: int, items: TowerItems, group: dist.ProcessGroup | None = None
    ) -> None:
        super().__init__(model, world_size, items.negatives.num_drawn)
        self._items = items
        self._group = group

    def forward(self, batch: LabeledBatch) -> tuple[Tensor, Step]:
        """Return the loss, scaled for the global batch, and the step; drawn items are no rows of it."""
        users, items = self._model(batch.dense, batch.kjt)
        num_rows = self.num_rows(batch)
        logits = (users * items).sum(dim=1, keepdim=True)[:num_rows]
        loss = logits.new_zeros(())
        if self.training:
            losses = self._losses(users, items, batch, num_rows) * batch.labels[:num_rows].squeeze(1)
            loss = self.weighted_sum(losses, batch)
        return self.record(batch, loss, logits)

    def _losses(self, users: Tensor, items: Tensor, batch: LabeledBatch, num_rows: int) -> Tensor:
        """Return the loss of each row's item among the candidates, ``[B]``; 0 for a row without an item."""
        negatives, device = self._items.negatives, users.device
        ids, there = first_ids(bags_of(batch.kjt, self._items.feature))
        rows = np.flatnonzero(there)
        places = ItemPlaces(ids=ids[rows], rows=rows, num_rows=num_rows)
        candidates = find_candidates(places, items[on_device(rows, device)], negatives, self._group)
        chosen = Chosen(
            ids=ids[:num_rows], rows=np.arange(num_rows), users=users[:num_rows], items=items[:num_rows]
        )
        losses = losses_among(candidates, chosen, negatives)
        return losses * on_device(there[:num_rows].astype(np.float32), device)
