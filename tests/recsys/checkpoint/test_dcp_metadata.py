"""Directories of torch.distributed.checkpoint from anywhere: hostile ones run nothing, damaged ones are named."""

from __future__ import annotations

import io
import os
import pickle
import struct
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)

from recsys.checkpoint.dcp_metadata import METADATA_NAME, read_chunk, read_stored_tensors
from recsys.errors import CheckpointError

STATE = {
    "model": {"weight": torch.arange(12.0).view(4, 3), "half": torch.ones(2, 2, dtype=torch.float16)},
    "step": torch.tensor(7),
    "scalars": [1, {"lr": 0.1}],
    "nothing": torch.empty(0, 4),
}


def save(state: dict[str, Any], path: Path) -> Path:
    """With torch's own functions, in one process."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that no process group is up
        dcp.save(state, checkpoint_id=path, no_dist=True)
    return path


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """A directory that DCP wrote."""
    return save(STATE, tmp_path / "dcp")


def test_what_dcp_wrote_is_read(written: Path) -> None:
    found = read_stored_tensors(written)
    assert {n: (t.dtype, t.shape) for n, t in found.items()} == {
        "model.weight": (torch.float32, (4, 3)),
        "model.half": (torch.float16, (2, 2)),
        "step": (torch.int64, ()),
        "nothing": (torch.float32, (0, 4)),
    }
    assert found["nothing"].chunks == ()
    for name, want in [("model.weight", STATE["model"]["weight"]), ("step", STATE["step"])]:
        (chunk,) = found[name].chunks
        assert torch.equal(read_chunk(written, found[name], chunk), want)


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_every_protocol_that_torch_may_write(written: Path, protocol: int) -> None:
    path = written / METADATA_NAME
    before = read_stored_tensors(written)
    path.write_bytes(pickle.dumps(pickle.loads(path.read_bytes()), protocol=protocol))
    assert read_stored_tensors(written) == before


@pytest.mark.parametrize("protocol", range(2, 6))
def test_members_of_enumerations_may_be_named(
    written: Path, monkeypatch: pytest.MonkeyPatch, protocol: int
) -> None:
    """As Python 3.11.0 to 3.11.3 write them, of which 3.11.2 is Debian 12's."""
    path = written / METADATA_NAME
    before, metadata = read_stored_tensors(written), pickle.loads(path.read_bytes())
    enumeration = torch.distributed.checkpoint.metadata._MEM_FORMAT_ENCODING
    monkeypatch.setattr(
        enumeration, "__reduce_ex__", lambda member, _: (getattr, (type(member), member._name_))
    )
    path.write_bytes(pickle.dumps(metadata, protocol=protocol))
    assert b"getattr" in path.read_bytes()
    assert read_stored_tensors(written) == before


class _Call:
    """Unpickled, it calls a function."""

    def __init__(self, function: Callable[..., Any], *args: Any) -> None:
        self.call = (function, args)

    def __reduce__(self) -> tuple[Any, ...]:
        return self.call


def _hostile(kind: str, evidence: Path) -> bytes:
    call = _Call(os.mkdir, str(evidence))
    if kind == "alone":
        return pickle.dumps(call)
    if kind == "in the metadata":
        return pickle.dumps(Metadata(state_dict_metadata={}, planner_data=call, storage_data={}))
    if kind == "as a key":
        return pickle.dumps(Metadata(state_dict_metadata={}, storage_data={(1, call): 2}))
    if kind == "through getattr":
        return pickle.dumps(_Call(getattr, int, "from_bytes"))
    if kind == "through getattr of a record":
        return pickle.dumps(_Call(getattr, Metadata, "__init__"))
    if kind == "a class of torch's":
        return pickle.dumps(_Call(torch.load, str(evidence)))
    if kind == "protocol 0":
        return b"cos\nmkdir\n(V" + str(evidence).encode() + b"\ntR."
    if kind == "instance opcode":
        return b"(V" + str(evidence).encode() + b"\nios\nmkdir\n."
    if kind == "state of a class":
        return b"\x80\x02ctorch.distributed.checkpoint.metadata\nMetadata\n}b."
    if kind == "persistent":
        return b"\x80\x02U\x01aQ."
    raise AssertionError(kind)


@pytest.mark.parametrize(
    "kind",
    [
        "alone",
        "in the metadata",
        "as a key",
        "through getattr",
        "through getattr of a record",
        "a class of torch's",
        "protocol 0",
        "instance opcode",
        "state of a class",
        "persistent",
    ],
)
def test_hostile_metadata_runs_nothing(written: Path, tmp_path: Path, kind: str) -> None:
    evidence = tmp_path / "pwned"
    (written / METADATA_NAME).write_bytes(_hostile(kind, evidence))
    with pytest.raises(CheckpointError, match=r"nothing in it was run|not readable|gives a state to type"):
        read_stored_tensors(written)
    assert not evidence.exists()


