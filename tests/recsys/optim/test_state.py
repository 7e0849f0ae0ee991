"""State that is sharded: shard from shard, or its part of a full tensor."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.distributed._shard.metadata import ShardMetadata
from torch.distributed._shard.sharded_tensor.api import ShardedTensor
from torch.distributed._shard.sharded_tensor.metadata import ShardedTensorMetadata, TensorProperties
from torch.distributed._shard.sharded_tensor.shard import Shard

from recsys.errors import CheckpointError
from recsys.optim import EmbOptimType, FusedConfig, KeyedOptimizer, recut_row_state
from tests.recsys.optim.lookups import Batch, TbeLookup, batches, table

pytestmark = pytest.mark.usefixtures("alone")
Cut = list[tuple[list[int], list[int]]]
BY_ROWS: Cut = [([0, 0], [3, 4]), ([3, 0], [2, 4])]
BY_COLUMNS: Cut = [([0, 0], [5, 1]), ([0, 1], [5, 3])]
FULL = torch.arange(20.0).view(5, 4)


def _sharded(full: Tensor, cut: Cut) -> ShardedTensor:
    """All shards in this process."""
    metadata = [ShardMetadata(offsets, sizes, "rank:0/cpu") for offsets, sizes in cut]
    shards = []
    for shard in metadata:
        piece = full
        for dim in range(full.dim()):
            piece = piece.narrow(dim, shard.shard_offsets[dim], shard.shard_sizes[dim])
        shards.append(Shard(piece.clone(), shard))
    return ShardedTensor._init_from_local_shards_and_global_metadata(
        shards, ShardedTensorMetadata(metadata, full.size(), TensorProperties(dtype=full.dtype))
    )


def _optimizer(state: Tensor) -> KeyedOptimizer:
    weight = nn.Parameter(torch.zeros(1))
    return KeyedOptimizer({"t.weight": weight}, {weight: {"t.momentum1": state}}, [])


def _saved(state: object) -> dict[str, object]:
    return {"state": {"t.weight": {"t.momentum1": state}}}


@pytest.mark.parametrize("cut", [BY_ROWS, BY_COLUMNS], ids=["rows", "columns"])
@pytest.mark.parametrize("from_full", [True, False], ids=["full", "sharded"])
def test_each_shard_gets_its_part_in_place(cut: Cut, from_full: bool) -> None:
    state = _sharded(torch.zeros(5, 4), cut)
    before = [shard.tensor for shard in state.local_shards()]
    # The saved shards may come in another order.
    optimizer = _optimizer(state)
    optimizer.load_state_dict(_saved(FULL if from_full else _sharded(FULL, cut[::-1])))
    assert optimizer.state_dict()["state"]["t.weight"]["t.momentum1"] is state
    for shard, tensor, (offsets, sizes) in zip(state.local_shards(), before, cut, strict=True):
        assert shard.tensor is tensor
        rows, columns = (slice(o, o + s) for o, s in zip(offsets, sizes, strict=True))
        assert torch.equal(tensor, FULL[rows, columns])


def test_a_state_of_one_number_per_row() -> None:
    state = _sharded(torch.zeros(5), [([0], [3]), ([3], [2])])
    _optimizer(state).load_state_dict(_saved(torch.arange(5.0)))
    assert [shard.tensor.tolist() for shard in state.local_shards()] == [[0, 1, 2], [3, 4]]


WRONG = {
    "another plan": (
        lambda: _sharded(FULL, BY_COLUMNS),
        r"got shards .*saved under another plan; load the full",
    ),
    "another size": (
        lambda: _sharded(torch.zeros(6, 4), [([0, 0], [6, 4])]),
        r"shape \[6, 4\], expected \[5, 4\]",
    ),
    "full of another size": (lambda: torch.zeros(4, 5), r"shape \[4, 5\], expected \[5, 4\]"),
    "no tensor": (lambda: 3, r"got a int, expected a tensor of shape \[5, 4\]"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_does_not_fit_names_the_state(name: str) -> None:
    make, text = WRONG[name]
    state = _sharded(FULL, BY_ROWS)
    with pytest.raises(CheckpointError, match=rf"state\['t\.weight'\]\['t\.momentum1'\]: .*{text}"):
        _optimizer(state).load_state_dict(_saved(make()))
    assert torch.equal(state.local_shards()[0].tensor, FULL[:3])


def test_a_full_state_does_not_take_shards() -> None:
    with pytest.raises(CheckpointError, match=r"got a sharded tensor, expected a tensor of shape \[5, 4\]"):
        _optimizer(torch.zeros(5, 4)).load_state_dict(_saved(_sharded(FULL, BY_ROWS)))


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
