"""Reading ahead keeps order, bounds memory, hands errors over, and ends when it is left."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from recsys.data.prefetch import prefetched


def _threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("prefetch")]


@pytest.mark.parametrize("depth", [1, 3, 100])
def test_all_items_in_order(depth: int) -> None:
    with prefetched(range(50), depth) as ahead:
        assert list(ahead) == list(range(50))
        assert list(ahead) == []
    assert _threads() == []


def test_the_next_items_are_read_before_they_are_asked_for() -> None:
    were_read = threading.Event()

    def source() -> Iterator[int]:
        yield 0
        yield 1
        were_read.set()
        yield 2

    with prefetched(source(), 3):
        assert were_read.wait(60)


def test_no_more_items_wait_than_asked_for() -> None:
    at_item = [threading.Event() for _ in range(10)]

    def source() -> Iterator[int]:
        for number, event in enumerate(at_item):
            event.set()
            yield number

    with prefetched(source(), 2) as ahead:
        assert at_item[2].wait(60)  # two wait, one is in the thread's hand
        assert not at_item[3].is_set()
        assert next(ahead) == 0
        assert at_item[3].wait(60)
        assert not at_item[4].is_set()


def test_an_error_comes_after_the_items_before_it() -> None:
    def source() -> Iterator[int]:
        yield 1
        yield 2
        raise ValueError("line 3")

    with prefetched(source(), 5) as ahead:
        assert [next(ahead), next(ahead)] == [1, 2]
        with pytest.raises(ValueError, match="line 3"):
            next(ahead)
        with pytest.raises(StopIteration):
            next(ahead)


@pytest.mark.parametrize("num_read", [0, 1, 5])
def test_leaving_early_ends_the_thread(num_read: int) -> None:
    def endless() -> Iterator[int]:
        number = 0
        while True:
            yield number
            number += 1

    with prefetched(endless(), 2) as ahead:
        for _ in range(num_read):
            next(ahead)
    assert _threads() == []
    with pytest.raises(RuntimeError, match="mine"), prefetched(endless(), 2):
        raise RuntimeError("mine")
    assert _threads() == []


def test_depth_must_be_positive() -> None:
    with pytest.raises(ValueError, match="depth: got 0"):
        prefetched([], 0).__enter__()
