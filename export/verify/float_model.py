"""The float model on the samples: what it returns, and that no row's outputs depend on the others of its batch.

The server takes the others from other requests. Of an output's dimensions, the first is the batch's; where a batch is
one request, each is the batch's or always the same.

Shape letters: B batch.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from export.graph.graph import named_outputs
from export.graph.prepared import PreparedModel
from export.verify.compare import (
    END_TO_END_TOLERANCES,
    MOST_ROUNDED,
    ItemScores,
    arguments,
    call_model,
    distance,
)
from export.verify.mixing import Recorded, place_of_mixing, record
from export.verify.samples import with_numbers_of
from recsys.artifact.batches.ranking import picked
from recsys.artifact.batches.samples import Batch, random_batch
from recsys.errors import ExportError, ManifestError, VerificationError
from recsys.inputs.signature import FLOAT32, INT64, ROWS_FIRST, Output, Signature

# What torch says of an ID beyond its table.
_BEYOND = re.compile("valid range|index_size|out of range|out of bounds")
# How many random rows are taken where there are too few samples.
_NUM_ROWS = 16
_SEED = 20260101


@dataclass(frozen=True, kw_only=True)
class FloatOutputs:
    """What the float model returns for the samples.

    Attributes:
        outputs: The outputs by name, in float32 or int64; ready to be compared.
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
        prepared = _held_alone(prepared, "the model fails on random ones")
        floats = float_outputs(prepared, model)
    else:
        if prepared.num_held and _is_odd_on_random_alone(floats, prepared.num_held):
            prepared = _held_alone(prepared, "the model answers NaN or infinity for random ones")
            floats = float_outputs(prepared, model)
    return with_outputs(prepared, floats), floats


def _held_alone(prepared: PreparedModel, why: str) -> PreparedModel:
    """Return the model with the rows of the training, or of the example, as its only samples."""
    held = torch.arange(prepared.num_held)
    return replace(
        prepared,
        samples=picked(prepared.signature, prepared.samples, held),
        clean=picked(prepared.signature, prepared.clean, held),
        samples_source=f"{prepared.samples_source.partition(',')[0]} ({why})",
        num_held=0,
    )


def _is_odd_on_random_alone(floats: FloatOutputs, num_held: int) -> bool:
    """Return whether random rows have outputs that are not finite, and held rows have none."""
    numbers = [one for one in floats.outputs.values() if one.is_floating_point() and one.dim()]
    odd = [(~one.isfinite()).reshape(len(one), -1).any(dim=1) for one in numbers]
    return any(bool(one.any()) for one in odd) and not any(bool(one[:num_held].any()) for one in odd)


