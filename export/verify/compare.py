"""What models return for a batch, and its comparison within the tolerances of their arithmetic.

Shape letters: B batch, D embedding dim, N number of items.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from export.graph.graph import as_answered, named_outputs, split_features
from export.graph.inputs.mapping import InputMapping
from recsys.artifact.batches.samples import Batch
from recsys.errors import ExportError, VerificationError
from recsys.models.retrieval import RetrievalModel

MeasuredT = TypeVar("MeasuredT")

# Rounding of the dense layers' arithmetic, relative to the largest output: sums of a few thousand fp32 terms
# (2^-24 each), and of bf16 terms (2^-8 each) over the depth of a ranking model.
END_TO_END_TOLERANCES = {torch.float32: 2.0**-13, torch.bfloat16: 2.0**-4}
# The same for products of linear layers alone: int8 keeps 7 bits of each row's and column's largest number.
LINEAR_TOLERANCES = {"float32": 2.0**-13, "bfloat16": 2.0**-4, "int8": 2.0**-4}
# FBGEMM's CUDA kernel computes the numbers of INT8, INT4 and INT2 rows in half precision (11 bits each), and sums them
# in fp32: relative to the largest output, with a margin for sums that cancel.
CUDA_ROWS_TOLERANCE = 2.0**-10
#: One of so many rows may differ in integers, such as the positions of the best: rounding changes the order of scores
#: that nearly tie.
MOST_ROUNDED = 16
# Smaller numbers are compared as if they were of this size.
_LEAST = 2.0**-10


@dataclass(frozen=True, kw_only=True)
class Difference:
    """The distance between two outputs."""

    max_abs: float
    mean_abs: float


@dataclass(frozen=True, kw_only=True)
class Checked:
    """The largest difference between two outputs, and the bound that it was within."""

    max_abs: float
    bound: float

    @property
    def share(self) -> float:
        """The difference as a share of the bound."""
        return self.max_abs / self.bound


def arguments(
    input_mapping: InputMapping, batch: Batch, dtype: torch.dtype = torch.float32
) -> dict[str, Any]:
    """Return the keyword arguments of the float model's ``forward`` for a batch."""
    dense = {name: tensor.to(dtype) for name, tensor in zip(input_mapping.dense, batch.dense, strict=True)}
    return {**dense, **split_features(input_mapping, batch.lengths, batch.values, batch.weights)}


def call_model(
    model: nn.Module,
    input_mapping: InputMapping,
    batch: Batch,
    *,
    dtype: torch.dtype = torch.float32,
    watched: Mapping[str, nn.Module] = MappingProxyType({}),
) -> ModelOutputs:
    """Call a model for a batch.

    Args:
        model: The model.
        input_mapping: How its arguments are made of a batch.
        batch: The batch.
        dtype: That of dense inputs.
        watched: Modules by path, whose outputs are kept.
    """
    call = arguments(input_mapping, batch, dtype)
    kept: dict[str, list[Any]] = {path: [] for path in watched}
    handles = [
        # Before hooks of the user's, which may change the output.
        module.register_forward_hook(
            lambda _m, _i, output, path=path: kept[path].append(output), prepend=True
        )
        for path, module in watched.items()
    ]
    try:
        with torch.no_grad():
            outputs = model(**call)
    finally:
        for handle in handles:
            handle.remove()
    return ModelOutputs(model, call, outputs, kept)


def compare(
    outputs: Mapping[str, Tensor],
    expected: Mapping[str, Tensor],
    tolerance: float | None,
    what: str,
    scores: ItemScores | None = None,
) -> dict[str, Difference]:
    """Compare outputs by name.

    Args:
        outputs: The outputs of the artifact.
        expected: The expected outputs by the same names.
        tolerance: Relative to the largest expected magnitude; None only measures. Integers must be equal but for one
            row of ``MOST_ROUNDED``.
        what: A description for the message.
        scores: What positions of retrieved items are replaced by, as in what is expected; None for none.

    Raises:
        VerificationError: Names the output, the row, the difference and the bound.
    """
    outputs = comparable(outputs, scores)
    found = {}
    for name, want in expected.items():
        got = outputs[name]
        if got.shape != want.shape or got.dtype != want.dtype:
            raise VerificationError(
                f"output {name!r}: got {got.dtype} {list(got.shape)}, expected {want.dtype} {list(want.shape)}, {what}"
            )
        difference = distance(got, want)
        worst = float(difference.max()) if difference.numel() else 0.0
        found[name] = Difference(
            max_abs=worst, mean_abs=float(difference.mean()) if difference.numel() else 0.0
        )
        if tolerance is None:
            continue
        if not want.is_floating_point():
            _check_integers(name, got, want, what)
            continue
        bound = bound_of(want, tolerance)
        if not worst <= bound:
            at = (
                int(difference.flatten(1).amax(dim=1).argmax())
                if difference.dim() > 1
                else int(difference.argmax())
            )
            if not want[at].isfinite().all():
                raise VerificationError(
                    f"output {name!r}, row {at} of the samples: the model itself answers {_odd(want[at])}, expected "
                    "finite numbers: forward divides by zero, or takes a logarithm of it, for such a row (perhaps a "
                    "bag without IDs): bound it, such as by clamp(min=1e-6), or give --samples without such rows"
                )
            raise VerificationError(
                f"output {name!r}, row {at} of the samples: {worst:g} away from {what}, expected at most {bound:g}"
            )
    return found


