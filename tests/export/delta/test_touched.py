"""recsys-export --delta by the touched rows that checkpoints of recsys-train hold."""

from __future__ import annotations

import base64
import json
import zlib
from pathlib import Path
from typing import Any

import pytest
import torch

from export.cli import main as export
from recsys.artifact.delta.apply import apply, prepare
from recsys.artifact.load import load_artifact
from recsys.checkpoint import load_checkpoint, save_checkpoint
from recsys.checkpoint.touched import touched_info, touched_since, weights_digest
from recsys.errors import CheckpointError
from recsys.train.commands.train import main as train
from tests.export.delta.test_delta import rows_of
from tests.recsys.artifact.delta.deltas import header_of

_OPTIONS = ["--data", "synthetic", "--epochs", "1", "--json"]


def run(command: Any, *arguments: str | Path) -> int:
    status: int = command([str(argument) for argument in arguments])
    return status


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``old.pt`` with its artifact, ``new.pt`` of a few batches more, and the artifact of that."""
    folder = tmp_path_factory.mktemp("touched")
    assert run(train, *_OPTIONS, "--limit-rows", 4000, "--embedding-dim", 8, "--out", folder / "old.pt") == 0
    start = ["--init-from", folder / "old.pt", "--seed", 3, "--freeze-dense"]
    assert run(train, *_OPTIONS, "--limit-rows", 400, *start, "--out", folder / "new.pt") == 0
    for name in ("old", "new"):
        assert run(export, folder / f"{name}.pt", "--json") == 0
    return folder


def changed(path: Path, to: Path, **info: Any) -> Path:
    """A checkpoint with other fields of ``info``."""
    checkpoint = load_checkpoint(path, mmap=False)
    checkpoint.info.update(info)
    save_checkpoint(to, checkpoint)
    return to


def test_a_delta_of_touched_rows_is_that_of_all(folder: Path, tmp_path: Path) -> None:
    touched = touched_since(load_checkpoint(folder / "old.pt").info, load_checkpoint(folder / "new.pt").info)
    assert touched is not None
    user = touched["model.sparse_arch.embedding_bag_collection.user"]
    assert 0 < len(user) <= 360
    states = ["--delta", folder / "old.pt", folder / "new.pt"]
    assert run(export, *states, "--out", tmp_path / "touched.delta") == 0
    assert run(export, *states, "--check-all", "--out", tmp_path / "all.delta") == 0
    for name in ("touched", "all"):
        loaded = load_artifact(folder / "old.artifact")
        apply(prepare(loaded.rows, tmp_path / f"{name}.delta"))
        assert torch.equal(rows_of(loaded), rows_of(load_artifact(folder / "new.artifact")))
    # The same numbers, places and digests of sections; only the times may differ.
    first, second = (header_of(tmp_path / f"{name}.delta") for name in ("touched", "all"))
    assert first | {"created_s": 0} == second | {"created_s": 0}


def test_rows_of_another_start_are_of_no_use(folder: Path) -> None:
    info = load_checkpoint(folder / "new.pt").info
    assert touched_since(info, info) is None
    assert touched_since({}, info) is None
    assert touched_since(load_checkpoint(folder / "old.pt").info, {}) is None


def test_a_checkpoint_that_says_too_little_is_noticed(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old = load_checkpoint(folder / "old.pt").info
    new = load_checkpoint(folder / "new.pt").info
    sizes = {name: found["num_rows"] for name, found in new["touched"]["rows"].items()}
    none = touched_info(old["weights"], {name: torch.empty(0, dtype=torch.int64) for name in sizes}, sizes)
    lying = changed(folder / "new.pt", tmp_path / "new.pt", touched=none)
    states = ["--delta", folder / "old.pt", lying, "--artifact", folder / "old.artifact"]
    assert run(export, *states, "--out", tmp_path / "d") == 1
    assert (
        "it differs, but the new checkpoint says that its training has not touched it"
        in capsys.readouterr().err
    )
    assert run(export, *states, "--out", tmp_path / "d", "--check-all") == 0


def test_another_artifact_is_noticed(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    states = ["--delta", folder / "old.pt", folder / "new.pt", "--artifact", folder / "new.artifact"]
    assert run(export, *states, "--out", tmp_path / "d") == 1
    assert "the artifact holds other numbers than the old checkpoint" in capsys.readouterr().err


def test_digests_are_of_all_weights() -> None:
    state = {"a": torch.arange(6.0), "b": torch.zeros(0)}
    digests = {
        weights_digest(state),
        weights_digest({**state, "a": torch.arange(6.0).view(2, 3)}),
        weights_digest({**state, "a": torch.arange(6.0).double()}),
        weights_digest({"a": state["a"]}),
        weights_digest({**state, "a": torch.tensor([0.0, 1, 2, 3, 4, -5])}),
    }
    assert len(digests) == 5
    assert weights_digest(dict(reversed(state.items()))) == weights_digest(state)


@pytest.mark.parametrize("num_rows", [1, 7, 8, 1000])
def test_rows_are_read_back(num_rows: int) -> None:
    generator = torch.Generator().manual_seed(num_rows)
    for share in (0.0, 0.1, 1.0):
        rows = (torch.rand(num_rows, generator=generator) < share).nonzero().flatten()
        info = json.loads(json.dumps(touched_info("a" * 32, {"t": rows}, {"t": num_rows})))
        found = touched_since({"weights": "a" * 32}, {"touched": info})
        assert found is not None
        assert torch.equal(found["t"], rows)


def bits(data: bytes) -> str:
    return base64.b64encode(zlib.compress(data)).decode()


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        (7, "expected a number of rows"),
        ({"num_rows": -1, "bits": ""}, "num_rows: got '-1'"),
        ({"num_rows": 1 << 50, "bits": ""}, "expected a number of rows"),
        ({"num_rows": 8, "bits": 3}, "it is damaged"),
        ({"num_rows": 8, "bits": "?"}, "it is damaged"),
        ({"num_rows": 8, "bits": base64.b64encode(b"??").decode()}, "it is damaged"),
        ({"num_rows": 8, "bits": bits(b"")}, "another size than that of 8 rows"),
        ({"num_rows": 8, "bits": bits(bytes(1 << 20))}, "another size than that of 8 rows"),
        ({"num_rows": 7, "bits": bits(b"\x01")}, "got row 7, expected rows below 7"),
    ],
)
def test_damage(rows: Any, text: str) -> None:
    with pytest.raises(CheckpointError, match=text):
        touched_since({"weights": "a" * 32}, {"touched": {"since": "a" * 32, "rows": {"t": rows}}})
    with pytest.raises(CheckpointError, match="expected the rows of each table"):
        touched_since({"weights": "a" * 32}, {"touched": rows})
