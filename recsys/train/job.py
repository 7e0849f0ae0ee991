"""A training from beginning to end, on all ranks, resumed from a checkpoint if there is one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist

from recsys.checkpoint.distributed import TrainingState, load_training, save_training
from recsys.checkpoint.lock import locked
from recsys.checkpoint.ranks import from_first
from recsys.checkpoint.run import best, choose_best, newest, read_record
from recsys.checkpoint.touched import TOUCHED, touched_info
from recsys.data.example_rows import data_sketch, example_rows
from recsys.data.examples import Bags, Dataset, Reference
from recsys.data.next_items import ItemCounts, NextItemColumns, by_popularity, count_items
from recsys.errors import CheckpointError
from recsys.inputs.columns import learns_numbers
from recsys.inputs.example_rows import DATA_SKETCH, EXAMPLE_ROWS
from recsys.sharding.plan.plan import ShardingPlan
from recsys.train.best import BEST_METRICS, OF_CLICKS, OF_NEXT_ITEMS, OF_NUMBERS
from recsys.train.callbacks import Callback, CallbackList
from recsys.train.config import MATMUL_PRECISIONS, ModelConfig, RunConfig, TrainConfig
from recsys.train.loop import Loop, Saving
from recsys.train.losses.negatives import Negatives, catalogue
from recsys.train.losses.towers import TowerItems
from recsys.train.progress import Epoch, TrainProgress
from recsys.train.publishing import Publishing, published
from recsys.train.schedules import Schedules, steps_per_epoch
from recsys.train.stepping.next_item import NextItem
from recsys.train.stepping.ranks import Ranks, process_group
from recsys.train.stepping.trainer import Trainer
from recsys.train.warm_start import WarmStart, fill
from recsys.training import TouchedRows

_PROGRESS, _SETTINGS = "progress", "settings"
# Settings that runs of earlier releases do not have.
_FOR_ORDERING = ("bpr", "softmax")
_OF_LOSS = (
    "loss",
    "positive_weight",
    "focal_gamma",
    "label_weights",
    "negatives",
    "num_negatives",
    "gather_negatives",
)
_OF_SCHEDULES = tuple(field.name for field in fields(Schedules))
_LATER = ("data_digest", "best_metric", "matmul_precision", *_OF_SCHEDULES, *_OF_LOSS)


@dataclass(frozen=True, kw_only=True)
class TrainJob:
    """A training job: data, model, settings, checkpoints.

    Attributes:
        dataset: The examples.
        model: The model's sizes.
        train: How to train.
        run: Reading ahead and measuring.
        plan: The placement; None leaves it to the planner (on one rank there is nothing to plan).
        checkpoint_dir: The run's directory; None keeps no checkpoints.
        checkpoint_every: Steps between two checkpoints; 0 for one at the end of each epoch.
        resume: Continue from the newest checkpoint in ``checkpoint_dir``, or from the beginning if there is
            none.
        start: The model whose weights the training starts from, in place of ``model``; None for new weights.
        publishing: Where deltas go while it trains; None for nowhere.
    """

    dataset: Dataset
    model: ModelConfig
    train: TrainConfig
    run: RunConfig = field(default_factory=RunConfig)
    plan: ShardingPlan | None = None
    checkpoint_dir: Path | None = None
    checkpoint_every: int = 0
    resume: bool = False
    start: WarmStart | None = None
    publishing: Publishing | None = None

    def __post_init__(self) -> None:
        if self.checkpoint_every < 0:
            raise ValueError(f"checkpoint_every: got {self.checkpoint_every}, expected at least 0")
        if self.checkpoint_dir is None and (self.resume or self.checkpoint_every):
            what = "resume" if self.resume else "checkpoint_every"
            raise ValueError(f"{what}: got it without checkpoint_dir, expected both")
        if self.start is not None:
            self.start.check(self.dataset)
        self._check_objective()
        self.dataset.check_labels()

    @property
    def factory(self) -> str:
        """The model's factory."""
        return self.model.factory if self.start is None else self.start.factory

    def arguments(self) -> dict[str, Any]:
        """Return the factory's arguments."""
        return self.model.arguments(self.dataset) if self.start is None else dict(self.start.arguments)

    @cached_property
    def next_item(self) -> NextItem | None:
        """The items that are learned in place of labels, for which the training examples are read once; else None."""
        columns = next_item_columns(self.arguments())
        if columns is None:
            return None
        items = count_items(self.dataset.train(), columns)
        bags = {columns.target: Bags.single(items.ids)}
        return NextItem(
            columns=columns, negatives=self._negatives(items, bags), each=self.dataset.splits_histories
        )

    @cached_property
    def items(self) -> NextItem | TowerItems | None:
        """The items that are learned in place of labels, for which the training examples are read once; else None."""
        if self.next_item is not None or self.train.loss != "softmax":
            return self.next_item
        features = [str(name) for name in self.arguments()["item_features"]]
        items, bags = catalogue(self.dataset.train(), features)
        return TowerItems(feature=features[0], negatives=self._negatives(items, bags))

    def _negatives(self, items: ItemCounts, bags: dict[str, Bags]) -> Negatives:
        train = self.train
        loss = "bpr" if train.loss == "bpr" else "softmax"
        return Negatives(items=items, bags=bags, kind=train.negatives, number=train.num_negatives, loss=loss)

    def reference(self) -> Reference | None:
        """Return the reference for the model's metrics; None if there is none."""
        if self.next_item is None:
            return self.dataset.reference()
        ranked = by_popularity(self.dataset, self.next_item.items, self.next_item.columns)
        return Reference(name="popularity", text="the most frequent items", ranked=ranked)

    def _check_objective(self) -> None:
        is_next_item = next_item_columns(self.arguments()) is not None
        if not is_next_item and not self.dataset.schema.labels:
            raise ValueError(
                "schema.labels: got none, expected at least one; without labels, --model sasrec --objective next-item "
                "learns the items that follow histories"
            )
        self._check_loss(is_next_item=is_next_item)
        if not is_next_item and self.train.loss in _FOR_ORDERING and self.train.best_metric == "loss":
            # Its scores are no chances, which the held-out log loss measures.
            object.__setattr__(self, "train", replace(self.train, best_metric="auc"))
        are_numbers = {label.is_number for label in self.dataset.schema.labels}
        wrong = [
            *(() if is_next_item else OF_NEXT_ITEMS),
            *(() if False in are_numbers else OF_CLICKS),
            *(() if True in are_numbers else OF_NUMBERS),
        ]
        if self.train.best_metric in wrong:
            known = [name for name in BEST_METRICS if name not in wrong]
            raise ValueError(
                f"best_metric: got {self.train.best_metric!r}, expected one of {', '.join(known)} for this objective"
            )

    def _check_loss(self, *, is_next_item: bool) -> None:
        train, num_labels = self.train, len(self.dataset.schema.labels)
        is_of_towers = "tower_layer_sizes" in self.arguments() and "item_features" in self.arguments()
        if train.loss == "softmax" and not (is_next_item or is_of_towers):
            raise ValueError("loss: got softmax, expected it with --model twotower or --objective next-item")
        if is_next_item and (train.loss == "focal" or train.positive_weight != 1):
            raise ValueError(
                f"loss: got {train.loss} with positive_weight {train.positive_weight:g}, expected softmax or bpr for "
                "next-item, which has no labels"
            )
        learns_clicks = is_next_item or any(not label.is_number for label in self.dataset.schema.labels)
        if not learns_clicks and (train.loss != "cross-entropy" or train.positive_weight != 1):
            raise ValueError(
                f"loss: got {train.loss} with positive_weight {train.positive_weight:g}, expected neither for labels "
                "that are all numbers: their own loss (mse, huber) stands in the schema"
            )
        if train.loss == "softmax" and learns_numbers(self.dataset.schema.labels):
            raise ValueError("loss: got softmax with a label that is a number, expected a label of 0 and 1")
        if train.negatives != "in-batch" and not (is_next_item or train.loss == "softmax"):
            raise ValueError(
                f"negatives: got {train.negatives} with the loss {train.loss}, expected next-item, or softmax for "
                "two towers: other losses compare labels"
            )
        if train.gather_negatives and not (is_next_item or train.loss in _FOR_ORDERING):
            raise ValueError(
                f"gather_negatives: got it with the loss {train.loss}, expected next-item, softmax or bpr: others have "
                "no negatives"
            )
        if self.arguments()["inputs"].get("label_weights") and (num_labels < 2 or train.label_weights):
            raise ValueError(
                f"learn_label_weights: got it with {num_labels} labels and label_weights {list(train.label_weights)}, "
                "expected several labels, and no weights"
            )
        if len(train.label_weights) not in (0, num_labels):
            raise ValueError(
                f"label_weights: got {len(train.label_weights)}, expected {num_labels}, one for each label"
            )

    @cached_property
    def _data_digest(self) -> str:
        """The digest of the data, for which files are read once."""
        return self.dataset.fingerprint()

    @cached_property
    def example_rows(self) -> dict[str, Any]:
        """The example rows as a field of a checkpoint; empty for none."""
        rows = example_rows(self.dataset, self.run.example_rows)
        return {} if rows is None else {EXAMPLE_ROWS: rows.to_json()}

    @cached_property
    def data_sketch(self) -> dict[str, Any]:
        """The sketch of the data as a field of a checkpoint; empty for none."""
        sketch = data_sketch(self.dataset, self.run.sketch_rows)
        return {} if sketch is None else {DATA_SKETCH: sketch.to_json()}

    def settings(self, ranks: Ranks) -> dict[str, Any]:
        """Return the settings that must be equal to continue another run."""
        global_batch_size = self.train.batch_size * ranks.world_size
        return {
            "data": self.dataset.name,
            "num_train_rows": self.dataset.num_train_rows,
            "data_digest": self._data_digest,
            "global_batch_size": global_batch_size,
            **{
                name: value
                for name, value in self.train.to_json().items()
                if name not in ("epochs", "batch_size", "patience")
            },
            # More epochs would stretch a decay that ends with them.
            "decay_steps": self.train.decays_until(
                self.train.epochs, steps_per_epoch(self.dataset.num_train_rows, global_batch_size)
            ),
        }


