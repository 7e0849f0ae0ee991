"""Layers that share a weight in the native library: deltas change it for all of them, in graphs and in programs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from recsys.artifact.delta.apply import apply, prepare
from recsys.artifact.load import load_artifact
from recsys.artifact.programs import ProgramGraphs
from recsys.errors import ManifestError
from tests.native.models.test_model import assert_same, batches, ranking_batches
from tests.native.tool import NativeError, NativeModel, needs_tool
from tests.recsys.artifact.damage import Json, lie
from tests.recsys.artifact.test_tied_weights import FIRST, SECOND, Tied, exported, write
from tests.support.kernels import needs_kernels

pytestmark = [
    needs_kernels,
    needs_tool,
]


@pytest.fixture(scope="module")
def native() -> Iterator[NativeModel]:
    model = NativeModel()
    yield model
    assert model.close() == 0


def without_programs(data: Json) -> None:
    for target in data["targets"]:
        for form in (target, target["ranking"]):
            form.pop("program")


@pytest.mark.parametrize("has_program", [True, False])
def test_a_delta_changes_all_layers_that_share_a_weight(
    native: NativeModel, tmp_path: Path, has_program: bool
) -> None:
    torch.manual_seed(0)
    artifact = exported(Tied(), tmp_path / "a", False)
    assert isinstance(artifact.graphs, ProgramGraphs)
    if not has_program:
        lie(tmp_path / "a", without_programs)
        artifact = load_artifact(tmp_path / "a")
        assert not isinstance(artifact.graphs, ProgramGraphs)
    native.open(tmp_path / "a")
    path = write(tmp_path / "d", artifact, FIRST, torch.rand(8, 8))
    apply(prepare(artifact.rows, path))
    native.call("prepare", path=str(path))
    native.call("apply")
    for requests in batches(artifact.signature, 1):
        assert_same(native, artifact, requests)
    for requests in ranking_batches(artifact.signature, {"f"}, 2):
        assert_same(native, artifact, requests)
    second = write(tmp_path / "e", artifact, SECOND, torch.rand(8, 8))
    with pytest.raises(NativeError, match="expected the path of a dense weight of the artifact") as caught:
        native.call("prepare", path=str(second))
    assert caught.value.kind is ManifestError
