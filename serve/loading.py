"""From an artifact on disk to a model that can be served."""

from __future__ import annotations

from pathlib import Path

from recsys.artifact import load_artifact
from serve.model import ModelInfo, ServedModel


def load_model(path: Path, target: str | None, *, verify_checksums: bool) -> tuple[ServedModel, ModelInfo]:
    """Load an artifact.

    Args:
        path: the artifact.
        target: which of its targets; None for the first that this machine has the devices for.
        verify_checksums: whether every byte is read and checked first.

    Raises:
        ArtifactError: the artifact is damaged, foreign, newer, or has no such target.
    """
    artifact = load_artifact(path, target=target, verify_checksums=verify_checksums)
    info = ModelInfo(name=artifact.manifest.name, version=artifact.manifest.version)
    return artifact, info
