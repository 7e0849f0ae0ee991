"""Scores of an artifact for the rows of a table.

Shape letters: B rows of a batch, F sparse inputs, N number of IDs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from recsys.artifact.load import LoadedArtifact
from recsys.data.batches import row_chunks
from recsys.data.examples import Examples
from recsys.data.lines import DataError
from recsys.errors import ComputedIdError
from recsys.inputs.crosses import crossed_features
from recsys.inputs.schema import Schema
from recsys.inputs.signature import IdPolicy, Signature

_BATCH_ROWS = 1024

Scores = dict[str, NDArray[np.float32 | np.int64]]


def schema_for(artifact: LoadedArtifact, schema: Schema | None = None) -> Schema:
    """Return the schema to read tables with: the given one, or the one that the artifact has.

    Columns of IDs that the artifact itself mixes or crosses are read as they are.

    Raises:
        DataError: There is none, or it does not have the artifact's inputs.
    """
    found = schema or artifact.manifest.schema
    if found is None:
        raise DataError(
            "schema: the artifact has none, because its model was not trained by recsys-train; name the columns with "
            "--schema FILE"
        )
    signature = artifact.signature
    missing = sorted({feature.name for feature in signature.sparse} - set(found.feature_names))
    if missing:
        raise DataError(f"schema: missing columns for the artifact's inputs {missing[:5]}")
    widths = [dense.width for dense in signature.dense]
    if sum(widths) != len(found.dense):
        raise DataError(
            f"schema.dense: got {len(found.dense)} columns, expected {sum(widths)}, the width of the artifact's dense "
            "inputs"
        )
    mixed = {
        feature.name
        for feature in signature.sparse
        if any(table.id_policy is IdPolicy.FMIX64 for table in feature.tables)
    }
    hashed = {name for table in found.tables if table.is_hashed for name in table.feature_names}
    return found.with_raw(mixed | hashed.intersection(crossed_features(found.crosses)))


def scores(artifact: LoadedArtifact, examples: Examples) -> Scores:
    """Return the outputs for some examples, by name, ``[N, ...]``.

    Args:
        artifact: The model.
        examples: Read with the schema that ``schema_for`` returned.

    Raises:
        DataError: The model's batch is one request: examples do not say which of them are one. Or the model computes
            an ID of a row that its table does not have.
    """
    if artifact.signature.by_request:
        raise DataError(
            "artifact: exported with --batch request, expected rows that do not depend on each other: a table does "
            "not say which of its rows are one request"
        )
    parts = [_outputs(artifact, examples, rows) for rows in row_chunks(len(examples), _BATCH_ROWS)]
    names = [output.name for output in artifact.signature.outputs]
    return {name: torch.cat([part[name] for part in parts]).numpy() for name in names}


def _outputs(artifact: LoadedArtifact, examples: Examples, rows: NDArray[np.int64]) -> dict[str, Tensor]:
    try:
        return artifact.forward(*model_inputs(artifact.signature, examples.take(rows)))
    except ComputedIdError as error:
        if len(rows) == 1:
            raise DataError(f"row {rows[0]}: {error}") from None
        # One of them is to blame.
        for half in np.array_split(rows, 2):
            _outputs(artifact, examples, half)
        raise


def model_inputs(signature: Signature, examples: Examples) -> list[Tensor]:
    """Return the arguments of ``forward`` (``recsys.inputs.signature``) for some examples."""
    dense, start = [], 0
    for column in signature.dense:
        dense.append(torch.from_numpy(np.ascontiguousarray(examples.dense[:, start : start + column.width])))
        start += column.width
    bags = [examples.bags[feature.name] for feature in signature.sparse]
    lengths = [np.diff(bag.offsets) for bag in bags]
    values = [bag.values for bag in bags]
    inputs = [*dense, _joined(lengths), _joined(values)]
    if signature.is_weighted:
        inputs.append(torch.ones(len(inputs[-1])))
    return inputs


def _joined(parts: Sequence[NDArray[Any]]) -> Tensor:
    return torch.from_numpy(np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64))


def label_outputs(schema: Schema, outputs: Mapping[str, Any]) -> dict[str, str]:
    """Return the output that predicts each label.

    Raises:
        DataError: A label has no output of its name, and there are several labels or outputs.
    """
    if len(schema.labels) == 1 and len(outputs) == 1:
        return {schema.label_names[0]: next(iter(outputs))}
    missing = [name for name in schema.label_names if name not in outputs]
    if missing:
        raise DataError(f"schema.labels: got {missing[0]!r}, expected names of the outputs {sorted(outputs)}")
    return {name: name for name in schema.label_names}
