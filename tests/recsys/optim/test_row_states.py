"""Row-wise state follows a table whose columns are cut another way.

Shape letters: D embedding dim, K blocks of columns, R rows.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from recsys.optim import EmbOptimType, FusedConfig, recut_row_state
from tests.recsys.optim.lookups import Batch, TbeLookup, batches, table

NUM_COLUMNS = 16
CONFIG = FusedConfig(optimizer=EmbOptimType.EXACT_ROWWISE_ADAGRAD, learning_rate=0.1)


def _trained(widths: list[int]) -> Tensor:
    """FBGEMM's state after training each block of columns as a table of its own: ``[R]`` or ``[R, K]``."""
    states, start = [], 0
    for width in widths:
        columns = slice(start, start + width)
        lookup = TbeLookup(CONFIG, weight=table(num_columns=NUM_COLUMNS)[:, columns])
        for batch in batches(4, NUM_COLUMNS):
            lookup.train(Batch(batch.ids, batch.offsets, batch.gradient[:, columns].contiguous()))
        states.append(lookup.fused_states()["embedding_bags.t1.weight"]["t1.momentum1"])
        start += width
    return states[0] if len(states) == 1 else torch.stack(states, dim=1)


@pytest.mark.parametrize(
    ("old", "new"),
    [([8, 8], [16]), ([4, 12], [16]), ([4, 4, 4, 4], [8, 8]), ([4, 4, 8], [8, 8]), ([4, 4, 8], [4, 12])],
    ids=str,
)
def test_joined_blocks_have_the_state_they_would_have_had(old: list[int], new: list[int]) -> None:
    torch.testing.assert_close(recut_row_state(_trained(old), old, new), _trained(new))


@pytest.mark.parametrize("widths", [[8, 8], [4, 12], [1, 15]], ids=str)
def test_a_split_and_a_join_give_the_state_back(widths: list[int]) -> None:
    state = _trained([16])
    parts = recut_row_state(state, [16], widths)
    assert parts.shape == (12, 2)
    assert torch.equal(parts[:, 0], state)
    assert torch.equal(recut_row_state(parts, widths, [16]), state)


def test_blocks_that_overlap_are_weighed_by_columns() -> None:
    state = torch.tensor([[1.0, 5.0], [2.0, 6.0]])
    assert recut_row_state(state, [6, 2], [4, 4]).tolist() == [[1.0, 3.0], [2.0, 4.0]]
    assert recut_row_state(state, [6, 2], [6, 2]) is state
    assert recut_row_state(state[:, :1], [8], [4, 4]).tolist() == [[1.0, 1.0], [2.0, 2.0]]
    assert recut_row_state(torch.zeros(0, 2), [4, 4], [8]).shape == (0,)


@pytest.mark.parametrize(
    ("shape", "old", "new", "text"),
    [
        pytest.param(
            (3,), [8], [4, 8], r"new_widths: got \[4, 8\], which cover 12 columns, expected 8", id="columns"
        ),
        pytest.param((3, 3), [4, 4], [8], r"state: got shape \[3, 3\], expected \[rows, 2\]", id="blocks"),
        pytest.param((3,), [4, 4], [8], r"got shape \[3\], expected \[rows, 2\]", id="one block"),
        pytest.param((3,), [8], [], r"new_widths: got \[\]", id="none"),
        pytest.param((3,), [8], [0, 8], r"new_widths: got \[0, 8\]", id="empty block"),
    ],
)
def test_widths_must_fit(shape: tuple[int, ...], old: list[int], new: list[int], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        recut_row_state(torch.zeros(shape), old, new)
