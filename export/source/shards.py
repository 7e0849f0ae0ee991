"""Tensors in several files: those of a checkpoint directory or of each rank.

Shards are read lazily, one at a time.

Shape letters: D embedding dim, R rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from export.tables import MappedTensor, check_free
from recsys.checkpoint.dcp_metadata import read_chunk, read_stored_tensors

# Smaller ones are held in memory: dense layers, not tables.
_MAPPED_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True)
class ShardPiece:
    """A rectangle of a tensor.

    Attributes:
        offsets: Its first row, column, ...
        read: Its numbers.
        done: Called with the numbers after they are copied.
    """

    offsets: tuple[int, ...]
    read: Callable[[], Tensor]
    done: Callable[[Tensor], None] = lambda _: None


@dataclass(frozen=True, kw_only=True)
class Parts:
    """A tensor in pieces that cover it exactly once.

    Attributes:
        shape: The shape of the whole.
        dtype: The dtype of its elements.
        pieces: In any order.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    pieces: Sequence[ShardPiece]

    @property
    def num_bytes(self) -> int:
        """The size of the whole tensor."""
        return torch.Size(self.shape).numel() * self.dtype.itemsize


def directory_parts(directory: Path) -> dict[str, Parts]:
    """Return the tensors of a directory that ``torch.distributed.checkpoint`` wrote, by name.

    Raises:
        CheckpointError: The file cannot be used; the message says why.
    """
    return {
        name: Parts(
            shape=stored.shape,
            dtype=stored.dtype,
            pieces=[
                ShardPiece(offsets=chunk.offsets, read=partial(read_chunk, directory, stored, chunk))
                for chunk in stored.chunks
            ],
        )
        for name, stored in read_stored_tensors(directory).items()
    }


def put_together(parts: Mapping[str, Parts], folder: Path) -> dict[str, Tensor]:
    """Return whole tensors: small ones in memory, tables one after the other in mapped files.

    Args:
        parts: By name.
        folder: The folder of the files, which exist as long as the tensors.

    Raises:
        CheckpointError: A piece cannot be read, or the disk is full.
    """
    folder.mkdir(parents=True, exist_ok=True)
    check_free(folder, sum(p.num_bytes for p in parts.values() if p.num_bytes >= _MAPPED_BYTES))
    return {
        name: _mapped(p, folder) if p.num_bytes >= _MAPPED_BYTES else _in_memory(p)
        for name, p in parts.items()
    }


def _in_memory(parts: Parts) -> Tensor:
    whole = torch.empty(parts.shape, dtype=parts.dtype)
    for piece in parts.pieces:
        values = piece.read()
        place = whole
        for dim, (start, size) in enumerate(zip(piece.offsets, values.shape, strict=True)):
            place = place.narrow(dim, start, size)
        place.copy_(values)
        piece.done(values)
    return whole


def _mapped(parts: Parts, folder: Path) -> Tensor:
    mapped = MappedTensor(parts.shape, parts.dtype, folder)
    try:
        for piece in parts.pieces:
            values = piece.read()
            mapped.write(piece.offsets, values)
            piece.done(values)
            del values  # before the next one is read
        return mapped.finish()
    finally:
        mapped.close()
