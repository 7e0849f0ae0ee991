"""A safe reader of untrusted ``torch.distributed.checkpoint`` (DCP) directories.

DCP describes a checkpoint in ``.metadata``, a pickle that it reads with ``pickle.load``; such a file can run
any code. Here a restricted unpickler reads it. It supports only the opcodes of such files and creates only
records, tuples, dicts and dtypes: it instantiates no torch class and calls no function. The records are
checked before use. The tensors are in ``*.distcp`` files, each as a stream of ``torch.save``, which are read
with ``weights_only=True``.
"""

from __future__ import annotations

import io
import math
import os
import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

import torch
from torch import Tensor

from recsys.checkpoint.cover import check_cover
from recsys.errors import CheckpointError

METADATA_NAME = ".metadata"

# Opcodes of what pickle.dump(metadata) writes with protocols 2 to 5. Not supported: everything that reads
# external data (persistent IDs, the extension registry, buffers) and protocols 0 and 1.
# fmt: off
_OPCODES = (
    "PROTO", "FRAME", "STOP", "MARK", "POP", "POP_MARK", "NONE", "NEWTRUE",
    "NEWFALSE", "BININT", "BININT1", "BININT2", "LONG1", "LONG4", "BINFLOAT", "BINUNICODE",
    "SHORT_BINUNICODE", "BINUNICODE8", "EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "EMPTY_LIST",
    "APPEND", "APPENDS", "EMPTY_DICT", "SETITEM", "SETITEMS", "GLOBAL", "STACK_GLOBAL", "NEWOBJ",
    "REDUCE", "BUILD", "MEMOIZE", "BINPUT", "LONG_BINPUT", "BINGET", "LONG_BINGET",
)
# fmt: on
_DCP = "torch.distributed.checkpoint.metadata"
_SHARDED = "torch.distributed._shard.sharded_tensor.metadata"
# The names that such a pickle may contain; each becomes a record. The module of Path depends on Python's
# version.
_RECORDS = {
    *((_DCP, name) for name in ("Metadata", "MetadataIndex", "StorageMeta", "TensorProperties")),
    *((_DCP, name) for name in ("TensorStorageMetadata", "BytesStorageMetadata", "ChunkStorageMetadata")),
    (_DCP, "_MEM_FORMAT_ENCODING"),
    (_SHARDED, "TensorProperties"),
    (_SHARDED, "MEM_FORMAT_ENCODING"),
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
    ("torch.serialization", "_get_layout"),
    *((module, name) for module in ("pathlib", "pathlib._local") for name in ("PosixPath", "WindowsPath")),
}


@dataclass(frozen=True, kw_only=True)
class StoredChunk:
    """A rectangle of a tensor, and its place in a file.

    Attributes:
        offsets: Its first row, column, ...
        sizes: Its number of rows, columns, ...
        file: A file of the directory.
        offset_bytes: Where its ``torch.save`` stream starts in the file.
        length_bytes: The length of the stream.
    """

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    file: str
    offset_bytes: int
    length_bytes: int


