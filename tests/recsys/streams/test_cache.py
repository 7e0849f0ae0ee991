"""The folder of downloaded deltas stays within its bytes."""

from __future__ import annotations

from pathlib import Path

from recsys.streams.cache import DeltaCache


def put(cache: DeltaCache, key: str, num_bytes: int) -> None:
    with cache.writing(key, num_bytes, key) as partial:
        partial.write_bytes(bytes(num_bytes))


def used_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())


def test_files_of_an_earlier_process_count_after_one_of_them_was_removed(tmp_path: Path) -> None:
    before = DeltaCache(tmp_path, 300)
    put(before, "a", 100)
    put(before, "b", 200)
    cache = DeltaCache(tmp_path, 300)
    assert cache.remove("a")
    put(cache, "c", 200)
    assert used_bytes(tmp_path) <= 300
    assert cache.get("c") is not None


def test_a_file_that_is_written_twice_counts_once(tmp_path: Path) -> None:
    cache = DeltaCache(tmp_path, 300)
    put(cache, "old", 50)
    for _ in range(4):
        put(cache, "a", 100)
    assert cache.get("old") is not None
    assert cache.get("a") is not None
