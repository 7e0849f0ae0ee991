"""Differences of two checkpoints of a model, other than the rows of their tables.

Shape letters: D embedding dim, R rows.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from export.graph.inputs.mapping import schema_of
from export.graph.managed import find_managed
from recsys.artifact.loaded_rows import LoadedRows
from recsys.artifact.mappings import tables_of
from recsys.errors import ExportError
from recsys.find_collections import find_collections
from recsys.managed.changes import MappingChange, mapping_change
from recsys.managed.frozen import freezable_modules
from recsys.managed.slots import owners_of
from recsys.quant import float_weights
from recsys.sharding.plan.device_rows import table_path


def float_tables_of(model: nn.Module) -> dict[str, Tensor]:
    """Return each table's float weight ``[R, D]``, by table path.

    Raises:
        ExportError: The model has no tables.
    """
    return {
        table_path(path, name): weight
        for path, collection in find_collections(model, error=ExportError).items()
        for name, weight in float_weights(collection).items()
    }


def changed_dense(old: nn.Module, new: nn.Module) -> list[str]:
    """Return the dense weights that differ, by name: all tensors but tables and mappings of raw IDs.

    Raises:
        ExportError: The models have different tensors, or shapes differ.
    """
    before, after = _tensors(old), _tensors(new)
    if {name: tensor.shape for name, tensor in before.items()} != {n: t.shape for n, t in after.items()}:
        names = sorted(
            name
            for name in set(before) | set(after)
            if name not in before or name not in after or before[name].shape != after[name].shape
        )
        raise ExportError(
            f"delta: the old and the new checkpoint differ in the shape of {names[0]!r} and {len(names) - 1} more, or "
            "one lacks it; expected two checkpoints of one model"
        )
    apart = _apart(old)
    return [
        name
        for name, tensor in before.items()
        if not name.startswith(apart) and not torch.equal(tensor, after[name])
    ]


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def _apart(model: nn.Module) -> tuple[str, ...]:
    """Return the prefixes of the names of tables' and mappings' tensors."""
    collections = find_collections(model, error=ExportError)
    paths = [*collections, *find_managed(model, collections).mappings]
    return tuple(f"{path}." if path else "" for path in paths)


def check_hashes(old: nn.Module, new: nn.Module) -> None:
    """Check that a value has the same ID and the same row in both models, as far as their schemas tell.

    Raises:
        ExportError: Names the first table in which it has others.
    """
    before, after = schema_of(old), schema_of(new)
    if before is None or after is None:
        return
    known = {table.name: table for table in before.tables}
    for table in after.tables:
        for field in ("ids", "strings", "separator"):
            was, found = getattr(known.get(table.name, table), field), getattr(table, field)
            if found != was:
                raise ExportError(
                    f"delta: table {table.name!r}: the new checkpoint was trained with {field} = {found!r}, the old "
                    f"one with {was!r}: their rows belong to other values; export the new checkpoint as a whole"
                )


def mapping_changes(old: nn.Module, new: nn.Module, base: LoadedRows) -> dict[str, MappingChange]:
    """Return what changes in the mappings of raw IDs, by table path; nothing for tables that are not the artifact's.

    Args:
        old: The old model.
        new: The new one.
        base: The artifact's rows and mappings, which the old model must have too.

    Raises:
        ExportError: The artifact keeps a mapping that changes in its graphs, or holds another than the old model.
    """
    names = {info.table.name for info in base.manifest.tables}
    before, after, held = _owners(old), _owners(new), tables_of(base.mappings)
    found = {}
    for table in sorted(set(before) & set(after) & (names | set(held))):
        change = mapping_change(before[table], after[table])
        if table in held:
            if not mapping_change(owners_of(held[table].slots), before[table]).is_empty:
                raise ExportError(
                    f"delta: table {table!r}: the artifact maps other raw IDs to its rows than the old checkpoint; "
                    "expected the checkpoint that the artifact was made of, or, with --after, the last delta"
                )
            found[table] = change
        elif not change.is_empty:
            raise ExportError(
                f"delta: managed table {table!r} maps raw IDs to other rows in the new checkpoint; the artifact keeps "
                "the mapping in its graphs, as earlier releases did: export the new checkpoint as a whole"
            )
    return {table: change for table, change in found.items() if not change.is_empty}


def _owners(model: nn.Module) -> dict[str, tuple[Tensor, Tensor]]:
    """Return the raw IDs that own rows of each managed table, ascending, and their rows, by table path."""
    managed = find_managed(model, find_collections(model, error=ExportError))
    return {
        table_path(managed.rows_paths[path], table): module.owners()
        for path, mapping in managed.mappings.items()
        for table, module in freezable_modules(mapping).items()
    }
