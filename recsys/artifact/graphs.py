"""The graphs of a loaded model: their tensors in place, and frozen for calls.

A frozen graph has folded what can be computed from its constants and merged equal ones, so weights are not
written into it. Deltas of dense weights freeze the unfrozen module again, and replace the whole graph.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from recsys.artifact.batches.answers import warm_up_inputs, warm_up_rows
from recsys.artifact.batches.samples import Batch, fewest_rows
from recsys.artifact.cuda.graphs import METHODS, BucketedForward, Capture, check_recordable
from recsys.artifact.manifest import Manifest
from recsys.artifact.parts import checked_part
from recsys.artifact.targets import RankingGraph, Target
from recsys.errors import ManifestError, TargetError
from recsys.inputs.signature import Signature
from recsys.scripting import torchscript
from recsys.sharding.plan.device_rows import DeviceRows
from recsys.sharding.plan.plan import ShardingPlan

# The attribute of a skeleton that holds the model's own modules.
_ROOT = "model"
# Buffers of a skeleton for rows: those of recsys.kernels.int_nbit.IntNBitLookup in a sharded collection.
_LOOKUP_ROWS = re.compile(r"(^|\.)lookups\.\d+\.rows$")


class LoadedGraphs:
    """The plain form of a model, and its ranking form if it has one.

    Args:
        modules: The scripted forms with their tensors in place, not frozen.
        target: The target that they belong to.
        mappings: The paths of tensors that deltas change in place, and do not replace.
        capture: How to record the plain form's batches as CUDA graphs; None for not at all.

    Attributes:
        forms: The frozen forms. Replaced as a whole.
        calls: How each is called.

    Raises:
        TargetError: The batches cannot be recorded.
    """

    def __init__(
        self,
        modules: Sequence[torch.jit.ScriptModule],
        target: Target,
        *,
        mappings: Collection[str] = (),
        capture: Capture | None = None,
    ) -> None:
        if capture is not None:
            check_recordable(modules[0], target, capture.options)
        self._modules = tuple(modules)
        self._target = target
        self._mappings = frozenset(mappings)
        self._capture = capture
        self._set_forms(self._freeze())

    @property
    def frozen(self) -> tuple[torch.jit.ScriptModule, ...]:
        """The modules of the frozen forms."""
        return self.forms.modules

    def tensors(self) -> list[dict[str, Tensor]]:
        """Return the dense weights of each form by path."""
        held = [dense_tensors(module, self._target.plan) for module in self._modules]
        return [{path: one for path, one in form.items() if path not in self._mappings} for form in held]

    def with_weights(self, weights: Mapping[str, Tensor]) -> GraphChange:
        """Return the frozen forms with other weights, to be set by ``GraphChange.write``. Nothing changes yet.

        Args:
            weights: By path; each a tensor of at least one form, with its shape and dtype, in host memory.
        """
        held = self.tensors()
        replaced = [{path: found[path] for path in weights if path in found} for found in held]
        placed = [{path: weights[path].to(old.device) for path, old in form.items()} for form in replaced]
        # Constants that are folded must not be inference tensors: those of a loaded artifact are none either.
        with torch.inference_mode(False):
            self._set(placed)
            try:
                forms = self._freeze()
            finally:
                self._set(replaced)
        return GraphChange(graphs=self, new=(placed, forms), old=(replaced, self.forms))

    def set(self, weights: Sequence[Mapping[str, Tensor]], forms: Forms) -> None:
        """Set other forms, frozen of the weights, which are given by form and path."""
        self._set(weights)
        self._set_forms(forms)

    def warm(self, forms: Forms, signature: Signature, verified: Batch | None) -> None:
        """Call other forms until the executor has optimized them, so that the first batch does not wait for it.

        Args:
            forms: The forms.
            signature: The model's signature.
            verified: See ``recsys.artifact.batches.answers``.

        Raises:
            RuntimeError: A form fails; torch's words.
        """
        rows = warm_up_rows(signature, verified, fewest_rows(signature))
        with torch.inference_mode():
            for form, module in enumerate(forms.modules):
                for _ in range(_NUM_WARM_UPS):
                    module.forward(*warm_up_inputs(signature, rows, is_ranking=form > 0))

    def _set_forms(self, forms: Forms) -> None:
        self.forms = forms
        self.calls = forms.calls

    def _set(self, weights: Sequence[Mapping[str, Tensor]]) -> None:
        for module, form in zip(self._modules, weights, strict=True):
            set_tensors(module, form)

    def _freeze(self) -> Forms:
        kept = [() if self._capture is None or form > 0 else METHODS for form in range(len(self._modules))]
        frozen = tuple(map(torchscript.freeze, self._modules, kept))
        # The method of a form bypasses torch.nn.Module's hooks, which cost as much as a small layer.
        calls: list[Callable[..., dict[str, Tensor]]] = [form.forward for form in frozen]
        if self._capture is not None:
            calls[0] = BucketedForward(frozen[0], self._capture)
        return Forms(modules=frozen, calls=tuple(calls))


@dataclass(frozen=True, kw_only=True)
class Forms:
    """Forms of a model, frozen of the same weights.

    Attributes:
        modules: The plain form, and the ranking form if there is one.
        calls: How each is called: as CUDA graphs, or by its ``forward``.
    """

    modules: tuple[torch.jit.ScriptModule, ...]
    calls: tuple[Callable[..., dict[str, Tensor]], ...]


class Graphs(Protocol):
    """Graphs of a model whose weights can be changed."""

    def warm(self, forms: Any, signature: Signature, verified: Batch | None) -> None:
        """Make the first calls of other forms."""

    def set(self, weights: Any, forms: Any) -> None:
        """Set other weights, and the forms with them."""


@dataclass(frozen=True, kw_only=True)
class GraphChange:
    """Other weights of a model's graphs.

    Attributes:
        graphs: The graphs.
        new: The new weights, and the forms with them, as ``Graphs.set`` takes them.
        old: The present ones.
    """

    graphs: Graphs
    new: tuple[Any, Any]
    old: tuple[Any, Any]

    def warm(self, signature: Signature, verified: Batch | None) -> None:
        """Make the first calls of the new forms; see ``Graphs.warm``."""
        self.graphs.warm(self.new[1], signature, verified)

    def write(self) -> None:
        """Set the new forms."""
        self.graphs.set(*self.new)

    def inverse(self) -> GraphChange:
        """Return the change back."""
        return replace(self, new=self.old, old=self.new)


# The executor profiles a graph in its first call, and optimizes it in the second.
_NUM_WARM_UPS = 2


def place_forms(
    modules: Sequence[torch.jit.ScriptModule],
    target: Target,
    ranks: Sequence[DeviceRows],
    slots: Mapping[str, Tensor],
) -> None:
    """Set the rows and the buckets of mappings, by path, of a target's forms, which share equal tensors."""
    for graph, module in zip(target.graphs, modules, strict=True):
        place(module, graph, ranks)
        # A form that reads none of the mappings has no such tensor.
        held = {name for name, _ in module.named_buffers(remove_duplicate=False)}
        set_tensors(module, {path: tensor for path, tensor in slots.items() if path in held})
    for other in modules[1:]:
        _share(modules[0], other)


