"""Artifacts and trained models as functions of a table's rows.

Shape letters: L labels, N number of examples.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from recsys.artifact.load import load_artifact
from recsys.checkpoint import build_model, load_checkpoint
from recsys.data.batches import row_chunks
from recsys.data.examples import Examples
from recsys.data.scoring import label_outputs, schema_for, scores
from recsys.inputs.schema import Schema
from recsys.metrics.regression import predictions_of
from recsys.models.click import ClickModel

#: The ends of the names of files that hold trained models; all else is an artifact.
CHECKPOINTS = (".pt", ".pth", ".ckpt")
_BATCH_ROWS = 1024
# Probabilities are clipped before their logit, as far as a float32 tells them from 0 and 1.
_LEAST = 1e-7


class ScoredModel(Protocol):
    """A model that is measured.

    Attributes:
        schema: The columns that it reads.
    """

    schema: Schema

    def logits(self, examples: Examples) -> NDArray[Any]:
        """Return the logits of rows that were read by the schema, ``[N, L]``; of numbers the predictions."""
        ...


class ArtifactModel:
    """An artifact.

    Args:
        path: Its path or address.
        schema: The columns to read; None for the artifact's own.

    Raises:
        ValueError: The artifact cannot be used, or its outputs do not predict the labels.
    """

    def __init__(self, path: str | Path, schema: Schema | None) -> None:
        self._artifact = load_artifact(path)
        self.schema = schema_for(self._artifact, schema)
        outputs = {output.name: output for output in self._artifact.signature.outputs}
        self._outputs = list(label_outputs(self.schema, outputs).values())

    def logits(self, examples: Examples) -> NDArray[np.float64]:
        """See ``ScoredModel``."""
        found = scores(self._artifact, examples)
        predicted = np.stack([found[name] for name in self._outputs], axis=1).astype(np.float64)
        clicks = [i for i, label in enumerate(self.schema.labels) if not label.is_number]
        clipped = predicted[:, clicks].clip(_LEAST, 1 - _LEAST)
        predicted[:, clicks] = np.log(clipped) - np.log1p(-clipped)
        return predicted


class TrainedModel:
    """A file that ``recsys-train`` wrote.

    Raises:
        ValueError: The file cannot be used, or its model has no labels.
    """

    def __init__(self, path: Path) -> None:
        model = build_model(load_checkpoint(path)).eval()
        if not isinstance(model, ClickModel) or model.inputs is None:
            raise ValueError(
                f"checkpoint {path.name!r}: got another kind of model, expected what recsys-train wrote"
            )
        self._model = model
        self.schema = model.inputs

    @torch.no_grad()
    def logits(self, examples: Examples) -> NDArray[np.float64]:
        """See ``ScoredModel``."""
        parts = []
        for rows in row_chunks(len(examples), _BATCH_ROWS):
            batch = examples.batch(rows)
            parts.append(self._model.logits(batch.dense, batch.kjt).numpy())
        found = np.concatenate(parts).astype(np.float64)
        for i, label in enumerate(self.schema.labels):
            if label.is_number:
                found[:, i] = predictions_of(found[:, i], label)
        return found


def open_models(
    paths: Sequence[str | Path], checkpoint: Path | None = None, schema: Schema | None = None
) -> dict[str, ScoredModel]:
    """Return models by the names that they are shown by.

    One artifact is called ``artifact``, one file ``checkpoint``; several models have the ends of their paths.

    Args:
        paths: Artifacts and files of ``recsys-train``.
        checkpoint: A further file.
        schema: The columns that artifacts read; None for their own.

    Raises:
        ValueError: A model cannot be used, has no labels, or two have different ones.
    """
    every = [*paths, *([] if checkpoint is None else [checkpoint])]
    kinds = ["checkpoint" if str(path).endswith(CHECKPOINTS) else "artifact" for path in every]
    names = kinds if len(set(kinds)) == len(kinds) else _short_names([str(path) for path in every])
    models: dict[str, ScoredModel] = {}
    for name, path, kind in zip(names, every, kinds, strict=True):
        models[name] = TrainedModel(Path(path)) if kind == "checkpoint" else ArtifactModel(path, schema)
        if not models[name].schema.labels:
            raise ValueError(
                "schema.labels: got none, expected at least one: the model learned next items, whose metrics "
                "recsys-train prints"
            )
    first = models[names[0]].schema.labels
    for name, model in models.items():
        if model.schema.labels != first:
            raise ValueError(
                f"labels: {name} has {model.schema.labels}, expected those of {names[0]}, {first}"
            )
    return models


def _short_names(paths: list[str]) -> list[str]:
    """Return the ends of paths, as long as it takes to tell them apart; the same path twice has a number."""
    parts = [path.rstrip("/").split("/") for path in paths]
    names = paths
    for length in range(1, max(map(len, parts)) + 1):
        names = ["/".join(part[-length:]) for part in parts]
        if len(set(names)) == len(set(paths)):
            break
    return [name if name not in names[:i] else f"{name} ({i + 1})" for i, name in enumerate(names)]
