"""Programs of a loaded model, which run without TorchScript: steps for the native kernels, or ExportedPrograms.

Whether the native kernels run a target's program depends on the machine; its TorchScript runs otherwise.

Shape letters: R bytes of the rows.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any, Protocol

import torch
from torch import Tensor

from recsys.artifact.batches.samples import Batch
from recsys.artifact.graphs import GraphChange, LoadedGraphs
from recsys.artifact.targets import Target, TensorInfo
from recsys.errors import ManifestError, TargetError
from recsys.inputs.signature import Signature
from recsys.kernels import operators

Call = Callable[..., dict[str, Tensor]]


class FormPart(Protocol):
    """A part of an artifact that holds a form of the model without its rows."""

    @property
    def dense(self) -> Mapping[str, TensorInfo]:
        """The dense weights that deltas may change, by path."""

    @property
    def steps(self) -> operators.StepCounts | None:
        """How many steps the native kernels compute; None for an ExportedProgram."""

    def bind(
        self, rows: Tensor, weights: Mapping[str, Tensor], linear_dtype: str, contexts: Any = None
    ) -> Call:
        """Return a call of the form, which any thread may make.

        Args:
            rows: The rows of all lookups, ``[R]`` uint8 in host memory.
            weights: Dense weights that replace the part's, by path; others are ignored.
            linear_dtype: In which linear layers multiply.
            contexts: What ``operators.context_inputs`` has returned, for a ranking form with steps; None otherwise.

        Raises:
            ManifestError: The parts of it do not fit each other.
        """


class ProgramPart:
    """A part that holds a program for the native kernels.

    Args:
        name: The part's name.
        data: Its bytes, whose digest was compared.

    Raises:
        ManifestError: The part cannot be used.
    """

    def __init__(self, name: str, data: bytes) -> None:
        self._name = name
        with self._named():
            self._program = operators.stored_program(data)
        self.dense = {
            path: TensorInfo(dtype=dtype, shape=tuple(shape))
            for path, (dtype, shape) in self._program.dense().items()
        }

    @property
    def steps(self) -> operators.StepCounts:
        """How many steps there are."""
        with self._named():
            num_linear, num_dot, num_lookup, num_steps = self._program.counts()
        return operators.StepCounts(
            num_linear=num_linear, num_dot=num_dot, num_lookup=num_lookup, num_steps=num_steps
        )

    def bind(
        self, rows: Tensor, weights: Mapping[str, Tensor], linear_dtype: str, contexts: Any = None
    ) -> Call:
        """See ``FormPart``."""
        with self._named():
            call: Call = self._program.bind(rows, dict(weights), linear_dtype, contexts)
        return call

    @contextmanager
    def _named(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            raise ManifestError(f"part {self._name!r}: not readable as a program: {error}") from None


class ProgramGraphs:
    """The programs of a target, where others have ``LoadedGraphs``.

    Args:
        parts: That of the plain form, and that of the ranking form if there is one.
        rows: The rows of all lookups, ``[R]`` uint8 in host memory.
        linear_dtype: In which linear layers multiply.
        load_scripted: Loads the same graphs in TorchScript, over the same rows.
        signature: The model's signature.
        mappings: The buckets of mappings by path, which deltas change in place.

    Attributes:
        calls: How each form is called. Replaced as a whole.
        steps: How many steps each form has; empty for ExportedPrograms.
        contexts: The context cache, as ``operators.context_cache`` returns it; None if there is none.

    Raises:
        ManifestError: A part cannot be used.
    """

    def __init__(
        self,
        parts: Sequence[FormPart],
        rows: Tensor,
        linear_dtype: str,
        load_scripted: Callable[[], LoadedGraphs],
        signature: Signature,
        mappings: Mapping[str, Tensor] = MappingProxyType({}),
    ) -> None:
        self._mappings = mappings
        self._parts = tuple(parts)
        self._rows = rows
        self._linear_dtype = linear_dtype
        self._load_scripted = load_scripted
        self._scripted: LoadedGraphs | None = None
        self._signature = signature
        self.contexts: Any = None
        self.steps = tuple(part.steps for part in parts if part.steps is not None)
        self.set({}, self._bind({}, None))

    def _bind(self, weights: Mapping[str, Tensor], contexts: Any) -> tuple[Call, ...]:
        inputs = (
            operators.context_inputs(self._signature, contexts)
            if self.steps and len(self._parts) > 1
            else None
        )
        return tuple(
            part.bind(
                self._rows, {**self._mappings, **weights}, self._linear_dtype, inputs if form > 0 else None
            )
            for form, part in enumerate(self._parts)
        )

    def cache_contexts(self, max_bytes: int) -> str:
        """Keep what the ranking form, which must have steps, computes of contexts alone; nobody may call it meanwhile.

        Args:
            max_bytes: Memory for it.

        Returns:
            Why there is nothing to keep; empty if there is.
        """
        contexts = operators.context_cache(max_bytes)
        calls = self._bind(self._weights, contexts)
        why = operators.why_not_cached(calls[1])
        if not why:
            self.contexts, self.calls = contexts, calls
        return why

    def scripted(self) -> LoadedGraphs:
        """Return the same graphs in TorchScript, for profiles. They are loaded when they are first asked for.

        Raises:
            TargetError: The target has none.
        """
        if self._scripted is None:
            scripted = self._load_scripted()
            if self._weights:
                scripted.with_weights(self._weights).write()
            self._scripted = scripted
        return self._scripted

    def profile(self, form: int, inputs: Sequence[Tensor]) -> tuple[operators.StepTime, ...]:
        """Call a form that has steps on one thread, and return what these did.

        Raises:
            RuntimeError: The inputs do not fit the program.
        """
        return operators.profile(self.calls[form], inputs)

    def tensors(self) -> list[dict[str, Tensor]]:
        """Return the dense weights of each form by path, without their numbers."""
        return [
            {
                path: torch.empty(weight.shape, dtype=getattr(torch, weight.dtype), device="meta")
                for path, weight in part.dense.items()
                if path not in self._mappings
            }
            for part in self._parts
        ]

    def with_weights(self, weights: Mapping[str, Tensor]) -> GraphChange:
        """Return the forms with other weights, to be set by ``GraphChange.write``. Nothing changes yet.

        Args:
            weights: By path; each a tensor of at least one form, with its shape and dtype, in host memory.
        """
        together = {**self._weights, **weights}
        return GraphChange(
            graphs=self, new=(together, self._bind(together, self.contexts)), old=(self._weights, self.calls)
        )

    def warm(self, forms: object, signature: Signature, verified: Batch | None) -> None:
        """Do nothing: programs are as fast in the first call as in later ones."""

    def set(self, weights: Mapping[str, Tensor], calls: tuple[Call, ...]) -> None:
        """Set other forms, whose weights replace the parts'."""
        self._weights = weights
        self.calls = calls
        self._scripted = None


