"""Single files with a program, against the same model in a directory."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

from export.config import ExportConfig
from export.pipeline import export_model
from recsys.artifact.delta.apply import apply, prepare
from recsys.artifact.load import load_artifact
from recsys.artifact.parts import read_manifest
from recsys.artifact.programs import ProgramGraphs
from recsys.errors import ArtifactError, ChecksumError, MissingPartError
from tests.export.lower.test_regions import REGIONS
from tests.native.models.test_model import batches, python_answer
from tests.native.program_models import MODELS
from tests.native.programs.test_programs import PART, write_delta
from tests.native.tool import NativeModel, assert_same_error, needs_tool
from tests.recsys.artifact.damage import same
from tests.support.kernels import needs_kernels
from tests.support.models.export_models import batch_of

pytestmark = needs_kernels


def model_of(name: str) -> nn.Module:
    torch.manual_seed(0)
    return (MODELS["dlrm"]() if name == "dlrm" else REGIONS[name][0]()).eval()


@pytest.fixture(scope="module", params=["dlrm", "an operator without a step"])
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A directory, and a single file of the same model. Not to be written to."""
    folder = tmp_path_factory.mktemp("single")
    options = {"dense_widths": {"dense_features": 5}} if request.param == "dlrm" else {}
    for name, single_file in (("a", False), ("a.pt", True)):
        export_model(
            model_of(request.param), folder / name, ExportConfig(name="x", single_file=single_file, **options)
        )
    return folder / "a", folder / "a.pt"


def test_the_program_of_a_single_file_runs(pair: tuple[Path, Path]) -> None:
    folder, file = map(load_artifact, pair)
    assert isinstance(file.graphs, ProgramGraphs)
    assert [part.path for part in file.manifest.skeletons] == [PART]
    for num_rows in (1, 50):
        inputs = batch_of(file.signature, num_rows, seed=num_rows).inputs()
        assert same(file.forward(*inputs), folder.forward(*inputs))
    plain = load_artifact(pair[1], scripted=True)
    torch.testing.assert_close(file.forward(*inputs), plain.forward(*inputs), rtol=1e-5, atol=2e-6)


def test_torch_opens_it_as_before(pair: tuple[Path, Path]) -> None:
    inputs = batch_of(read_manifest(pair[1]).signature, 9, seed=0).inputs()
    found = torch.jit.load(str(pair[1]))(*inputs)
    assert same(found, load_artifact(pair[1], scripted=True).forward(*inputs))


def test_deltas_change_it(pair: tuple[Path, Path], tmp_path: Path) -> None:
    file = load_artifact(pair[1])
    inputs = batch_of(file.signature, 9, seed=0).inputs()
    before = file.forward(*inputs)
    weights = {
        name: torch.ones(tensor.shape)
        for name, tensor in file.graphs.tensors()[0].items()
        if tensor.is_floating_point()
    }
    write_delta(tmp_path / "delta", file, weights)
    undo = apply(prepare(file.rows, tmp_path / "delta"))
    assert not same(file.forward(*inputs), before)
    apply(undo)
    assert same(file.forward(*inputs), before)


def rewritten(file: Path, path: Path, change: dict[str, bytes | None]) -> Path:
    """Copy a single file with other extra files; those that are None are left out."""
    with zipfile.ZipFile(file) as old, zipfile.ZipFile(path, "w") as new:
        for info in old.infolist():
            name = info.filename.rsplit("/", 1)[-1]
            data = change.get(name, old.read(info))
            if data is not None:
                new.writestr(info, data)
    return path


@pytest.mark.parametrize(
    ("data", "error"), [(None, MissingPartError), (b"x", ChecksumError), (b"", ChecksumError)]
)
def test_a_program_that_is_missing_or_changed_is_told(
    pair: tuple[Path, Path], tmp_path: Path, data: bytes | None, error: type[ArtifactError]
) -> None:
    path = rewritten(pair[1], tmp_path / "a.pt", {PART: data})
    with pytest.raises(error, match=PART):
        load_artifact(path)


@pytest.fixture(scope="module")
def native() -> Iterator[NativeModel]:
    model = NativeModel()
    yield model
    assert model.close() == 0


@needs_tool
def test_the_native_library_runs_it_too(native: NativeModel, pair: tuple[Path, Path]) -> None:
    model = load_artifact(pair[1])
    native.open(pair[1])
    for requests in batches(model.signature, 1):
        found = native.predict(model.signature, requests)
        assert [values.tobytes() for values in found.values()] == python_answer(model, requests)


@needs_tool
@pytest.mark.parametrize("data", [None, b"x", b""])
def test_the_native_library_refuses_others_alike(
    native: NativeModel, pair: tuple[Path, Path], tmp_path: Path, data: bytes | None
) -> None:
    path = rewritten(pair[1], tmp_path / "a.pt", {PART: data})
    assert_same_error(lambda: native.open(path), lambda: load_artifact(path))
