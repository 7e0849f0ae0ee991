"""The rows file of an artifact: mapped or copied, and checked for changes.

A mapping shows later changes of the file. If the file is overwritten in place, lookups read the new bytes; if
it is truncated, they access missing pages, which kills the process (SIGBUS). Artifacts are replaced by
renaming, which leaves the old file unchanged for processes that have it open. Against writes in place there
are two measures: ``check`` detects them between two batches, and ``copied`` rows are not affected.
"""

from __future__ import annotations

import mmap
import os
import weakref
from pathlib import Path

import torch
from torch import Tensor

from recsys.errors import ChecksumError, PartSizeError


class RowsFile:
    """An open rows file. Closed with the last reference to it.

    Args:
        path: The path of the file.

    Raises:
        OSError: It cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self._name = path.name
        self._file = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
        weakref.finalize(self, os.close, self._file)
        self._state = self._present_state()

    def mapped(self, num_bytes: int, *, random_access: bool = False) -> Tensor:
        """Return the first bytes as a uint8 tensor: mapped privately, so that pages are shared until written to.

        Args:
            num_bytes: The number of bytes; the file must have at least this many.
            random_access: Tell the kernel that few rows will be read, so that it does not read ahead.
        """
        mapped = mmap.mmap(self._file, num_bytes, access=mmap.ACCESS_COPY)
        if random_access:
            mapped.madvise(mmap.MADV_RANDOM)
        return torch.frombuffer(mapped, dtype=torch.uint8)

    def copied(self, num_bytes: int) -> Tensor:
        """Return a copy of the first bytes as a uint8 tensor; its memory returns to the system with it.

        Raises:
            PartSizeError: The file has become shorter.
        """
        own = mmap.mmap(-1, num_bytes)
        view = memoryview(own)
        start = 0
        while start < num_bytes:
            num_read = os.preadv(self._file, [view[start:]], start)
            if num_read == 0:
                raise PartSizeError(f"part {self._name!r}: got {start} bytes, expected {num_bytes}")
            start += num_read
        return torch.frombuffer(own, dtype=torch.uint8)

    def check(self) -> None:
        """Check that the file was not written to since it was opened; takes a microsecond.

        Raises:
            ChecksumError: It was written to; the mapping must not be read any more.
        """
        if self._present_state() != self._state:
            raise ChecksumError(
                f"part {self._name!r}: it was written to while it was in use; put the artifact back by renaming, never "
                "by writing into its files, and load it again"
            )

    def _present_state(self) -> tuple[int, int]:
        found = os.fstat(self._file)
        return found.st_size, found.st_mtime_ns
