"""Results on their way: waited for once, by what first touches them; how many collectives a step takes.

Shape letters: W world size.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import distributed

from recsys import LazyAwaitable
from recsys.sharding.transport.awaitable import (
    Deferred,
    GetItemLazyAwaitable,
    LazyGetItemMixin,
    LazyNoWait,
    NoWait,
)
from tests.recsys.sharding.ranks.cases import Draw, RankCase, case_of_every_type
from tests.recsys.sharding.ranks.training import sharded
from tests.support.helpers import outputs_of
from tests.support.ranks import live_pool

TOUCHES: dict[str, Callable[[Any], object]] = {
    "wait": lambda lazy: lazy.wait(),
    "an attribute": lambda lazy: lazy.shape,
    "an item": lambda lazy: lazy[0],
    "a loop": lambda lazy: list(lazy),
    "len": len,
    "in": lambda lazy: 1.0 in lazy,
    "a torch function": lambda lazy: torch.cat([lazy, lazy]),
    "a keyword of a torch function": lambda lazy: torch.sum(input=lazy),
    "an operator": lambda lazy: lazy * 2,
    "an operator from the right": lambda lazy: 2 - lazy,
    "a sign": lambda lazy: -lazy,
    "two of them": lambda lazy: lazy @ lazy,
    "a comparison": lambda lazy: lazy == 1,
}


@pytest.mark.parametrize("touch", list(TOUCHES))
def test_the_first_touch_waits_and_later_ones_do_not(touch: str) -> None:
    waits = []

    def finish() -> torch.Tensor:
        waits.append(1)
        return torch.ones(2)

    lazy = LazyAwaitable(finish)
    assert not waits
    TOUCHES[touch](lazy)
    TOUCHES[touch](lazy)
    assert len(waits) == 1
    assert torch.equal(lazy.wait(), torch.ones(2))
    assert len(waits) == 1


def test_operators_are_those_of_the_result() -> None:
    lazy: Any = LazyAwaitable(lambda: torch.tensor([1.0, 2.0]))
    assert [x.tolist() for x in (lazy * 2, 2 - lazy, -lazy, lazy**lazy, lazy > 1, 2.0**lazy)] == [
        [2.0, 4.0],
        [1.0, 0.0],
        [-1.0, -2.0],
        [1.0, 4.0],
        [False, True],
        [2.0, 4.0],
    ]


class WithoutConstructor(LazyAwaitable[torch.Tensor]):
    def __init__(self, start: float) -> None:
        self.start = start

    def _wait_impl(self) -> torch.Tensor:
        return torch.full((2,), self.start)


def test_a_subclass_says_how_to_wait() -> None:
    lazy: Any = WithoutConstructor(3.0)
    assert (lazy + 1).tolist() == [4.0, 4.0]
    assert lazy.shape == (2,)


def test_an_attribute_that_the_wait_itself_lacks_is_an_error() -> None:
    class Wrong(LazyAwaitable[torch.Tensor]):
        def _wait_impl(self) -> torch.Tensor:
            return self.never_set

    with pytest.raises(AttributeError, match="'Wrong' object has no attribute 'never_set'"):
        Wrong().wait()
    with pytest.raises(NotImplementedError, match="expected a function that returns the result"):
        LazyAwaitable().wait()


def test_callbacks_change_the_result_once() -> None:
    lazy: Any = WithoutConstructor(1.0)
    lazy.callbacks.append(lambda result: result + 1)
    lazy.callbacks.append(lambda result: result * 10)
    assert (lazy.wait().tolist(), lazy.wait().tolist()) == ([20.0, 20.0], [20.0, 20.0])
    there = NoWait(obj=5)
    there.callbacks.append(lambda result: result + 1)
    assert there.wait() == 6


def test_items_can_be_lazy_too() -> None:
    class Lazy(LazyGetItemMixin[str, torch.Tensor], LazyAwaitable[dict[str, torch.Tensor]]):
        waits = 0

        def _wait_impl(self) -> dict[str, torch.Tensor]:
            Lazy.waits += 1
            return {"a": torch.ones(2)}

    item: Any = Lazy()["a"]
    assert (type(item), Lazy.waits) == (GetItemLazyAwaitable, 0)
    assert (item + 1).tolist() == [2.0, 2.0]
    assert Lazy.waits == 1
    assert LazyNoWait(torch.ones(1)).item() == 1


def test_looking_for_special_methods_does_not_wait() -> None:
    lazy = LazyAwaitable(lambda: pytest.fail("waited"))
    assert not hasattr(lazy, "__fspath__")


def test_a_result_that_failed_is_asked_for_again() -> None:
    answers: Iterator[Any] = iter([ConnectionError("lost"), 5])

    def finish() -> int:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return int(answer)

    deferred = Deferred(finish)
    with pytest.raises(ConnectionError, match="lost"):
        deferred.wait()
    assert deferred.wait() == 5


def test_a_result_that_is_there() -> None:
    assert NoWait(5).wait() == 5


class _Work:
    """A collective under way, whose waits are counted."""

    def __init__(self, work: Any, counts: Counter[str]) -> None:
        self._work = work
        self._counts = counts

    def wait(self) -> Any:
        self._counts["waited"] += 1
        return self._work.wait()


@contextmanager
def counted() -> Iterator[Counter[str]]:
    """Collectives that are started and waited for on this rank."""
    counts: Counter[str] = Counter()
    names = (
        "all_to_all_single",
        "all_reduce",
        "broadcast",
        "all_gather",
        "all_gather_into_tensor",
        "all_to_all",
    )
    real = {name: getattr(distributed, name) for name in names}

    def counting(name: str) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            counts[name] += 1
            work = real[name](*args, **kwargs)
            return _Work(work, counts) if name == "all_to_all_single" else work

        return call

    try:
        for name in names:
            setattr(distributed, name, counting(name))
        yield counts
    finally:
        for name in names:
            setattr(distributed, name, real[name])


def count_step(rank: int, world_size: int, case: RankCase) -> dict[str, dict[str, int]]:
    """What has happened after each part of a step."""
    del world_size
    model = sharded(case)
    seen = {}
    with counted() as counts:
        lazy = model(case.batch_to_shard(0, rank))
        seen["forward"] = dict(counts)
        outputs = outputs_of(lazy.wait())
        seen["first touch"] = dict(counts)
        outputs = outputs_of(lazy.wait())
        seen["second touch"] = dict(counts)
        case.loss(outputs, 0, rank).backward()
        seen["backward"] = dict(counts)
    return seen


@pytest.mark.parametrize("sequence", [False, True], ids=["pooled", "sequence"])
@pytest.mark.parametrize("kernel", ["fused", "dense"])
@pytest.mark.parametrize("world_size", [2, 4])
def test_a_step_takes_two_collectives_for_ids_and_one_each_way(
    world_size: int, kernel: str, sequence: bool
) -> None:
    draw = Draw(world_size=world_size, kernels=(kernel,), sequence=sequence, num_steps=1)
    case = case_of_every_type("counted", draw)
    assert {s.sharding_type for s in case.plan.values()} >= {"row_wise", "column_wise", "grid_shard"}
    for seen in live_pool(world_size).run(count_step, case):
        assert seen["forward"] == {"all_to_all_single": 3, "waited": 2}
        assert seen["first touch"] == {"all_to_all_single": 3, "waited": 3}
        assert seen["second touch"] == seen["first touch"]
        # One table lies on every rank: its gradients are averaged.
        assert seen["backward"] == {"all_to_all_single": 4, "waited": 4, "all_reduce": 1}


def count_parts(rank: int, world_size: int, case: RankCase) -> list[dict[str, int]]:
    """What has happened after each wait of ``input_dist``, and after the rest by hand."""
    del world_size
    collection = sharded(case).module
    seen = []
    with counted() as counts:
        sizes = collection.input_dist(case.batch_to_shard(0, rank))
        seen.append(dict(counts))
        ids = sizes.wait()
        seen.append(dict(counts))
        inputs = ids.wait()
        seen.append(dict(counts))
        outputs = collection.lookup(inputs)
        seen.append(dict(counts))
        collection.output_dist(outputs, inputs).values()
        seen.append(dict(counts))
    return seen


def test_the_steps_can_be_taken_one_by_one() -> None:
    case = case_of_every_type("by hand", Draw(world_size=2, num_steps=1))
    for seen in live_pool(2).run(count_parts, case):
        assert seen == [
            {"all_to_all_single": 1},
            {"all_to_all_single": 2, "waited": 1},
            {"all_to_all_single": 2, "waited": 2},
            {"all_to_all_single": 2, "waited": 2},
            {"all_to_all_single": 3, "waited": 3},
        ]
