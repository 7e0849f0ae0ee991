"""The files that each rank of a sharded run wrote: ``torch.save(model.state_dict(), f"rank{rank}.pt")``.

Such a file holds ``ShardedTensor`` objects, which torch refuses to read with ``weights_only=True``, and can
create only while the run's process group exists. Here they are read with ``weights_only=True`` anyway:
stand-ins that only store their arguments replace the classes of such an object, so no code of the file runs
and no process group is needed.

Shape letters: D embedding dim, R rows.
"""

from __future__ import annotations

import zipfile
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from export.source.names import find_state
from export.source.others import Inert, left_out, other_classes, told
from export.source.shards import Parts, ShardPiece
from export.tables import release_unwritten
from recsys.checkpoint.cover import check_cover
from recsys.errors import CheckpointError


@dataclass(frozen=True, kw_only=True)
class LocalShards:
    """One rank's shards of a sharded tensor.

    Attributes:
        shape: The shape of the whole tensor, such as ``[R, D]``.
        dtype: The dtype of the whole tensor.
        shards: Offsets and numbers of each.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    shards: tuple[tuple[tuple[int, ...], Tensor], ...]


def read_rank_file(
    path: Path, expected: Collection[str] = (), notes: list[str] | None = None
) -> dict[str, Tensor | LocalShards]:
    """Return a state dict, mapped if its format allows it: whole tensors, and the local shards of others.

    Args:
        path: The file.
        expected: The model's names, by which the state dict is found among others.
        notes: Gets the rule by which it was found.

    Raises:
        CheckpointError: The file cannot be read, or holds no tensors.
    """
    if not path.exists():
        raise CheckpointError(
            f"checkpoint: got {path.name!r}, which does not exist; expected what torch.save wrote"
        )
    if not path.is_file():
        raise CheckpointError(
            f"checkpoint: got {path.name!r}, which is a folder; expected a file that torch.save wrote on a rank"
        )
    try:
        with torch.serialization.safe_globals(_STAND_INS):
            others = other_classes(path)
            with left_out(others):
                # Files of torch before 1.6 are no archives, and cannot be mapped.
                is_archive = zipfile.is_zipfile(path)
                data = torch.load(path, map_location="cpu", weights_only=True, mmap=is_archive)
    except Exception as error:  # torch.load raises many kinds of errors for foreign files
        raise CheckpointError(
            f"checkpoint {path.name!r}: not readable with weights_only ({type(error).__name__}); a pickled module "
            "is read with --unsafe-pickle only, and runs the code in it"
        ) from None
    if others and notes is not None:
        notes.append(told(others))
    if isinstance(data, dict):
        keys, data = find_state(data, expected, lambda value: isinstance(value, Tensor))
        if keys and notes is not None:
            notes.append(f"the state dict under {keys!r}")
    found: dict[str, Tensor | LocalShards] = {}
    for name, value in data.items() if isinstance(data, dict) else ():
        if isinstance(value, _ShardedTensor):
            found[name] = _local_shards(value, f"checkpoint {path.name!r}: {str(name)[:80]!r}")
        elif isinstance(value, Tensor):
            found[name] = value
    if not found and others:
        raise CheckpointError(
            f"checkpoint {path.name!r}: got {others[0]}, expected a state dict; a pickled module is read with "
            "--unsafe-pickle only, and runs the code in it"
        )
    if not found:
        raise CheckpointError(f"checkpoint {path.name!r}: got no tensors, expected a state dict")
    return found


def rank_parts(files: Sequence[tuple[str, dict[str, Tensor | LocalShards]]]) -> dict[str, Parts]:
    """Combine the ranks' files. Whole tensors, equal on every rank, are taken from the first file.

    Args:
        files: Each file's name and the result of ``read_rank_file``.

    Raises:
        CheckpointError: Shards overlap, or a part of a tensor is in no file; names the rectangle.
    """
    whole: dict[str, Tensor] = {}
    sharded: dict[str, list[tuple[str, LocalShards]]] = {}
    for file, state in files:
        for name, value in state.items():
            if isinstance(value, LocalShards):
                sharded.setdefault(name, []).append((file, value))
            else:
                whole.setdefault(name, value)
    both = sorted(set(whole) & set(sharded))
    if both:
        raise CheckpointError(f"checkpoint: {both[0]!r} is sharded in one file and whole in another")
    parts = {name: _whole(value) for name, value in whole.items()}
    return parts | {name: _sharded(name, found) for name, found in sharded.items()}


def _whole(value: Tensor) -> Parts:
    piece = ShardPiece(offsets=(0,) * value.dim(), read=lambda: value.detach(), done=release_unwritten)
    return Parts(shape=tuple(value.shape), dtype=value.dtype, pieces=[piece])


def _sharded(name: str, found: Sequence[tuple[str, LocalShards]]) -> Parts:
    (first_file, first), *others = found
    for file, other in others:
        if (other.shape, other.dtype) != (first.shape, first.dtype):
            raise CheckpointError(
                f"checkpoint: {name!r} is {first.dtype} {list(first.shape)} in {first_file!r}, but {other.dtype} "
                f"{list(other.shape)} in {file!r}; expected files of one run"
            )
    shards = [shard for _, local in found for shard in local.shards if shard[1].numel()]
    try:
        check_cover(name, first.shape, [(offsets, tuple(values.shape)) for offsets, values in shards])
    except CheckpointError as error:
        files = ", ".join(repr(file) for file, _ in found[:8])
        raise CheckpointError(f"checkpoint files {files}: {error}") from None
    pieces = [
        ShardPiece(offsets=offsets, read=lambda values=values: values, done=release_unwritten)  # type: ignore[misc]
        for offsets, values in shards
    ]
    return Parts(shape=first.shape, dtype=first.dtype, pieces=pieces)


class _Record:
    """A stand-in for a part of a ShardedTensor: stores its arguments."""

    def __new__(cls, *_: Any) -> _Record:
        return object.__new__(cls)

    def __init__(self, *_: Any) -> None:
        self.state: Any = None

    def __setstate__(self, state: Any) -> None:
        # Classes with slots give a pair: no dict, and a dict of their slots.
        self.state = state[1] if type(state) is tuple and len(state) == 2 else state


class _ShardedTensor(Tensor):
    """A stand-in for a ShardedTensor: stores its arguments; no operator accepts it."""

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(cls, function: Any, *_: Any) -> Any:
        raise CheckpointError(f"a sharded tensor was given to {function}")

    def __setstate__(self, state: Any) -> None:
        self.state = state


class _MemoryFormat(_Record):
    """A stand-in for a member of an enumeration."""


def _attribute(owner: Any, name: Any) -> Any:
    """Replace getattr: it names a class in a class (protocol 2), or a member of an enumeration (Python 3.11.0 to 3)."""
    is_enumeration = isinstance(owner, type) and issubclass(owner, (_MemoryFormat, Inert))
    if is_enumeration and owner.__module__ != "builtins" and type(name) is str:
        return owner(name)
    if owner is not _ShardedTensor or name != "ProcessGroupState":
        raise CheckpointError("only a ShardedTensor's ProcessGroupState is named so")
    return _Record


class _Dict:
    """A stand-in for a kind of dict."""

    def __new__(cls, *_: Any) -> Any:
        """Return a plain dict."""
        return {}


_SHARD = "torch.distributed._shard"
_STAND_INS: list[Any] = [
    (_ShardedTensor, f"{_SHARD}.sharded_tensor.api.ShardedTensor"),
    (_attribute, "builtins.getattr"),
    (_MemoryFormat, f"{_SHARD}.sharded_tensor.metadata.MEM_FORMAT_ENCODING"),
    *(
        (_Record, name)
        for name in (
            f"{_SHARD}.metadata.ShardMetadata",
            f"{_SHARD}.sharded_tensor.metadata.ShardedTensorMetadata",
            f"{_SHARD}.sharded_tensor.metadata.TensorProperties",
            f"{_SHARD}.sharded_tensor.shard.Shard",
            f"{_SHARD}.sharding_spec.api.EnumerableShardingSpec",
            f"{_SHARD}.sharding_spec.chunk_sharding_spec.ChunkShardingSpec",
            "torch.distributed.remote_device._remote_device",
            # What training scripts store beside the weights: numbers and arrays of NumPy, options, paths.
            *(
                f"numpy.{core}.multiarray.{name}"
                for core in ("core", "_core")
                for name in ("scalar", "_reconstruct")
            ),
            *("numpy.dtype", "numpy.ndarray", "argparse.Namespace"),
            *(f"pathlib.{name}" for name in ("PosixPath", "PurePosixPath", "WindowsPath", "PureWindowsPath")),
        )
    ),
    *(
        (_Dict, name)
        for name in (
            "lightning.fabric.utilities.data.AttributeDict",
            "lightning_fabric.utilities.data.AttributeDict",
            "pytorch_lightning.utilities.parsing.AttributeDict",
        )
    ),
]


def _local_shards(tensor: _ShardedTensor, at: str) -> LocalShards:
    """Read a ShardedTensor's state: its local shards, its metadata, and others that are of no use here.

    Raises:
        CheckpointError: It is not a state that torch writes.
    """
    state = getattr(tensor, "state", None)
    if type(state) is not tuple or len(state) != 5 or type(state[0]) is not list:
        raise CheckpointError(f"{at}: its state is not that of a ShardedTensor")
    shards = []
    for shard in state[0]:
        values = _field(shard, "tensor", at)
        metadata = _field(shard, "metadata", at)
        offsets = _whole_numbers(_field(metadata, "shard_offsets", at), f"{at}: shard_offsets")
        sizes = _whole_numbers(_field(metadata, "shard_sizes", at), f"{at}: shard_sizes")
        if type(values) is not Tensor or values.layout is not torch.strided or values.is_meta:
            raise CheckpointError(f"{at}: got {type(values).__name__} in a shard, expected a dense tensor")
        if tuple(values.shape) != sizes:
            raise CheckpointError(
                f"{at}: got a shard {list(values.shape)}, expected {list(sizes)}, as its metadata says"
            )
        if values.dtype != tensor.dtype:
            raise CheckpointError(f"{at}: got a shard of {values.dtype}, expected {tensor.dtype}")
        shards.append((offsets, values))
    shape = _whole_numbers(_field(state[1], "size", at), f"{at}: size")
    return LocalShards(shape=shape, dtype=tensor.dtype, shards=tuple(shards))


def _field(record: Any, key: str, at: str) -> Any:
    state = record.state if type(record) is _Record else None
    if type(state) is not dict or key not in state:
        raise CheckpointError(f"{at}: {key}: missing")
    return state[key]


def _whole_numbers(data: Any, at: str) -> tuple[int, ...]:
    if not isinstance(data, (list, tuple)) or not all(type(v) is int and 0 <= v < 2**63 for v in data):
        raise CheckpointError(f"{at}: got {type(data).__name__}, expected whole numbers from 0")
    return tuple(data)
