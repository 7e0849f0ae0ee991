"""Answers that are kept for labels: what goes when, with a clock that the test moves."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from serve.config.settings import QualityConfig
from serve.quality.store import ENTRY_BYTES, AnswerStore, KeptAnswer, ScoredBlock, key_of


class Clock:
    def __init__(self) -> None:
        self.now_s = 50.0

    def __call__(self) -> float:
        return self.now_s


def answer(
    *request_ids: str, version: str = "1", num_rows: int = 2, model: str = "m", score: float = 0.5
) -> ScoredBlock:
    texts = [one.encode() for one in request_ids]
    return ScoredBlock(
        model=model,
        version=version,
        arm="serving",
        keys=np.array([key_of(one) for one in request_ids]),
        id_offsets=np.cumsum([0, *map(len, texts)]),
        ids=b"".join(texts),
        row_offsets=np.arange(len(texts) + 1) * num_rows,
        scores={"score": np.full(len(texts) * num_rows, score, dtype=np.float32)},
    )


def store_of(clock: Clock, **config: Any) -> AnswerStore:
    return AnswerStore(QualityConfig(**config), clock)


def found(store: AnswerStore, request_id: str) -> list[KeptAnswer]:
    return store.get([request_id])[0].answers


def test_answers_go_when_they_are_too_old_and_their_ids_are_known_as_late() -> None:
    clock = Clock()
    store = store_of(clock, within_s=10.0)
    store.put(answer("a"))
    clock.now_s += 6
    store.put(answer("b"))
    clock.now_s += 4
    assert len(found(store, "a")) == 1
    clock.now_s += 1
    assert found(store, "a") == []
    assert store.get(["a"])[0].has_expired
    assert len(found(store, "b")) == 1
    assert not store.get(["c"])[0].has_expired
    assert store.counts() == {"kept": 2, "expired": 1, "pushed_out": 0, "too_large": 0}


def test_the_oldest_make_room_and_bytes_stay_bounded() -> None:
    clock = Clock()
    store = store_of(clock, within_s=1000.0, max_bytes=1 << 16)
    for i in range(1000):
        clock.now_s += 0.001
        store.put(answer(str(i), num_rows=1 + i % 30))
        assert store.num_bytes <= 1 << 16
    assert found(store, "0") == []
    assert not store.get(["0"])[0].has_expired
    assert len(found(store, "999")) == 1
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
    assert store.get(["1980"])[0].has_expired
    assert not store.get(["3"])[0].has_expired
    assert found(store, "\ud800") == []


def test_an_answer_larger_than_all_room_is_not_kept() -> None:
    store = store_of(Clock(), max_bytes=1 << 16)
    store.put(answer("small"))
    store.put(answer("a", num_rows=1 << 16))
    assert found(store, "a") == []
    assert len(found(store, "small")) == 1
    assert store.counts()["too_large"] == 1


def test_versions_of_one_id_stand_side_by_side_and_a_second_answer_replaces_the_first() -> None:
    clock = Clock()
    store = store_of(clock, within_s=10.0)
    store.put(answer("b", "a", score=0.1))
    store.put(answer("a", version="2"))
    store.put(answer("a", model="other"))
    assert len(found(store, "a")) == 3
    clock.now_s += 8
    store.put(answer("a", score=0.7))
    assert sorted(float(one.scores["score"][0]) for one in found(store, "a")) == pytest.approx(
        [0.5, 0.5, 0.7]
    )
    clock.now_s += 3
    assert [float(one.scores["score"][0]) for one in found(store, "a")] == pytest.approx([0.7])
    clock.now_s += 8
    assert found(store, "a") == []
    assert store.num_bytes == 5 * ENTRY_BYTES


def test_a_block_that_is_large_beside_the_room_goes_bit_by_bit() -> None:
    store = store_of(Clock(), max_bytes=1 << 18)
    names = [f"visit-{i}" for i in range(6000)]
    store.put(answer(*names))
    counts = store.counts()
    assert (counts["kept"], counts["too_large"]) == (6000, 0)
    assert 0 < counts["pushed_out"] < 3000
    is_kept = [bool(one.answers) for one in store.get(names)]
    assert is_kept == [False] * counts["pushed_out"] + [True] * (6000 - counts["pushed_out"])


def test_marks_of_labels_stay_and_count() -> None:
    store = store_of(Clock(), within_s=10.0)
    store.put(answer("b", "a"))
    (one,) = found(store, "a")
    before = store.num_bytes
    store.marks(one, "click")[1] = True
    (again,) = found(store, "a")
    assert store.marks(again, "click").tolist() == [False, True]
    assert store.marks(again, "buy").tolist() == [False, False]
    assert store.num_bytes > before
    (other,) = found(store, "b")
    assert not store.marks(other, "click").any()


def test_answers_are_found_as_a_dictionary_finds_them() -> None:
    random = np.random.default_rng(0)
    clock = Clock()
    store = store_of(clock, within_s=50.0)
    given: dict[str, tuple[float, float]] = {}
    for i in range(400):
        clock.now_s += 1
        names = [str(one) for one in random.integers(0, 3000, int(random.integers(1, 40)))]
        score = i / 1000
        store.put(answer(*names, score=score))
        given.update((name, (clock.now_s, score)) for name in names)
        for name in map(str, random.integers(0, 3000, 10)):
            time_s, expected = given.get(name, (-100.0, 0.0))
            scores = [float(one.scores["score"][0]) for one in found(store, name)]
            assert scores == (pytest.approx([expected]) if clock.now_s - time_s <= 50 else [])
            assert store.get([name])[0].has_expired or name not in given or clock.now_s - time_s <= 50
