"""Sharded checkpoints: whole tensors from shards, within the memory of one table; hostile files run nothing."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import warnings
import zipfile
from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed._shard.metadata import ShardMetadata
from torch.distributed._shard.sharded_tensor import Shard, ShardedTensorMetadata, TensorProperties
from torch.distributed._shard.sharded_tensor.metadata import MEM_FORMAT_ENCODING

from export import tables as export_tables
from export.source import shards as source_shards
from export.source.load import Source, load_model
from export.source.ranks import LocalShards, rank_parts, read_rank_file
from export.source.shards import put_together
from export.tables import MappedTensor, release
from recsys.artifact.parts import ROWS_NAME
from recsys.errors import CheckpointError, ExportError
from tests.support.children import sharded_memory
from tests.support.children.sharded_memory import DIM, MODEL_BYTES, NUM_ROWS, NUM_TABLES, TABLE_BYTES
from tests.support.fork_server import run_python
from tests.support.models.export_models import dlrm

ROOT = Path(__file__).resolve().parents[3]
FACTORY = "tests.support.models.factories:make_dlrm"
# What the assembly writes at a time (16 MiB), what the export quantizes at a time, and room for the allocator.
_CONSTANT_BYTES = 64 << 20


def _save(state: dict[str, Any], path: Path) -> Path:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that no process group is up
        dcp.save(state, checkpoint_id=path, no_dist=True)
    return path


def _assert_same(model: torch.nn.Module, state: dict[str, Tensor]) -> None:
    found = model.state_dict()
    assert set(found) == set(state)
    assert all(torch.equal(found[name], state[name]) for name in state)


@pytest.mark.parametrize("prefix", ["", "module.", "_dmp_wrapped_module.module."])
@pytest.mark.parametrize("nested", ["", "state_dict", "model_state_dict", "model"])
@pytest.mark.parametrize("mapped_bytes", [1, 1 << 20], ids=["mapped", "in memory"])
def test_directories_as_training_scripts_write_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prefix: str, nested: str, mapped_bytes: int
) -> None:
    monkeypatch.setattr(source_shards, "_MAPPED_BYTES", mapped_bytes)
    state = dlrm().state_dict()
    prefixed: Any = {prefix + name: tensor for name, tensor in state.items()}
    others = {"optimizer": {"state": {n: torch.ones(3) for n in state}}, "epoch": 3, "ema": dict(state)}
    path = _save({nested: prefixed, **others} if nested else {**prefixed, **others}, tmp_path / "d")
    _assert_same(load_model(Source(path=path, factory=FACTORY, scratch=tmp_path / "out")), state)
    assert list((tmp_path / "out").iterdir()) == []


def test_names_that_fit_twice_are_refused(tmp_path: Path) -> None:
    state = dlrm().state_dict()
    path = _save({"model": dict(state), "module": dict(state)}, tmp_path / "d")
    with pytest.raises(CheckpointError, match="stand there more than once, but for prefixes"):
        load_model(Source(path=path, factory=FACTORY))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda state: state.pop("over_arch.model.1.bias"), r"missing over_arch.model.1.bias, unknown nothing"),
        (lambda state: state.update({"over_arch.model.1.bias": torch.ones(9)}), r"got shape \[9\], expected \[1\]"),
        (
            lambda state: state.update({"over_arch.model.1.bias": torch.ones(1, dtype=torch.int64)}),
            "got torch.int64, expected torch.float32",
        ),
        (lambda state: (state.clear(), state.update(w=torch.ones(1))), "unknown w"),
    ],
    ids=["missing", "shape", "dtype", "another model"],
)  # fmt: skip
def test_directories_of_another_model(tmp_path: Path, change: Any, message: str) -> None:
    state = dict(dlrm().state_dict())
    change(state)
    with pytest.raises(CheckpointError, match=message):
        load_model(Source(path=_save(state, tmp_path / "d"), factory=FACTORY))


def test_a_directory_of_nothing(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"without \.metadata and without \.pt files"):
        load_model(Source(path=tmp_path, factory=FACTORY))


def test_a_directory_needs_a_factory(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="needs --factory MODULE:FUNCTION"):
        load_model(Source(path=_save({"w": torch.ones(2)}, tmp_path / "d")))


def test_unsafe_pickles_are_single_files(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="expected one file"):
        load_model(Source(path=tmp_path, unsafe_pickle=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_mapped_tensors_hold_what_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype
) -> None:
    monkeypatch.setattr(export_tables, "_BLOCK_BYTES", 5000)
    want = torch.randn(1031, 24).to(dtype)
    whole = MappedTensor(want.shape, dtype, tmp_path)
    for rows in (slice(500, 1031), slice(0, 500)):
        for columns in (slice(8, 24), slice(0, 8)):
            whole.write((rows.start, columns.start), want[rows, columns])
    found = whole.finish()
    assert torch.equal(found, want)
    release(found)
    assert torch.equal(found, want)
    release(torch.ones(2000))
    found[3] = 1.0
    release(found)
    assert bool((found[3] == 1.0).all())


def test_files_have_no_names_and_end_with_their_tensors(tmp_path: Path) -> None:
    whole = MappedTensor((1000, 8), torch.float32, tmp_path)
    found = whole.finish()
    assert list(tmp_path.iterdir()) == []
    mine = f"{tmp_path}/"
    assert mine in Path("/proc/self/maps").read_text()
    del whole, found
    assert mine not in Path("/proc/self/maps").read_text()


def test_a_disk_without_room_is_an_error_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", ["total", "used", "free"])
    monkeypatch.setattr(source_shards, "_MAPPED_BYTES", 1)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(1000, 1000, 100))
    path = _save(dlrm().state_dict(), tmp_path / "d")
    with pytest.raises(
        CheckpointError, match=r"takes [0-9,]+ bytes .* only 100 are free there; choose --out"
    ):
        load_model(Source(path=path, factory=FACTORY, scratch=tmp_path))


def test_a_disk_that_fills_up_meanwhile(tmp_path: Path) -> None:
    with pytest.raises(
        CheckpointError, match=r"no room beside it for a table: .*: 4,\d{3},[\d,]+ bytes are needed"
    ):
        MappedTensor((1 << 40, 1 << 10), torch.float32, tmp_path)
    assert list(tmp_path.iterdir()) == []


def _local(*shards: tuple[tuple[int, int], Tensor], shape: tuple[int, int] = (4, 4)) -> LocalShards:
    return LocalShards(shape=shape, dtype=torch.float32, shards=shards)


def test_ranks_without_rows_are_no_gap(tmp_path: Path) -> None:
    files: list[tuple[str, dict[str, Tensor | LocalShards]]] = [
        ("rank0.pt", {"w": _local(((0, 0), torch.ones(4, 4)))}),
        ("rank1.pt", {"w": _local(((4, 0), torch.ones(0, 4)))}),
        ("rank2.pt", {"w": _local()}),
    ]
    assert torch.equal(put_together(rank_parts(files), tmp_path)["w"], torch.ones(4, 4))


@pytest.mark.parametrize(
    ("second", "message"),
    [
        (torch.ones(4, 4), "sharded in one file and whole in another"),
        (_local(((2, 0), torch.ones(2, 4)), shape=(4, 5)), r"is torch.float32 \[4, 4\] in 'a', but .* \[4, 5\] in 'b'"),
        (_local(((1, 0), torch.ones(3, 4))), "overlap at rows 1:2, columns 0:4"),
        (_local(((3, 0), torch.ones(1, 4))), "files 'a', 'b': 'w': no shard holds rows 2:3, columns 0:4"),
    ],
    ids=["whole", "shape", "overlap", "gap"],
)  # fmt: skip
def test_files_of_ranks_that_do_not_fit(second: Any, message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        rank_parts([("a", {"w": _local(((0, 0), torch.ones(2, 4)))}), ("b", {"w": second})])


class _Fake:
    """Pickles as what it is given."""

    def __init__(self, function: Any, *args: Any) -> None:
        self.call = (function, args)

    def __reduce__(self) -> tuple[Any, ...]:
        return self.call


def _sharded(state: Any, size: tuple[int, int] = (2, 2)) -> Any:
    """A ShardedTensor with any state, as torch.save writes one."""
    from torch.distributed._shard.sharded_tensor.api import ShardedTensor

    args = (ShardedTensor, torch.float32, size, (2, 1), 0, torch.strided, torch.device("cpu"), False)
    return _Fake(
        torch._tensor._rebuild_from_type_v2,
        torch._utils._rebuild_wrapper_subclass,
        ShardedTensor,
        args,
        state,
    )


def _state(
    values: Any = None, sizes: Any = (2, 2), offsets: Any = (0, 0), **metadata: Any
) -> tuple[Any, ...]:
    shard = Shard.__new__(Shard)
    shard.tensor = torch.ones(2, 2) if values is None else values
    shard.metadata = ShardMetadata.__new__(ShardMetadata)
    shard.metadata.shard_offsets, shard.metadata.shard_sizes = offsets, sizes
    shard.metadata.placement = None
    about = ShardedTensorMetadata(
        shards_metadata=[], tensor_properties=TensorProperties(), **{"size": torch.Size((2, 2)), **metadata}
    )
    return ([shard], about, None, None, False)


def test_the_handmade_states_are_what_torch_writes(tmp_path: Path) -> None:
    """What the tests below rely on."""
    torch.save({"w": _sharded(_state())}, tmp_path / "x.pt")
    found = read_rank_file(tmp_path / "x.pt")["w"]
    assert isinstance(found, LocalShards)
    assert found.shape == (2, 2)
    assert torch.equal(found.shards[0][1], torch.ones(2, 2))


def test_members_of_enumerations_may_be_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As Python 3.11.0 to 3.11.3 write them, of which 3.11.2 is Debian 12's."""
    monkeypatch.setattr(
        MEM_FORMAT_ENCODING, "__reduce_ex__", lambda member, _: (getattr, (type(member), member._name_))
    )
    torch.save({"w": _sharded(_state())}, tmp_path / "x.pt")
    with zipfile.ZipFile(tmp_path / "x.pt") as file:
        assert b"getattr" in file.read("x/data.pkl")
    assert isinstance(read_rank_file(tmp_path / "x.pt")["w"], LocalShards)


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (None, "its state is not that of a ShardedTensor"),
        ((1, 2, 3, 4, 5), "its state is not that of a ShardedTensor"),
        (([3], None, None, None, None), "tensor: missing"),
        (_state(values=torch.ones(2, 2).to_sparse()), "expected a dense tensor"),
        (_state(values=torch.empty(2, 2, device="meta")), "expected a dense tensor"),
        (_state(values=[1.0]), "got list in a shard"),
        (_state(values=torch.ones(2, 3)), r"got a shard \[2, 3\], expected \[2, 2\]"),
        (_state(values=torch.ones(2, 2).double()), "got a shard of torch.float64"),
        (_state(offsets=(-1, 0)), "shard_offsets: got tuple, expected whole numbers from 0"),
        (_state(offsets="ab"), "shard_offsets: got str"),
        (_state(size=7), "size: got int"),
    ],
)
def test_rank_files_that_torch_did_not_write(tmp_path: Path, state: Any, message: str) -> None:
    torch.save({"w": _sharded(state)}, tmp_path / "x.pt")
    with pytest.raises(CheckpointError, match=message):
        read_rank_file(tmp_path / "x.pt")