@dataclass(frozen=True, kw_only=True)
class Trained:
    """The result of a training.

    Attributes:
        arguments: The factory's arguments.
        epochs: The measurements after each epoch, including those before a resume.
        kept: The epoch whose model is kept.
        plan: The sharding plan.
        state_dict: The whole model after that epoch on rank 0, if requested; else None.
        touched: The rows that differ from the model that the training started from, as a field of a checkpoint;
            empty if that is not known.
    """

    arguments: dict[str, Any]
    epochs: list[Epoch]
    kept: Epoch
    plan: ShardingPlan
    state_dict: dict[str, Tensor] | None
    touched: dict[str, Any] = field(default_factory=dict)


def next_item_columns(arguments: Mapping[str, Any]) -> NextItemColumns | None:
    """Return what a model learns that learns next items, by its factory's arguments; None for labels."""
    sequence = arguments.get("sequence")
    if not isinstance(sequence, Mapping) or sequence.get("objective") != "next-item":
        return None
    return NextItemColumns(history=str(sequence.get("history")), target=str(sequence.get("target")))


def train_over_ranks(job: TrainJob, ranks: Ranks, callback: Callback, *, whole: bool) -> Trained:
    """Train on these ranks; every rank calls it, with the same job.

    Args:
        job: The job.
        ranks: The result of ``find_ranks``.
        callback: Called as the training proceeds, with numbers of all ranks.
        whole: Whether to gather the whole model on rank 0 at the end.

    Raises:
        ValueError: The sizes, the plan or the checkpoint do not fit, or a data file is malformed.
        DivergedError: The loss is no longer a number.
    """
    job.train.check_device(ranks.device.type)
    with process_group(ranks), _locked(job), _matmul_precision(job.train.matmul_precision):
        return _trained(job, ranks, callback, whole=whole)


