"""TorchScript behind one small interface: the serialization form of graphs.

It is deprecated since torch 2.11 and works in 2.13; only this file depends on it.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

import recsys.ops  # noqa: F401  (loads the operators that graphs name)
from recsys.errors import ArtifactError, ManifestError


@contextmanager
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r".*torch\.jit\.", category=DeprecationWarning)
        # A warning about torch's own containers (Linear, ModuleDict) in a traced module.
        warnings.filterwarnings(
            "ignore", message=r"The TorchScript type system doesn't", category=UserWarning
        )
        yield


def script(module: nn.Module) -> torch.jit.ScriptModule:
    """Compile a traced module.

    Raises:
        RuntimeError: With TorchScript's message.
    """
    with _quiet():
        scripted: torch.jit.ScriptModule = torch.jit.script(module)
    return scripted


def save(module: torch.jit.ScriptModule, path: Path, extra_files: dict[str, str] | None = None) -> None:
    """Write a scripted module, with extra text files in the same archive."""
    with _quiet():
        torch.jit.save(module, str(path), _extra_files=extra_files or {})


def load(path: Path) -> torch.jit.ScriptModule:
    """Read a scripted module into host memory.

    Raises:
        ArtifactError: An operator is missing here.
        ManifestError: The file is damaged.
    """
    try:
        with _quiet():
            loaded: torch.jit.ScriptModule = torch.jit.load(str(path), map_location="cpu")
    except (RuntimeError, ValueError, OSError) as error:
        if "Unknown builtin op" in str(error):
            raise ArtifactError(
                f"part {path.name!r}: this torch or fbgemm-gpu lacks an operator that the graph names"
            ) from None
        raise ManifestError(
            f"part {path.name!r}: not readable as TorchScript ({type(error).__name__})"
        ) from None
    return loaded


def freeze(module: torch.jit.ScriptModule) -> torch.jit.ScriptModule:
    """Return the module with its tensors as constants of the graph, by reference: they must be in place already.

    Calls become faster, especially for small batches, because no attributes are fetched.
    """
    module.eval()
    with _quiet():
        frozen: torch.jit.ScriptModule = torch.jit.freeze(module)
    return frozen


def operators(module: torch.jit.ScriptModule) -> Counter[str]:
    """Return how often the graph calls each operator, by ``namespace::name``; ``prim`` is TorchScript's own."""
    found: Counter[str] = Counter()

    def visit(block: Any) -> None:
        for node in block.nodes():
            found[node.kind()] += 1
            for inner in node.blocks():
                visit(inner)

    visit(module.inlined_graph)
    return found
