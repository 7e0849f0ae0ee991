"""From an artifact on disk to a model that can be served."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from recsys.artifact import LoadedArtifact, load_artifact
from recsys.loaded_rows import artifact_digest
from recsys.manifest import FORMAT_VERSION, Manifest
from serve.model import ModelInfo


def load_model(
    path: Path, target: str | None, *, verify_checksums: bool, copy_rows: bool = False
) -> tuple[LoadedArtifact, ModelInfo]:
    """Load an artifact.

    Args:
        path: the artifact.
        target: which of its targets; None for the first that this machine has the devices for.
        verify_checksums: whether every byte is read and checked first.
        copy_rows: whether the rows are copied, not mapped.

    Raises:
        ArtifactError: the artifact is damaged, foreign, newer, or has no such target.
    """
    artifact = load_artifact(path, target=target, verify_checksums=verify_checksums, copy_rows=copy_rows)
    return artifact, model_info(artifact.manifest)


def model_info(manifest: Manifest) -> ModelInfo:
    """How the artifact presents itself; its version is a digest of its manifest, which holds every part's."""
    table_bytes: Counter[str] = Counter()
    for block in manifest.layout.blocks:
        table_bytes[block.table] += block.num_bytes
    versions = manifest.versions
    return ModelInfo(
        name=manifest.name,
        version=artifact_digest(manifest),
        digest=artifact_digest(manifest),
        table_bytes=table_bytes,
        format_version=str(FORMAT_VERSION),
        torch_version=versions.get("torch", ""),
        fbgemm_version=versions.get("fbgemm-gpu-cpu") or versions.get("fbgemm-gpu", ""),
    )
