"""The report of a training: what it learned from, how well, and how."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch

from recsys.checkpoint import Checkpoint
from recsys.checkpoint.touched import WEIGHTS, weights_digest
from recsys.data.examples import Reference
from recsys.metrics.exact import Metrics
from recsys.train.best import kept_text
from recsys.train.callbacks import summary_text
from recsys.train.job import Trained, TrainJob
from recsys.train.progress import Epoch, HeldOut


@dataclass(frozen=True, kw_only=True)
class Report:
    """What was measured of a training.

    ``str(report)`` is a few lines for people.

    Attributes:
        epochs: The measurements after each epoch.
        kept: The epoch whose model is kept.
        reference: A reference for the metrics of the held-out rows; None if there is none.
        notices: What a user should know of the data, one line each.
        info: Data, sizes, metrics and settings as plain data, as in the checkpoint.
    """

    epochs: tuple[Epoch, ...]
    kept: Epoch
    reference: Reference | None
    notices: tuple[str, ...]
    info: dict[str, Any]

    @property
    def metrics(self) -> HeldOut:
        """The held-out metrics of the model, of the first label or of the next items."""
        return self.kept.held_out

    def __str__(self) -> str:
        train = self.info["train"]
        lines = []
        if len(self.epochs) < train["epochs"]:
            waited = f"{train['patience']} in a row were not better"
            lines.append(f"stopped after epoch {len(self.epochs)} of {train['epochs']}: {waited}")
        if len(self.epochs) > 1:
            lines.append(kept_text(self.epochs, self.kept, train["best_metric"]))
        return "\n".join([*lines, summary_text(self.kept, self.reference)])

    def to_json(self) -> dict[str, Any]:
        """Return plain data: ``info``, the epochs and the notices."""
        return {
            "epochs": [_epoch_to_json(epoch) for epoch in self.epochs],
            "notices": list(self.notices),
            **self.info,
        }


def report_on(job: TrainJob, trained: Trained, world_size: int) -> Report:
    """Return the report of a training that has ended; rank 0 only."""
    dataset, kept = job.dataset, trained.kept
    reference = job.reference()
    measured = kept.labels or dict(zip(dataset.schema.label_names, [kept.held_out], strict=False))
    one_class = [
        text
        for name, metrics in measured.items()
        if isinstance(metrics, Metrics) and (text := metrics.one_class_text(name))
    ]
    info = {
        "data": dataset.name,
        "dense_names": list(dataset.dense_names),
        "feature_names": [name for table in dataset.tables for name in table.feature_names],
        "num_train_rows": dataset.num_train_rows,
        "num_held_out_rows": dataset.num_held_out_rows,
        "epoch": kept.number,
        "metrics": kept.held_out.to_json(),
        **({"labels": {name: m.to_json() for name, m in kept.labels.items()}} if kept.labels else {}),
        "reference": None if reference is None else asdict(reference),
        "train": job.train.to_json(),
        "world_size": world_size,
        "torch": str(torch.__version__),
    }
    return Report(
        epochs=tuple(trained.epochs),
        kept=kept,
        reference=reference,
        notices=(*dataset.notices, *one_class),
        info=info,
    )


def checkpoint_of(job: TrainJob, trained: Trained, report: Report) -> Checkpoint:
    """Return the whole model that a training made, with its report and rows of its data."""
    assert trained.state_dict is not None
    weights = {WEIGHTS: weights_digest(trained.state_dict)}
    return Checkpoint(
        factory=job.factory,
        arguments=trained.arguments,
        state_dict=trained.state_dict,
        info=report.info | job.example_rows | job.data_sketch | trained.touched | weights,
    )


def _epoch_to_json(epoch: Epoch) -> dict[str, Any]:
    return {
        "number": epoch.number,
        "train_loss": epoch.train_loss,
        "examples_per_second": round(epoch.examples_per_second, 1),
        **epoch.held_out.to_json(),
        **({"labels": {name: m.to_json() for name, m in epoch.labels.items()}} if epoch.labels else {}),
    }
