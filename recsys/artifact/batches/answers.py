"""Answers that the export has verified, by which loaders check what it could not verify; rows to warm models up with.

Loaders run programs by the native kernels, also where the export ran without them. So an artifact holds a few of the
rows that it was verified with, and what the model answers. Models are warmed up with these rows, or with made ones.

Shape letters: B batch, F features, N number of IDs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from recsys.artifact.batches.ranking import picked, ranking_batch
from recsys.artifact.batches.samples import Batch
from recsys.base.json_checks import count as positive
from recsys.errors import ManifestError
from recsys.inputs.signature import Signature, SparseInput

#: Rows that an artifact holds at most, and their IDs.
MOST_ROWS, MOST_IDS = 16, 8192
# Differences are relative to the largest number of an output, or to this one if all are smaller.
_LEAST = 2.0**-10
_Call = Callable[..., dict[str, Tensor]]
#: The batches that servers warm up with: requests, and the rows of each. One request and many, because batches are put
#: together in different ways. The native engine has the same (``cpp_client/engine/core/executor/warm_up.cpp``); the
#: tests of both read ``tests/cases/warm_up_sizes.txt``.
WARM_UP_SIZES = ((1, 1), (1, 2), (2, 1), (8, 1), (32, 1), (1, 64), (128, 1))
#: The same where a batch is one request: the model may take few numbers of rows.
WARM_UP_SIZES_BY_REQUEST = ((1, 2),)


@dataclass(frozen=True, kw_only=True)
class Answers:
    """Rows, and the float32 outputs that were verified for them.

    Attributes:
        batch: The rows.
        outputs: By name.
        tolerance: How far others may be away, relative to an output's largest number.
    """

    batch: Batch
    outputs: Mapping[str, Tensor]
    tolerance: float

    def to_json(self) -> dict[str, Any]:
        """Return plain data that ``from_json`` reads back: float32 numbers as the whole numbers of their bits."""
        batch = self.batch
        return {
            "num_rows": batch.num_rows,
            "dense": [_bits(dense) for dense in batch.dense],
            "lengths": batch.lengths.tolist(),
            "values": batch.values.tolist(),
            **({} if batch.weights is None else {"weights": _bits(batch.weights)}),
            "outputs": {name: _bits(output) for name, output in self.outputs.items()},
            "tolerance": self.tolerance,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any], signature: Signature) -> Answers:
        """Read untrusted data in the format of ``to_json``.

        Raises:
            ManifestError: A field is wrong.
        """
        num_rows = positive(data, "num_rows", "manifest.answers")
        if num_rows > MOST_ROWS:
            raise _wrong("num_rows", f"1 to {MOST_ROWS}")
        tolerance = data.get("tolerance")
        if type(tolerance) is not float or not 0 <= tolerance <= 1:
            raise _wrong("tolerance", "a number from 0 to 1")
        dense = data.get("dense")
        if not isinstance(dense, list) or len(dense) != len(signature.dense):
            raise _wrong("dense", f"{len(signature.dense)} lists")
        lengths = _whole(data.get("lengths"), "lengths", len(signature.sparse) * num_rows)
        if lengths.numel() and (int(lengths.min()) < 0 or int(lengths.max()) > MOST_IDS):
            raise _wrong("lengths", f"0 to {MOST_IDS}")
        num_ids = int(lengths.sum())
        known = {output.name: output.dims(num_rows) for output in signature.outputs if not output.is_integer}
        batch = Batch(
            dense=tuple(
                _floats(numbers, f"dense[{i}]", (num_rows, use.width))
                for i, (numbers, use) in enumerate(zip(dense, signature.dense, strict=True))
            ),
            lengths=lengths,
            values=_whole(data.get("values"), "values", num_ids),
            weights=_floats(data.get("weights"), "weights", (num_ids,)) if signature.is_weighted else None,
            num_rows=num_rows,
        )
        outputs = data.get("outputs")
        if not isinstance(outputs, dict):
            raise _wrong("outputs", "an object")
        found = {}
        for name, numbers in outputs.items():
            if name not in known:
                raise _wrong("outputs", "the signature's outputs of float32 numbers")
            found[name] = _floats(numbers, f"outputs.{name!r}", known[name])
        return cls(batch=batch, outputs=found, tolerance=tolerance)

    def difference(self, calls: Sequence[_Call], signature: Signature) -> str:
        """Return how far the forms of a model are away from these answers; empty if they are near enough.

        Args:
            calls: The plain form, and the ranking form if there is one.
            signature: The model's signature.
        """
        rows = torch.arange(self.batch.num_rows)
        for form, call in enumerate(calls):
            inputs = (ranking_batch(signature, self.batch, self.batch, rows) if form else self.batch).inputs()
            try:
                with torch.inference_mode():
                    outputs = call(*inputs)
            except (RuntimeError, torch.jit.Error) as error:
                return f"it fails: {str(error).strip().splitlines()[-1][:200]}"
            for name, want in self.outputs.items():
                got = outputs.get(name)
                if got is None:
                    return f"output {name!r}: missing, got {list(outputs)}"
                if got.shape != want.shape or got.dtype != want.dtype:
                    return f"output {name!r}: got {got.dtype} {list(got.shape)}, expected {list(want.shape)}"
                apart = (
                    (got - want).abs().nan_to_num(nan=torch.inf).masked_fill(got.isnan() & want.isnan(), 0)
                )
                largest = max(float(want.nan_to_num(0, 0, 0).abs().max()) if want.numel() else 0.0, _LEAST)
                worst = float(apart.max()) if apart.numel() else 0.0
                if worst > self.tolerance * largest and not torch.equal(got, want):
                    return f"output {name!r}: {worst:g} away, expected at most {self.tolerance * largest:g}"
        return ""


def few_rows(signature: Signature, batch: Batch) -> Batch | None:
    """Return the first rows of a batch, which an artifact holds; None if they have too many IDs."""
    num_rows = min(batch.num_rows, MOST_ROWS)
    while num_rows > (1 if signature.by_request else 0):
        few = picked(signature, batch, torch.arange(num_rows))
        if few.values.numel() <= MOST_IDS:
            return few
        num_rows //= 2
    return None


def _bits(numbers: Tensor) -> list[int]:
    bits: list[int] = numbers.detach().contiguous().view(torch.int32).flatten().tolist()
    return bits


def _whole(numbers: Any, at: str, count: int) -> Tensor:
    if not isinstance(numbers, list) or len(numbers) != count or not all(type(n) is int for n in numbers):
        raise _wrong(at, f"{count} whole numbers")
    try:
        return torch.tensor(numbers, dtype=torch.int64)
    except (OverflowError, RuntimeError, ValueError):
        raise _wrong(at, f"{count} whole numbers") from None


def _floats(numbers: Any, at: str, shape: tuple[int, ...]) -> Tensor:
    count = 1
    for size in shape:
        count *= size
    bits = _whole(numbers, at, count)
    if bits.numel() and not -(2**31) <= int(bits.min()) <= int(bits.max()) < 2**31:
        raise _wrong(at, "the bits of float32 numbers, as whole numbers")
    return bits.to(torch.int32).view(torch.float32).view(shape)


def _wrong(at: str, expected: str) -> ManifestError:
    return ManifestError(f"manifest.answers.{at}: expected {expected}")


def warm_up_sizes(signature: Signature) -> tuple[tuple[int, int], ...]:
    """Return the batches that servers warm a model up with: requests, and the rows of each."""
    return WARM_UP_SIZES_BY_REQUEST if signature.by_request else WARM_UP_SIZES


def warm_up_rows(signature: Signature, verified: Batch | None, num_rows: int, first: int = 0) -> Batch:
    """Return rows that the model takes.

    Args:
        signature: The model's signature.
        verified: Rows that its export has verified; None if the artifact holds none.
        num_rows: B.
        first: The verified row to begin with. Behind the last one comes the first again.
    """
    if verified is None:
        return made_batch(signature, num_rows)
    return picked(signature, verified, torch.arange(first, first + num_rows) % verified.num_rows)


def warm_up_inputs(signature: Signature, rows: Batch, *, is_ranking: bool) -> list[Tensor]:
    """Return the arguments of ``forward`` or, with each row as its own context, of ``forward_ranking``."""
    if not is_ranking:
        return rows.inputs()
    return ranking_batch(signature, rows, rows, torch.arange(rows.num_rows)).inputs()


def made_batch(signature: Signature, num_rows: int) -> Batch:
    """Return a batch of zeros and spread IDs; see ``spread_ids``."""
    lengths, values = spread_ids(signature.sparse, num_rows)
    return Batch(
        dense=tuple(torch.zeros(num_rows, d.width) for d in signature.dense),
        lengths=torch.tensor(lengths, dtype=torch.int64).repeat_interleave(num_rows),
        values=torch.from_numpy(values),
        weights=torch.ones(values.size) if signature.is_weighted else None,
        num_rows=num_rows,
    )


def spread_ids(uses: Sequence[SparseInput], num_rows: int) -> tuple[list[int], npt.NDArray[np.int64]]:
    """Return the length of each input's bags, and the IDs of all inputs, spread over each table."""
    lengths = [1 if use.num_ids is None else use.num_ids for use in uses]
    spread = [
        np.linspace(0, (use.id_limit or 1) - 1, num_rows * length, dtype=np.int64)
        for use, length in zip(uses, lengths, strict=True)
    ]
    return lengths, np.concatenate([np.empty(0, np.int64), *spread])
