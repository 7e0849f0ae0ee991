"""Answers that are kept for labels: what goes when, with a clock that the test moves."""

from __future__ import annotations

from typing import Any

import numpy as np

from serve.config.settings import QualityConfig
from serve.quality.store import EXPIRED_BYTES, AnswerStore, KeptAnswer


class Clock:
    def __init__(self) -> None:
        self.now_s = 50.0

    def __call__(self) -> float:
        return self.now_s


def answer(request_id: str, version: str = "1", num_rows: int = 2, model: str = "m") -> KeptAnswer:
    scores = {"score": np.full(num_rows, 0.5, dtype=np.float32)}
    return KeptAnswer(
        request_id=request_id, model=model, version=version, arm="serving", num_rows=num_rows, scores=scores
    )


def store_of(clock: Clock, **config: Any) -> AnswerStore:
    return AnswerStore(QualityConfig(**config), clock)


def test_answers_go_when_they_are_too_old_and_their_ids_are_known_as_late() -> None:
    clock = Clock()
    store = store_of(clock, within_s=10.0)
    store.put(answer("a"))
    clock.now_s += 6
    store.put(answer("b"))
    clock.now_s += 4
    assert len(store.get("a")) == 1
    clock.now_s += 1
    assert store.get("a") == []
    assert store.has_expired("a")
    assert len(store.get("b")) == 1
    assert not store.has_expired("c")
    assert store.counts() == {"kept": 2, "expired": 1, "pushed_out": 0, "replaced": 0, "too_large": 0}


def test_the_oldest_make_room_and_bytes_stay_bounded() -> None:
    clock = Clock()
    store = store_of(clock, within_s=1000.0, max_bytes=1 << 16)
    for i in range(1000):
        clock.now_s += 0.001
        store.put(answer(str(i), num_rows=1 + i % 30))
        assert store.num_bytes <= 1 << 16
    assert store.get("0") == []
    assert not store.has_expired("0")
    assert len(store.get("999")) == 1
    counts = store.counts()
    assert counts["kept"] == 1000
    assert 900 < counts["pushed_out"] < 1000


def test_ids_of_expired_answers_are_bounded_too() -> None:
    clock = Clock()
    store = store_of(clock, within_s=1.0, max_bytes=1 << 16)
    for i in range(2000):
        clock.now_s += 0.1
        store.put(answer(str(i)))
        assert store.num_bytes <= 1 << 16
    assert store.has_expired("1980")
    assert not store.has_expired("3")


def test_an_answer_larger_than_all_room_is_not_kept() -> None:
    store = store_of(Clock(), max_bytes=1 << 16)
    store.put(answer("small"))
    store.put(answer("a", num_rows=1 << 16))
    assert store.get("a") == []
    assert len(store.get("small")) == 1
    assert store.counts()["too_large"] == 1


def test_versions_of_one_id_stand_side_by_side_and_a_second_answer_replaces_the_first() -> None:
    clock = Clock()
    store = store_of(clock, within_s=10.0)
    store.put(answer("a", "1"))
    one = store.num_bytes
    store.put(answer("a", "2"))
    store.put(answer("a", "1", model="other"))
    assert len(store.get("a")) == 3
    clock.now_s += 8
    store.put(answer("a", "1"))
    assert len(store.get("a")) == 3
    assert store.num_bytes == 3 * one
    assert store.counts()["replaced"] == 1
    # The ID is as new as its last answer.
    clock.now_s += 8
    assert len(store.get("a")) == 3
    clock.now_s += 3
    assert store.get("a") == []
    assert store.num_bytes == EXPIRED_BYTES
