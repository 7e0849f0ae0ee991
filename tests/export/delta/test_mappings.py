"""Deltas of mappings: raw IDs that come, move and go, against a fresh export of the new checkpoint."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from export.config import ExportConfig
from export.delta.compact import compact
from export.delta.delta import DeltaConfig, export_delta
from export.delta.report import DeltaReport
from export.pipeline import export_model
from recsys.artifact.delta.apply import apply, prepare
from recsys.artifact.exported import load_exported_artifact
from recsys.artifact.load import LoadedArtifact, load_artifact
from recsys.errors import ExportError
from recsys.managed import VocabularyModule
from recsys.managed.slots import owners_of
from tests.recsys.artifact.delta.deltas import header_of
from tests.support.models.managed import USERS, WARES, WORDS, Managed, batch, trained

#: Deltas of a random chain; 500 take some minutes.
NUM_DELTAS = 30


def delta_of(old: Managed, new: Managed, path: Path, artifact: Path, *after: Path) -> DeltaReport:
    return export_delta(old, new, path, DeltaConfig(artifact=artifact, after=after))


def assert_same(found: LoadedArtifact, fresh: LoadedArtifact) -> None:
    """They hold the same, and answer the same."""
    assert_holds_same(found, fresh)
    expected = fresh.forward(*batch())
    for name, output in found.forward(*batch()).items():
        assert torch.equal(output, expected[name]), name


def assert_holds_same(found: LoadedArtifact, fresh: LoadedArtifact) -> None:
    """They hold the same rows, and the same raw IDs own them."""
    assert torch.equal(found.rows.ranks[0].rows, fresh.rows.ranks[0].rows)
    for ours, theirs in zip(found.rows.mappings, fresh.rows.mappings, strict=True):
        for one, other in zip(ours.tables, theirs.tables, strict=True):
            assert all(map(torch.equal, owners_of(one.slots), owners_of(other.slots)))
            assert torch.equal(one.is_owned, other.is_owned)


def load_scripted(path: Path) -> LoadedArtifact:
    return load_artifact(path, scripted=True)


LOADS: dict[str, tuple[ExportConfig, Callable[[Path], LoadedArtifact]]] = {
    "program": (ExportConfig(), load_artifact),
    "TorchScript": (ExportConfig(), load_scripted),
    "two devices": (ExportConfig(targets=(("cpu", "cpu"),)), load_artifact),
    "two devices, TorchScript": (ExportConfig(targets=(("cpu", "cpu"),)), load_scripted),
    "single file": (ExportConfig(single_file=True), load_artifact),
    "single file, TorchScript": (ExportConfig(single_file=True), load_scripted),
    "ExportedProgram": (ExportConfig(graph_format="pt2"), load_exported_artifact),
    "ranking": (ExportConfig(context=("user", "friend")), load_artifact),
}


@pytest.mark.parametrize(("config", "load"), LOADS.values(), ids=LOADS)
def test_a_delta_gives_what_a_fresh_export_gives(
    tmp_path: Path, config: ExportConfig, load: Callable[[Path], LoadedArtifact]
) -> None:
    old = trained(Managed(), 1)
    new = trained(old, 2)
    export_model(old, tmp_path / "old", config)
    export_model(new, tmp_path / "new", config)
    report = delta_of(old, new, tmp_path / "d", tmp_path / "old")
    assert {one.name for one in report.mappings} == {USERS, WARES, WORDS}
    found, before = load(tmp_path / "old"), load(tmp_path / "old")
    undo = apply(prepare(found.rows, tmp_path / "d"))
    assert_same(found, load(tmp_path / "new"))
    apply(undo)
    assert_same(found, before)


def test_a_chain_of_random_deltas(tmp_path: Path) -> None:
    model = trained(Managed(), 0)
    export_model(model, tmp_path / "a")
    loads = [load_artifact, load_scripted]
    served = [load(tmp_path / "a") for load in loads]
    deltas: list[Path] = []
    for seed in range(1, NUM_DELTAS + 1):
        new = trained(model, seed)
        path = tmp_path / f"{seed}.delta"
        delta_of(model, new, path, tmp_path / "a", *deltas)
        deltas.append(path)
        for artifact in served:
            apply(prepare(artifact.rows, path))
        model = new
    export_model(model, tmp_path / "new")
    for artifact, load in zip(served, loads, strict=True):
        assert_same(artifact, load(tmp_path / "new"))


def test_a_compacted_chain_fits_each_state_of_it(tmp_path: Path) -> None:
    models = [trained(Managed(), 0)]
    export_model(models[0], tmp_path / "a")
    deltas: list[Path] = []
    for seed in range(1, 5):
        models.append(trained(models[-1], seed))
        path = tmp_path / f"{seed}.delta"
        delta_of(models[-2], models[-1], path, tmp_path / "a", *deltas)
        deltas.append(path)
    compact(deltas, tmp_path / "all.delta")
    export_model(models[-1], tmp_path / "new")
    fresh = load_artifact(tmp_path / "new")
    for num_before in range(len(deltas)):
        artifact = load_artifact(tmp_path / "a")
        for path in deltas[:num_before]:
            apply(prepare(artifact.rows, path))
        apply(prepare(artifact.rows, tmp_path / "all.delta"))
        assert_same(artifact, fresh)


def test_new_moved_and_evicted_ids(tmp_path: Path) -> None:
    old = Managed().eval()
    words = old.bags.managed_collision_collection.managed_collision_modules()["words"]
    assert isinstance(words, VocabularyModule)
    words.set_ids(torch.tensor([10, 20, 30]))
    new = copy.deepcopy(old)
    words = new.bags.managed_collision_collection.managed_collision_modules()["words"]
    assert isinstance(words, VocabularyModule)
    words.set_ids(torch.tensor([30, 40, 20, 50]))
    export_model(old, tmp_path / "a")
    report = delta_of(old, new, tmp_path / "d", tmp_path / "a")
    assert report.tables == ()
    assert header_of(tmp_path / "d")["format_version"] == 3
    (mapping,) = report.mappings
    assert mapping.name == WORDS
    assert mapping.num_evicted == 1
    artifact = load_artifact(tmp_path / "a")
    apply(prepare(artifact.rows, tmp_path / "d"))
    export_model(new, tmp_path / "new")
    assert_same(artifact, load_artifact(tmp_path / "new"))


class TestRefusals:
    def test_another_old_mapping(self, tmp_path: Path) -> None:
        old = trained(Managed(), 1)
        export_model(old, tmp_path / "a")
        other = trained(old, 2)
        for table, bags in other.bags.embedding_module.embedding_bags.items():
            bags.weight.data.copy_(old.bags.embedding_module.embedding_bags[table].weight)
        with pytest.raises(
            ExportError, match="the artifact maps other raw IDs to its rows than the old checkpoint"
        ):
            delta_of(other, trained(other, 3), tmp_path / "d", tmp_path / "a")

    def test_counts_of_a_mapping_are_nothing_that_is_served(self, tmp_path: Path) -> None:
        old = trained(Managed(), 1)
        export_model(old, tmp_path / "a")
        new = copy.deepcopy(old)
        users = new.bags.managed_collision_collection.managed_collision_modules()["users"]
        users.train()(owners_of(load_artifact(tmp_path / "a").rows.mappings[0].tables[0].slots)[0])
        report = delta_of(old, new.eval(), tmp_path / "d", tmp_path / "a")
        assert (report.tables, report.mappings) == ((), ())
        assert header_of(tmp_path / "d")["format_version"] == 1
