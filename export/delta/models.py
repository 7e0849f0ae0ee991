"""Differences of two checkpoints of a model, other than the rows of their tables.

Shape letters: D embedding dim, R rows.
"""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import Tensor, nn

from export.graph.inputs.mapping import schema_of
from export.graph.managed import find_managed
from recsys.errors import ExportError
from recsys.find_collections import find_collections
from recsys.managed.frozen import FREEZABLE
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


def check_mappings(old: nn.Module, new: nn.Module, tables: Collection[str]) -> None:
    """Check that raw IDs of managed tables have the same rows in both models.

    Args:
        old: The old model.
        new: The new one.
        tables: The paths of the artifact's tables; others are left alone.

    Raises:
        ExportError: Names the tables in which rows differ.
    """
    before, after = _owners(old, tables), _owners(new, tables)
    changed = sorted(
        table
        for table in set(before) | set(after)
        if table not in before or table not in after or not torch.equal(before[table], after[table])
    )
    if changed:
        raise ExportError(
            f"delta: managed tables {changed[:8]} map raw IDs to other rows in the new checkpoint; the mapping is part "
            "of the graph, which a delta leaves as it is: export the new checkpoint as a whole"
        )


def _owners(model: nn.Module, tables: Collection[str]) -> dict[str, Tensor]:
    """Return for each managed table, by its mapping's path, the raw IDs that own rows, and their rows, ``[2, N]``."""
    found = {}
    for path, mapping in find_managed(model, find_collections(model, error=ExportError)).mappings.items():
        for table, module in mapping.managed_collision_modules().items():
            assert isinstance(module, FREEZABLE)  # find_managed rejects all others
            # Both lie side by side in one module, under TorchRec's names.
            rows_path = path.removesuffix("_managed_collision_collection") + "_embedding_module"
            if table_path(rows_path, table) not in tables:
                continue
            found[table_path(path, table)] = torch.stack(module.owners())
    return found
