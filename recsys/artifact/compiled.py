"""Compiled graphs of a loaded model: machine code that AOTInductor made, for one version of torch.

The code trusts its inputs: it checks neither their shapes nor their order in memory, nor what lengths say. All that it
trusts is checked before each call (``recsys.artifact.inputs``); only IDs are checked by the graph itself. Where a graph
has a program and the kernels are built, the program runs in its place.

Shape letters: B batch, Q contexts, F features, N number of IDs.
"""

from __future__ import annotations

import os
import platform
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

import recsys.ops  # noqa: F401  (loads the operators that graphs name)
from recsys.artifact.graphs import can_exchange
from recsys.artifact.inputs import checked_inputs
from recsys.artifact.samples import Batch
from recsys.artifact.targets import CompiledGraph, RankingGraph, Target, TensorInfo
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


Call = Callable[..., dict[str, Tensor]]


def lacking_features(isa: str) -> list[str]:
    """Return the features of the processor that an instruction set needs and this machine lacks."""
    if platform.machine() != "x86_64":
        return ["x86_64"]
    here: Mapping[str, Any] = torch.cpu.get_capabilities()
    return [name for name in ISAS[isa] if not here.get(name)]


def public_version(version: str) -> str:
    """Return a version without what names its build: ``2.13.0`` of ``2.13.0+cpu``."""
    return version.partition("+")[0]


def usable_part(target: Target, graph: Target | RankingGraph, *, own_operators: bool) -> tuple[str, bool]:
    """Return the part that runs a compiled graph here, and whether it holds plans of own operators.

    Plans run under any torch, on any processor.

    Raises:
        TargetError: Nothing does; the message says what to do.
    """
    compiled = graph.compiled
    if own_operators and compiled is not None:
        if graph.program_part is not None and can_exchange(target):
            return graph.program_part, True
        if graph.program_part is None and target.linear_dtype != "float32":
            raise TargetError(
                f"target {target.name!r}: needs linear layers in {target.linear_dtype}, but its compiled graph holds "
                "no own operators; export it with --format torchscript"
            )
    return _usable_package(target, compiled), False


