"""Compiled graphs of a loaded model: machine code that AOTInductor made, for one version of torch.

The code trusts its inputs: it checks neither their shapes nor their order in memory, nor what lengths say. All that it
trusts is checked before each call (``recsys.artifact.inputs``); only IDs are checked by the graph itself.

Shape letters: B batch, Q contexts, F features, N number of IDs.
"""

from __future__ import annotations

import os
import platform
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

import recsys.ops  # noqa: F401  (loads the operators that graphs name)
from recsys.artifact.inputs import checked_inputs
from recsys.artifact.targets import Target
from recsys.errors import ManifestError, TargetError
from recsys.kernels import operators
from recsys.signature import Signature

#: The instructions that a package may be compiled for, and what torch calls the processor's features for each.
ISAS = {
    "x86-64-v3": ("avx2", "bmi2", "f16c", "fma3"),
    "x86-64-v4": (
        "avx2",
        "bmi2",
        "f16c",
        "fma3",
        "avx512_f",
        "avx512_bw",
        "avx512_cd",
        "avx512_dq",
        "avx512_vl",
    ),
}


def lacking_features(isa: str) -> list[str]:
    """Return the features of the processor that an instruction set needs and this machine lacks."""
    if platform.machine() != "x86_64":
        return ["x86_64"]
    here: Mapping[str, Any] = torch.cpu.get_capabilities()
    return [name for name in ISAS[isa] if not here.get(name)]


def public_version(version: str) -> str:
    """Return a version without what names its build: ``2.13.0`` of ``2.13.0+cpu``."""
    return version.partition("+")[0]


def check_usable(target: Target) -> list[str]:
    """Return the packages of a target's forms, which this machine and this torch can run.

    Raises:
        TargetError: They cannot, or there are none; the message says what to do.
    """
    packages = []
    for graph in target.graphs:
        compiled = graph.compiled
        if compiled is None:
            raise TargetError(
                f"target {target.name!r}: holds no compiled graph, expected one; export it with --format pt2 or both"
            )
        if compiled.isa not in ISAS:
            raise TargetError(
                f"target {target.name!r}: compiled for the instructions {compiled.isa[:40]!r}, expected one of "
                f"{list(ISAS)}; install a newer release"
            )
        lacking = lacking_features(compiled.isa)
        if lacking:
            raise TargetError(
                f"target {target.name!r}: compiled for {compiled.isa}, but this processor lacks {', '.join(lacking)}; "
                "export it with another --pt2-isa, or with --format torchscript"
            )
        here = public_version(str(torch.__version__))
        if public_version(compiled.torch) != here:
            raise TargetError(
                f"target {target.name!r}: compiled for torch {compiled.torch[:40]}, but this is torch {here}; export "
                "it with this torch, or with --format torchscript"
            )
        packages.append(compiled.package)
    return packages


class Package:
    """A package that stays open: deltas load it again, when another file may have taken its name.

    Args:
        file: The open file, whose digest was compared; it may be closed afterwards.
    """

    def __init__(self, file: BinaryIO) -> None:
        self.name = Path(file.name).name
        descriptor = os.dup(file.fileno())
        self.path = f"/proc/self/fd/{descriptor}"
        weakref.finalize(self, os.close, descriptor)


