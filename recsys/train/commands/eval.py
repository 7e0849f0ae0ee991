"""recsys-eval: AUC, normalized entropy and calibration of an artifact on a table of examples."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console

from recsys.artifact.load import LoadedArtifact, load_artifact
from recsys.base.terminal import whole_table
from recsys.checkpoint.single_file import build_model, load_checkpoint
from recsys.data.batches import row_chunks
from recsys.data.examples import Block, Examples
from recsys.data.scoring import label_outputs, schema_for, scores, with_rows
from recsys.data.tables.dataset import rows_of, table_dataset
from recsys.data.tables.schema_file import read_schema
from recsys.inputs.schema import Schema
from recsys.metrics.exact import Metrics, measure
from recsys.models.click import ClickModel
from recsys.train.commands.eval_options import parse

_BATCH_ROWS = 1024
# Probabilities are clipped before their logit, as far as a float32 tells them from 0 and 1.
_LEAST = 1e-7


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    args = parse(argv)
    torch.set_num_threads(args.threads)
    try:
        found = _measured(args)
    except ValueError as error:
        sys.stderr.write(f"recsys-eval: {error}\n")
        return 2
    except (OSError, MemoryError, RuntimeError) as error:
        sys.stderr.write(f"recsys-eval: failed: {error}\n")
        return 1
    for label, metrics in found["artifact"].items():
        if text := metrics.one_class_text(label):
            sys.stderr.write(f"recsys-eval: {text}\n")
    if args.json:
        print(
            json.dumps(
                {
                    who: {label: metrics.to_json() for label, metrics in of.items()}
                    for who, of in found.items()
                }
            )
        )
        return 0
    rows = [
        [
            who,
            label,
            f"{m.num_rows:,}",
            _number(m.auc),
            _number(m.ne),
            _number(m.calibration),
            f"{m.loss:.4f}",
        ]
        for who, of in found.items()
        for label, m in of.items()
    ]
    headings = ["model", "label", "rows", "AUC", "NE", "calibration", "loss"]
    Console().print(whole_table("", headings, rows, left={0, 1}))
    return 0


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


def _measured(args: argparse.Namespace) -> dict[str, dict[str, Metrics]]:
    """Return the metrics of the artifact and, if asked for, of the checkpoint, by label."""
    artifact = load_artifact(args.artifact)
    schema = schema_for(artifact, None if args.schema is None else read_schema(args.schema))
    if not schema.labels:
        raise ValueError(
            "schema.labels: got none, expected at least one: the model learned next items, whose metrics recsys-train "
            "prints"
        )
    model = None if args.checkpoint is None else _click_model(args.checkpoint)
    outputs = label_outputs(schema, {output.name: output for output in artifact.signature.outputs})
    logits: dict[str, list[NDArray[Any]]] = {"artifact": [], **({} if model is None else {"checkpoint": []})}
    labels: list[NDArray[np.float32]] = []
    weights: list[NDArray[np.float32]] = []
    blocks: Iterator[Block] = _held_out(args, schema) if args.held_out else rows_of(args.data, schema)
    for block in blocks:
        examples = block.take(np.arange(len(block)))
        labels.append(examples.labels)
        if examples.weights is not None:
            weights.append(examples.weights)
        logits["artifact"].append(_artifact_logits(artifact, examples, list(outputs.values())))
        if model is not None:
            with_its_rows = with_rows(examples, schema, model.inputs or schema)
            logits["checkpoint"].append(_model_logits(model, with_its_rows))
        if not args.held_out and args.limit_rows is not None and sum(map(len, labels)) >= args.limit_rows:
            break
    if not labels:
        raise ValueError("data: got no rows, expected at least one")
    expected = np.concatenate(labels)[: args.limit_rows if not args.held_out else None]
    of_rows = np.concatenate(weights)[: len(expected)] if weights else None
    return {
        who: {
            name: measure(np.concatenate(of)[: len(expected), i], expected[:, i], of_rows)
            for i, name in enumerate(schema.label_names)
        }
        for who, of in logits.items()
    }


def _held_out(args: argparse.Namespace, schema: Schema) -> Iterator[Block]:
    dataset = table_dataset(args.data, schema, args.limit_rows)
    for notice in dataset.notices:
        sys.stderr.write(f"recsys-eval: {notice}\n")
    return dataset.held_out()


def _click_model(path: Path) -> ClickModel:
    model = build_model(load_checkpoint(path)).eval()
    if not isinstance(model, ClickModel):
        raise ValueError("checkpoint: got another kind of model, expected what recsys-train wrote")
    return model


def _artifact_logits(artifact: LoadedArtifact, examples: Examples, names: list[str]) -> NDArray[np.float64]:
    """Return ``[N, L]``."""
    found = scores(artifact, examples)
    probabilities = np.stack([found[name] for name in names], axis=1).astype(np.float64)
    clipped = probabilities.clip(_LEAST, 1 - _LEAST)
    return np.asarray(np.log(clipped) - np.log1p(-clipped))


@torch.no_grad()
def _model_logits(model: ClickModel, examples: Examples) -> NDArray[np.float32]:
    """Return ``[N, L]``."""
    parts = []
    for rows in row_chunks(len(examples), _BATCH_ROWS):
        batch = examples.batch(rows)
        parts.append(model.logits(batch.dense, batch.kjt).numpy())
    return np.concatenate(parts)


if __name__ == "__main__":
    sys.exit(main())
