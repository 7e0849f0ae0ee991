"""The cache of artifacts: bounds, copies in use, attempts that were cut short."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from recsys.artifact.remote.cache import ArtifactCache, CacheError, Copy


def get(cache: ArtifactCache, name: str, num_bytes: int = 100) -> Path:
    """Make a copy that nobody uses."""
    copy = cache.get(name, num_bytes, lambda path: path.write_bytes(bytes(num_bytes)) and None)
    copy.release()
    return copy.path


def names(cache: ArtifactCache) -> list[str]:
    return sorted(path.name for path in cache.folder.iterdir() if not path.name.startswith("."))


def test_a_copy_is_made_once(tmp_path: Path) -> None:
    cache = ArtifactCache(tmp_path / "cache")
    assert cache.find("a") is None
    made = []

    def make(path: Path) -> None:
        made.append(path)
        path.mkdir()
        (path / "file").write_bytes(b"1")

    for _ in range(2):
        assert (cache.get("a", 1, make).path / "file").read_bytes() == b"1"
    assert len(made) == 1


def test_an_attempt_that_fails_leaves_no_copy_and_is_gone_on_with(tmp_path: Path) -> None:
    cache = ArtifactCache(tmp_path / "cache")

    def fail(path: Path) -> None:
        path.mkdir(exist_ok=True)
        (path / "first").write_bytes(b"1")
        raise OSError("cut")

    with pytest.raises(OSError, match="cut"):
        cache.get("a", 2, fail)
    assert names(cache) == []

    def go_on(path: Path) -> None:
        assert (path / "first").read_bytes() == b"1"

    cache.get("a", 2, go_on)
    assert names(cache) == ["a"]


def test_the_least_recently_used_copy_goes_first(tmp_path: Path) -> None:
    cache = ArtifactCache(tmp_path / "cache", 300)
    for age, name in enumerate(("c", "b", "a")):
        os.utime(get(cache, name), (1000 - age, 1000 - age))
    get(cache, "d")
    assert names(cache) == ["b", "c", "d"]
    for name in ("b", "d"):
        os.utime(cache.folder / name, (1, 1))
    found = cache.find("b")
    assert found is not None
    found.release()
    get(cache, "e", 50)
    assert names(cache) == ["b", "c", "e"]


def test_a_copy_in_use_stays_and_a_new_one_is_refused(tmp_path: Path) -> None:
    cache = ArtifactCache(tmp_path / "cache", 300)
    used = cache.get("a", 200, lambda path: path.write_bytes(bytes(200)) and None)
    with pytest.raises(
        CacheError,
        match=r"150 B are needed beside 200 B in use, expected at most 300 B in all; raise artifact_cache",
    ):
        get(ArtifactCache(cache.folder, 300), "b", 150)
    assert not cache.remove("a")
    used.release()
    get(cache, "b", 150)
    assert names(cache) == ["b"]


def test_a_disk_that_is_full_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        CacheError, match=r"cache: .* TB are needed, .* are free on its disk; free space there"
    ):
        get(ArtifactCache(tmp_path / "cache"), "a", 1 << 62)


def test_a_folder_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(
        CacheError, match=r"cache: cannot use .*file/cache': Not a directory; choose another folder"
    ):
        ArtifactCache(tmp_path / "file" / "cache").find("a")


def test_processes_share_copies_and_a_killed_one_lets_go(tmp_path: Path) -> None:
    cache = ArtifactCache(tmp_path / "cache", 150)
    program = (
        "import sys; from pathlib import Path; from recsys.artifact.remote.cache import ArtifactCache\n"
        "copy = ArtifactCache(Path(sys.argv[1])).get('a', 100, lambda path: path.write_bytes(bytes(100)) and None)\n"
        "print('held', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", program, str(cache.folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        with pytest.raises(CacheError, match="in use"):
            get(cache, "b")
        other.send_signal(signal.SIGKILL)
    get(cache, "b")
    assert names(cache) == ["b"]


def test_one_thread_makes_a_copy_and_others_wait_for_it(tmp_path: Path) -> None:
    cache = ArtifactCache(tmp_path / "cache")
    began, go_on = threading.Event(), threading.Event()
    made: list[Path] = []

    def make(path: Path) -> None:
        made.append(path)
        began.set()
        assert go_on.wait(60)
        path.write_bytes(b"1")

    threads = [threading.Thread(target=lambda: cache.get("a", 1, make)) for _ in range(3)]
    for thread in threads:
        thread.start()
    assert began.wait(60)
    go_on.set()
    for thread in threads:
        thread.join()
    assert len(made) == 1


class _LooksTooEarly(ArtifactCache):
    """One whose first look comes just before another process makes the copy and uses it."""

    used: Copy | None = None

    def find(self, name: str) -> Copy | None:
        found = super().find(name)
        if self.used is None:
            self.used = ArtifactCache(self.folder).get(name, 1, lambda path: path.write_bytes(b"1") and None)
        return found


def test_a_copy_that_another_one_made_meanwhile_and_uses_is_returned(tmp_path: Path) -> None:
    cache = _LooksTooEarly(tmp_path / "cache")
    found = cache.get("a", 1, lambda _: pytest.fail("it is there"))
    assert found.path.read_bytes() == b"1"
    assert not cache.remove("a")
