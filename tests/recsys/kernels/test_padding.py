"""Rows made dense: lengths and offsets that lie read nothing beyond the values, true ones are unchanged.

Shape letters: B batch, D embedding dim, L desired length, N number of values.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from recsys import JaggedTensor

NUM_VALUES = 6
PADDING = -7.0
LIES = {
    "lengths too long": {"lengths": [3, 100_000, 2]},
    "lengths far too long": {"lengths": [2**40, 2**40, 1]},
    "lengths that overflow": {"lengths": [2**62, 2**62, 2**62]},
    "negative length": {"lengths": [3, -100_000, 2]},
    "negative lengths": {"lengths": [-1, -2, -3]},
    "offsets beyond the end": {"offsets": [0, 3, 2**40, 2**41]},
    "first offset beyond": {"offsets": [2**40, 2**40 + 1, 2**40 + 2, 2**40 + 3]},
    "negative offsets": {"offsets": [-(2**40), -5, 3, 6]},
    "all negative offsets": {"offsets": [-9, -8, -7, -6]},
    "falling offsets": {"offsets": [6, 0, 6, 0]},
    "the least and the most": {"offsets": [-(2**63), 2**63 - 1, -(2**63), 2**63 - 1]},
}


def _values(dim: int | None) -> Tensor:
    """Every number tells that it is one of the values: all of them are from 1 to 2."""
    shape = (NUM_VALUES,) if dim is None else (NUM_VALUES, dim)
    return 1 + torch.rand(shape, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("length", [0, 1, 4, 500])
@pytest.mark.parametrize("dim", [None, 5], ids=["scalars", "rows"])
@pytest.mark.parametrize("rows", LIES.values(), ids=LIES)
def test_lies_read_nothing_but_values(rows: dict[str, list[int]], dim: int | None, length: int) -> None:
    values = _values(dim)
    weights = _values(None)
    made = JaggedTensor(values, weights, **{name: torch.tensor(given) for name, given in rows.items()})
    padded_weights = made.to_padded_dense_weights(length, PADDING)
    assert padded_weights is not None
    for padded, source in ((made.to_padded_dense(length, PADDING), values), (padded_weights, weights)):
        assert padded.shape == (3, length, *source.shape[1:])
        # No number but the values' own, and the padding.
        assert torch.isin(padded, torch.cat([source.flatten(), torch.tensor([PADDING])])).all()


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_lies_are_cut_at_the_end_of_the_values(dtype: torch.dtype) -> None:
    values = torch.arange(1, 7)
    longer = JaggedTensor(values, lengths=torch.tensor([4, 9, 9], dtype=dtype))
    assert longer.to_padded_dense(4).tolist() == [[1, 2, 3, 4], [5, 6, 0, 0], [0, 0, 0, 0]]
    negative = JaggedTensor(values, offsets=torch.tensor([-4, -2, 2, 99], dtype=dtype))
    assert negative.to_padded_dense(5).tolist() == [[0] * 5, [1, 2, 0, 0, 0], [3, 4, 5, 6, 0]]


@pytest.mark.parametrize("rows", [[-1, 3, 3], [7, 0, 0]], ids=["negative", "too long"])
def test_the_longest_of_lying_lengths_is_the_width(rows: list[int]) -> None:
    assert JaggedTensor(torch.arange(6), lengths=rows).to_padded_dense().shape == (3, max(rows))


@pytest.mark.parametrize("lengths", [[-1, -2, -3], [2**62, 2**62, 2**62]], ids=["negative", "huge"])
def test_a_width_that_no_tensor_has_is_an_error(lengths: list[int]) -> None:
    with pytest.raises(RuntimeError):
        JaggedTensor(torch.arange(6), lengths=torch.tensor(lengths)).to_padded_dense()


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("length", [None, 0, 1, 3, 9])
@pytest.mark.parametrize("dim", [None, 5], ids=["scalars", "rows"])
def test_true_rows_are_cut_and_padded(dim: int | None, length: int | None, dtype: torch.dtype) -> None:
    values = _values(dim)
    made = JaggedTensor(values, lengths=torch.tensor([3, 0, 1, 2], dtype=dtype))
    width = 3 if length is None else length
    expected = torch.full((4, width, *values.shape[1:]), PADDING)
    for b, row in enumerate(torch.split(values, [3, 0, 1, 2])):
        expected[b, : row[:width].shape[0]] = row[:width]
    assert torch.equal(made.to_padded_dense(length, PADDING), expected)
    by_offsets = JaggedTensor(values, offsets=torch.tensor([0, 3, 3, 4, 6], dtype=dtype))
    assert torch.equal(by_offsets.to_padded_dense(length, PADDING), expected)
