"""The native runtime library maps raw IDs as the Python one does, after each delta too, and refuses the same."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from export.config import ExportConfig
from export.delta.compact import compact
from export.delta.delta import DeltaConfig, export_delta
from export.pipeline import export_model
from recsys.artifact.delta.apply import apply, prepare
from recsys.artifact.load import LoadedArtifact, load_artifact
from tests.native.models.test_model import assert_same
from tests.native.tool import NativeModel, assert_same_error, needs_tool
from tests.recsys.artifact.delta.test_mapping_damage import ARTIFACT_DAMAGES, DAMAGES, managed, write_mapping
from tests.serve.engine.reference.test_ranking_check import split
from tests.support.models.managed import POOL, Managed, trained
from tests.support.serve.messages.cases import random_sample

pytestmark = needs_tool
__all__ = ["managed"]  # fixtures

NUM_DELTAS = 6
CONFIGS = {
    "plain": ExportConfig(),
    "context": ExportConfig(context=("user", "friend")),
    "two devices": ExportConfig(targets=(("cpu", "cpu"),)),
    "single file": ExportConfig(single_file=True),
}


@pytest.mark.parametrize("scripted", [False, True], ids=["program", "TorchScript"])
@pytest.mark.parametrize("name", CONFIGS)
def test_a_chain_of_deltas(native: NativeModel, tmp_path: Path, name: str, scripted: bool) -> None:
    config = CONFIGS[name]
    model = trained(Managed(), 0)
    export_model(model, tmp_path / "a", config)
    python = load_artifact(tmp_path / "a", scripted=scripted)
    native.open(tmp_path / "a", scripted=scripted, context_cache_bytes=1 << 20)
    deltas: list[Path] = []
    for seed in range(NUM_DELTAS):
        new, path = trained(model, seed + 1), tmp_path / f"{seed}.delta"
        export_delta(model, new, path, DeltaConfig(artifact=tmp_path / "a", after=tuple(deltas)))
        deltas.append(path)
        apply(prepare(python.rows, path))
        native.call("prepare", path=str(path))
        assert native.call("apply")["rows_state"] == python.rows.state
        assert_maps_alike(native, python, seed)
        model = new
    export_model(model, tmp_path / "new", config)
    assert_maps_alike(native, load_artifact(tmp_path / "new", scripted=scripted), 99)


def assert_maps_alike(native: NativeModel, python: LoadedArtifact, seed: int) -> None:
    """Rows of known and unknown IDs, some with a context that they share."""
    rng = np.random.default_rng(seed)
    for num_rows in (1, 7, 40):
        sample = random_sample(python.signature, num_rows, rng)
        one = random_sample(python.signature, 1, rng)
        for feature in ("user", "friend", "ware", "word"):
            for of in (sample, one):
                sizes = map(len, of.sparse[feature])
                of.sparse[feature] = [[POOL[i] for i in rng.integers(len(POOL), size=size)] for size in sizes]
        assert_same(native, python, [sample.request()])
        if python.signature.context:
            assert_same(native, python, [split(sample, one, set(python.signature.context))[0]])


def test_a_compacted_chain(native: NativeModel, tmp_path: Path) -> None:
    models = [trained(Managed(), 0)]
    export_model(models[0], tmp_path / "a")
    deltas: list[Path] = []
    for seed in range(1, 4):
        models.append(trained(models[-1], seed))
        path = tmp_path / f"{seed}.delta"
        export_delta(models[-2], models[-1], path, DeltaConfig(artifact=tmp_path / "a", after=tuple(deltas)))
        deltas.append(path)
    compact(deltas, tmp_path / "all.delta")
    export_model(models[-1], tmp_path / "new")
    fresh = load_artifact(tmp_path / "new")
    for num_before in range(len(deltas)):
        native.open(tmp_path / "a")
        for path in [*deltas[:num_before], tmp_path / "all.delta"]:
            native.call("prepare", path=str(path))
            native.call("apply")
        assert_maps_alike(native, fresh, num_before)


@pytest.mark.parametrize("damage", DAMAGES)
def test_each_damage_of_a_delta_is_the_same_error(
    native: NativeModel, managed: Path, tmp_path: Path, damage: str
) -> None:
    native.open(managed)
    model = load_artifact(managed)
    write_mapping(tmp_path / "d", model.digest)
    native.call("prepare", path=str(tmp_path / "d"))
    DAMAGES[damage][0](tmp_path / "d")
    assert_same_error(
        lambda: native.call("prepare", path=str(tmp_path / "d")), lambda: prepare(model.rows, tmp_path / "d")
    )


@pytest.mark.parametrize("damage", ARTIFACT_DAMAGES)
def test_each_damage_of_an_artifact_is_the_same_error(
    native: NativeModel, managed: Path, tmp_path: Path, damage: str
) -> None:
    shutil.copytree(managed, tmp_path / "a")
    ARTIFACT_DAMAGES[damage][0](tmp_path / "a")
    assert_same_error(lambda: native.open(tmp_path / "a"), lambda: load_artifact(tmp_path / "a"))
