"""From the artifact on disk to what clients and metrics are told of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from recsys.artifact.load import LoadedArtifact
from recsys.errors import ArtifactNotFoundError, ChecksumError, TargetError
from serve.bench import scrape
from serve.client import Client
from serve.config.models import ModelSettings
from serve.engine.interface import ModelInfo
from serve.engine.reference.engine import load_model
from serve.engine.reference.executor import ServedModel
from tests.support.serve.messages.cases import answer, assert_answers, random_sample
from tests.support.serve.models import SIGNATURE, export_small
from tests.support.serve.spawned import spawned


def loaded(path: Path, target: str | None, *, verify_checksums: bool) -> tuple[ServedModel, ModelInfo]:
    return load_model(path, ModelSettings(target=target, verify_checksums=verify_checksums))


def test_the_artifact_takes_and_gives_what_the_tests_expect(model: LoadedArtifact) -> None:
    assert model.signature == SIGNATURE


def test_an_artifact_presents_its_name_version_tables_and_origin(artifact_path: Path) -> None:
    artifact, info = loaded(artifact_path, None, verify_checksums=True)
    assert isinstance(artifact, LoadedArtifact)
    assert info.name == artifact.manifest.name == "small"
    assert set(info.table_bytes) == {"plain.users", "plain.genres", "plain.catalog", "weighted.tags"}
    assert sum(info.table_bytes.values()) <= artifact.manifest.layout.num_bytes
    # INT8: 8 columns, fp16 scale and bias.
    assert info.table_bytes["plain.users"] >= 50 * 12
    assert (info.torch_version, info.format_version) == (artifact.manifest.versions["torch"], "1")
    assert info.fbgemm_version


def test_the_digest_follows_the_content(model: LoadedArtifact, artifact_path: Path, tmp_path: Path) -> None:
    _, info = loaded(artifact_path, None, verify_checksums=False)
    _, again = loaded(artifact_path, "cpu,cpu", verify_checksums=False)
    assert info.digest == again.digest == model.digest
    export_small(tmp_path / "other", seed=1)
    _, other = loaded(tmp_path / "other", None, verify_checksums=False)
    assert other.digest != info.digest


def test_it_presents_how_the_rows_are_held(artifact_path: Path) -> None:
    artifact, info = load_model(
        artifact_path, ModelSettings(copy_rows=True, lock_rows=True, numa="interleave")
    )
    assert isinstance(artifact, LoadedArtifact)
    num_bytes = artifact.manifest.layout.num_bytes
    assert (info.rows_pages.resident_bytes, info.rows_pages.locked_bytes) == (num_bytes, num_bytes)


def test_what_cannot_be_loaded_is_the_artifacts_own_error(artifact_path: Path, tmp_path: Path) -> None:
    with pytest.raises(ArtifactNotFoundError):
        loaded(tmp_path / "missing", None, verify_checksums=True)
    with pytest.raises(TargetError):
        loaded(artifact_path, "cuda:63", verify_checksums=True)
    with pytest.raises(TargetError, match=r"cuda_graph_rows: got \[1, 8\] for target 'cpu'"):
        load_model(artifact_path, ModelSettings(cuda_graph_rows=(1, 8)))
    with pytest.raises(TargetError, match=r"^rows: got nodes, expected none: .* --engine native"):
        load_model(artifact_path, ModelSettings(rows="redis://127.0.0.1:6379"))
    export_small(tmp_path / "damaged")
    rows = tmp_path / "damaged" / "rows.bin"
    data = bytearray(rows.read_bytes())
    data[10] ^= 1
    rows.write_bytes(data)
    with pytest.raises(ChecksumError):
        loaded(tmp_path / "damaged", None, verify_checksums=True)
    loaded(tmp_path / "damaged", None, verify_checksums=False)


def test_recsys_serve_takes_the_target_that_was_asked_for(
    model: LoadedArtifact, server_command: list[str], tmp_path: Path
) -> None:
    command = [*server_command, "--target", "cpu,cpu", "--executors", "2", "--no-verify-checksums"]
    with spawned(command, tmp_path / "log") as server, Client(server.address, timeout_s=60) as client:
        assert server.ready["target"] == "cpu,cpu"
        assert client.metadata().target == "cpu,cpu"
        assert client.metadata().version == server.ready["version"] == "1"
        assert client.metadata().artifact.digest == server.ready["digest"] == model.digest
        for seed in range(8):
            sample = random_sample(SIGNATURE, seed, np.random.default_rng(seed))
            assert_answers(client.predict(sample.dense, sample.sparse, sample.weights), answer(model, sample))
        samples = scrape(server.metrics_address).items()
        (users,) = [
            v for name, v in samples if name.startswith("recsys_table_bytes") and 'table="users"' in name
        ]
        assert users >= 600
