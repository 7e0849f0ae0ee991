"""The native operator that crosses features, against torch's operators.

Shape letters: B rows, F features, N number of IDs.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from export.graph.crossing import NativeCrossing
from recsys import KeyedJaggedTensor
from recsys.inputs.crosses import CrossSpec
from recsys.kernels import operators
from recsys.modules.crosses import Crossing

pytestmark = pytest.mark.skipif(bool(operators.why_missing()), reason="the native kernels are not built")
_NAMES = ["a", "b", "unused", "c"]
_CROSSES = [
    CrossSpec(name="ab", feature_names=("a", "b"), num_embeddings=1_000),
    CrossSpec(name="cba", feature_names=("c", "b", "a"), num_embeddings=7),
    CrossSpec(name="ca", feature_names=("c", "a"), num_embeddings=2**62 - 1),
]


def _batch(num_rows: int, most: int) -> KeyedJaggedTensor:
    """Any IDs, in bags of 0 to ``most``."""
    generator = torch.Generator().manual_seed(num_rows + most)
    lengths = torch.randint(most + 1, (len(_NAMES) * num_rows,), generator=generator)
    values = torch.randint(-(2**63), 2**63 - 1, (int(lengths.sum()),), generator=generator)
    return KeyedJaggedTensor(_NAMES, values, lengths=lengths)


@pytest.mark.parametrize("num_rows", [0, 1, 2, 300])
@pytest.mark.parametrize("most", [1, 3])
def test_it_crosses_as_torch_does(num_rows: int, most: int) -> None:
    batch = _batch(num_rows, most)
    found, expected = NativeCrossing(_CROSSES)(batch).made, Crossing(_CROSSES)(batch).made
    assert found.keys() == expected.keys()
    assert torch.equal(found.lengths(), expected.lengths())
    assert torch.equal(found.values(), expected.values())
    if num_rows == 300:
        assert 0 < len(found.values()) < 3 * num_rows
        assert bool((found.values() == -1).any()) == (most > 1)


_LENGTHS, _VALUES = torch.tensor([1, 1, 1, 0]), torch.tensor([5, 6, 7])
WRONG: dict[str, dict[int, Any]] = {
    "lengths of another type": {0: _LENGTHS.int()},
    "values of two dimensions": {1: _VALUES.view(3, 1)},
    "features that do not divide the lengths": {2: 3},
    "no features": {2: 0},
    "a negative length": {0: torch.tensor([1, 3, -1, 0])},
    "a length beyond the values": {0: torch.tensor([1, 1, 1, 1])},
    "more values than lengths": {1: torch.tensor([5, 6, 7, 8])},
    "a large length": {0: torch.tensor([1, 1, 2**63 - 1, 0])},
    "an unknown feature": {4: [0, 2]},
    "a negative feature": {4: [0, -1]},
    "too few features": {3: [3]},
    "no feature of a cross": {3: [0]},
    "no rows": {5: [0]},
    "rows of another number of crosses": {5: [9, 9]},
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_inputs_are_refused(name: str) -> None:
    good: list[Tensor | int | list[int]] = [_LENGTHS, _VALUES, 2, [2], [0, 1], [9]]
    rows, lengths = torch.ops.recsys_ops.crossed_rows(*good)
    assert (len(rows), lengths.tolist()) == (1, [1, 0])
    wrong = [WRONG[name].get(i, one) for i, one in enumerate(good)]
    with pytest.raises((ValueError, TypeError)):
        torch.ops.recsys_ops.crossed_rows(*wrong)