@pytest.mark.parametrize(
    "value",
    [
        lambda p: _Fake(os.mkdir, p),
        lambda _: _Fake(getattr, int, "from_bytes"),
        lambda _: _Fake(getattr, ShardMetadata, "__init__"),
        lambda p: _sharded(([_Fake(os.mkdir, p)], None, None, None, None)),
        lambda p: _Fake(torch._tensor._rebuild_from_type_v2, os.mkdir, Tensor, (p,), None),
    ],
    ids=["alone", "getattr", "getattr of a stand-in", "in a state", "through a rebuild"],
)
def test_hostile_rank_files_run_nothing(tmp_path: Path, value: Any) -> None:
    evidence = tmp_path / "pwned"
    torch.save({"w": torch.ones(1), "x": value(str(evidence))}, tmp_path / "x.pt")
    with pytest.raises(CheckpointError, match="not readable with weights_only"):
        read_rank_file(tmp_path / "x.pt")
    assert not evidence.exists()


def _peak_bytes(mode: str, path: Path) -> int:
    command = [sys.executable, "-W", "ignore", "-m", sharded_memory.__name__, mode, str(path)]
    told = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return int(told or 0)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's /proc")
def test_peak_memory_is_one_table_not_the_model(tmp_path: Path) -> None:
    assert run_python("-m", sharded_memory.__name__, "write", str(tmp_path)).returncode == 0
    small = _peak_bytes("small", tmp_path)
    assert TABLE_BYTES + _CONSTANT_BYTES < MODEL_BYTES / 2
    for mode in ("dcp", "ranks"):
        assert _peak_bytes(mode, tmp_path) < small + TABLE_BYTES + _CONSTANT_BYTES, mode
    assert (tmp_path / "dcp.artifact" / ROWS_NAME).stat().st_size >= NUM_TABLES * NUM_ROWS * (DIM + 4)
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"small.pt", "dcp", "ranks", "small.artifact", "dcp.artifact"}
