"""Deltas: replace rows, mappings of raw IDs and dense weights of a loaded model in place, without a reload.

Shape letters: N rows of a delta, R rows of a block.

There are two steps, because the model keeps serving. ``prepare`` reads and checks everything while lookups
run. ``apply`` only copies the rows, and the buckets of mappings, to their places, and replaces the graphs if dense
weights change, while the caller prevents lookups.
``recsys.artifact.delta.file`` describes the file format, ``docs/export/deltas.md`` the use.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from recsys.artifact.delta.file import DeltaFile
from recsys.artifact.delta.header import DeltaHeader, MappingDelta, TableDelta
from recsys.artifact.graphs import GraphChange, LoadedGraphs
from recsys.artifact.loaded_rows import LoadedRows
from recsys.artifact.mappings import LoadedTable, PlannedChange, planned, tables_of
from recsys.artifact.programs import ProgramGraphs
from recsys.base.json_checks import wrong
from recsys.errors import DeltaError, ManifestError
from recsys.managed.changes import MappingChange
from recsys.managed.slots import FullMappingError
from recsys.rows.layout import block_rows
from recsys.sharding.plan.device_rows import DeviceRows


@dataclass(frozen=True, kw_only=True)
class BlockChange:
    """The changes of a delta in one block of one rank.

    Attributes:
        target: ``[R, row_bytes]`` uint8, the block itself.
        places: ``[N]`` int64, rows of the block, ascending; on the target's device.
        rows: ``[N, row_bytes]`` uint8, the new rows; on the target's device.
        replaced: ``[N, row_bytes]`` uint8, the old rows.
    """

    target: Tensor
    places: Tensor
    rows: Tensor
    replaced: Tensor

    def touch(self) -> None:
        """Make private copies of the mapped pages that will be written.

        Rows are overwritten with themselves, so concurrent lookups read the same values. Without this,
        ``write`` would wait for the system to copy each page, which takes fifty times as long as copying the
        rows.
        """
        if self.target.device.type == "cpu":
            self._put(self.replaced)

    def write(self) -> None:
        """Copy the rows to their places."""
        self._put(self.rows)

    def _put(self, rows: Tensor) -> None:
        if self.target.device.type == "cpu":
            # One item per row: twice as fast as numpy's copies of bytes, three times as fast as torch's.
            _items(self.target)[self.places.numpy()] = _items(rows)
        else:
            self.target.index_copy_(0, self.places, rows)


@dataclass(frozen=True, kw_only=True)
class OwnedChange:
    """Which rows of a managed table get and lose raw IDs.

    Attributes:
        table: The table.
        freed: int64, the rows that raw IDs lose.
        taken: int64, the rows that raw IDs get.
    """

    table: LoadedTable
    freed: Tensor
    taken: Tensor

    def write(self) -> None:
        """Note it in the table."""
        self.table.is_owned[self.freed] = False
        self.table.is_owned[self.taken] = True

    def inverse(self) -> OwnedChange:
        """Return the change back."""
        return replace(self, freed=self.taken, taken=self.freed)


@dataclass(frozen=True, kw_only=True)
class PreparedDelta:
    """A delta that was read and checked, to be applied once to the rows that it was prepared for.

    It holds the old and the new version of each row, on the row's device, and of each dense weight.

    Attributes:
        digest: The state of the rows after it is applied.
        base: The state of the rows that it can be applied to.
        num_rows: The number of rows of each table that it changes.
        num_dense_left: Number of dense weights that had also changed when it was made, and that it leaves as
            they are.
        num_ids: The number of raw IDs that get a row, or lose it, by table.
        changes: The changes by block of rows, and by table of a mapping.
        mappings: Which rows get and lose raw IDs.
        dense: The values of ``LoadedRows.dense`` that change; None where there is none.
        graphs: The graphs with other weights; None if no dense weight changes, or only rows were loaded.
    """

    digest: str
    base: str
    num_rows: Mapping[str, int]
    num_dense_left: int
    num_ids: Mapping[str, int]
    changes: Sequence[BlockChange]
    mappings: Sequence[OwnedChange]
    dense: Mapping[str, Tensor | None]
    graphs: GraphChange | None
    _loaded: LoadedRows

    @property
    def num_bytes(self) -> int:
        """The size of all written rows, over all ranks."""
        return sum(change.rows.numel() for change in self.changes)


def prepare(loaded: LoadedRows, path: str | os.PathLike[str]) -> PreparedDelta:
    """Read and check a delta for a loaded model. No row's values change; lookups may run concurrently.

    Args:
        loaded: ``LoadedArtifact.rows``.
        path: The file that ``recsys-export --delta`` wrote.

    Raises:
        DeltaError: It was made for another artifact, or from a different state of the rows.
        ArtifactError: Another subclass says how the file is damaged, foreign or newer.
        RuntimeError: A device has too little memory for the delta's rows.
    """
    with DeltaFile(path) as file, torch.inference_mode():
        header = file.header
        check_fit(header, loaded)
        places = [place for table in header.tables for place in _placed(loaded, table, *file.read(table))]
        mappings = [(one, file.read_mapping(one)) for one in header.mappings]
        dense = {weight.name: file.read_dense(weight) for weight in header.dense}
        with loaded.lock:
            # Checked again: another delta may have been applied in between.
            check_state(header.bases, loaded)
            base = loaded.state
            planned = [_planned(loaded, *mapping, is_compacted=bool(header.replaces)) for mapping in mappings]
            changes = [_change(*place) for place in [*places, *map(_buckets, planned)]]
            graphs = loaded.graphs.with_weights(dense) if dense and loaded.graphs is not None else None
            _synchronize(changes)
        if graphs is not None:
            graphs.warm(loaded.manifest.signature, loaded.manifest.verified_rows())
        return PreparedDelta(
            digest=file.digest,
            base=base,
            num_rows={table.name: table.num_rows for table in header.tables},
            num_dense_left=header.num_dense_left,
            num_ids={one.name: one.num_ids + one.num_evicted for one in header.mappings},
            changes=changes,
            mappings=[OwnedChange(table=one.table, freed=one.freed, taken=one.taken) for one in planned],
            dense=dense,
            graphs=graphs,
            _loaded=loaded,
        )


def apply(prepared: PreparedDelta) -> PreparedDelta:
    """Write a prepared delta's rows, mappings and dense weights: all of them, or none if this raises.

    The caller must prevent lookups until it returns.

    Args:
        prepared: The result of ``prepare`` or ``apply``.

    Returns:
        The inverse delta: applying it restores the previous weights byte for byte. Drop it to free its memory.

    Raises:
        DeltaError: Another delta was applied since it was prepared.
    """
    loaded = prepared._loaded
    with loaded.lock, torch.inference_mode():
        check_state((prepared.base,), loaded)
        for change in prepared.changes:
            change.write()
        for owned in prepared.mappings:
            owned.write()
        if prepared.graphs is not None:
            prepared.graphs.write()
        if isinstance(loaded.graphs, ProgramGraphs) and loaded.graphs.contexts is not None:
            loaded.graphs.contexts.clear()
        _synchronize(prepared.changes)
        loaded.state = prepared.digest
        before = {name: loaded.dense.get(name) for name in prepared.dense}
        after = {**loaded.dense, **prepared.dense}
        loaded.dense = {name: weight for name, weight in after.items() if weight is not None}
    undone = [replace(change, rows=change.replaced, replaced=change.rows) for change in prepared.changes]
    return replace(
        prepared,
        digest=prepared.base,
        base=prepared.digest,
        changes=undone,
        mappings=[change.inverse() for change in prepared.mappings],
        dense=before,
        graphs=None if prepared.graphs is None else prepared.graphs.inverse(),
    )


def check_fit(header: DeltaHeader, loaded: LoadedRows) -> None:
    """Check that a delta fits this artifact and the present state of its rows.

    Raises:
        DeltaError: It does not.
        ManifestError: It is for this artifact, but describes a table or a dense weight differently.
    """
    if header.artifact != loaded.digest:
        raise DeltaError(
            f"delta.artifact: got {header.artifact!r} (model {header.model[:80]!r}), expected {loaded.digest!r} (model "
            f"{loaded.manifest.name!r}): it was made for another artifact; make it for this one, or load that one"
        )
    check_state(header.bases, loaded)
    stored = {info.table.name: info.table for info in loaded.manifest.tables}
    for i, table in enumerate(header.tables):
        known = stored.get(table.name)
        if known is None:
            raise wrong(f"delta.tables[{i}]", "name", table.name, f"one of the tables {sorted(stored)[:8]}")
        for key in ("num_embeddings", "embedding_dim", "data_type"):
            got, expected = getattr(table, key), getattr(known, key)
            if got != expected:
                raise wrong(f"delta.tables[{i}]", key, got, f"{expected}, as table {table.name!r} has it")
    _check_mappings(header, loaded)
    if loaded.graphs is not None:
        _check_dense(header, loaded.graphs)


def _check_mappings(header: DeltaHeader, loaded: LoadedRows) -> None:
    """Check that every mapping is of a managed table of the artifact."""
    known = tables_of(loaded.mappings)
    if header.mappings and not known:
        raise DeltaError(
            f"delta.mappings: got raw IDs of table {header.mappings[0].name!r}, expected none: the artifact keeps no "
            "mapping beside its rows, as earlier releases did; export the new checkpoint as a whole"
        )
    for i, mapping in enumerate(header.mappings):
        at, table = f"delta.mappings[{i}]", known.get(mapping.name)
        if table is None:
            raise wrong(at, "name", mapping.name, f"one of the managed tables {sorted(known)[:8]}")
        if mapping.num_rows != table.info.num_rows:
            raise wrong(
                at, "num_rows", mapping.num_rows, f"{table.info.num_rows}, as table {mapping.name!r} has it"
            )


def _check_dense(header: DeltaHeader, graphs: LoadedGraphs | ProgramGraphs) -> None:
    """Check that every dense weight is a tensor of a graph, with its type and shape."""
    forms = graphs.tensors()
    for i, weight in enumerate(header.dense):
        at, holders = f"delta.dense[{i}]", [form[weight.name] for form in forms if weight.name in form]
        if not holders:
            raise wrong(at, "name", weight.name, "the path of a dense weight of the artifact")
        for tensor in holders:
            dtype, shape = str(tensor.dtype).removeprefix("torch."), list(tensor.shape)
            if weight.dtype != dtype:
                raise wrong(at, "dtype", weight.dtype, f"{dtype}, as dense weight {weight.name!r} has it")
            if list(weight.shape) != shape:
                raise wrong(
                    at, "shape", list(weight.shape), f"{shape}, as dense weight {weight.name!r} has it"
                )


def check_state(bases: Sequence[str], loaded: LoadedRows) -> None:
    """Check that a delta fits the present rows.

    Args:
        bases: The states that it can be applied in.
        loaded: The rows.

    Raises:
        DeltaError: They are in another state.
    """
    if loaded.state not in bases:
        raise DeltaError(
            f"delta.base: got {bases[0]!r}, expected {loaded.state!r}, the rows that the model holds: apply deltas in "
            "the order in which they were made, each once, from the artifact on"
        )


def _placed(
    loaded: LoadedRows, table: TableDelta, numbers: Tensor, rows: Tensor
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Yield a table's rows as each block of each rank stores them: the block, the places and the rows."""
    for rank in _distinct(loaded.ranks):
        for block in rank.layout.blocks:
            if block.table != table.name:
                continue
            first, end = torch.searchsorted(numbers, torch.tensor([block.row_start, block.row_end])).tolist()
            if first < end:
                places = (numbers[first:end] - block.row_start).to(rank.device)
                cut = block_rows(rows[first:end], table.embedding_dim, block).to(rank.device)
                yield block.rows(rank.rows), places, cut


