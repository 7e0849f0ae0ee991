"""Partial sums that meet inside hosts: what ranks learn, what crosses between hosts, and in which order.

Shape letters: B batch, D embedding dimension, H hosts, L ranks per host, W world size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch import distributed as dist

from recsys import (
    CommsConfig,
    DataType,
    DistributedModelParallel,
    EmbeddingBagCollection,
    EmbeddingBagCollectionSharder,
    KeyedJaggedTensor,
    ParameterSharding,
    ShardingEnv,
    ShardingPlan,
    ShardMetadata,
)
from recsys.sharding.plan.sharding_types import (
    column_wise,
    data_parallel,
    grid,
    row_wise,
    table_row_wise,
    table_wise,
)
from recsys.sharding.transport.hierarchical import tables_by_host
from tests.recsys.sharding.ranks.cases import Draw, RankCase, generator, named_outputs
from tests.recsys.sharding.ranks.training import check_case, sharded
from tests.support.helpers import bag
from tests.support.ranks import live_pool

WORLD_SIZE = 4
LOCAL_WORLD_SIZE = 2
FEATURES = ["f0", "f1", "f2"]
ROWS, DIM = 12, 8


@dataclass(frozen=True, kw_only=True)
class Sent:
    """An all-to-all of float numbers as one rank started it.

    Attributes:
        ranks: of its process group.
        size_bytes: for each of them what is sent to it.
        direction: ``forth`` or ``back``.
    """

    ranks: tuple[int, ...]
    size_bytes: tuple[int, ...]
    direction: str

    def to_other_hosts(self, rank: int) -> int:
        """Bytes that leave the host of ``rank``."""
        host = rank // LOCAL_WORLD_SIZE
        return sum(
            n for r, n in zip(self.ranks, self.size_bytes, strict=True) if r // LOCAL_WORLD_SIZE != host
        )


@contextmanager
def recorded(started: list[Sent], direction: Callable[[], str]) -> Iterator[None]:
    """Notes every all-to-all of floats on this rank, and lets it happen."""
    real = dist.all_to_all_single

    def noting(received: Tensor, sent: Tensor, *args: Any, group: Any, **kwargs: Any) -> Any:
        if sent.is_floating_point():
            sizes = tuple(size * sent.element_size() for size in args[1])
            ranks = tuple(dist.get_process_group_ranks(group))
            started.append(Sent(ranks=ranks, size_bytes=sizes, direction=direction()))
        return real(received, sent, *args, group=group, **kwargs)

    dist.all_to_all_single = noting
    try:
        yield
    finally:
        dist.all_to_all_single = real


def by_hand(table: Any, ranks: Sequence[int]) -> ParameterSharding:
    """Rows in parts on any ranks, some more than once."""
    bounds = [table.num_embeddings * i // len(ranks) for i in range(len(ranks) + 1)]
    shards = tuple(
        ShardMetadata(shard_offsets=(start, 0), shard_sizes=(end - start, table.embedding_dim), rank=rank)
        for start, end, rank in zip(bounds, bounds[1:], ranks, strict=False)
    )
    return ParameterSharding(sharding_type="row_wise", shards=shards)


def mixed_case(name: str, local_world_size: int, world_size: int = WORLD_SIZE, **changes: Any) -> RankCase:
    """Every sharding type at once, on all hosts; ranks of any batch size, one with none."""
    last = world_size // local_world_size - 1
    hosts = [0, last] if last else [0]
    half = replace(bag("in_fp16", 10, 8, ["f2"]), data_type=DataType.FP16)
    local = local_world_size
    cuts: list[tuple[Any, Callable[[Any], ParameterSharding]]] = [
        (bag("table_row", 13, 8, ["f0", "f1"]), lambda t: table_row_wise(t, 0, local)),
        (bag("table_row_mean", 7, 16, ["f1"], "MEAN"), lambda t: table_row_wise(t, last, local)),
        (bag("row", 9, 8, ["f0", "f2"], "MEAN"), lambda t: row_wise(t, range(world_size))),
        (bag("grid", 9, 16, ["f2"]), lambda t: grid(t, hosts, local)),
        (bag("grid_mean", 8, 24, ["f0"], "MEAN"), lambda t: grid(t, hosts[::-1], local)),
        (bag("one_host_grid", 6, 16, ["f1"]), lambda t: grid(t, [last, last], local)),
        (bag("copied", 6, 8, ["f1"]), data_parallel),
        (
            bag("dense", 8, 12, ["f0"]),
            lambda t: table_row_wise(t, 0, local).with_kernel("dense"),
        ),
        (half, lambda t: table_row_wise(t, last, local)),
        (bag("whole", 5, 8, ["f2"]), lambda t: table_wise(t, world_size - 1)),
        (bag("column", 5, 16, ["f0"]), lambda t: column_wise(t, [0, world_size - 1])),
        (bag("by_hand", 8, 8, ["f1"]), lambda t: by_hand(t, [0, world_size - 1, 0])),
        (bag("one_rank_twice", 8, 8, ["f1"]), lambda t: by_hand(t, [0, 1, 0])),
        (bag("swapped", 8, 8, ["f1"]), lambda t: by_hand(t, [1, 0])),
    ]
    settings = {"weighted": False, "deduplicated": [False] * world_size} | changes
    sizes = [[3, 1, 0, 5], [2, 2, 2, 2], [0, 4, 1, 3]]
    return RankCase(
        name=name,
        draw=Draw(world_size=world_size, num_steps=len(sizes)),
        local_world_size=local_world_size,
        tables=[table for table, _ in cuts],
        plan={table.name: cut(table) for table, cut in cuts},
        batch_sizes=[of_step[:world_size] for of_step in sizes],
        id_limits={"f0": 5, "f1": 6, "f2": 5},
        **settings,
    )


@pytest.mark.parametrize("optimizer", ["sgd", "rowwise_adagrad"])
@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
@pytest.mark.parametrize(
    ("world_size", "local_world_size"), [(4, 2), (2, 1), (2, 2)], ids=["2 hosts of 2", "2 of 1", "1 of 2"]
)
def test_ranks_learn_what_the_unsharded_collection_learns(
    world_size: int, local_world_size: int, weighted: bool, optimizer: str
) -> None:
    case = mixed_case(f"mixed {weighted}", local_world_size, world_size, weighted=weighted)
    check_case(case, optimizer)


def groups_of_a_batch(rank: int, world_size: int, case: RankCase) -> list[tuple[int, ...]]:
    """Over which ranks a batch's embeddings and gradients cross."""
    del world_size
    model = sharded(case)
    sent: list[Sent] = []
    with recorded(sent, lambda: "any"):
        case.loss(named_outputs(model(case.batch_to_shard(0, rank))), 0, rank).backward()
    return [s.ranks for s in sent]


