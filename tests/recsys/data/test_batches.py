"""Each rank's part of the global batches: disjoint, complete, in the same number of steps, resumable."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from recsys.data.batches import EpochOrder, Share, batches
from recsys.data.examples import Bags, Examples, Ints, LabeledBatch


class _Numbered:
    """A block whose labels are 0 and whose only feature is the number of the row; remembers what was taken."""

    def __init__(self, first: int, size: int) -> None:
        self.ids = np.arange(first, first + size)
        self.taken: list[int] = []

    def __len__(self) -> int:
        return len(self.ids)

    def take(self, rows: Ints) -> Examples:
        self.taken += self.ids[rows].tolist()
        return Examples(
            dense=self.ids[rows, None].astype(np.float32),
            bags={"id": Bags.single(self.ids[rows])},
            labels=np.zeros(len(rows), dtype=np.float32),
        )


def _blocks() -> list[_Numbered]:
    return [_Numbered(0, 23), _Numbered(23, 8), _Numbered(31, 1)]


def _ids(batch: LabeledBatch) -> list[int]:
    ids: list[int] = batch.kjt["id"].values().tolist()
    return ids


_ORDER = EpochOrder(seed=3, epoch=1)


@pytest.mark.parametrize("world_size", [1, 2, 3, 5])
@pytest.mark.parametrize("order", [None, _ORDER], ids=["as-is", "mixed"])
def test_ranks_share_every_global_batch(world_size: int, order: EpochOrder | None) -> None:
    by_rank = [
        list(batches(iter(_blocks()), 4, order, Share(rank=r, world_size=world_size)))
        for r in range(world_size)
    ]
    one_rank = [_ids(b) for b in batches(iter(_blocks()), 4 * world_size, order)]
    assert {len(parts) for parts in by_rank} == {len(one_rank)}
    for step, whole in enumerate(one_rank):
        parts = [_ids(rank[step]) for rank in by_rank]
        assert [i for part in parts for i in part] == whole
        assert max(map(len, parts)) - min(map(len, parts)) <= 1
        assert {rank[step].num_global_rows for rank in by_rank} == {len(whole)}
    assert sorted(i for part in one_rank for i in part) == list(range(32))


def test_a_rank_may_get_an_empty_batch() -> None:
    (empty,) = batches(iter([_Numbered(0, 1)]), 4, None, Share(rank=0, world_size=2))
    assert (len(empty.labels), empty.num_global_rows) == (0, 1)
    assert empty.dense.shape == (0, 1)
    assert empty.kjt.stride() == 0
    empty.kjt.validate()


@pytest.mark.parametrize("first_step", range(8))
def test_resuming_gives_the_rest_exactly(first_step: int) -> None:
    share = Share(rank=1, world_size=2)
    whole = [_ids(b) for b in batches(iter(_blocks()), 3, _ORDER, share)]
    rest = [_ids(b) for b in batches(iter(_blocks()), 3, _ORDER, share, first_step)]
    assert len(whole) == 7
    assert rest == whole[first_step:]


def test_ranks_parse_their_own_rows_and_resuming_parses_no_more() -> None:
    blocks = _blocks()
    share = Share(rank=0, world_size=2)
    given = [i for b in batches(iter(blocks), 3, _ORDER, share, 5) for i in _ids(b)]
    assert blocks[0].taken == []
    assert blocks[1].taken + blocks[2].taken == given


def test_the_order_depends_on_seed_epoch_and_block() -> None:
    orders = {
        (s, e, b): tuple(EpochOrder(seed=s, epoch=e).of_block(b, 20).tolist())
        for s in (0, 1)
        for e in (0, 1)
        for b in (0, 1)
    }
    assert len(set(orders.values())) == 8
    assert orders[1, 0, 1] == tuple(EpochOrder(seed=1, epoch=0).of_block(1, 20).tolist())


def test_a_batch_keeps_its_contents_on_the_way_to_a_device() -> None:
    (batch, _) = batches(iter([_Numbered(0, 5)]), 3)
    moved = batch.to(torch.device("cpu"))
    assert torch.equal(moved.dense, batch.dense)
    assert torch.equal(moved.labels, batch.labels)
    assert moved.kjt.keys() == ["id"]
    assert moved.kjt.length_per_key_or_none() == [3]
    assert moved.num_global_rows == 3