def _usable_package(target: Target, compiled: CompiledGraph | None) -> str:
    """Return the package of a graph, which this machine and this torch can run."""
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
    return compiled.package


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
        weights: Dense weights in the place of the package's, by path; others are ignored.
        is_ranking: Whether it is the ranking form.

    Raises:
        ManifestError: The package cannot be loaded.
    """

    def __init__(
        self, package: Package, model: CompiledModel, weights: Mapping[str, Tensor], *, is_ranking: bool
    ) -> None:
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
        self._names = set(self._loader.get_constant_fqns())
        # Not copied, so they are kept.
        self._weights = {path: tensor for path, tensor in weights.items() if path in self._names}
        if self._weights:
            self._loader.load_constants(dict(self._weights), False, False, True)

    def call(self, *inputs: Tensor) -> dict[str, Tensor]:
        """Predict.

        Raises:
            RuntimeError: The inputs do not fit the signature.
        """
        signature = self._model.signature
        outputs = self._run(
            [*checked_inputs(signature, inputs, is_ranking=self._is_ranking), self._model.rows]
        )
        return {output.name: tensor for output, tensor in zip(signature.outputs, outputs, strict=True)}

    def changeable(self, dense: Mapping[str, TensorInfo]) -> set[str]:
        """Return which dense weights are kept apart from the code."""
        return self._names & set(dense)


class ProgramPart:
    """A part that holds a program.

    Args:
        name: The part's name.
        data: Its bytes, whose digest was compared.

    Raises:
        ManifestError: The part cannot be used.
    """

    def __init__(self, name: str, data: bytes) -> None:
        self._name = name
        with self._named():
            self._plan = operators.stored_program(data)
        #: The dense weights of the model that deltas may change; empty in parts of earlier releases.
        self.dense: dict[str, TensorInfo] = {
            path: TensorInfo(dtype=dtype, shape=tuple(shape))
            for path, (dtype, shape) in self._plan.dense().items()
        }

    def steps(self) -> operators.Exchanged:
        """Return how many steps there are.

        Raises:
            ManifestError: The part cannot be used.
        """
        with self._named():
            num_linear, num_dot, num_lookup, num_steps = self._plan.counts()
        return operators.Exchanged(
            num_linear=num_linear, num_dot=num_dot, num_lookup=num_lookup, num_planned=num_steps, left=()
        )

    def bind(self, rows: Tensor, weights: Mapping[str, Tensor], linear_dtype: str) -> Call:
        """Return a call of the graph.

        Args:
            rows: The rows of all lookups.
            weights: Dense weights in the place of the part's, by path; others are ignored.
            linear_dtype: In which linear layers multiply.

        Raises:
            ManifestError: The parts of it do not fit each other.
        """
        with self._named():
            call: Call = self._plan.bind(rows, dict(weights), linear_dtype)
        return call

    @contextmanager
    def _named(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            raise ManifestError(f"part {self._name!r}: not readable as own operators: {error}") from None


@dataclass(frozen=True, kw_only=True)
class PlannedForm:
    """A graph that own operators run as plans. It can be called from any thread.

    Attributes:
        call: Predicts, as ``CompiledForm.call`` does.
    """

    call: Call

    def changeable(self, dense: Mapping[str, TensorInfo]) -> set[str]:
        """Return which dense weights may change: whole numbers, such as positions, are a part of the plan itself."""
        return {path for path, weight in dense.items() if "float" in weight.dtype}


#: What runs a compiled graph.
Form = CompiledForm | PlannedForm


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
        parts: What runs the plain form, and the ranking form if there is one.
        target: The target that they belong to.
        model: What calls need to know of the model.

    Attributes:
        calls: How each form is called. Replaced as a whole.
        own_operators: Always empty.

    Raises:
        ManifestError: A part cannot be used.
    """

    own_operators: tuple[operators.Exchanged, ...] = ()

    def __init__(self, parts: Sequence[Package | ProgramPart], target: Target, model: CompiledModel) -> None:
        self._parts = tuple(parts)
        self._target = target
        self._model = model
        self.set({}, self._load({}))

    def _load(self, weights: Mapping[str, Tensor]) -> tuple[Form, ...]:
        return tuple(
            PlannedForm(call=part.bind(self._model.rows, weights, self._target.linear_dtype))
            if isinstance(part, ProgramPart)
            else CompiledForm(part, self._model, weights, is_ranking=i > 0)
            for i, part in enumerate(self._parts)
        )

    def tensors(self) -> list[dict[str, Tensor]]:
        """Return the dense weights of each form by path, without their numbers."""
        found = []
        for graph, form, part in zip(self._target.graphs, self._forms, self._parts, strict=True):
            dense: Mapping[str, TensorInfo] = graph.compiled.dense if graph.compiled is not None else {}
            if isinstance(part, ProgramPart) and part.dense:
                # Whole numbers among them are read by steps, as weights are.
                dense, names = part.dense, set(part.dense)
            else:
                names = form.changeable(dense)
            found.append(
                {
                    path: torch.empty(weight.shape, dtype=getattr(torch, weight.dtype), device="meta")
                    for path, weight in dense.items()
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
        return CompiledChange(
            graphs=self,
            weights=together,
            forms=self._load(together),
            replaced=self._weights,
            replaced_forms=self._forms,
        )

    def set(self, weights: Mapping[str, Tensor], forms: tuple[Form, ...]) -> None:
        """Set other forms, which have these weights in the place of the parts'."""
        self._weights = weights
        self._forms = forms
        self.calls = tuple(form.call for form in forms)


@dataclass(frozen=True, kw_only=True)
class CompiledChange:
    """Other weights of a model's compiled graphs, in the place of ``GraphChange``.

    Attributes:
        graphs: The graphs.
        weights: The new weights by path, where they are not the parts'.
        forms: The forms with them.
        replaced: The old weights.
        replaced_forms: The old forms.
    """

    graphs: CompiledGraphs
    weights: Mapping[str, Tensor]
    forms: tuple[Form, ...]
    replaced: Mapping[str, Tensor]
    replaced_forms: tuple[Form, ...]

    def warm(self, signature: Signature, verified: Batch | None) -> None:
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
