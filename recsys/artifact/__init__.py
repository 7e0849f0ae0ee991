"""Artifacts: loading, verification, updates.

Names are imported on first access: whether a path holds an artifact is said without torch.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from recsys.artifact.load import LoadedArtifact, load_artifact

__all__ = ["LoadedArtifact", "load_artifact"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from recsys.artifact import load

    return getattr(load, name)
