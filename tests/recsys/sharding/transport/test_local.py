"""The local transport: IDs reach the right shard, and device batches arrive unchanged, on meta devices too."""

from __future__ import annotations

import random

import pytest
import torch
from torch import Tensor

from recsys.ops import lengths_to_offsets
from recsys.sharding.plan.layout import make_layout
from recsys.sharding.plan.sharding_types import column_wise, row_wise, table_wise
from recsys.sharding.transport.local import DeviceBatch, LocalInputDist, send
from tests.support.helpers import bag, needs_gpu, random_case, sequence

HOST = torch.device("cpu")
TABLES = [bag("t", 10, 16, ["a", "b"]), bag("u", 6, 16, ["c"])]
PLAN = {"t": row_wise(TABLES[0], [1, 0]), "u": table_wise(TABLES[1], 1)}
LENGTHS = torch.tensor([2, 1, 0, 3, 1, 1])
VALUES = torch.tensor([9, 0, 4, 5, 5, 1, 3, 2])
WEIGHTS = torch.arange(8.0)


def test_ids_go_to_the_shard_that_holds_their_row() -> None:
    layout = make_layout(TABLES, PLAN, 2)
    split = LocalInputDist(layout, sequence=False)(LENGTHS, lengths_to_offsets(LENGTHS), VALUES, WEIGHTS)
    first, second = split.groups
    assert [[slot.pair for slot in group.slots] for group in layout.groups] == [[0, 1], [0, 1, 2]]
    # Rank 0 holds rows 5 to 10 of t; rank 1 rows 0 to 5, and all of u.
    assert first.values.tolist() == [4, 0, 0]
    assert first.offsets.tolist() == [0, 1, 1, 1, 3]
    assert first.weights is not None
    assert first.weights.tolist() == [0, 3, 4]
    assert second.values.tolist() == [0, 4, 1, 3, 2]
    assert second.offsets.tolist() == [0, 1, 2, 2, 3, 4, 5]
    assert second.weights is not None
    assert second.weights.tolist() == [1, 2, 5, 6, 7]


def test_one_group_in_order_is_passed_on_as_it_is() -> None:
    layout = make_layout(TABLES, {t.name: table_wise(t, 0) for t in TABLES}, 1)
    offsets = lengths_to_offsets(LENGTHS)
    split = LocalInputDist(layout, sequence=False)(LENGTHS, offsets, VALUES, None)
    assert split.groups[0].values is VALUES
    assert split.groups[0].offsets is offsets


def test_the_way_back_of_sequences() -> None:
    table = sequence("t", 10, 8, ["a"])
    layout = make_layout([table], {"t": row_wise(table, [0, 1])}, 2)
    lengths, values = torch.tensor([2, 3]), torch.tensor([9, 0, 4, 5, 6])
    split = LocalInputDist(layout, sequence=True)(lengths, lengths_to_offsets(lengths), values, None)
    rows = torch.cat([split.groups[0].values, split.groups[1].values + 5])
    assert torch.equal(rows[split.restore[0]], values)


def device_batch_of(tensors: list[Tensor]) -> tuple[DeviceBatch, list[tuple[bool, int]]]:
    device_batch = DeviceBatch()
    return device_batch, [device_batch.add(t, floats=t.is_floating_point()) for t in tensors]


TENSORS = [
    torch.arange(5),
    torch.rand(3),
    torch.empty(0, dtype=torch.int64),
    torch.tensor([2**40, -1]),
    torch.rand(2, 3),
    torch.empty(0, 3),
]


def test_on_the_host_a_device_batch_is_the_tensors_themselves() -> None:
    device_batch, tickets = device_batch_of(TENSORS)
    sent = device_batch.send(HOST)
    assert all(sent.take(ticket) is tensor for ticket, tensor in zip(tickets, TENSORS, strict=True))


def test_a_device_batch_keeps_shapes_and_types_on_a_device_that_holds_nothing() -> None:
    device_batch, tickets = device_batch_of(TENSORS)
    sent = device_batch.send(torch.device("meta"))
    for ticket, tensor in zip(tickets, TENSORS, strict=True):
        taken = sent.take(ticket)
        assert (taken.device.type, taken.shape, taken.dtype) == ("meta", tensor.shape, tensor.dtype)