def place(module: torch.jit.ScriptModule, graph: Target | RankingGraph, ranks: Sequence[DeviceRows]) -> None:
    """Set the rows of every lookup, and move tensors to their devices."""
    if {path for path, _ in module.named_buffers() if _LOOKUP_ROWS.search(path)} != set(graph.rows):
        raise _other_attributes()
    moved = {
        path: tensor_at(module, path).to(ranks[rank].device)
        for path, rank in graph.ranks.items()
        if path not in graph.rows
    }
    set_tensors(module, {**moved, **{path: ranks[rank].rows for path, rank in graph.rows.items()}})


def _share(module: torch.jit.ScriptModule, other: torch.jit.ScriptModule) -> None:
    """Share equal tensors of the first form with another one: dense weights, mappings of raw IDs."""
    held = _tensors(module)
    shared = {}
    for path, tensor in _tensors(other).items():
        same = held.get(path)
        # Rows are shared already.
        if (
            same is None
            or _LOOKUP_ROWS.search(path)
            or (same.dtype, same.device) != (tensor.dtype, tensor.device)
        ):
            continue
        if torch.equal(same, tensor):
            shared[path] = same
    set_tensors(other, shared)


def dense_tensors(module: torch.jit.ScriptModule, plan: ShardingPlan) -> dict[str, Tensor]:
    """Return the tensors of a scripted form that deltas may change, by path: all outside embedding collections.

    Those of collections say where rows lie and how IDs are routed; operators trust them.
    """
    return outside_collections(_tensors(module), plan)


def outside_collections(tensors: Mapping[str, Tensor], plan: ShardingPlan) -> dict[str, Tensor]:
    """Return the tensors that do not belong to a collection of the plan, by path in a graph."""
    apart = tuple(f"{_ROOT}.{path}." if path else f"{_ROOT}." for path in plan.plan)
    return {path: tensor for path, tensor in tensors.items() if not path.startswith(apart)}


def _tensors(module: torch.jit.ScriptModule) -> dict[str, Tensor]:
    """Return all tensors by path; those of several names, as layers that share a weight have, by the first."""
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def tensor_at(module: torch.jit.ScriptModule, path: str) -> Tensor:
    """Return the tensor at a dotted path.

    Raises:
        ManifestError: There is none.
    """
    try:
        found = attribute(module, path)
    except (AttributeError, RuntimeError):
        raise _other_attributes() from None
    if not isinstance(found, Tensor):
        raise _other_attributes()
    return found


def attribute(module: Any, path: str) -> Any:
    """Return the attribute at a dotted path."""
    for name in path.split("."):
        module = getattr(module, name)
    return module


def set_tensors(module: torch.jit.ScriptModule, tensors: Mapping[str, Tensor]) -> None:
    """Set tensors at dotted paths, each under all names that the module has for the one before it."""
    every = [
        *module.named_parameters(remove_duplicate=False),
        *module.named_buffers(remove_duplicate=False),
    ]
    names: dict[int, list[str]] = {}
    for name, tensor in every:
        names.setdefault(id(tensor), []).append(name)
    for path, value in tensors.items():
        for name in names.get(id(tensor_at(module, path)), [path]):
            set_attribute(module, name, value)


def set_attribute(module: Any, path: str, value: Tensor) -> None:
    """Set the attribute at a dotted path."""
    *parents, name = path.split(".")
    setattr(attribute(module, ".".join(parents)) if parents else module, name, value)


def _other_attributes() -> ManifestError:
    return ManifestError("manifest.targets: the skeleton has other attributes than the manifest says")


def load_skeletons(path: Path, manifest: Manifest, target: Target) -> list[torch.jit.ScriptModule]:
    """Return the forms of a target as they were written, without rows in place, whatever devices it needs.

    Raises:
        ArtifactError: They cannot be used; the subclass says why.
    """
    if not path.is_dir():
        return [torchscript.load(path)]
    modules = []
    for graph in target.graphs:
        with checked_part(path, manifest, _skeleton_of(graph)) as file:
            modules.append(torchscript.load(Path(file.name)))
    return modules


def _skeleton_of(graph: Target | RankingGraph) -> str:
    if graph.skeleton is None:
        raise TargetError(
            "manifest.targets: holds no TorchScript, expected it; run recsys-export --format both"
        )
    return graph.skeleton
