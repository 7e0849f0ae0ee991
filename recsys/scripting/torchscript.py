"""TorchScript behind one small interface: the serialization form of graphs.

It is deprecated since torch 2.11 and works in 2.14; only this file depends on it.
"""

from __future__ import annotations

import io
import re
import threading
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import fx, nn

import recsys.ops  # noqa: F401  (loads the operators that graphs name)
from recsys.errors import ArtifactError, ManifestError

# What TorchScript puts into names of types to keep them apart.
_MANGLED = re.compile(r"\.?___torch_mangle_\d+")
# Where the code of a node lies, which torch prints within loops and branches even if it is not asked to.
_SOURCE = re.compile(r" # \S.*:\d+:\d+$", re.MULTILINE)


class _Silence:
    """Keeps TorchScript's warnings from users, in whatever threads compile or load at the same time.

    ``warnings.catch_warnings`` replaces the filters of the process: the first thread to enter sets them, and the last
    one to leave restores them.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._num_inside = 0
        self._caught = warnings.catch_warnings()

    def enter(self) -> None:
        with self._lock:
            if self._num_inside == 0:
                self._caught = warnings.catch_warnings()
                self._caught.__enter__()
                # TorchScript as a whole: DeprecationWarnings up to torch 2.13, FutureWarnings since.
                warnings.filterwarnings("ignore", message=r"`torch\.jit\.\w+` is (deprecated|not supported)")
                # torch's own containers (Linear, ModuleDict) in a traced module.
                message = r"The TorchScript type system doesn't"
                warnings.filterwarnings("ignore", message=message, category=UserWarning)
            self._num_inside += 1

    def leave(self) -> None:
        with self._lock:
            self._num_inside -= 1
            if self._num_inside == 0:
                self._caught.__exit__(None, None, None)


_silence = _Silence()


@contextmanager
def quiet() -> Iterator[None]:
    """Keep TorchScript's warnings from users. Code of ours that calls ``torch.jit`` does it inside."""
    _silence.enter()
    try:
        yield
    finally:
        _silence.leave()


def script(module: nn.Module, methods: Mapping[str, nn.Module] | None = None) -> torch.jit.ScriptModule:
    """Compile a traced module.

    Args:
        module: The module; it gets the methods too.
        methods: By name, traced modules over the same attributes, whose ``forward`` becomes a further method.

    Raises:
        RuntimeError: With TorchScript's message.
    """
    # FX gives each traced module a class of its own.
    for name, method in (methods or {}).items():
        setattr(type(module), name, torch.jit.export(type(method).forward))
    if isinstance(module, fx.GraphModule):
        # torch would try to compile the class of the graph, which takes a quarter of the time, and fail.
        type(module).__jit_ignored_attributes__ = ["_graph"]  # type: ignore[attr-defined]
    with quiet():
        scripted: torch.jit.ScriptModule = torch.jit.script(module)
    return scripted


def save(module: torch.jit.ScriptModule, path: Path, extra_files: Mapping[str, bytes] | None = None) -> None:
    """Write a scripted module, which is copied in memory, with extra files in the same archive.

    Raises:
        OSError: The file cannot be written.
    """
    with path.open("wb") as file:
        file.write(data_of(module, extra_files))


def data_of(module: torch.jit.ScriptModule, extra_files: Mapping[str, bytes] | None = None) -> memoryview:
    """Return the bytes of a scripted module, with extra files in the same archive."""
    buffer = io.BytesIO()
    with quiet():
        torch.jit.save(module, buffer, _extra_files=dict(extra_files or {}))
    return buffer.getbuffer()


def save_uncopied(module: torch.jit.ScriptModule, path: Path, extra_files: dict[str, bytes]) -> None:
    """Write a scripted module, with extra files in the same archive.

    Where the file cannot be written, torch ends the process (SIGABRT): call this in a process of its own.
    """
    with quiet():
        torch.jit.save(module, str(path), _extra_files=extra_files)


def load(path: Path) -> torch.jit.ScriptModule:
    """Read a scripted module into host memory.

    Raises:
        ArtifactError: An operator is missing here.
        ManifestError: The file is damaged.
    """
    try:
        with quiet():
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


def freeze(module: torch.jit.ScriptModule, methods: Sequence[str] = ()) -> torch.jit.ScriptModule:
    """Return the module with its tensors as constants of the graph, by reference: they must be in place already.

    Calls become faster, especially for small batches, because no attributes are fetched.

    Args:
        module: The module.
        methods: Those to keep beside ``forward``.
    """
    module.eval()
    with quiet():
        frozen: torch.jit.ScriptModule = torch.jit.freeze(module, preserved_attrs=list(methods))
    return frozen


def graph_text(module: torch.jit.ScriptModule) -> str:
    """Return what a loaded module computes as text, without names that the process gave to types, or places of code."""
    graph = torch._C._jit_pass_canonicalize(module.inlined_graph)
    return _SOURCE.sub("", _MANGLED.sub("", graph.str(False)))


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
