"""Which type linear layers multiply in (``--linear-dtype auto``): the speed and the scores of each, measured.

Shape letters: L labels, N number of examples.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from export.graph.prepared import PreparedModel
from export.verify.samples import with_numbers_of
from recsys.artifact.batches.samples import random_batch
from recsys.artifact.load import LoadedArtifact, load_artifact, open_artifact
from recsys.artifact.manifest import Manifest
from recsys.data.scoring import label_outputs, schema_for, scores
from recsys.data.tables.dataset import rows_of
from recsys.errors import ExportError
from recsys.kernels.operators import LINEAR_DTYPES, multiplies_in
from recsys.metrics.exact import auc

#: Rows of the batches that are timed.
BATCH_ROWS = 128
_NUM_BATCHES = 16
_NUM_ROUNDS = 11
_SEED = 20260101


@dataclass(frozen=True, kw_only=True)
class LinearTrial:
    """What one type gives.

    Attributes:
        dtype: The type.
        us_per_row: Microseconds of processor time per row, in batches of ``BATCH_ROWS``; median of the rounds.
        max_difference: The largest difference of an output to float32's, for the samples of the verification.
        auc: By label, of the labelled examples; empty without any.
        multiplies_in: The type in which its layers multiply on this processor: for bfloat16, float32 where no
            instruction multiplies bfloat16 faster. Such a type is not chosen.
        is_within: Whether it is within the bound.
        is_chosen: Whether it is the fastest of these.
    """

    dtype: str
    us_per_row: float
    max_difference: float
    auc: Mapping[str, float]
    multiplies_in: str
    is_within: bool
    is_chosen: bool


def choose_linear_dtype(
    prepared: PreparedModel, work: Path, manifest: Manifest, *, has_programs: bool
) -> tuple[PreparedModel, Manifest, tuple[LinearTrial, ...]]:
    """Choose the type, which the options leave open.

    Args:
        prepared: The model, with the bound and the labelled examples in its options.
        work: The directory that holds the artifact, without its manifest.
        manifest: Its manifest so far.
        has_programs: Whether the artifact has programs; without, the type is float32.

    Returns:
        The model and the manifest with the type, and what each type gives; nothing without programs.

    Raises:
        ExportError: The examples' labels are all equal.
        DataError: The examples cannot be read.
    """
    trials = _trials(prepared, work, manifest) if has_programs else ()
    chosen = next((trial.dtype for trial in trials if trial.is_chosen), "float32")
    config = replace(prepared.config, linear_dtype=chosen, auto_bound=None, auto_data=None)
    return replace(prepared, config=config), _with_linear_dtype(manifest, chosen), trials


def _trials(prepared: PreparedModel, work: Path, manifest: Manifest) -> tuple[LinearTrial, ...]:
    """Measure the types, and choose the fastest whose AUC, or whose outputs, differ little enough from float32's."""
    artifacts = {}
    for i, dtype in enumerate(LINEAR_DTYPES):
        prepared.progress("linear types", i, len(LINEAR_DTYPES))
        opened = open_artifact(work, _with_linear_dtype(manifest, dtype), manifest.targets[0].name)
        artifacts[dtype] = load_artifact(opened, verify_checksums=False)
    speeds = _us_per_row(artifacts, prepared)
    inputs = prepared.samples.inputs()
    outputs = {dtype: artifact.forward(*inputs) for dtype, artifact in artifacts.items()}
    exact = outputs["float32"]
    differences = {
        dtype: max(float((found[name] - exact[name]).abs().max()) for name in exact)
        for dtype, found in outputs.items()
    }
    data = prepared.config.auto_data
    aucs = {dtype: {} if data is None else _auc(artifact, data) for dtype, artifact in artifacts.items()}
    losses = {
        dtype: max(
            (abs(found[label] - aucs["float32"][label]) for label in found), default=differences[dtype]
        )
        for dtype, found in aucs.items()
    }
    within = [dtype for dtype in LINEAR_DTYPES if losses[dtype] <= prepared.config.linear_bound]
    products = {dtype: multiplies_in(dtype) for dtype in LINEAR_DTYPES}
    chosen = min((dtype for dtype in within if products[dtype] == dtype), key=speeds.__getitem__)
    return tuple(
        LinearTrial(
            dtype=dtype,
            us_per_row=speeds[dtype],
            max_difference=differences[dtype],
            auc=aucs[dtype],
            multiplies_in=products[dtype],
            is_within=dtype in within,
            is_chosen=dtype == chosen,
        )
        for dtype in LINEAR_DTYPES
    )


def _with_linear_dtype(manifest: Manifest, dtype: str) -> Manifest:
    """Return the manifest with targets whose linear layers multiply in this type."""
    return replace(
        manifest, targets=tuple(replace(target, linear_dtype=dtype) for target in manifest.targets)
    )


def _us_per_row(artifacts: Mapping[str, LoadedArtifact], prepared: PreparedModel) -> dict[str, float]:
    """Return the processor time of each, measured in turns, so that noise affects all of them equally."""
    signature = next(iter(artifacts.values())).signature
    generator = torch.Generator().manual_seed(_SEED)
    drawn = [random_batch(signature, BATCH_ROWS, generator) for _ in range(_NUM_BATCHES)]
    batches = [with_numbers_of(prepared.samples, rows, signature).inputs() for rows in drawn]
    rounds: dict[str, list[float]] = {dtype: [] for dtype in artifacts}
    with torch.inference_mode():
        for number in range(_NUM_ROUNDS + 1):
            for dtype, artifact in artifacts.items():
                began = time.process_time()
                for batch in batches:
                    artifact.forward(*batch)
                if number > 0:  # the first fills the caches
                    rounds[dtype].append(time.process_time() - began)
    scale = 1e6 / (_NUM_BATCHES * BATCH_ROWS)
    return {dtype: statistics.median(found) * scale for dtype, found in rounds.items()}


def _auc(artifact: LoadedArtifact, data: Path) -> dict[str, float]:
    """Return the AUC of each label on all rows of a table."""
    schema = schema_for(artifact)
    outputs = label_outputs(schema, {output.name: output for output in artifact.signature.outputs})
    numbers = [label.name for label in schema.labels if label.is_number]
    if numbers:
        raise ExportError(
            f"auto_data: got the label {numbers[0]!r}, a number, expected labels of 0 and 1: the choice is by AUC; "
            "name the type of the linear layers instead"
        )
    found = []
    for block in rows_of(data, schema):
        examples = block.take(np.arange(len(block)))
        scored = scores(artifact, examples)
        of_labels = np.stack([scored[name] for name in outputs.values()], axis=1)
        found.append((of_labels, examples.labels, examples.weights))
    if not sum(len(labels) for _, labels, _ in found):
        raise ExportError(f"auto_data: got {data.name!r} without rows, expected labelled examples")
    predicted, labels = (np.concatenate([part[i] for part in found]) for i in range(2))
    weights = None if found[0][2] is None else np.concatenate([part[2] for part in found])
    by_label = {}
    for i, label in enumerate(outputs):
        of_label = auc(predicted[:, i], labels[:, i], weights)
        if of_label is None:
            raise ExportError(f"auto_data: got {data.name!r}, whose labels {label!r} are all equal: no AUC")
        by_label[label] = of_label
    return by_label
