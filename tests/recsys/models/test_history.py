"""The last rows of histories, in their order.

Shape letters: B batch, D embedding dimension, H longest history, N number of IDs.
"""

from __future__ import annotations

import pytest
import torch

from recsys.jagged.tensor import JaggedTensor
from recsys.models.history import recent, recent_rows


@pytest.mark.parametrize("lengths", [[3, 0, 7, 1, 5, 6], [0, 0], [9], []])
def test_the_last_rows_come_in_their_order(lengths: list[int]) -> None:
    values = torch.randn(sum(lengths), 4, requires_grad=True)
    found = recent(JaggedTensor(values, lengths=torch.tensor(lengths, dtype=torch.int64)), 5)
    assert found.shape == (len(lengths), 5, 4)
    weights = torch.rand(found.shape)
    (found * weights).sum().backward()
    gradient = torch.zeros_like(values)
    end = 0
    for i, length in enumerate(lengths):
        end += length
        count = min(length, 5)
        assert torch.equal(found[i, :count], values[end - count : end])
        assert not found[i, count:].any()
        gradient[end - count : end] = weights[i, :count]
    assert torch.equal(values.grad if values.grad is not None else torch.zeros_like(values), gradient)


def test_offsets_beyond_the_values_read_none_of_them() -> None:
    found = recent_rows(torch.ones(3, 2), torch.tensor([0, 2, 99]), 4)
    assert found.sum(dim=(1, 2)).tolist() == [4, 2]
    assert recent_rows(torch.ones(3, 2), torch.tensor([5, -3, 99]), 4).shape == (2, 4, 2)
