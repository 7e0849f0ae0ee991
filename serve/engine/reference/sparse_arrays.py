"""The sparse inputs of a checked request, as arrays.

Shape letters: B rows of a request, F sparse inputs, N number of IDs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

# Lengths, values and weights of one input.
_Part = tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.float32] | None]


@dataclass(slots=True)
class SparseArrays:
    """F inputs of B bags each, key-major.

    Attributes:
        lengths: int64 ``[F * B]``.
        values: int64 ``[N]``, in the order of ``lengths``.
        weights: float32 ``[N]``, if the signature is weighted; 1.0 for the IDs of unweighted inputs.
        num_ids: number of IDs of each input.
    """

    lengths: npt.NDArray[np.int64]
    values: npt.NDArray[np.int64]
    weights: npt.NDArray[np.float32] | None
    num_ids: list[int]

    def copy(self) -> SparseArrays:
        """Return a copy."""
        weights = None if self.weights is None else self.weights.copy()
        return SparseArrays(self.lengths.copy(), self.values.copy(), weights, self.num_ids)

    def of_input(self, i: int) -> npt.NDArray[np.int64]:
        """Return the lengths of the input at a position, ``[B]``."""
        num_bags = len(self.lengths) // len(self.num_ids)
        return self.lengths[i * num_bags : (i + 1) * num_bags]

    def only(self, inputs: Sequence[int]) -> SparseArrays:
        """Return the inputs at these positions, in this order."""
        if len(inputs) == len(self.num_ids):
            return self
        return _of_parts([_part(self, i) for i in inputs], self.weights is not None)


def repeated(arrays: SparseArrays, inputs: Sequence[int], num_rows: int) -> SparseArrays:
    """Repeat inputs of one bag each to ``num_rows`` equal bags."""
    parts: list[_Part] = []
    for i in inputs:
        lengths, values, weights = _part(arrays, i)
        parts.append(
            (
                np.repeat(lengths, num_rows),
                np.tile(values, num_rows),
                None if weights is None else np.tile(weights, num_rows),
            )
        )
    return _of_parts(parts, arrays.weights is not None)


def joined(
    order: Sequence[str],
    names: Sequence[str],
    arrays: SparseArrays,
    other_names: Sequence[str],
    others: SparseArrays,
) -> SparseArrays:
    """Merge the inputs of both, which have the same number of bags, in a given order of their names."""
    parts = {name: _part(arrays, i) for i, name in enumerate(names)}
    parts.update((name, _part(others, i)) for i, name in enumerate(other_names))
    return _of_parts([parts[name] for name in order], arrays.weights is not None)


def _part(arrays: SparseArrays, i: int) -> _Part:
    num_bags = len(arrays.lengths) // len(arrays.num_ids)
    start = sum(arrays.num_ids[:i])
    ids = slice(start, start + arrays.num_ids[i])
    return (
        arrays.lengths[i * num_bags : (i + 1) * num_bags],
        arrays.values[ids],
        None if arrays.weights is None else arrays.weights[ids],
    )


def _of_parts(parts: Sequence[_Part], weighted: bool) -> SparseArrays:
    no_ids = np.empty(0, np.int64)
    weights = [part[2] for part in parts if part[2] is not None]
    return SparseArrays(
        np.concatenate([no_ids, *(part[0] for part in parts)]),
        np.concatenate([no_ids, *(part[1] for part in parts)]),
        np.concatenate([np.empty(0, np.float32), *weights]) if weighted else None,
        [len(part[1]) for part in parts],
    )