@contextmanager
def _matmul_precision(name: str) -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(MATMUL_PRECISIONS[name])
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


@contextmanager
def _locked(job: TrainJob) -> Iterator[None]:
    """Hold the lock of the run's directory: rank 0 does, for all ranks."""
    folder = job.checkpoint_dir
    if folder is None:
        yield
        return
    with ExitStack() as stack:

        def lock() -> str:
            stack.enter_context(locked(folder))
            return ""

        from_first(lock, dist.group.WORLD)
        yield


def _trained(job: TrainJob, ranks: Ranks, callback: Callback, *, whole: bool) -> Trained:
    """Train. A separate function, so that the trainer is freed before the process group is destroyed."""
    arguments = job.arguments()
    trainer = Trainer(job.factory, arguments, job.train, ranks, job.plan, job.items)
    start = _start(job, ranks, trainer)
    if start is not None:
        callback.resumed(start.step)
    elif job.start is not None:
        fill(trainer, job.start)
    else:
        trainer.set_vocabularies(job.dataset.vocabularies())
    since = "" if start is not None or job.start is None else job.start.weights
    if since and job.publishing is None:
        trainer.touched = TouchedRows(trainer.model, optimizer=trainer.optimizer)
    copies: list[dict[str, Tensor] | None] = []

    def keep() -> None:
        copies.clear()  # first, so that there are never two
        copies.append(trainer.whole_state_dict())

    keeps_copies = whole and job.checkpoint_dir is None
    with published(trainer, job.factory, arguments, job.publishing) as publishing:
        loop = Loop(trainer, job.dataset, job.train, job.run, CallbackList([callback, publishing]))
        end = loop.fit(start, _saving(job, ranks, trainer), keep if keeps_copies else lambda: None)
    touched = _touched(trainer, since)
    return Trained(
        touched=touched,
        arguments=arguments,
        epochs=list(end.epochs),
        kept=end.kept,
        plan=trainer.model.plan,
        state_dict=copies[0] if copies else _kept_model(job, trainer, end) if whole else None,
    )


