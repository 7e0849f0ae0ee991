"""Tables in files that are mapped: the system can drop their pages, so they need not fit in memory.

Shape letters: D embedding dim, R rows.
"""

from __future__ import annotations

import ctypes
import math
import mmap
import os
import shutil
import tempfile
import weakref
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from recsys.base.files import reserve
from recsys.errors import CheckpointError

# Bytes written before their pages are released: enough for long writes, little compared to a table.
_BLOCK_BYTES = 16 << 20
_MADV_DONTNEED = 4  # Linux, include/uapi/asm-generic/mman-common.h

# The mapping behind each tensor that `MappedTensor` made, by its address, as long as the tensor lives.
_MAPPINGS: weakref.WeakValueDictionary[int, mmap.mmap] = weakref.WeakValueDictionary()


def check_free(folder: Path, num_bytes: int) -> None:
    """Check that a folder's disk has room for tables.

    Raises:
        CheckpointError: Says how much is needed and how much is free.
    """
    free = shutil.disk_usage(folder).free
    if num_bytes > free:
        raise CheckpointError(
            f"out: the tables are put together in a file beside it, which takes {num_bytes:,} bytes until the "
            f"export ends, but only {free:,} are free there; choose --out on a larger disk"
        )


class MappedTensor:
    """A tensor in an unnamed file, which is deleted with the last reference, even if the process is killed.

    Args:
        shape: Its shape, such as ``[R, D]``; without zeros.
        dtype: The dtype of its elements.
        folder: The folder of the file.

    Raises:
        CheckpointError: The disk is full.
    """

    def __init__(self, shape: Sequence[int], dtype: torch.dtype, folder: Path) -> None:
        num_bytes = math.prod(shape) * dtype.itemsize
        self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 - it is closed by close()
        try:
            # Allocates all blocks now: on a full disk, a later write to the mapping would kill the process.
            reserve(self._file.fileno(), num_bytes)
        except OSError as error:
            self._file.close()
            raise CheckpointError(f"out: no room beside it for a table: {error.strerror}") from None
        self._mapping = mmap.mmap(self._file.fileno(), num_bytes)
        self._mapping.madvise(mmap.MADV_RANDOM)
        self.tensor = torch.frombuffer(self._mapping, dtype=dtype).view(*shape)
        _MAPPINGS[self.tensor.data_ptr()] = self._mapping

    def write(self, offsets: Sequence[int], values: Tensor) -> None:
        """Copy a rectangle to its place, a few rows at a time."""
        place = self.tensor
        for dim, (start, size) in enumerate(zip(offsets, values.shape, strict=True)):
            place = place.narrow(dim, start, size)
        row_bytes = self.tensor.stride(0) * self.tensor.element_size()
        step = max(1, _BLOCK_BYTES // row_bytes)
        for first in range(0, len(values), step):
            rows = values[first : first + step]
            place[first : first + step].copy_(rows)
            start = (offsets[0] + first) * row_bytes // mmap.PAGESIZE * mmap.PAGESIZE
            end = (offsets[0] + first + len(rows)) * row_bytes
            self._mapping.madvise(mmap.MADV_DONTNEED, start, end - start)

    def finish(self) -> Tensor:
        """Return the whole tensor, none of it in memory."""
        self._mapping.flush()
        # Otherwise cached neighbouring pages would be mapped with each row that is read.
        os.posix_fadvise(self._file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        self.close()
        return self.tensor

    def close(self) -> None:
        """Close the file; the tensor keeps its mapping."""
        self._file.close()


def release(tensor: Tensor) -> None:
    """Release the pages of a ``MappedTensor``'s tensor; they reload from its file. Ignore other tensors."""
    mapping = _MAPPINGS.get(tensor.data_ptr())
    if mapping is not None:
        mapping.madvise(mmap.MADV_DONTNEED)


def release_unwritten(tensor: Tensor) -> None:
    """Release the pages of a tensor that ``torch.load(mmap=True)`` mapped and that was not written to.

    A tensor in private memory, or one that was written to, would lose its contents.
    """
    storage = tensor.untyped_storage()
    # Only whole pages of the storage: the memory around it belongs to other objects.
    start = -(-storage.data_ptr() // mmap.PAGESIZE) * mmap.PAGESIZE
    end = (storage.data_ptr() + storage.nbytes()) // mmap.PAGESIZE * mmap.PAGESIZE
    if end > start:
        madvise = ctypes.CDLL(None, use_errno=True).madvise
        madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
        madvise(start, end - start, _MADV_DONTNEED)
