"""recsys-train: its trainer, which reads the Parquet file in each epoch."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.measure.machine import prepare
from benchmarks.trainers.public.task import TABLE_FILE, Task
from benchmarks.trainers.public.worker import serve
from recsys.data.batches import EpochOrder, batches
from recsys.data.next_items import next_item_dataset
from recsys.data.prefetch import prefetched
from recsys.data.tables.dataset import table_dataset
from recsys.inputs.schema import Schema
from recsys.train.commands.defaults import DEFAULTS
from recsys.train.config import ModelConfig, RunConfig
from recsys.train.job import TrainJob
from recsys.train.stepping.next_item import rank_shares
from recsys.train.stepping.ranks import ONE_RANK, process_group
from recsys.train.stepping.trainer import Trainer

_SCORED_ROWS = 4096


class Ours:
    """The trainer of recsys-train with its defaults for tables."""

    def __init__(self, task: Task, folder: Path) -> None:
        schema, path = Schema.from_json(task.schema), folder / TABLE_FILE
        batch_size = task.batch_size
        if task.model == "sasrec":
            sequence = task.sequence
            model = ModelConfig(
                model=task.model,
                objective="next-item",
                embedding_dim=task.embedding_dim,
                history=next(iter(task.lists)),
                target=next(iter(task.features)),
                max_history=sequence.max_history,
                encoder_layers=sequence.num_layers,
                heads=sequence.num_heads,
                dropout=sequence.dropout,
            )
            assert model.next_item is not None
            self._dataset = next_item_dataset(path, schema, model.next_item)
            batch_size //= sequence.max_history  # each row has as many next items
        else:
            model = ModelConfig(model=task.model, embedding_dim=task.embedding_dim, over_layers=task.layers)
            self._dataset = table_dataset(path, schema)
        self._config = replace(DEFAULTS["table"].train, batch_size=batch_size)
        self._items = TrainJob(dataset=self._dataset, model=model, train=self._config).next_item
        arguments = model.arguments(self._dataset)
        self._trainer = Trainer(model.factory, arguments, self._config, ONE_RANK, items=self._items)

    def epoch(self, number: int) -> None:
        """Train on all rows, which a thread reads."""
        order = EpochOrder(seed=self._config.seed, epoch=number)
        source = batches(self._dataset.train(), self._config.batch_size, order)
        if self._items is not None:
            source = map(self._items.negatives.extended, source)
        with prefetched(source, RunConfig.prefetch) as ahead:
            for _ in self._trainer.steps(ahead):
                pass
        self._trainer.clear_untrained()

    def scores(self) -> NDArray[Any] | dict[str, float]:
        """Return logits ``[N]``, or metrics of next items."""
        trainer = self._trainer
        if self._items is not None:
            found = rank_shares(trainer.vectors, self._dataset, self._items, trainer.share, trainer.group)
            return {"ndcg": found.ndcg, "hit_rate": found.hit_rate}
        held_out = batches(self._dataset.held_out(), _SCORED_ROWS)
        return np.concatenate([logits[:, 0].numpy() for logits, _, _ in trainer.score(held_out)])


if __name__ == "__main__":
    prepare()
    with process_group(ONE_RANK):
        serve("recsys-train", ["torch"], Ours)
