"""Deltas of snapshots: what differs from the state that a destination's servers hold.

Shape letters: D embedding dimension, N number of rows.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

from torch import Tensor, nn

from export.config import read_of_forward
from export.delta.delta import read_back
from export.delta.rows import differ, quantized
from export.publish.changed_rows import ChangedRows
from export.publish.weights import GraphWeights
from recsys.artifact.delta.apply import apply, prepare
from recsys.artifact.delta.file import DeltaWriter
from recsys.artifact.delta.header import DeltaHeader
from recsys.artifact.load import load_rows
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
        self._weights = GraphWeights(artifact, manifest)
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