def test_batches_of_sizes_of_their_own_go_straight_home() -> None:
    case = mixed_case("variable", LOCAL_WORLD_SIZE, deduplicated=[True] * WORLD_SIZE)
    check_case(case)
    everyone = tuple(range(WORLD_SIZE))
    assert live_pool(WORLD_SIZE).run(groups_of_a_batch, case) == [[everyone] * 2] * WORLD_SIZE


def which_tables(rank: int, world_size: int, case: RankCase) -> list[frozenset[str]]:
    """The tables whose sums meet in hosts: for each number of ranks per host, and for ranks in another order."""
    del rank
    backwards = dist.new_group(list(reversed(range(world_size))), sort_ranks=False)
    tried = [(dist.group.WORLD, 1), (dist.group.WORLD, 2), (dist.group.WORLD, 4), (backwards, 2)]
    return [
        tables_by_host(case.plan, ShardingEnv.from_process_group(ranks, "cpu", local))
        for ranks, local in tried
    ]


def test_only_tables_on_all_ranks_of_a_host_meet_in_it() -> None:
    case = mixed_case("which", LOCAL_WORLD_SIZE)
    meeting = {
        "table_row",
        "table_row_mean",
        "grid",
        "grid_mean",
        "one_host_grid",
        "dense",
        "in_fp16",
        "swapped",
    }
    expected = [frozenset(), frozenset(meeting), frozenset(), frozenset()]
    assert live_pool(WORLD_SIZE).run(which_tables, case) == [expected] * WORLD_SIZE


