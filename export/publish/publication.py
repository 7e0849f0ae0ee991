"""Deltas of snapshots: what differs from the state that a destination's servers hold.

Shape letters: D embedding dimension, N number of rows.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor, nn

from export.config import read_of_forward
from export.delta.delta import read_back
from export.delta.dense import Form, changes_of, stored_forms, traced_forms
from export.delta.rows import differ, quantized
from recsys.artifact.delta.apply import apply, prepare
from recsys.artifact.delta.file import DeltaWriter
from recsys.artifact.delta.header import DeltaHeader
from recsys.artifact.load import load_rows
from recsys.artifact.manifest import Manifest
from recsys.artifact.mappings import tables_of
from recsys.errors import ExportError
from recsys.managed.changes import MappingChange, change_of_slots
from recsys.rows.quantize import CHUNK_ROWS
from recsys.sharding.plan.device_rows import table_path
from recsys.training.skeletons import with_weights


class Publication:
    """What servers hold after the deltas so far, and what the present snapshot changes of it.

    Args:
        model: A skeleton of the model.
        artifact: The artifact.

    Attributes:
        held: The artifact's rows with the deltas so far.

    Raises:
        ArtifactError: The artifact cannot be read.
    """

    def __init__(self, model: nn.Module, artifact: Path) -> None:
        self.held = load_rows(artifact)
        manifest = self.held.manifest
        self._model = model
        self._part = part = read_of_forward(manifest.options).get("submodule", "")
        self._tables = {table_path(part, info.table.name): info.table for info in manifest.tables}
        self._blocks = {
            name: [block for block in manifest.layout.blocks if block.table == table.name]
            for name, table in self._tables.items()
        }
        self._weights = _GraphWeights(artifact, manifest)
        self._changed: dict[str, ChangedRows] = {}
        self._mappings: dict[str, MappingChange] = {}

    def clear(self) -> None:
        """Drop the present snapshot."""
        self._changed.clear()
        self._mappings.clear()

    def add_rows(self, table: str, numbers: Tensor, weights: Tensor) -> None:
        """Add rows of a table to the snapshot.

        Args:
            table: Its path in the trained model. One that the artifact does not hold is passed over.
            numbers: ``[N]`` int64, ascending. Of a row that was added before, this one counts.
            weights: ``[N, D]`` float32.

        Raises:
            ValueError: A row cannot be stored, or the table has another size.
        """
        stored = self._tables.get(table)
        if stored is None:
            return
        if weights.shape[1] != stored.embedding_dim or int(numbers[-1]) >= stored.num_embeddings:
            raise ExportError(
                f"table {table!r}: got rows up to {int(numbers[-1])} of {weights.shape[1]} numbers, expected "
                f"{stored.num_embeddings} rows of {stored.embedding_dim}, as the artifact has it"
            )
        blob = self.held.ranks[0].rows
        changed = self._changed.setdefault(table, ChangedRows())
        for first in range(0, len(numbers), CHUNK_ROWS):
            part = slice(first, first + CHUNK_ROWS)
            rows = quantized(stored, numbers[part], weights[part].contiguous())
            differs = differ(rows, stored, self._blocks[table], blob, numbers[part])
            changed.add(numbers[part], rows, differs)

    def add_owners(self, table: str, ids: Tensor, rows: Tensor, is_whole: bool) -> None:
        """Add the raw IDs of a managed table that have got or lost rows to the snapshot.

        Args:
            table: Its path in the trained model. One that the artifact does not hold is passed over.
            ids: ``[N]`` int64, ascending, each once.
            rows: ``[N]`` int64, the row that each owns now; -1 for none.
            is_whole: Whether no other ID owns a row.

        Raises:
            ExportError: The artifact keeps the mapping in its graphs.
        """
        stored = self._tables.get(table)
        if stored is None:
            return
        held = tables_of(self.held.mappings).get(stored.name)
        if held is None:
            raise ExportError(
                f"delta: the artifact keeps the mapping of managed table {stored.name!r} in its graphs, as earlier "
                "releases did: export the model again"
            )
        self._mappings[stored.name] = change_of_slots(held.slots, ids, rows, is_whole=is_whole)

    def write(self, path: Path, state: Mapping[str, Tensor]) -> DeltaHeader | None:
        """Write the snapshot as a delta.

        Args:
            path: A new file.
            state: The model's state dict without tables and mappings.

        Returns:
            Its header; None if nothing differs, and no file is written.

        Raises:
            ExportError: The model differs in more than weights.
            DiskFullError: There is no room for the delta.
        """
        model = with_weights(self._model, dict(state)).eval().get_submodule(self._part)
        managed = tables_of(self.held.mappings)
        if unknown := sorted(set(managed) - set(self._mappings)):
            raise ExportError(
                f"managed tables {unknown}: the trained model maps no raw IDs for them, as the artifact does"
            )
        mappings = {name: change for name, change in self._mappings.items() if not change.is_empty}
        changed = {name: parts for name, rows in self._changed.items() if (parts := list(rows.parts()))}
        dense = self._weights.changes(model, state, self.held.dense)
        if not (dense or mappings or changed):
            return None
        header = DeltaHeader(
            model=self.held.manifest.name,
            artifact=self.held.digest,
            base=self.held.state,
            created_s=round(time.time(), 3),
        )
        with closing(DeltaWriter(path, header)) as writer:
            for name, parts in changed.items():
                for numbers, rows in parts:
                    writer.add(self._tables[name], numbers, rows)
            for name, change in mappings.items():
                writer.add_mapping(name, managed[name].info.num_rows, change)
            for name, weight in dense.items():
                writer.add_dense(name, weight)
            writer.finish()
        _, header = read_back(path, self.held, dense)
        return header

    def sent(self, path: Path) -> None:
        """Note that a delta is at the destination."""
        apply(prepare(self.held, path))
        self.clear()


class ChangedRows:
    """Rows of a table that differ from those that servers hold; of a row that is added twice, the last counts."""

    def __init__(self) -> None:
        self._parts: list[tuple[Tensor, Tensor]] = []
        # Rows from here on were not added yet.
        self._end = 0

    def add(self, numbers: Tensor, rows: Tensor, differs: Tensor) -> None:
        """Add rows.

        Args:
            numbers: ``[N]`` int64, ascending, at least one.
            rows: ``[N, ...]``, as servers hold them.
            differs: ``[N]``, a mask of those that differ.
        """
        if int(numbers[0]) < self._end:
            self._parts = [part for old in self._parts for part in _without(old, numbers)]
        self._end = max(self._end, int(numbers[-1]) + 1)
        if differs.any():
            self._parts.append((numbers[differs], rows[differs]))

    def parts(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the rows that differ, and their numbers, ascending over all parts."""
        if all(int(left[-1]) < int(right[0]) for (left, _), (right, _) in pairwise(self._parts)):
            yield from self._parts
            return
        numbers, order = torch.cat([numbers for numbers, _ in self._parts]).sort()
        yield numbers, torch.cat([rows for _, rows in self._parts])[order]


def _without(part: tuple[Tensor, Tensor], others: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield what is left of a part without the rows of some numbers, if anything is."""
    numbers, rows = part
    if numbers[-1] < others[0] or numbers[0] > others[-1]:
        yield part
        return
    place = torch.searchsorted(others, numbers).clamp(max=len(others) - 1)
    is_kept = others[place] != numbers
    if is_kept.any():
        yield numbers[is_kept], rows[is_kept]


_LOGGER = logging.getLogger(__name__)
# Traces before copies are trusted, and snapshots between two later traces.
_FIRST_TRACES = 2
_TRACE_EVERY = 50


class _GraphWeights:
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
