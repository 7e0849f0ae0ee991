"""Dense weights of a model that is being trained, as the graphs of its artifact hold them.

Tracing a model takes seconds. Most tensors of graphs are copies of tensors of the state dict, perhaps in another type.
Which ones is found by value: traces of two snapshots are compared with their state dicts, and where several tensors
have the same values, none is preferred: the model is traced again as soon as they differ. Every few snapshots a trace
checks all of it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from export.delta.dense import Form, changes_of, stored_forms, traced_forms
from recsys.artifact.manifest import Manifest

_LOGGER = logging.getLogger(__name__)
# Traces before copies are trusted, and snapshots between two later traces.
_FIRST_TRACES = 2
_TRACE_EVERY = 50


class GraphWeights:
    """The dense weights of an artifact's graphs, made of state dicts.

    Args:
        artifact: The artifact.
        manifest: Its manifest.

    Raises:
        ArtifactError: The artifact's graphs cannot be read.
    """

    def __init__(self, artifact: Path, manifest: Manifest) -> None:
        self._manifest = manifest
        self._stored = stored_forms(artifact, manifest)
        self._paths = {path: weight for form in self._stored for path, weight in form.weights.items()}
        # By path, the names of the state dict's tensors that had its values in all traces.
        self._sources: dict[str, set[str]] | None = None
        self._num_snapshots = 0
        self.num_traces = 0

    def changes(
        self, model: nn.Module, state: Mapping[str, Tensor], applied: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        """Return the dense weights in which a fresh export would differ from the artifact with its deltas.

        Args:
            model: The part of the model that the artifact holds, with these weights.
            state: The whole model's state dict without tables.
            applied: The dense weights that deltas have changed.

        Raises:
            ExportError: The graphs differ in more than weights.
        """
        copied = self._copied(state)
        self._num_snapshots += 1
        return changes_of(self._stored, self._traced(model, state) if copied is None else copied, applied)

    def _copied(self, state: Mapping[str, Tensor]) -> list[Form] | None:
        """Return the forms by copies; None if that is not known to be right."""
        if self.num_traces < _FIRST_TRACES or self._sources is None or not self._num_snapshots % _TRACE_EVERY:
            return None
        weights = {}
        for path, stored in self._paths.items():
            found = [state[name].to(stored.dtype) for name in self._sources[path]]
            if not found and stored.is_floating_point():
                return None
            if any(not torch.equal(found[0], other) for other in found[1:]):
                return None
            # Positions and sizes do not depend on weights.
            weights[path] = found[0] if found else stored
        return [Form(form.text, {path: weights[path] for path in form.weights}) for form in self._stored]

    def _traced(self, model: nn.Module, state: Mapping[str, Tensor]) -> Sequence[Form]:
        forms = traced_forms(model, self._manifest)
        self.num_traces += 1
        found: dict[str, set[str]] = {path: set(state) for path in self._paths}
        for form in forms:
            for path, weight in form.weights.items():
                if path in found:
                    found[path] &= {name for name, tensor in state.items() if _is_copy(weight, tensor)}
        before = self._sources
        self._sources = {
            path: names if before is None else names & before[path] for path, names in found.items()
        }
        if before is not None and any(
            before[path] and not self._sources[path] and self._paths[path].is_floating_point()
            for path in self._paths
        ):
            _LOGGER.info("publish: weights of the graphs are computed: the model is traced for each delta")
        return forms


def _is_copy(weight: Tensor, tensor: Tensor) -> bool:
    return weight.shape == tensor.shape and torch.equal(weight, tensor.to(weight.dtype))
