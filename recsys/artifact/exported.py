"""ExportedPrograms of an artifact: the model for torch.export, which needs neither TorchScript nor native kernels.

``torch.export.load`` unpickles what it finds, evaluates expressions and loads machine code. Nothing makes it safe, so
nothing here is called unless a user asks for it by name, for an artifact that the user trusts as much as a program.
A program trusts its inputs: what it trusts is checked before each call (``recsys.artifact.inputs``).

Shape letters: R bytes of the rows.
"""

from __future__ import annotations

import logging
import os
import warnings
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import torch
from torch import Tensor
from torch.export import ExportedProgram

import recsys.ops  # noqa: F401  (loads the operators that graphs name)
from recsys.artifact.graphs import outside_collections
from recsys.artifact.inputs import checked_inputs
from recsys.artifact.load import LoadedArtifact, OpenedArtifact, artifact_of_parts, open_artifact
from recsys.artifact.parts import check_rows, checked_part, open_rows, read_manifest
from recsys.artifact.programs import Call
from recsys.artifact.targets import DENSE_DTYPES, RankingGraph, Target, TensorInfo
from recsys.errors import ManifestError, TargetError
from recsys.inputs.signature import Signature
from recsys.rows.memory import RowsMemory

_DEFAULT_MEMORY = RowsMemory()


def load_exported_artifact(
    path: str | os.PathLike[str] | OpenedArtifact,
    *,
    target: str | None = None,
    verify_checksums: bool = True,
    memory: RowsMemory = _DEFAULT_MEMORY,
) -> LoadedArtifact:
    """Load a model's ExportedPrograms, of an artifact that you trust: loading runs code that the artifact may hold.

    Args:
        path: A directory that ``recsys-export --format pt2`` or ``both`` wrote; or one whose manifest was read.
        target: As for ``load_artifact``.
        verify_checksums: As for ``load_artifact``. The digests of the programs are compared first in any case.
        memory: As for ``load_artifact``.

    Raises:
        TargetError: The target has none.
        ArtifactError: The artifact cannot be used otherwise; the subclass says why.
    """
    opened = path if isinstance(path, OpenedArtifact) else open_artifact(path, read_manifest(path), target)
    where, manifest, chosen = opened.path, opened.manifest, opened.target
    names = [_exported_of(chosen, graph) for graph in chosen.graphs]
    blob, file = open_rows(where, manifest, memory)
    if verify_checksums:
        check_rows(manifest, blob)
    parts = []
    for form, name in enumerate(names):
        with checked_part(where, manifest, name) as file_of_program:
            program = load_exported(file_of_program)
        parts.append(ExportedPart(program, manifest.signature, chosen, is_ranking=form > 0))
    return artifact_of_parts(opened, parts, blob, file)


def _exported_of(target: Target, graph: Target | RankingGraph) -> str:
    if graph.exported is None:
        raise TargetError(
            f"target {target.name!r}: holds no ExportedProgram, expected one; run recsys-export --format both"
        )
    return graph.exported


class ExportedPart:
    """A part that holds an ExportedProgram.

    Args:
        program: The program.
        signature: Inputs and outputs of the model.
        target: The target that it belongs to.
        is_ranking: Whether it is the ranking form.
    """

    steps = None

    def __init__(
        self, program: ExportedProgram, signature: Signature, target: Target, *, is_ranking: bool
    ) -> None:
        self._module = program.module()
        self._signature = signature
        self._is_ranking = is_ranking
        self.dense: dict[str, TensorInfo] = {}
        # Layers that share a weight read it by several names; it is known by the first.
        self._names: dict[str, list[str]] = {}
        first: dict[tuple[object, ...], str] = {}
        tensors = {**dict(self._module.named_parameters()), **dict(self._module.named_buffers())}
        for name, tensor in outside_collections(tensors, target.plan).items():
            if tensor.dtype not in DENSE_DTYPES.values() or not tensor.numel():
                continue
            path = first.setdefault((tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride()), name)
            self._names.setdefault(path, []).append(name)
            self.dense[path] = TensorInfo(
                dtype=str(tensor.dtype).removeprefix("torch."), shape=tuple(tensor.shape)
            )

    def bind(
        self, rows: Tensor, weights: Mapping[str, Tensor], linear_dtype: str, contexts: object = None
    ) -> Call:
        """See ``FormPart``. Linear layers multiply in float32."""
        del linear_dtype, contexts
        module, signature, is_ranking = self._module, self._signature, self._is_ranking
        held = {name: tensor for path, tensor in weights.items() for name in self._names.get(path, [])}

        def call(*inputs: Tensor) -> dict[str, Tensor]:
            given = (*checked_inputs(signature, inputs, is_ranking=is_ranking), rows)
            outputs = torch.func.functional_call(module, held, given) if held else module(*given)
            return {output.name: tensor for output, tensor in zip(signature.outputs, outputs, strict=True)}

        return call


def load_exported(file: BinaryIO) -> ExportedProgram:
    """Return an ExportedProgram of a file that is trusted.

    Raises:
        ManifestError: It cannot be read.
    """
    try:
        with quiet():
            return torch.export.load(file)
    except (RuntimeError, ValueError, AssertionError, OSError, zipfile.BadZipFile) as error:
        raise ManifestError(
            f"part {Path(file.name).name!r}: not readable as an ExportedProgram ({type(error).__name__})"
        ) from None


@contextmanager
def quiet() -> Iterator[None]:
    """Keep torch's own deprecations and remarks from users."""
    remarks = logging.getLogger("torch._export.serde.serialize")
    level = remarks.level
    remarks.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", category=FutureWarning)
            warnings.filterwarnings("ignore", category=DeprecationWarning)
            yield
    finally:
        remarks.setLevel(level)
