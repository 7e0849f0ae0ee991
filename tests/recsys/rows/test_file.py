from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from recsys.errors import ChecksumError, PartSizeError
from recsys.rows.file import RowsFile
from recsys.rows.memory import RowsMemory

COPIED = RowsMemory(copy_rows=True)
DATA = bytes(range(256)) * 100


@pytest.fixture
def path(tmp_path: Path) -> Path:
    found = tmp_path / "rows.bin"
    found.write_bytes(DATA)
    os.utime(found, (1, 1))
    return found


@pytest.mark.parametrize(
    "memory",
    [
        RowsMemory(),
        RowsMemory(random_access=True),
        RowsMemory(lock_rows=True),
        COPIED,
        RowsMemory(copy_rows=True, lock_rows=True),
        RowsMemory(copy_rows=True, numa="interleave"),
        RowsMemory(copy_rows=True, numa="local"),
    ],
    ids=str,
)
def test_all_ways_give_the_first_bytes_and_can_be_written_to(path: Path, memory: RowsMemory) -> None:
    rows = RowsFile(path).held(1000, memory)
    assert bytes(rows.numpy()) == DATA[:1000]
    rows[3] = 77
    assert path.read_bytes() == DATA


def test_a_copy_does_not_see_what_happens_to_the_file(path: Path) -> None:
    rows = RowsFile(path).held(len(DATA), COPIED)
    os.truncate(path, 0)
    assert bytes(rows.numpy()) == DATA


def test_a_file_that_is_shorter_by_now_cannot_be_copied(path: Path) -> None:
    file = RowsFile(path)
    os.truncate(path, 10)
    with pytest.raises(PartSizeError, match=r"'rows\.bin': got 10 bytes, expected 25600"):
        file.held(len(DATA), COPIED)


def test_a_file_that_was_replaced_or_deleted_is_what_it_was(path: Path) -> None:
    file = RowsFile(path)
    other = path.with_name("other")
    other.write_bytes(b"other")
    other.rename(path)
    file.check()
    path.unlink()
    file.check()


@pytest.mark.parametrize("num_bytes", [0, 10, len(DATA), len(DATA) + 1])
def test_a_file_that_was_written_to_is_noticed(path: Path, num_bytes: int) -> None:
    file = RowsFile(path)
    file.check()
    path.write_bytes(bytes(num_bytes))
    with pytest.raises(ChecksumError, match=r"'rows\.bin': it was written to while it was in use"):
        file.check()


DIGESTS = {
    (0, 1000): hashlib.sha256(DATA[:1000]).hexdigest(),
    (1024, len(DATA)): hashlib.sha256(DATA[1024:]).hexdigest(),
}


def _touched(path: Path) -> None:
    os.utime(path, (5, 5))


def _written_again(path: Path) -> None:
    path.write_bytes(DATA)


def _other_padding(path: Path) -> None:
    path.write_bytes(DATA[:1000] + bytes(24) + DATA[1024:])


@pytest.mark.parametrize("change", [_touched, _written_again, _other_padding])
def test_a_file_that_holds_the_same_goes_on_being_read(path: Path, change: Callable[[Path], None]) -> None:
    file = RowsFile(path, DIGESTS)
    change(path)
    file.check()
    # It is read once, not at every call.
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("recsys.rows.file.hashlib.sha256", None)
        file.check()


@pytest.mark.parametrize(
    "data", [DATA[:-1] + b"x", DATA[:-1], DATA + b"x", b""], ids=["other", "cut", "more", "empty"]
)
def test_a_file_that_holds_something_else_is_refused_until_it_is_put_back(path: Path, data: bytes) -> None:
    file = RowsFile(path, DIGESTS)
    path.write_bytes(data)
    for _ in range(2):
        with pytest.raises(ChecksumError, match="it was written to while it was in use"):
            file.check()
    path.write_bytes(DATA)
    file.check()
