"""Artifacts: loading, verification, updates."""

from recsys.artifact.load import LoadedArtifact, load_artifact

__all__ = ["LoadedArtifact", "load_artifact"]
