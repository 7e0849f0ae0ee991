"""Verification that no row of a batch depends on the others, which the server takes from other requests.

Shape letters: B batch.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from export.verify.compare import END_TO_END_TOLERANCES, MOST_ROUNDED, distance
from recsys.artifact.batches.ranking import picked
from recsys.artifact.batches.samples import Batch
from recsys.errors import VerificationError
from recsys.inputs.signature import Signature

# Rows that are predicted alone.
_NUM_ALONE = 4
# Relative to the largest number: how far sums in another order differ between two runs.
_AGAIN = 2.0**-20
# Rows among which the place is searched.
_NUM_FEW = 16
_SEED = 20260102

Predict = Callable[[Batch], Mapping[str, Tensor]]
#: Called with an output's name, a batch, and choices of its rows to predict without the others, by number; returns the
#: place in the model's code where they begin to differ, or nothing.
Where = Callable[[str, Batch, Sequence[Tensor]], str]


def check_rows(
    signature: Signature,
    batch: Batch,
    predict: Predict,
    integers: Collection[str] = (),
    where: Where = lambda *_: "",
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
    order = torch.randperm(batch.num_rows, generator=torch.Generator().manual_seed(_SEED))
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
            f"output {name!r}, row {int(rows[at])} of the samples: {float(difference[at]):g} away {case.text}, "
            f"expected at most {bound:g}{case.because(name, int(rows[at]))}: a row must not depend on the others of "
            "its batch, which come from other requests. Take out of forward what reads the whole batch (a mean or "
            "softmax over dim 0, attention between rows, a BatchNorm without running statistics); or, if the rows of "
            "a request belong together, export with --batch request"
        )
