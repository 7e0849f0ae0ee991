"""Rectangles of a checkpoint's tensors, wherever its shards were cut.

Shape letters: D embedding dim, K blocks of columns, R rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from recsys.checkpoint.metadata import StoredChunk, StoredTensor, read_chunk, read_stored_tensors
from recsys.errors import CheckpointError


class CheckpointReader:
    """Reads from one directory of ``torch.distributed.checkpoint``; keeps the chunk that was read last.

    Args:
        directory: the checkpoint.

    Raises:
        CheckpointError: its metadata is damaged or hostile.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.tensors = read_stored_tensors(directory)
        self._last: tuple[StoredChunk, Tensor] | None = None

    def read(self, name: str, offsets: Sequence[int], sizes: Sequence[int]) -> Tensor:
        """A rectangle of a tensor, in host memory.

        Raises:
            CheckpointError: a file is damaged, or the tensor is smaller than that.
        """
        stored = self.tensors[name]
        ends = [o + s for o, s in zip(offsets, sizes, strict=True)]
        if len(ends) != len(stored.shape) or any(e > n for e, n in zip(ends, stored.shape, strict=True)):
            raise CheckpointError(f"{name!r}: got shape {list(stored.shape)}, expected at least {ends}")
        found = torch.empty(tuple(sizes), dtype=stored.dtype)
        for chunk in stored.chunks:
            pairs = list(zip(chunk.offsets, chunk.sizes, offsets, ends, strict=True))
            starts = [max(start, offset) for start, _, offset, _ in pairs]
            stops = [min(start + size, end) for start, size, _, end in pairs]
            if any(stop <= start for start, stop in zip(starts, stops, strict=True)):
                continue
            target, source = found, self._chunk(stored, chunk)
            for dim, (start, stop) in enumerate(zip(starts, stops, strict=True)):
                target = target.narrow(dim, start - offsets[dim], stop - start)
                source = source.narrow(dim, start - chunk.offsets[dim], stop - start)
            target.copy_(source)
        return found

    def _chunk(self, stored: StoredTensor, chunk: StoredChunk) -> Tensor:
        if self._last is None or self._last[0] != chunk:
            self._last = None  # so that there is one at a time
            self._last = (chunk, read_chunk(self._directory, stored, chunk))
        return self._last[1]
