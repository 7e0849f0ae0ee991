"""Warm starts: training new data from the weights of an earlier training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recsys.checkpoint.distributed import load_training
from recsys.checkpoint.ranks import from_first
from recsys.checkpoint.run import kept, read_record
from recsys.checkpoint.single_file import load_checkpoint
from recsys.checkpoint.touched import WEIGHTS
from recsys.data.examples import Dataset
from recsys.errors import CheckpointError
from recsys.inputs.schema import Schema
from recsys.train.stepping.trainer import Trainer


@dataclass(frozen=True, kw_only=True)
class WarmStart:
    """The model of an earlier training.

    Attributes:
        path: A file of recsys-train, or the directory of a run.
        factory: The model's factory.
        arguments: The factory's arguments.
        weights: The digest of its weights; empty if it does not say.
    """

    path: Path
    factory: str
    arguments: Mapping[str, Any]
    weights: str = ""

    @property
    def schema(self) -> Schema | None:
        """The columns that it was trained on; None if it does not say."""
        inputs = self.arguments.get("inputs")
        return None if inputs is None else Schema.from_json(inputs)

    def check(self, dataset: Dataset) -> None:
        """Check that the model takes a data set's columns.

        Raises:
            CheckpointError: They are others.
        """
        expected, found = self.schema, dataset.schema
        if expected is None:
            return
        for what, ours, theirs in (
            ("labels", _kinds(found), _kinds(expected)),
            ("dense columns", found.dense, expected.dense),
            ("tables", found.tables, expected.tables),
            ("crosses", found.crosses, expected.crosses),
        ):
            if ours != theirs:
                raise CheckpointError(
                    f"init_from: {what}: the data has {str(ours)[:200]}, expected the model's, {str(theirs)[:200]}"
                )


def _kinds(schema: Schema) -> list[str]:
    """Return the labels with the losses of those that are numbers."""
    return [f"{label.name} ({label.loss})" if label.is_number else label.name for label in schema.labels]


def read_start(path: Path) -> WarmStart:
    """Return the model to start from.

    Raises:
        CheckpointError: There is none, or it was not written by recsys-train.
    """
    if not path.is_dir():
        checkpoint = load_checkpoint(path)
        return WarmStart(
            path=path,
            factory=checkpoint.factory,
            arguments=checkpoint.arguments,
            weights=str(checkpoint.info.get(WEIGHTS, "")),
        )
    directory = kept(path)
    if directory is None:
        raise CheckpointError(
            f"init_from: {path.name!r} holds no complete checkpoint, expected a run of recsys-train"
        )
    record = read_record(directory)
    if record.factory is None:
        raise CheckpointError(f"init_from: {path.name!r} names no factory, expected a run of recsys-train")
    return WarmStart(path=path, factory=record.factory, arguments=record.arguments)


def fill(trainer: Trainer, start: WarmStart) -> None:
    """Load the weights into a trainer. Every rank must call it.

    A run's directory gives the optimizers' state too, unless the dense layers are frozen.

    Raises:
        CheckpointError: The weights do not fit.
    """
    trainer.keep_untrained()
    if start.path.is_dir():
        directory = from_first(lambda: str(kept(start.path) or start.path), trainer.group)
        load_training(directory, trainer.model, None if trainer.is_frozen else trainer.optimizer)
        return
    checkpoint = load_checkpoint(start.path)
    try:
        trainer.model.load_state_dict(checkpoint.state_dict)
    except RuntimeError as error:
        raise CheckpointError(f"init_from: {start.path.name!r}: {str(error)[:300]}") from None