def bound_of(expected: Tensor, tolerance: float) -> float:
    """Return how far numbers may be from those that are expected."""
    return tolerance * max(float(expected.abs().max()) if expected.numel() else 0.0, _LEAST)


def distance(got: Tensor, want: Tensor) -> Tensor:
    """Return how far numbers are apart: 0 for equal integers alone, however large they are."""
    if want.is_floating_point():
        return (got - want).abs()
    apart = (got.to(torch.float64) - want.to(torch.float64)).abs().clamp(min=1.0)
    return torch.where(got == want, 0.0, apart)


def _odd(row: Tensor) -> str:
    return "NaN" if bool(row.isnan().any()) else "infinity"


def _check_integers(name: str, got: Tensor, want: Tensor, what: str) -> None:
    """Check that integers are equal, up to a few rows: rounding decides between numbers that nearly tie."""
    differs = (got != want).reshape(len(want), want.shape[1:].numel()).any(dim=1)
    at_most = len(want) // MOST_ROUNDED
    if int(differs.sum()) > at_most:
        at = int(differs.int().argmax())
        raise VerificationError(
            f"output {name!r}, row {at} of the samples: got {got[at].reshape(-1).tolist()[:8]}, expected "
            f"{want[at].reshape(-1).tolist()[:8]}, {what}; {int(differs.sum())} of {len(want)} rows differ, expected "
            f"at most {at_most}, whose scores nearly tie"
        )


@dataclass(frozen=True, kw_only=True)
class ItemScores:
    """The scores that a reference gives to each item for the samples.

    Attributes:
        users: float32 ``[B, D]``.
        items: float32 ``[N, D]``.
    """

    users: Tensor
    items: Tensor

    def of(self, positions: Tensor) -> Tensor:
        """Return the scores ``[B, K]`` of the items at positions ``[B, K]``.

        Raises:
            VerificationError: A position is no item's, or is in a row twice.
        """
        is_item = (positions >= 0) & (positions < len(self.items))
        in_order = positions.sort(dim=1).values
        for wrong, expected in (
            (~is_item, f"whole numbers from 0 to {len(self.items) - 1}, rows of the items' vectors"),
            (in_order[:, 1:] == in_order[:, :-1], "each item once"),
        ):
            rows = wrong.any(dim=1)
            if bool(rows.any()):
                at = int(rows.int().argmax())
                raise VerificationError(
                    f"output 'items', row {at} of the samples: got {positions[at].tolist()[:8]}, expected {expected}"
                )
        return torch.einsum("bd,bkd->bk", self.users, self.items[positions])


def comparable(outputs: Mapping[str, Tensor], reference: ItemScores | None) -> dict[str, Tensor]:
    """Return outputs that may be compared number by number: positions are replaced by the reference's scores.

    Raises:
        VerificationError: A position is wrong in itself; see ``ItemScores.of``.
    """
    if reference is None:
        return dict(outputs)
    return {**outputs, "items": reference.of(outputs["items"])}


class ModelOutputs:
    """What a model returns for some rows, by name.

    Args:
        model: The model, which returned them.
        arguments: The keyword arguments that it was called with.
        outputs: What it returned.
        kept: By path the outputs of modules of it, call by call.
    """

    def __init__(
        self, model: nn.Module, arguments: Mapping[str, Any], outputs: Any, kept: dict[str, list[Any]]
    ) -> None:
        self._model = model
        self._arguments = arguments
        self._outputs = outputs
        self.kept = kept

    @cached_property
    def named(self) -> dict[str, Tensor]:
        """The outputs as they are.

        Raises:
            ExportError: They are neither tensors nor containers of tensors, or complex numbers.
        """
        named = named_outputs(self._outputs)
        for name, output in named.items():
            if output.is_complex():
                raise ExportError(
                    f"outputs[{name!r}]: got {output.dtype}, expected real numbers: return torch.view_as_real of them"
                )
        return named

    @cached_property
    def scores(self) -> ItemScores | None:
        """The scores of any item, if the model retrieves items."""
        if not isinstance(self._model, RetrievalModel):
            return None
        with torch.no_grad():
            return ItemScores(users=self._model.user_vectors(**self._arguments), items=self._model.vectors)

    @property
    def integers(self) -> frozenset[str]:
        """The names of those that hold integers or bools."""
        return frozenset(name for name, output in self.named.items() if not output.is_floating_point())

    @cached_property
    def answered(self) -> dict[str, Tensor]:
        """The outputs in the types of the artifact's."""
        integers = self.integers
        return {name: as_answered(output, name in integers) for name, output in self.named.items()}

    @property
    def comparable(self) -> dict[str, Tensor]:
        """The same, with scores in place of positions; see ``comparable``."""
        return comparable(self.answered, self.scores)


def largest(
    found: Sequence[Mapping[str, MeasuredT]], size: Callable[[MeasuredT], float]
) -> dict[str, MeasuredT]:
    """Return for each output the largest of its measurements; they are of the same outputs."""
    return {name: max((measured[name] for measured in found), key=size) for name in found[0]}