def _planned(
    loaded: LoadedRows, mapping: MappingDelta, change: MappingChange, *, is_compacted: bool
) -> PlannedChange:
    """Return the change of a mapping, checked against its present state.

    Raises:
        DeltaError: There is no place for a raw ID.
        ManifestError: It does not fit the raw IDs that own rows.
    """
    at = f"delta: mapping of table {mapping.name!r}"
    try:
        return planned(tables_of(loaded.mappings)[mapping.name], change, is_compacted=is_compacted)
    except FullMappingError as error:
        raise DeltaError(f"{at}: {error}; export the new checkpoint as a whole") from None
    except ValueError as error:
        raise ManifestError(f"{at}: {error}") from None


def _buckets(change: PlannedChange) -> tuple[Tensor, Tensor, Tensor]:
    """Return buckets as those of a block of rows: the block, the places and the contents."""
    return change.table.slots.view(torch.uint8), change.buckets, change.contents.view(torch.uint8)


def _change(target: Tensor, places: Tensor, rows: Tensor) -> BlockChange:
    change = BlockChange(target=target, places=places, rows=rows, replaced=_gathered(target, places))
    change.touch()
    return change


def _synchronize(changes: Sequence[BlockChange]) -> None:
    """Wait for the present streams of devices: later work may run on another stream.

    Not for whole devices, which may be recording the CUDA graphs of another model.
    """
    for device in {change.target.device for change in changes}:
        if device.type == "cuda":
            torch.cuda.current_stream(device).synchronize()


def _distinct(ranks: Sequence[DeviceRows]) -> list[DeviceRows]:
    """Return the distinct ranks: those in host memory share one tensor, which is changed once."""
    return list({rank.rows.data_ptr(): rank for rank in ranks}.values())


def _gathered(target: Tensor, places: Tensor) -> Tensor:
    if target.device.type == "cpu":
        return torch.from_numpy(_items(target)[places.numpy()].view(np.uint8)).view(-1, target.shape[1])
    return target.index_select(0, places)


def _items(rows: Tensor) -> Any:
    """Return rows ``[R, row_bytes]`` in host memory as an array of R items, without a copy."""
    return rows.numpy().view(np.dtype((np.void, rows.shape[1]))).reshape(-1)