@pytest.mark.parametrize("kind", ["alone", "in the metadata", "as a key", "protocol 0", "instance opcode"])
def test_the_payloads_are_armed(tmp_path: Path, kind: str) -> None:
    """What the test above relies on: pickle.load, which torch reads such files by, runs them."""
    evidence = tmp_path / "pwned"
    pickle.loads(_hostile(kind, evidence))
    assert evidence.is_dir()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x80\x04.",
        b"\x80\x04}r\xff\xff\xff\xff.",  # a memo index that makes C's unpickler reserve 64 GiB
        b"\x80\x04\x8d" + struct.pack("<Q", 2**62) + b"x.",
        b"\x80\x04" + b"]" * 10_000 + b".",
        pickle.dumps({"state_dict_metadata": {}}),
        pickle.dumps(Metadata(state_dict_metadata={}, storage_data=None)),
        pickle.dumps(Metadata(state_dict_metadata=[], storage_data={})),  # type: ignore[arg-type]
        pickle.dumps(Metadata(state_dict_metadata={3: 4}, storage_data={})),  # type: ignore[dict-item]
    ],
    ids=["empty", "no object", "memo", "long text", "nested", "a dict", "no storage", "a list", "numbers"],
)
def test_damaged_metadata_is_one_clear_error(written: Path, content: bytes) -> None:
    (written / METADATA_NAME).write_bytes(content)
    with pytest.raises(CheckpointError, match=r"checkpoint 'dcp': .metadata: "):
        read_stored_tensors(written)


def _metadata(
    *, shape: tuple[int, ...] = (4, 3), chunks: Any = (((0, 0), (4, 3)),), info: Any = None, **fields: Any
) -> Metadata:
    """Metadata of one tensor ``w``, made of torch's classes."""
    where = info or _StorageInfo(relative_path="w.distcp", offset=0, length=100)
    return Metadata(
        state_dict_metadata={
            "w": TensorStorageMetadata(
                properties=TensorProperties(dtype=torch.float32),
                size=torch.Size(shape),
                chunks=[ChunkStorageMetadata(torch.Size(o), torch.Size(s)) for o, s in chunks],
            )
        },
        storage_data={MetadataIndex("w", o): where for o, _ in chunks},
        **fields,
    )


def _at(path: Any, offset: Any = 0, length: Any = 100, **more: Any) -> _StorageInfo:
    return _StorageInfo(path, offset, length, **more)


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        (_metadata(), "lies in 'w.distcp', which is not there"),
        (_metadata(info=_at("../w.distcp")), "relative_path: got '../w.distcp', expected a file of the directory"),
        (_metadata(info=_at("/etc/passwd")), "relative_path: got '/etc/passwd'"),
        (_metadata(info=_at("..")), r"relative_path: got '..'|which is not there"),
        (_metadata(info=_at(7)), "relative_path: got '7'"),
        (_metadata(info=_at("short", 4, 100)), "up to byte 104, but the file has 10: it is truncated"),
        (_metadata(info=_at("short", -4)), "offset, length: got tuple, expected"),
        (_metadata(info=_at("short", 0, 10, transform_descriptors=["zstd"])), "through a transform"),
        (_metadata(chunks=[((0, 0), (2, 3))]), "no shard holds rows 2:4, columns 0:3"),
        (_metadata(chunks=[((0, 0), (4, 3)), ((2, 1), (1, 1))]), "overlap at rows 2:3, columns 1:2"),
        (_metadata(chunks=[((1, 0), (4, 3))]), r"a shard of \[4, 3\] at \[1, 0\] lies outside"),
        (_metadata(chunks=[((0,), (4,))]), "lies outside of its shape"),
    ],
    ids=[
        "no file", "up a folder", "anywhere", "the folder above", "no text", "truncated", "negative",
        "compressed", "a gap", "an overlap", "outside", "other dims",
    ],
)  # fmt: skip
def test_metadata_that_cannot_be_right(tmp_path: Path, metadata: Metadata, message: str) -> None:
    (tmp_path / METADATA_NAME).write_bytes(pickle.dumps(metadata))
    (tmp_path / "short").write_bytes(b"0123456789")
    with pytest.raises(CheckpointError, match=message):
        read_stored_tensors(tmp_path)


def test_a_chunk_of_unknown_place(tmp_path: Path) -> None:
    metadata = _metadata()
    metadata.storage_data = {}
    (tmp_path / METADATA_NAME).write_bytes(pickle.dumps(metadata))
    with pytest.raises(CheckpointError, match="storage_data does not say where it lies"):
        read_stored_tensors(tmp_path)


def _stream(value: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (_stream(torch.ones(4, 2)), r"got torch.float32 \[4, 2\], expected torch.float32 \[4, 3\]"),
        (_stream(torch.ones(4, 3, dtype=torch.float16)), "got torch.float16"),
        (_stream({"w": torch.ones(4, 3)}), "got dict, expected a dense tensor"),
        (_stream(torch.ones(4, 3).to_sparse()), "got Tensor, expected a dense tensor"),
        (_stream(torch.empty(4, 3, device="meta")), "expected a dense tensor"),
        (_stream(_Call(os.mkdir, "pwned")), "not readable with weights_only"),
        (b"not a stream", "not readable with weights_only"),
    ],
    ids=["shape", "dtype", "a dict", "sparse", "meta", "hostile", "noise"],
)
def test_streams_that_hold_something_else(tmp_path: Path, content: bytes, message: str) -> None:
    info = _at("w.distcp", 3, len(content))
    (tmp_path / METADATA_NAME).write_bytes(pickle.dumps(_metadata(info=info)))
    (tmp_path / "w.distcp").write_bytes(b"abc" + content + b"def")
    tensor = read_stored_tensors(tmp_path)["w"]
    with pytest.raises(CheckpointError, match=message):
        read_chunk(tmp_path, tensor, tensor.chunks[0])
    assert not Path("pwned").exists()


def test_a_directory_without_metadata(tmp_path: Path) -> None:
    with pytest.raises(
        CheckpointError, match=r"got no \.metadata, expected what torch.distributed.checkpoint"
    ):
        read_stored_tensors(tmp_path)
