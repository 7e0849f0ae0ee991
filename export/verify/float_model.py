"""The float model on the samples: what it returns, and that no row's outputs depend on the others of its batch.

Shape letters: B batch.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from export.graph.graph import named_outputs
from export.graph.prepared import PreparedModel
from export.verify.compare import capture, integer_outputs, model_outputs
from export.verify.mixing import Recorded, place_of_mixing, record
from export.verify.reference import arguments
from export.verify.retrieval import ItemScores, comparable, item_scores
from export.verify.rows import check_rows
from export.verify.samples import with_numbers_of
from export.verify.shapes import request_outputs, signature_outputs
from recsys.artifact.batches.ranking import picked
from recsys.artifact.batches.samples import Batch, random_batch
from recsys.errors import ExportError, ManifestError, VerificationError
from recsys.inputs.signature import Output, Signature

# What torch says of an ID beyond its table.
_BEYOND = re.compile("valid range|index_size|out of range|out of bounds")
# How many random rows are taken where there are too few samples.
_NUM_ROWS = 16
_SEED = 20260101


@dataclass(frozen=True, kw_only=True)
class FloatOutputs:
    """What the float model returns for the samples.

    Attributes:
        outputs: The outputs by name, in float32 or int64.
        collections: The outputs of each collection by path, call by call.
        are_cast: Whether the model returns other dtypes than float32.
        signature: The outputs in the signature.
        integers: The outputs that hold integers or bools.
        item_scores: The scores of any item, if the model retrieves items.
    """

    outputs: dict[str, Tensor]
    collections: dict[str, list[Any]]
    are_cast: bool
    signature: tuple[Output, ...]
    integers: frozenset[str] = frozenset()
    item_scores: ItemScores | None = None


def run_float_model(prepared: PreparedModel, model: nn.Module) -> tuple[PreparedModel, FloatOutputs]:
    """Run the float model on the samples: on the rows of the training alone if it fails on the others.

    Returns:
        The model with the outputs in its signature, and what it returns for the samples.

    Raises:
        ExportError: The model fails on the samples, or its outputs cannot be served.
    """
    try:
        floats = float_outputs(prepared, model)
    except ExportError:
        if not prepared.num_held:
            raise
        held = torch.arange(prepared.num_held)
        prepared = replace(
            prepared,
            samples=picked(prepared.signature, prepared.samples, held),
            clean=picked(prepared.signature, prepared.clean, held),
            samples_source=f"{prepared.num_held} held-out rows of the training (the model fails on random ones)",
            num_held=0,
        )
        floats = float_outputs(prepared, model)
    return with_outputs(prepared, floats), floats


def float_outputs(prepared: PreparedModel, model: nn.Module) -> FloatOutputs:
    """Run the float model on the samples.

    Raises:
        ExportError: The model fails on the samples, or its outputs cannot be served.
    """
    prepared.progress("float model", 0, 1)
    collections = {path: model.get_submodule(path) if path else model for path in prepared.collections}
    call = arguments(prepared.input_mapping, prepared.clean)
    try:
        outputs, kept = capture(model, collections, call)
    except Exception as error:  # user code can raise anything
        raise ExportError(
            f"model: forward failed on the samples: {type(error).__name__}: {error}{_hint(prepared, error)}"
        ) from error
    named, found = named_outputs(outputs), model_outputs(outputs)
    are_cast = any(o.dtype != torch.float32 for o in named.values())
    return FloatOutputs(
        outputs=found,
        signature=_signature(prepared, model, found),
        collections=kept,
        are_cast=are_cast,
        integers=integer_outputs(named),
        item_scores=item_scores(model, call),
    )


def with_outputs(prepared: PreparedModel, floats: FloatOutputs) -> PreparedModel:
    """Return the model with the float model's outputs in its signature.

    Raises:
        ExportError: An output has an invalid name.
    """
    signature = replace(prepared.signature, outputs=floats.signature)
    _check_names(signature)
    return replace(
        prepared,
        signature=signature,
        input_mapping=replace(
            prepared.input_mapping, casts_outputs=floats.are_cast, integers=floats.integers
        ),
    )


def _check_names(signature: Signature) -> None:
    """Check names as readers of the manifest do, while the user can still change them."""
    try:
        Signature.from_json(signature.to_json())
    except ManifestError as error:
        raise ExportError(f"model: {error}; rename the argument, the feature or the output") from None


def _signature(
    prepared: PreparedModel, model: nn.Module, outputs: Mapping[str, Tensor]
) -> tuple[Output, ...]:
    """Return the outputs in the signature.

    Raises:
        ExportError: Their shapes cannot be served.
    """
    batch = prepared.clean
    if not prepared.signature.by_request:
        return signature_outputs(outputs, batch.num_rows)

    def predict_more() -> dict[str, Tensor]:
        rows = torch.arange(batch.num_rows + 1) % batch.num_rows
        return _predicted(prepared, model, picked(prepared.signature, batch, rows))[0]

    return request_outputs(outputs, batch.num_rows, predict_more)


def _predicted(
    prepared: PreparedModel, model: nn.Module, rows: Batch
) -> tuple[dict[str, Tensor], ItemScores | None]:
    """Return what the float model makes of a part of the samples.

    Raises:
        ExportError: The model fails.
    """
    call = arguments(prepared.input_mapping, rows)
    try:
        with torch.no_grad():
            outputs = model(**call)
    except Exception as error:  # user code can raise anything
        raise ExportError(
            f"model: forward failed on {rows.num_rows} rows: {type(error).__name__}: {error}. Expected it to take "
            f"any number of rows, as it took {prepared.samples.num_rows}"
        ) from error
    return model_outputs(outputs), item_scores(model, call)


def _hint(prepared: PreparedModel, error: Exception) -> str:
    """Return what to do about IDs that the model computes, if it computes any and one may have left its table."""
    if not prepared.input_mapping.computed or not _BEYOND.search(str(error)):
        return ""
    return (
        f". It computes IDs for {sorted(prepared.input_mapping.computed)}: if they leave their tables, take them "
        "modulo in forward, choose --id-policy TABLE=hash or zero, or give --samples whose IDs stay within"
    )


def check_independence(prepared: PreparedModel, model: nn.Module) -> None:
    """Verify that no row's outputs depend on the others of its batch, unless a batch is one request.

    Raises:
        ExportError: The model fails on a part of the samples; ``VerificationError`` where rows depend on others.
    """
    signature = prepared.signature
    if signature.by_request:
        return
    batch = prepared.clean
    if batch.num_rows < 2:
        known_ids = prepared.managed.known_ids
        batch = random_batch(signature, _NUM_ROWS, torch.Generator().manual_seed(_SEED), known_ids=known_ids)
        batch = with_numbers_of(prepared.clean, batch, signature)

    def predict(rows: Batch) -> dict[str, Tensor]:
        return comparable(*_predicted(prepared, model, rows))

    def where(name: str, whole: Batch, choices: Sequence[Tensor]) -> str:
        def run(part: Batch) -> tuple[Tensor, Recorded]:
            call = arguments(prepared.input_mapping, part)
            outputs, recorded = record(lambda: model(**call))
            return named_outputs(outputs)[name], recorded

        for rows in choices:
            with suppress(Exception):  # the model's, on so few rows: only the place is missing then
                line = place_of_mixing(run(whole), run(picked(signature, whole, rows)), rows)
                if line is not None:
                    return f", because of {line}"
        return ""

    try:
        check_rows(signature, batch, predict, prepared.input_mapping.integers, where)
    except VerificationError as error:
        raise VerificationError(f"{error}{_flat_hint(prepared)}") from error.__cause__


def _flat_hint(prepared: PreparedModel) -> str:
    """Return what to do about a dense input that ``forward`` may take as ``[B]``, if there is one of width 1."""
    said = prepared.config.dense_widths
    names = [one.name for one in prepared.signature.dense if one.width == 1 and said.get(one.name) != 0]
    return f". If forward takes {names[0]!r} as [B], say so: --dense-width {names[0]}=0" if names else ""