_LOGGER = logging.getLogger(__name__)


def has_running_programs(target: Target, *, scripted: bool = False, is_recorded: bool = False) -> bool:
    """Return whether the native kernels run a target's program here; its TorchScript runs otherwise.

    Args:
        target: The target.
        scripted: Whether TorchScript is asked for.
        is_recorded: Whether CUDA graphs are asked for.

    Raises:
        TargetError: Nothing of it runs here.
    """
    name, dtype, missing = repr(target.name), target.linear_dtype, ""
    if _takes_kernels(target) and not scripted and not is_recorded:
        missing = operators.why_missing()
        if not _has_programs(target) and target.skeleton is not None and dtype != "float32":
            raise TargetError(
                f"target {name}: needs linear layers in {dtype}, but holds no program, which alone multiplies in it: "
                f"run recsys-export --linear-dtype {dtype} again"
            )
        if _has_programs(target) and missing and dtype != "float32":
            raise TargetError(f"target {name}: needs linear layers in {dtype}, but {missing}")
        if _has_programs(target) and not missing:
            _check_instructions()
            return True
    if target.skeleton is not None:
        return False
    if not _has_programs(target):
        reason = "no program"
    elif scripted:
        reason = "TorchScript is asked for"
    else:
        reason = f"its program cannot run: {missing or 'CUDA graphs are asked for'}"
    raise TargetError(
        f"target {name}: holds no TorchScript, and {reason}; run recsys-export --format both (an ExportedProgram is "
        "run by load_exported_artifact in Python alone)"
    )


def _has_programs(target: Target) -> bool:
    return all(graph.program is not None for graph in target.graphs)


def _takes_kernels(target: Target) -> bool:
    """Return whether a target's program, if it has one, is for the native kernels."""
    return target.dense_dtype == "float32" and all(device == "cpu" for device in target.devices)


def _check_instructions() -> None:
    try:
        operators.instructions()
    except RuntimeError as error:
        raise TargetError(str(error)) from None


def log_gain(target: Target) -> None:
    """Say what a new export would gain, if it would."""
    if _takes_kernels(target) and not _has_programs(target) and not operators.why_missing():
        _LOGGER.info(
            "target %r: holds no program, so torch's operators run it: recsys-export makes a program, which the native "
            "kernels run faster, or its report says why there is none",
            target.name,
        )


def log_kernels(target: Target) -> None:
    """Say in which type linear layers multiply where it is not the target's, and why not by tiles that there are."""
    products, instructions = operators.multiplies_in(target.linear_dtype), operators.instructions()
    if products != target.linear_dtype:
        _LOGGER.info(
            "target %r: linear layers in %s multiply in %s here: %s has no faster instruction for their products",
            target.name,
            target.linear_dtype,
            products,
            instructions,
        )
    why = operators.why_no_tiles()
    if why:
        _LOGGER.info(
            "target %r: linear layers multiply by %s, not by amx: %s", target.name, instructions, why
        )