def test_each_device_gets_one_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    sent_to: list[torch.device] = []
    whole = DeviceBatch.send

    def counting(self: DeviceBatch, device: torch.device) -> DeviceBatch:
        sent_to.append(device)
        return whole(self, device)

    monkeypatch.setattr(DeviceBatch, "send", counting)
    devices = [torch.device("meta"), torch.device("cpu"), torch.device("meta")]
    tables = [bag("t", 10, 24, ["a", "b"], "MEAN"), bag("u", 6, 16, ["c"])]
    plan = {"t": row_wise(tables[0], [1, 0, 2]), "u": column_wise(tables[1], [2, 1])}
    layout = make_layout(tables, plan, 3)
    split = LocalInputDist(layout, sequence=False)(LENGTHS, lengths_to_offsets(LENGTHS), VALUES, WEIGHTS)
    shapes = [(group.values.shape, group.offsets.shape) for group in split.groups]
    dense = send([(split, layout, True)], [torch.rand(2, 4)], devices)
    assert sent_to == [torch.device("meta"), torch.device("cpu")]
    assert [group.values.device for group in split.groups] == [devices[g.rank] for g in layout.groups]
    assert [(group.values.shape, group.offsets.shape) for group in split.groups] == shapes
    assert (dense[0].device.type, dense[0].shape) == ("meta", (2, 4))
    assert split.lengths.device.type == "meta"


def test_the_packing_itself_is_right(monkeypatch: pytest.MonkeyPatch) -> None:
    """The words that go to a device, read back here: ``to`` is the only thing that a host cannot do."""
    device_batch, tickets = device_batch_of(TENSORS)
    packed: list[Tensor] = []

    def stay(self: Tensor, device: torch.device, non_blocking: bool) -> Tensor:
        assert device.type == "meta"
        assert non_blocking
        packed.append(self)
        return self

    monkeypatch.setattr(Tensor, "to", stay)
    sent = device_batch.send(torch.device("meta"))
    assert len(packed) == 1
    for ticket, tensor in zip(tickets, TENSORS, strict=True):
        assert torch.equal(sent.take(ticket), tensor)


class TestGpu:
    pytestmark = needs_gpu

    def test_a_device_batch_arrives(self) -> None:
        device_batch, tickets = device_batch_of(TENSORS)
        sent = device_batch.send(torch.device("cuda:0"))
        for ticket, tensor in zip(tickets, TENSORS, strict=True):
            assert sent.take(ticket).device.type == "cuda"
            assert torch.equal(sent.take(ticket).cpu(), tensor)


@pytest.mark.parametrize("seed", range(20))
def test_no_id_is_lost_or_doubled(seed: int) -> None:
    rng = random.Random(seed)
    case = random_case(rng)
    layout = make_layout(case.tables, case.plan, case.world_size)
    lengths = torch.tensor([rng.choice([0, 1, 4]) for _ in range(3 * len(layout.pairs))])
    per_pair = lengths.view(len(layout.pairs), 3).sum(dim=1).tolist()
    ids = [
        [rng.randrange(case.tables[p.table].num_embeddings) for _ in range(n)]
        for p, n in zip(layout.pairs, per_pair, strict=True)
    ]
    values = torch.tensor([i for of_pair in ids for i in of_pair], dtype=torch.int64)
    split = LocalInputDist(layout, sequence=case.sequence)(lengths, lengths_to_offsets(lengths), values, None)
    found: dict[tuple[int, tuple[int, int]], list[int]] = {}
    for group, inputs in zip(layout.groups, split.groups, strict=True):
        assert int(inputs.offsets[-1]) == inputs.values.numel()
        for i, slot in enumerate(group.slots):
            start, end = inputs.offsets[i * 3], inputs.offsets[(i + 1) * 3]
            rows = (inputs.values[start:end] + (slot.row_start if slot.entry is not None else 0)).tolist()
            found.setdefault((slot.pair, slot.columns), []).extend(rows)
    for (pair, _), rows in found.items():
        assert sorted(rows) == sorted(ids[pair])
