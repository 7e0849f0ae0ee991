"""The rows file of an artifact: mapped or copied, and checked for changes.

A mapping shows later changes of the file. If the file is overwritten in place, lookups read the new bytes; if
it is truncated, they access missing pages, which kills the process (SIGBUS). Artifacts are replaced by
renaming, which leaves the old file unchanged for processes that have it open. Against writes in place there
are two measures: ``check`` detects them between two batches, and ``copied`` rows are not affected. A file that
only has another time, or that was written again with the same bytes, goes on being read.
"""

from __future__ import annotations

import contextlib
import hashlib
import mmap
import os
import threading
import weakref
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from recsys.errors import ChecksumError, PartSizeError
from recsys.rows.memory import RowsMemory, lock, place

_CHUNK_BYTES = 1 << 20


class RowsFile:
    """An open rows file. Closed with the last reference to it.

    Args:
        path: The path of the file.
        digests: SHA-256 of parts of the file, by their first and their last byte's place plus one; without them
            every write counts as a change.

    Raises:
        OSError: It cannot be opened.
    """

    def __init__(self, path: Path, digests: Mapping[tuple[int, int], str] | None = None) -> None:
        self._name = path.name
        self._digests = digests
        # Held to read the file: one thread does so, and all others wait for what it finds.
        self._lock = threading.Lock()
        #: Size and time of the file as ``check`` last refused it.
        self.spoiled: tuple[int, int] | None = None
        self._file = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
        weakref.finalize(self, os.close, self._file)
        self._state = self._present_state()

    def held(self, num_bytes: int, memory: RowsMemory) -> Tensor:
        """Return the first bytes as a uint8 tensor, held as the options say.

        Args:
            num_bytes: The number of bytes; the file must have at least this many.
            memory: How they are held.

        Raises:
            PartSizeError: They are copied, and the file has become shorter.
            RowsMemoryError: The system refuses to lock or to place them.
        """
        if memory.copy_rows:
            rows = self._copied(num_bytes, memory.numa)
        else:
            rows = self._mapped(num_bytes, random_access=memory.reads_at_random(num_bytes))
        if memory.lock_rows:
            lock(rows)
        return rows

    def _mapped(self, num_bytes: int, *, random_access: bool) -> Tensor:
        """Return the bytes mapped privately, so that pages are shared until they are written to."""
        mapped = mmap.mmap(self._file, num_bytes, access=mmap.ACCESS_COPY)
        if random_access:
            mapped.madvise(mmap.MADV_RANDOM)
        else:
            _ask_for_huge_pages(mapped)
        return torch.frombuffer(mapped, dtype=torch.uint8)

    def _copied(self, num_bytes: int, numa: str | None) -> Tensor:
        """Return a copy of the bytes; its memory returns to the system with it."""
        # Shared anonymous memory, mmap's default, gets no huge pages.
        own = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        _ask_for_huge_pages(own)
        rows = torch.frombuffer(own, dtype=torch.uint8)
        if numa is not None:
            place(rows.data_ptr(), num_bytes, numa)
        view = memoryview(own)
        start = 0
        while start < num_bytes:
            num_read = os.preadv(self._file, [view[start:]], start)
            if num_read == 0:
                raise PartSizeError(f"part {self._name!r}: got {start} bytes, expected {num_bytes}")
            start += num_read
        return rows

    def check(self) -> None:
        """Check that the file holds what it held when it was opened; takes a microsecond if its time is the same.

        If it is another, the file is read once, and its digests are compared.

        Raises:
            ChecksumError: It holds something else; the mapping must not be read now.
        """
        if self._present_state() == self._state:
            return
        with self._lock:
            found = self._present_state()
            if found == self._state:
                return
            if found != self.spoiled and self._holds_the_same(found):
                self._state = found
                return
            self.spoiled = found
        raise ChecksumError(
            f"part {self._name!r}: it was written to while it was in use; put the artifact back by renaming, never "
            "by writing into its files, and load it again"
        )

    def _holds_the_same(self, state: tuple[int, int]) -> bool:
        """Return whether the file has its digests, and was not written to while it was read."""
        if self._digests is None or state[0] != self._state[0]:
            return False
        for (start, end), expected in self._digests.items():
            digest = hashlib.sha256()
            while start < end:
                data = os.pread(self._file, min(_CHUNK_BYTES, end - start), start)
                if not data:
                    return False
                digest.update(data)
                start += len(data)
            if digest.hexdigest() != expected:
                return False
        return self._present_state() == state

    def _present_state(self) -> tuple[int, int]:
        found = os.fstat(self._file)
        return found.st_size, found.st_mtime_ns


def _ask_for_huge_pages(memory: mmap.mmap) -> None:
    with contextlib.suppress(OSError):  # a kernel without them
        memory.madvise(mmap.MADV_HUGEPAGE)