class CompiledForm:
    """A graph that can be called from any thread.

    Args:
        package: The package.
        model: What its calls need to know of the model.
        is_ranking: Whether it is the ranking form.

    Raises:
        ManifestError: The package cannot be loaded.
    """

    def __init__(self, package: Package, model: CompiledModel, *, is_ranking: bool) -> None:
        try:
            # Python's lock is held during calls, so one runner is enough.
            self._loader: Any = torch._C._aoti.AOTIModelPackageLoader(package.path, "model", False, 1, -1)
        except RuntimeError as error:
            raise ManifestError(
                f"part {package.name!r}: not readable as a compiled graph: {str(error).splitlines()[0][:200]}"
            ) from None
        self._run: Callable[[list[Tensor]], list[Tensor]] = self._loader.run
        self._model = model
        self._is_ranking = is_ranking
        self._weights: dict[str, Tensor] = {}

    def __call__(self, *inputs: Tensor) -> dict[str, Tensor]:
        """Predict.

        Raises:
            RuntimeError: The inputs do not fit the signature.
        """
        signature = self._model.signature
        outputs = self._run(
            [*checked_inputs(signature, inputs, is_ranking=self._is_ranking), self._model.rows]
        )
        return {output.name: tensor for output, tensor in zip(signature.outputs, outputs, strict=True)}

    def names(self) -> set[str]:
        """Return the paths of the tensors that are kept apart from the code."""
        return set(self._loader.get_constant_fqns())

    def set_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Read other dense weights from now on, while no call runs: tensors of ``names``, of their types and shapes."""
        # Not copied, so they are kept.
        self._weights |= weights
        if weights:
            self._loader.load_constants(dict(weights), False, False, True)


@dataclass(frozen=True, kw_only=True)
class CompiledModel:
    """What the calls of compiled graphs need to know of their model.

    Attributes:
        signature: Inputs and outputs.
        rows: The rows of all lookups, ``[size of the rows]`` uint8 in host memory.
    """

    signature: Signature
    rows: Tensor


class CompiledGraphs:
    """The compiled forms of a model, in the place of ``LoadedGraphs``.

    Args:
        packages: Those of the plain form, and of the ranking form if there is one.
        target: The target that they belong to.
        model: What calls need to know of the model.

    Attributes:
        calls: The forms. Replaced as a whole.
        own_operators: Always empty.

    Raises:
        ManifestError: A package cannot be loaded.
    """

    own_operators: tuple[operators.Exchanged, ...] = ()

    def __init__(self, packages: Sequence[Package], target: Target, model: CompiledModel) -> None:
        self._packages = tuple(packages)
        self._target = target
        self._model = model
        self._weights: Mapping[str, Tensor] = {}
        self.calls: tuple[CompiledForm, ...] = self._load()

    def _load(self) -> tuple[CompiledForm, ...]:
        return tuple(
            CompiledForm(package, self._model, is_ranking=i > 0) for i, package in enumerate(self._packages)
        )

    def tensors(self) -> list[dict[str, Tensor]]:
        """Return the dense weights of each form by path, without their numbers."""
        found = []
        for graph, form in zip(self._target.graphs, self.calls, strict=True):
            assert graph.compiled is not None
            names = form.names()
            found.append(
                {
                    path: torch.empty(weight.shape, dtype=getattr(torch, weight.dtype), device="meta")
                    for path, weight in graph.compiled.dense.items()
                    if path in names
                }
            )
        return found

    def exchanged(self, weights: Mapping[str, Tensor]) -> CompiledChange:
        """Return the forms with other weights, to be set by ``CompiledChange.write``. Nothing changes yet.

        Args:
            weights: By path; each a tensor of at least one form, with its shape and dtype, in host memory.
        """
        together = {**self._weights, **weights}
        forms = self._load()
        for form in forms:
            names = form.names()
            form.set_weights({path: tensor for path, tensor in together.items() if path in names})
        return CompiledChange(
            graphs=self, weights=together, forms=forms, replaced=self._weights, replaced_forms=self.calls
        )

    def set(self, weights: Mapping[str, Tensor], forms: tuple[CompiledForm, ...]) -> None:
        """Set other forms, which have these weights in the place of the package's."""
        self._weights = weights
        self.calls = forms


@dataclass(frozen=True, kw_only=True)
class CompiledChange:
    """Other weights of a model's compiled graphs, in the place of ``GraphChange``.

    Attributes:
        graphs: The graphs.
        weights: The new weights by path, where they are not the packages'.
        forms: The forms with them.
        replaced: The old weights.
        replaced_forms: The old forms.
    """

    graphs: CompiledGraphs
    weights: Mapping[str, Tensor]
    forms: tuple[CompiledForm, ...]
    replaced: Mapping[str, Tensor]
    replaced_forms: tuple[CompiledForm, ...]

    def warm(self, signature: Signature) -> None:
        """Do nothing: compiled graphs are as fast in the first call as in later ones."""

    def write(self) -> None:
        """Set the new forms."""
        self.graphs.set(self.weights, self.forms)

    def inverse(self) -> CompiledChange:
        """Return the change back."""
        return CompiledChange(
            graphs=self.graphs,
            weights=self.replaced,
            forms=self.replaced_forms,
            replaced=self.weights,
            replaced_forms=self.forms,
        )