def _touched(trainer: Trainer, since: str) -> dict[str, Any]:
    """Return the rows that the training touched as a field of a checkpoint; empty if that is of no use."""
    if not since or trainer.touched is None:
        return {}
    return {TOUCHED: touched_info(since, trainer.touched.rows(), trainer.touched.sizes)}


def _kept_model(job: TrainJob, trainer: Trainer, end: TrainProgress) -> dict[str, Tensor] | None:
    """Return the whole model after the epoch that is kept, from the run's directory if it is not the last."""
    if job.checkpoint_dir is not None and end.best and not end.is_best:
        load_training(_best(job.checkpoint_dir, trainer), trainer.model, None)
    return trainer.whole_state_dict()


def _best(folder: Path, trainer: Trainer) -> str:
    """Return the checkpoint of the best epoch, the same on every rank; empty if there is none."""
    return from_first(lambda: str(best(folder) or ""), trainer.group)


def _start(job: TrainJob, ranks: Ranks, trainer: Trainer) -> TrainProgress | None:
    folder = job.checkpoint_dir
    if not job.resume or folder is None:
        return None
    # Checked before the tensors, because tensors of other data or another model give less helpful errors.
    from_first(lambda: _fitting(folder, job, ranks), trainer.group)
    state = load_training(folder, trainer.model, trainer.optimizer)
    if state is None:
        return None
    progress = TrainProgress.from_json(state.shared.get(_PROGRESS))
    if progress.is_best:
        # The job may have ended between the two pointers.
        from_first(lambda: _chosen(folder), trainer.group)
    elif not _best(folder, trainer):
        progress = replace(progress, best=0)
    return progress


def _chosen(folder: Path) -> str:
    """Make the newest checkpoint the best."""
    directory = newest(folder)
    assert directory is not None
    choose_best(directory)
    return ""


def _fitting(folder: Path, job: TrainJob, ranks: Ranks) -> str:
    """Return the checkpoint that the job can continue from; empty if there is none."""
    directory = newest(folder)
    if directory is None:
        return ""
    record = read_record(directory)
    _check_same(record.shared.get(_SETTINGS), job.settings(ranks))
    _check_same(_sizes(record.arguments), _sizes(job.arguments()))
    num_epochs = len(TrainProgress.from_json(record.shared.get(_PROGRESS)).epochs)
    if num_epochs > job.train.epochs:
        raise CheckpointError(
            f"checkpoint: {num_epochs} epochs are done, expected at most the {job.train.epochs} asked for"
        )
    return str(directory)


def _sizes(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the factory's arguments, with a name for each field of a table."""
    tables = arguments.get("tables")
    if not isinstance(tables, list) or not all(isinstance(table, Mapping) for table in tables):
        raise CheckpointError("checkpoint: arguments.tables: got something else, expected a list of tables")
    of_tables = {
        f"table {table.get('name')!r}: {field}": value for table in tables for field, value in table.items()
    }
    return of_tables | {name: value for name, value in arguments.items() if name != "tables"}


def _check_same(found: Any, expected: Mapping[str, Any]) -> None:
    if not isinstance(found, Mapping):
        raise CheckpointError("checkpoint: it has no settings of a training by recsys-train")
    different = [
        name
        for name in expected
        if found.get(name) != expected[name] and (name in found or name not in _LATER)
    ]
    if different[:1] == ["data_digest"]:
        raise CheckpointError(
            "checkpoint: data: got other data than it was trained with, of the same number of rows; --resume continues "
            "an interrupted run over the same data. Train on new data with --init-from, into another directory"
        )
    if different:
        name = different[0]
        hint = " (batch size × ranks)" if name == "global_batch_size" else ""
        raise CheckpointError(
            f"checkpoint: {name}{hint}: it was trained with {str(found.get(name))[:80]!r}, got {expected[name]!r}; "
            "resume with the same, or train into another directory"
        )


def _saving(job: TrainJob, ranks: Ranks, trainer: Trainer) -> Saving | None:
    folder = job.checkpoint_dir
    if folder is None:
        return None
    arguments, settings = job.arguments(), job.settings(ranks)

    def save(progress: TrainProgress) -> None:
        state = TrainingState(
            step=progress.step,
            factory=job.factory,
            arguments=arguments,
            # Rank 0 alone measures these: others read nothing for them.
            shared={
                _PROGRESS: progress.to_json(),
                _SETTINGS: settings,
                **(job.example_rows | job.data_sketch if ranks.rank == 0 else {}),
            },
        )
        save_training(folder, trainer.model, trainer.optimizer, state, is_best=progress.is_best)

    return Saving(save=save, every=job.checkpoint_every)
