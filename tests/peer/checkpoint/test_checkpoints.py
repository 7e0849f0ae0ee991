"""Checkpoints that TorchRec 1.8.0 itself wrote, on two ranks: we read every number as it is."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from torch import Tensor

from export.cli import main
from export.source.load import Source, load_model
from recsys.artifact.load import load_artifact
from recsys.configs import DataType
from recsys.errors import CheckpointError
from tests.peer import torchrec_peer
from tests.peer.checkpoint import checkpoint_ranks
from tests.peer.checkpoint.checkpoint_ranks import TABLES, make, write
from tests.support.models.export_models import arguments, assert_close, batch_of, predicted, rounded
from tests.support.ranks import run_ranks

pytestmark = pytest.mark.peer
assert torchrec_peer.torchrec
FACTORY = f"{checkpoint_ranks.__name__}:make"
RANK_FILES = ("rank0.pt", "rank1.pt")


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Tensor]]:
    """A folder of checkpoints, and the weights in them as TorchRec gathers them."""
    folder = tmp_path_factory.mktemp("torchrec")
    return folder, run_ranks(2, write, folder)[0]


def _load(folder: Path, *names: str) -> dict[str, Tensor]:
    first, *others = (folder / name for name in names)
    return load_model(Source(path=first, others=tuple(others), factory=FACTORY)).state_dict()


def _assert_same(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert set(found) == set(expected)
    for name, want in expected.items():
        assert found[name].dtype == want.dtype, name
        assert torch.equal(found[name], want), name


def test_the_run_was_what_the_tests_need(written: tuple[Path, dict[str, Tensor]]) -> None:
    folder, weights = written
    assert weights["ebc.embedding_bags.half_cw.weight"].dtype == torch.float16
    assert all(bool(w.isfinite().all()) for w in weights.values())
    assert (
        b"optimizer.state.ebc.embedding_bags.cw.weight.cw.momentum1"
        in (folder / "nested" / ".metadata").read_bytes()
    )
    with pytest.raises(Exception, match=r"Weights only load failed"):
        torch.load(folder / "rank0.pt", weights_only=True)


@pytest.mark.parametrize(
    "names",
    [
        ("flat",),
        ("nested",),
        ("prefixed",),
        RANK_FILES,
        tuple(reversed(RANK_FILES)),
        ("nested0.pth", "nested1.pth"),
    ],
    ids=[
        "DCP",
        "DCP with optimizer state",
        "DCP with prefixes",
        "rank files",
        "in any order",
        "nested rank files",
    ],
)
def test_every_number_is_read_as_it_is(
    written: tuple[Path, dict[str, Tensor]], names: tuple[str, ...]
) -> None:
    folder, weights = written
    _assert_same(_load(folder, *names), weights)


def test_a_folder_of_rank_files(written: tuple[Path, dict[str, Tensor]], tmp_path: Path) -> None:
    folder, weights = written
    for name in RANK_FILES:
        shutil.copy(folder / name, tmp_path)
    _assert_same(load_model(Source(path=tmp_path, factory=FACTORY)).state_dict(), weights)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (
            ("rank0.pt",),
            r"'rank0.pt'.*cw.weight': no shard holds rows 0:22, columns 0:16 of its shape \[22, 32\]; .*missing",
        ),
        (("rank1.pt",), r"'rank1.pt'.*cw.weight': no shard holds rows 0:22, columns 16:32 of its shape"),
        ((*RANK_FILES, "rank1.pt"), r"shards overlap at rows .*given twice"),
        (("flat", "rank0.pt"), "got the directory 'flat' and 1 more"),
    ],
    ids=["no rank 1", "no rank 0", "rank 1 twice", "a directory and a file"],
)
def test_files_that_do_not_make_a_model(
    written: tuple[Path, dict[str, Tensor]], names: tuple[str, ...], message: str
) -> None:
    with pytest.raises(CheckpointError, match=message):
        _load(written[0], *names)


@pytest.mark.parametrize("names", [("nested",), RANK_FILES], ids=["DCP", "rank files"])
def test_the_command_makes_an_artifact(
    written: tuple[Path, dict[str, Tensor]], tmp_path: Path, names: tuple[str, ...]
) -> None:
    folder, weights = written
    paths = [str(folder / name) for name in names]
    assert main([*paths, "--factory", FACTORY, "--out", str(tmp_path / "a"), "--dtype", "fp16"]) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    artifact = load_artifact(tmp_path / "a")
    model = make()
    model.load_state_dict(weights)
    batch = batch_of(artifact.signature, 64)
    features = {f"f_{name}": f"f_{name}" for name, *_ in TABLES}
    call = arguments(artifact.signature, batch, {"features": features})
    assert_close(artifact.forward(*batch.inputs()), predicted(rounded(model, DataType.FP16), call))