@dataclass(frozen=True, kw_only=True)
class Crossing:
    """What a test of bytes varies."""

    cut: str
    local_world_size: int
    comms: CommsConfig


def one_table(crossing: Crossing) -> tuple[Any, ParameterSharding]:
    """A table on the first of two hosts, or on both."""
    table = bag("t", ROWS, 2 * DIM, ["f"])
    made = {
        "table_row": table_row_wise(table, 0, LOCAL_WORLD_SIZE),
        "grid": grid(table, [1, 0], LOCAL_WORLD_SIZE),
    }
    return table, made[crossing.cut]


def one_step(rank: int, world_size: int, crossing: Crossing) -> tuple[list[Sent], Tensor]:
    """What a rank sends, and its outputs."""
    del world_size
    table, sharding = one_table(crossing)
    collection = EmbeddingBagCollection([table])
    with torch.no_grad():
        next(collection.parameters()).copy_(torch.randn(ROWS, 2 * DIM, generator=generator("one table")))
    env = ShardingEnv.from_process_group(dist.group.WORLD, "cpu", crossing.local_world_size)
    sharder = EmbeddingBagCollectionSharder({"learning_rate": 0.5}, comms=crossing.comms)
    model = sharder.shard(collection, {"t": sharding}, env)
    bags = [[(rank + i + j) % ROWS for j in range(3)] for i in range(rank + 1)]
    batch = KeyedJaggedTensor(["f"], values=[i for ids in bags for i in ids], lengths=[3] * len(bags))
    sent: list[Sent] = []
    direction = ["forth"]
    with recorded(sent, lambda: direction[0]):
        output = model(batch).values()
        direction[0] = "back"
        output.square().sum().backward()
        again = model(batch).values()
    return sent[: len(sent) * 2 // 3], torch.stack([output.detach(), again.detach()])


def crossed(found: list[tuple[list[Sent], Tensor]], direction: str) -> int:
    """Bytes of all ranks that left their hosts."""
    return sum(
        sent.to_other_hosts(rank)
        for rank, (of_rank, _) in enumerate(found)
        for sent in of_rank
        if sent.direction == direction
    )


@pytest.mark.parametrize("comms", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("cut", ["table_row", "grid"])
def test_the_ranks_of_a_host_share_what_crosses_to_others(cut: str, comms: torch.dtype) -> None:
    # A "host" of one rank: the same shards, every partial sum straight home.
    straight, two_hops = (
        live_pool(WORLD_SIZE).run(
            one_step, Crossing(cut=cut, local_world_size=n, comms=CommsConfig(forward=comms, backward=comms))
        )
        for n in (1, LOCAL_WORLD_SIZE)
    )
    # Rank r has r + 1 rows; what host 0 holds goes to ranks 2 and 3, what host 1 holds to ranks 0 and 1.
    num_numbers = {"table_row": (3 + 4) * 2 * DIM, "grid": (3 + 4 + 1 + 2) * DIM}[cut]
    for direction in ("forth", "back"):
        assert crossed(two_hops, direction) == num_numbers * comms.itemsize
        assert crossed(straight, direction) == LOCAL_WORLD_SIZE * num_numbers * comms.itemsize
    # Three roundings instead of one, of sums of three numbers; after a step, of gradients too.
    largest = max(float(outputs.abs().max()) for _, outputs in straight)
    atol = 16 * torch.finfo(comms).eps * largest
    for (_, expected), (_, found) in zip(straight, two_hops, strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=atol)
        assert not torch.equal(found[0], found[1])


class TwoCollections(nn.Module):
    """Two collections, one waited for before the other, and layers that are averaged over ranks."""

    def __init__(self) -> None:
        super().__init__()
        self.first = EmbeddingBagCollection(
            [bag("a", ROWS, DIM, ["f0"]), bag("b", ROWS, DIM, ["f1"]), bag("c", 5, DIM, ["f2"])]
        )
        self.second = EmbeddingBagCollection([bag("d", ROWS, DIM, ["f0"]), bag("e", ROWS, DIM, ["f2"])])
        self.over = nn.Linear(3 * DIM, 2 * DIM)

    def forward(self, features: KeyedJaggedTensor) -> Tensor:
        """``[B]``."""
        first, second = self.first(features), self.second(features)
        late = self.over(first.values()).relu()
        return (late * second.values()).sum(dim=1)

    def plan(self) -> ShardingPlan:
        """Host 1 has none of the first collection's tables that meet in hosts, rank 3 no table of its own."""
        a, b, c = self.first.embedding_bag_configs()
        d, e = self.second.embedding_bag_configs()
        return ShardingPlan(
            plan={
                "first": {
                    "a": table_row_wise(a, 0, LOCAL_WORLD_SIZE),
                    "b": table_wise(b, 2),
                    "c": data_parallel(c),
                },
                "second": {
                    "d": table_row_wise(d, 1, LOCAL_WORLD_SIZE),
                    "e": table_wise(e, 1),
                },
            }
        )


def two_collections(rank: int, world_size: int, num_steps: int) -> list[Sent]:
    """What a rank sends, in order."""
    del world_size
    torch.manual_seed(0)
    module = TwoCollections()
    env = ShardingEnv.from_process_group(dist.group.WORLD, "cpu", LOCAL_WORLD_SIZE)
    sharders = [EmbeddingBagCollectionSharder({"learning_rate": 0.1})]
    model = DistributedModelParallel(module, env=env, plan=module.plan(), sharders=sharders)
    sent: list[Sent] = []
    direction = ["forth"]
    with recorded(sent, lambda: direction[0]):
        for _ in range(num_steps):
            num_bags = rank % 3
            batch = KeyedJaggedTensor(FEATURES, values=[rank] * 3 * num_bags, lengths=[1] * 3 * num_bags)
            direction[0] = "forth"
            output = model(batch)
            direction[0] = "back"
            output.sum().backward()
    return sent


def test_all_ranks_start_their_collectives_in_one_order() -> None:
    num_steps = 3
    found = live_pool(WORLD_SIZE).run(two_collections, num_steps)
    everyone = tuple(range(WORLD_SIZE))
    for rank, sent in enumerate(found):
        host, index = divmod(rank, LOCAL_WORLD_SIZE)
        within = tuple(range(host * LOCAL_WORLD_SIZE, (host + 1) * LOCAL_WORLD_SIZE))
        across = tuple(range(index, WORLD_SIZE, LOCAL_WORLD_SIZE))
        forth = [within, everyone, within, everyone, across, across]
        back = [everyone, across, within, everyone, across, within]
        assert [s.ranks for s in sent] == (forth + back) * num_steps
        assert [s.direction for s in sent] == (["forth"] * 6 + ["back"] * 6) * num_steps


def groups_made(rank: int, world_size: int) -> list[int]:
    """How many process groups each of some collections makes, the first over ranks that have none yet."""
    del rank
    made: list[tuple[int, ...]] = []
    real = dist.new_group
    ranks = real(list(range(world_size)))
    table = bag("t", ROWS, DIM, ["f"])
    host_plan = {"t": table_row_wise(table, 0, LOCAL_WORLD_SIZE)}
    plans = [{"t": table_wise(table, 0)}, host_plan, host_plan, host_plan]

    def noting(members: list[int], **kwargs: Any) -> Any:
        made.append(tuple(members))
        return real(members, **kwargs)

    dist.new_group = noting
    try:
        counts = []
        for plan in plans:
            env = ShardingEnv.from_process_group(ranks, "cpu", LOCAL_WORLD_SIZE)
            EmbeddingBagCollectionSharder().shard(EmbeddingBagCollection([table]), plan, env)
            counts.append(len(made))
    finally:
        dist.new_group = real
    return counts


def test_collections_share_process_groups() -> None:
    num_hosts = WORLD_SIZE // LOCAL_WORLD_SIZE
    needed = num_hosts + LOCAL_WORLD_SIZE
    assert live_pool(WORLD_SIZE).run(groups_made) == [[0, needed, needed, needed]] * WORLD_SIZE