@dataclass(frozen=True, kw_only=True)
class StoredTensor:
    """A tensor of a checkpoint: chunks that cover it exactly once."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    chunks: tuple[StoredChunk, ...]

    @property
    def num_bytes(self) -> int:
        """The size of the whole tensor."""
        return math.prod(self.shape) * self.dtype.itemsize


def read_stored_tensors(directory: str | os.PathLike[str]) -> dict[str, StoredTensor]:
    """Return the tensors of a DCP directory by name; other objects in it (pickles) are not read.

    Raises:
        CheckpointError: The metadata is missing, damaged, hostile or contradicts itself.
    """
    directory = Path(directory)
    path = directory / METADATA_NAME
    at = f"checkpoint {directory.name!r}"
    if not path.is_file():
        raise CheckpointError(
            f"{at}: got no {METADATA_NAME}, expected what torch.distributed.checkpoint writes"
        )
    try:
        with path.open("rb") as file:
            found = _Unpickler(file).load()
        tensors = _tensors(found)
    except CheckpointError as error:
        raise CheckpointError(f"{at}: {METADATA_NAME}: {error}") from None
    except Exception as error:  # a damaged or hostile pickle can fail anywhere in the unpickler, in any way
        raise CheckpointError(f"{at}: {METADATA_NAME}: not readable ({type(error).__name__})") from None
    sizes = {file.name: file.stat().st_size for file in directory.iterdir() if file.is_file()}
    for tensor in tensors.values():
        try:
            check_cover(tensor.name, tensor.shape, [(chunk.offsets, chunk.sizes) for chunk in tensor.chunks])
            _check_files(tensor, sizes)
        except CheckpointError as error:
            raise CheckpointError(f"{at}: {error}") from None
    return tensors


def read_chunk(directory: str | os.PathLike[str], tensor: StoredTensor, chunk: StoredChunk) -> Tensor:
    """Return a chunk's numbers, in host memory.

    Raises:
        CheckpointError: The file is damaged, or holds something else.
    """
    at = f"checkpoint {Path(directory).name!r}: {chunk.file!r}, {tensor.name!r} at {list(chunk.offsets)}"
    try:
        with (Path(directory) / chunk.file).open("rb") as file:
            part = cast(BinaryIO, _Slice(file, chunk.offset_bytes, chunk.length_bytes))
            found: Any = torch.load(part, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged or hostile stream can fail in any way
        raise CheckpointError(f"{at}: not readable with weights_only ({type(error).__name__})") from None
    if type(found) not in (Tensor, torch.nn.Parameter) or found.layout is not torch.strided or found.is_meta:
        raise CheckpointError(f"{at}: got {type(found).__name__}, expected a dense tensor")
    if tuple(found.shape) != chunk.sizes or found.dtype != tensor.dtype:
        raise CheckpointError(
            f"{at}: got {found.dtype} {list(found.shape)}, expected {tensor.dtype} {list(chunk.sizes)}"
        )
    numbers: Tensor = found.detach()
    return numbers


class _Record:
    """A stand-in for an object of DCP: its constructor arguments and its state."""

    def __init__(self, *args: Any) -> None:
        self.args = args
        self.state: Any = None


_STAND_INS = {at: type(at[1], (_Record,), {}) for at in sorted(_RECORDS)}
_ENUMERATIONS = [kind for at, kind in _STAND_INS.items() if at[1].endswith("MEM_FORMAT_ENCODING")]


def _member(owner: Any, name: Any) -> _Record:
    """Replace getattr, by which Python 3.11.0 to 3.11.3 name a member of an enumeration."""
    if owner not in _ENUMERATIONS or type(name) is not str:
        raise CheckpointError(
            "calls builtins.getattr on something that is not a memory format; the file is not what "
            "torch.distributed.checkpoint writes, and nothing in it was run"
        )
    made: _Record = owner(name)
    return made


# Python's own unpickler, not the one in C: its memo is a dict, so a large index in a malicious file allocates
# nothing.
class _Unpickler(pickle._Unpickler):
    def find_class(self, module_name: str, global_name: str) -> Any:
        if global_name == "getattr" and module_name in ("builtins", "__builtin__"):
            return _member
        if (module_name, global_name) in _STAND_INS:
            return _STAND_INS[module_name, global_name]
        if (module_name, global_name) == ("torch", "Size"):
            return tuple
        if (module_name, global_name) == ("collections", "OrderedDict"):
            return dict
        found = vars(torch).get(global_name) if module_name == "torch" else None
        if isinstance(found, torch.dtype):
            return found
        raise CheckpointError(
            f"names {f'{module_name}.{global_name}'[:80]!r}, which the metadata of a checkpoint never needs; "
            "the file is not what torch.distributed.checkpoint writes, and nothing in it was run"
        )

    def load_build(self) -> None:
        state = self.stack.pop()  # type: ignore[attr-defined]
        record = self.stack[-1]  # type: ignore[attr-defined]
        if not isinstance(record, _Record):
            raise CheckpointError(f"gives a state to {type(record).__name__}, expected an object of DCP's")
        record.state = state

    dispatch = {  # noqa: RUF012
        **{
            getattr(pickle, name)[0]: pickle._Unpickler.dispatch[getattr(pickle, name)[0]]
            for name in _OPCODES
        },
        pickle.BUILD[0]: load_build,  # type: ignore[dict-item]
    }


class _Slice(io.RawIOBase):
    """A part of a file, as a file."""

    def __init__(self, file: BinaryIO, start: int, length: int) -> None:
        self._file, self._start, self._length, self._at = file, start, length, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._length}[whence]
        self._at = max(0, base + offset)
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")[: max(0, self._length - self._at)]
        self._file.seek(self._start + self._at)
        count = self._file.readinto(view)  # type: ignore[attr-defined]
        self._at += count
        return int(count)


def _tensors(metadata: Any) -> dict[str, StoredTensor]:
    entries = _mapping(_field(metadata, "Metadata", "state_dict_metadata"), "state_dict_metadata")
    storage = _storage(_field(metadata, "Metadata", "storage_data"))
    tensors = {}
    for name, entry in entries.items():
        if type(name) is not str:
            raise CheckpointError(
                f"state_dict_metadata: got a key of type {type(name).__name__}, expected names"
            )
        if _is(entry, "BytesStorageMetadata"):
            continue
        shape = _sizes(_field(entry, "TensorStorageMetadata", "size"), f"{name[:80]!r}: size")
        chunks = _field(entry, "TensorStorageMetadata", "chunks")
        if type(chunks) is not list:
            raise CheckpointError(f"{name[:80]!r}: chunks: got {type(chunks).__name__}, expected a list")
        tensors[name] = StoredTensor(
            name=name,
            dtype=_dtype(_field(entry, "TensorStorageMetadata", "properties"), name),
            shape=shape,
            chunks=tuple(chunk for data in chunks if (chunk := _chunk(data, name, storage)) is not None),
        )
    return tensors


def _storage(data: Any) -> dict[tuple[str, tuple[int, ...]], Any]:
    """Return the place of each chunk's bytes, by name and offsets."""
    found = {}
    for index, info in _mapping(data, "storage_data").items():
        name, offset = _field(index, "MetadataIndex", "fqn"), index.state.get("offset")
        if offset is not None and type(name) is str:
            found[name, _sizes(offset, f"{name[:80]!r}: offset")] = info
    return found