def float_outputs(prepared: PreparedModel, model: nn.Module) -> FloatOutputs:
    """Run the float model on the samples.

    Raises:
        ExportError: The model fails on the samples, or its outputs cannot be served.
    """
    prepared.progress("float model", 0, 1)
    collections = {path: model.get_submodule(path) if path else model for path in prepared.collections}
    try:
        found = call_model(model, prepared.input_mapping, prepared.clean, watched=collections)
    except Exception as error:  # user code can raise anything
        raise ExportError(
            f"model: forward failed on the samples: {type(error).__name__}: {error}{_hint(prepared, error)}"
        ) from error
    return FloatOutputs(
        outputs=found.comparable,
        signature=_signature(prepared, model, found.answered),
        collections=found.kept,
        are_cast=any(output.dtype != torch.float32 for output in found.named.values()),
        integers=found.integers,
        item_scores=found.scores,
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
        return _predicted(prepared, model, picked(prepared.signature, batch, rows))

    return request_outputs(outputs, batch.num_rows, predict_more)


def _predicted(prepared: PreparedModel, model: nn.Module, rows: Batch) -> dict[str, Tensor]:
    """Return what the float model makes of a part of the samples, ready to be compared.

    Raises:
        ExportError: The model fails.
    """
    try:
        return call_model(model, prepared.input_mapping, rows).comparable
    except ExportError:
        raise
    except Exception as error:  # user code can raise anything
        raise ExportError(
            f"model: forward failed on {rows.num_rows} rows: {type(error).__name__}: {error}. Expected it to take "
            f"any number of rows, as it took {prepared.samples.num_rows}"
        ) from error


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
        return _predicted(prepared, model, rows)

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
        _check_rows(signature, batch, predict, prepared.input_mapping.integers, where)
    except VerificationError as error:
        raise VerificationError(
            f"{error}{_flat_hint(prepared) or _towers_hint(prepared)}"
        ) from error.__cause__


def _towers_hint(prepared: PreparedModel) -> str:
    """Return what to do about an output that has a number for each pair of rows."""
    if all(prepared.samples.num_rows not in one.shape for one in prepared.signature.outputs):
        return ""
    return ". If two towers score all pairs of a batch, as users @ items.T, export each by itself: --submodule PATH"


def _flat_hint(prepared: PreparedModel) -> str:
    """Return what to do about a dense input that ``forward`` may take as ``[B]``, if there is one of width 1."""
    # A converted model of plain PyTorch knows its widths itself.
    said = {**prepared.config.dense_widths, **dict.fromkeys(getattr(prepared.model, "dense_widths", ()), 0)}
    names = [one.name for one in prepared.signature.dense if one.width == 1 and said.get(one.name) != 0]
    return f". If forward takes {names[0]!r} as [B], say so: --dense-width {names[0]}=0" if names else ""


_HINT = (
    "If the rows of a request belong together, as in logits [B, B], or an output has no rows, as the vectors of all "
    "candidates, export with --batch request"
)


def signature_outputs(outputs: Mapping[str, Tensor], num_rows: int) -> tuple[Output, ...]:
    """Return the outputs of a model whose rows are any requests'.

    Args:
        outputs: In the types of answers.
        num_rows: B.

    Raises:
        ExportError: An output does not have one row per row of the batch.
    """
    for name, output in outputs.items():
        if output.dim() == 0 or output.shape[0] != num_rows:
            others = [one for one, part in outputs.items() if part.dim() and part.shape[0] == num_rows]
            keep = (
                f"If it is a loss or the like, keep the others: --outputs {','.join(others)}. "
                if others
                else ""
            )
            raise ExportError(
                f"outputs[{name!r}]: got shape {list(output.shape)} for a batch of {num_rows} rows, expected "
                f"one row per row of the batch. {keep}{_HINT}"
            )
    return tuple(_output(name, output, ROWS_FIRST) for name, output in outputs.items())


def request_outputs(
    outputs: Mapping[str, Tensor], num_rows: int, predict_more: Callable[[], Mapping[str, Tensor]]
) -> tuple[Output, ...]:
    """Return the outputs of a model whose batch is one request: each dimension is B, or always the same.

    Args:
        outputs: In the types of answers.
        num_rows: B.
        predict_more: Returns the outputs for one row more.

    Raises:
        ExportError: An output has no dimensions, or one that is neither; or the model fails on one row more.
    """
    more = predict_more()
    found = []
    for name, output in outputs.items():
        if not output.dim():
            raise ExportError(
                f"outputs[{name!r}]: got a number without dimensions, expected at least one: unsqueeze(0) it"
            )
        sizes = list(zip(output.shape, more[name].shape, strict=False))
        batch_dims = tuple(i for i, size in enumerate(sizes) if size == (num_rows, num_rows + 1))
        is_known = all(i in batch_dims or size[0] == size[1] for i, size in enumerate(sizes))
        if not is_known or more[name].dim() != output.dim():
            raise ExportError(
                f"outputs[{name!r}]: got shape {list(output.shape)} for {num_rows} rows and {list(more[name].shape)} "
                f"for {num_rows + 1}, expected each size to be the number of rows, or always the same"
            )
        found.append(_output(name, output, batch_dims))
    return tuple(found)


def _output(name: str, output: Tensor, batch_dims: tuple[int, ...]) -> Output:
    return Output(
        name=name,
        shape=tuple(size for dim, size in enumerate(output.shape) if dim not in batch_dims),
        dtype=FLOAT32 if output.is_floating_point() else INT64,
        batch_dims=batch_dims,
    )


# Rows that are predicted alone.
_NUM_ALONE = 4
# Relative to the largest number: how far sums in another order differ between two runs.
_AGAIN = 2.0**-20
# Rows among which the place is searched.
_NUM_FEW = 16
_ORDER_SEED = 20260102

Predict = Callable[[Batch], Mapping[str, Tensor]]
#: Called with an output's name, a batch, and choices of its rows to predict without the others, by number; returns the
#: place in the model's code where they begin to differ, or nothing.
Where = Callable[[str, Batch, Sequence[Tensor]], str]


def _check_rows(
    signature: Signature,
    batch: Batch,
    predict: Predict,
    integers: Collection[str],
    where: Where,
) -> None:
    """Predict rows again, and in several companies: in another order, among half of the rows, and alone.

    Args:
        signature: Of the batch.
        batch: At least two rows.
        predict: The model.
        integers: The outputs that hold integers, such as the positions of the best. Where scores nearly tie, rounding
            changes them, so some rows may differ.
        where: Tells where rows begin to differ.

    Raises:
        VerificationError: A row's output differs between them; the message names both and says what to do.
    """
    expected = predict(batch)
    again = predict(batch)
    for name, of_all in expected.items():
        if name not in integers and not _is_same(of_all, again[name]):
            few = picked(signature, batch, torch.arange(min(batch.num_rows, _NUM_FEW)))
            blamed = where(name, few, [torch.arange(few.num_rows)])
            raise VerificationError(
                f"output {name!r}: differs when the same rows are predicted again{blamed}: forward must not draw "
                "random numbers: draw them once, into a buffer, or only `if self.training`"
            )
    order = torch.randperm(batch.num_rows, generator=torch.Generator().manual_seed(_ORDER_SEED))
    half = order[: (batch.num_rows + 1) // 2]
    cases = [(order, "when its batch is in another order"), (half, "when half of its batch is left out")]
    # Twice: at one row, what squeezes every dimension of size 1 would return no rows.
    cases += [(row.repeat(2), "when it is alone") for row in order[:_NUM_ALONE]]

    def because(name: str, row: int) -> str:
        few = torch.tensor([row, *(other for other in range(batch.num_rows) if other != row)][:_NUM_FEW])
        numbers = torch.arange(few.numel())
        return where(name, picked(signature, batch, few), [numbers[:1], numbers.flip(0), numbers[::2]])

    for rows, case in cases:
        found = predict(picked(signature, batch, rows))
        for name, of_all in expected.items():
            at_most = rows.numel() // MOST_ROUNDED if name in integers else 0
            of_case = _Case(text=case, at_most=at_most, because=because)
            _check_shape(name, found[name], of_all, rows, of_case)
            if found[name].numel() and (name not in integers or at_most):
                _compare(name, found[name], of_all, rows, of_case)


@dataclass(frozen=True, kw_only=True)
class _Case:
    """What was done to the rows, how many integers may differ, and what tells why a row of an output does."""

    text: str
    at_most: int
    because: Callable[[str, int], str]


def _is_same(one: Tensor, other: Tensor) -> bool:
    if one.shape != other.shape:
        return False
    one, other = (each.to(torch.float32).nan_to_num(0.0, 0.0, 0.0) for each in (one, other))
    largest = float(one.abs().max()) if one.numel() else 0.0
    return bool(torch.isclose(one, other, rtol=0, atol=_AGAIN * largest).all())


def _check_shape(name: str, found: Tensor, of_all: Tensor, rows: Tensor, case: _Case) -> None:
    if tuple(found.shape) != (rows.numel(), *of_all.shape[1:]):
        raise VerificationError(
            f"output {name!r}: got shape {list(found.shape)} for {rows.numel()} rows and {list(of_all.shape)} for "
            f"{of_all.shape[0]}{case.because(name, int(rows[0]))}, expected shapes that differ in the number of rows "
            "alone: give to_padded_dense a desired_length, and sizes of your own instead of the batch's largest. "
            "Outputs of other shapes, such as [B, B] or without rows, need --batch request"
        )


def _compare(name: str, found: Tensor, of_all: Tensor, rows: Tensor, case: _Case) -> None:
    expected = of_all[rows]
    # What is no number is judged later.
    is_same = (found == expected) | (found.isnan() & expected.isnan())
    difference = torch.where(is_same, 0.0, distance(found, expected).nan_to_num(torch.inf))
    difference = difference.reshape(rows.numel(), -1).amax(dim=1)
    bound = 0.0
    if of_all.is_floating_point():
        largest = float(of_all.nan_to_num(0.0, 0.0, 0.0).abs().max())
        bound = END_TO_END_TOLERANCES[torch.float32] * max(largest, 2.0**-10)
    if int((difference > bound).sum()) > case.at_most:
        at = int(difference.argmax())
        raise VerificationError(
            f"output {name!r}, row {int(rows[at])} of the samples: changes by {float(difference[at]):g} {case.text}, "
            f"expected at most {bound:g}, for rounding{case.because(name, int(rows[at]))}: a row must not depend on "
            "the others of its batch, which come from other requests. Take out of forward what reads the whole batch "
            "(a mean or softmax over dim 0, attention between rows, a BatchNorm without running statistics) or puts "
            "parts of other rows together (a view or reshape that orders rows and heads otherwise than a cat over dim "
            "0 does): mending it changes predictions, so train again. Or, if the rows of a request belong together, "
            "export with --batch request"
        )
