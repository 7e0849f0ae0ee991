"""Checkpoints that hold objects of other classes beside the weights, such as a trainer's settings.

torch refuses such a file with ``weights_only=True``. Here every class and function that it names is replaced by one
that keeps nothing and does nothing, so that no code of the file runs, and the weights are read all the same.
"""

from __future__ import annotations

import zipfile
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch

# Of those, the most that are told.
_MOST_TOLD = 3


class Inert:
    """Stands for an object of a class that is not read."""

    def __new__(cls, *_: Any, **__: Any) -> Inert:
        """Take anything."""
        return object.__new__(cls)

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __setstate__(self, _: Any) -> None:
        pass


def other_classes(path: Path) -> list[str]:
    """Return the classes and functions in a file of ``torch.save`` that torch does not read; none of other files."""
    if not zipfile.is_zipfile(path):
        return []
    found: list[str] = torch.serialization.get_unsafe_globals_in_checkpoint(path)
    return found


def left_out(names: list[str]) -> AbstractContextManager[Any]:
    """Return a context in which torch reads nothing of objects of these classes."""
    inert = [(type("Inert", (Inert,), {"__module__": name.rpartition(".")[0]}), name) for name in names]
    return torch.serialization.safe_globals(inert)  # type: ignore[arg-type]


def told(names: list[str]) -> str:
    """Return in words what is left out."""
    more = f" and {len(names) - _MOST_TOLD} more" if len(names) > _MOST_TOLD else ""
    return f"no objects of {', '.join(names[:_MOST_TOLD])}{more}"