def _chunk(data: Any, name: str, storage: dict[tuple[str, tuple[int, ...]], Any]) -> StoredChunk | None:
    at = f"{name[:80]!r}: chunk"
    offsets = _sizes(_field(data, "ChunkStorageMetadata", "offsets"), f"{at}: offsets")
    sizes = _sizes(_field(data, "ChunkStorageMetadata", "sizes"), f"{at}: sizes")
    if math.prod(sizes) == 0:
        return None
    if (name, offsets) not in storage:
        raise CheckpointError(f"{at} at {list(offsets)}: storage_data does not say where it lies")
    info = storage[name, offsets]
    file, offset, length = (
        _field(info, "_StorageInfo", key) for key in ("relative_path", "offset", "length")
    )
    if type(file) is not str or not file or file != Path(file).name or "\0" in file:
        raise CheckpointError(
            f"{at}: relative_path: got {str(file)[:80]!r}, expected a file of the directory"
        )
    if info.state.get("transform_descriptors"):
        raise CheckpointError(f"{at}: is stored through a transform (compressed?), expected plain streams")
    start, size = _sizes((offset, length), f"{at}: offset, length")
    return StoredChunk(offsets=offsets, sizes=sizes, file=file, offset_bytes=start, length_bytes=size)


def _check_files(tensor: StoredTensor, sizes: dict[str, int]) -> None:
    for chunk in tensor.chunks:
        if chunk.file not in sizes:
            raise CheckpointError(f"{tensor.name!r} lies in {chunk.file!r}, which is not there")
        if chunk.offset_bytes + chunk.length_bytes > sizes[chunk.file]:
            raise CheckpointError(
                f"{tensor.name!r} lies in {chunk.file!r} up to byte {chunk.offset_bytes + chunk.length_bytes}, "
                f"but the file has {sizes[chunk.file]}: it is truncated"
            )


def _is(data: Any, kind: str) -> bool:
    return isinstance(data, _Record) and type(data).__name__ == kind


def _field(data: Any, kind: str, key: str) -> Any:
    if not _is(data, kind):
        raise CheckpointError(f"got {type(data).__name__}, expected {kind}")
    if type(data.state) is not dict or key not in data.state:
        raise CheckpointError(f"{kind}.{key}: missing")
    return data.state[key]


def _mapping(data: Any, at: str) -> dict[Any, Any]:
    if type(data) is not dict:
        raise CheckpointError(f"{at}: got {type(data).__name__}, expected a dict")
    return data


def _sizes(data: Any, at: str) -> tuple[int, ...]:
    if type(data) is not tuple or not all(type(v) is int and 0 <= v < 2**63 for v in data):
        raise CheckpointError(f"{at}: got {type(data).__name__}, expected a tuple of whole numbers from 0")
    return data


def _dtype(properties: Any, name: str) -> torch.dtype:
    # Its __getstate__ makes a tuple: dtype, layout, requires_grad, memory format, pin_memory.
    state = properties.state if _is(properties, "TensorProperties") else None
    if type(state) is not tuple or not state or not isinstance(state[0], torch.dtype):
        raise CheckpointError(f"{name[:80]!r}: properties: got no dtype")
    dtype: torch.dtype = state[0]
    return dtype


class CheckpointReader:
    """Reads one directory of ``torch.distributed.checkpoint``; caches the last chunk.

    Args:
        directory: The checkpoint.

    Raises:
        CheckpointError: Its metadata is damaged or hostile.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.tensors = read_stored_tensors(directory)
        self._last: tuple[StoredChunk, Tensor] | None = None

    def read(self, name: str, offsets: Sequence[int], sizes: Sequence[int]) -> Tensor:
        """Return a rectangle of a tensor, in host memory.

        Raises:
            CheckpointError: A file is damaged, or the tensor is smaller than the rectangle.
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
            self._last = None  # frees it before the next is read
            self._last = (chunk, read_chunk(self._directory, stored, chunk))
        return self._last[1]
