"""Deltas: the rows, mappings of raw IDs and dense weights that differ between two checkpoints.

Shape letters: D embedding dim, N rows of a delta, R rows.

Rows of the old checkpoint must equal the artifact's byte for byte, so that with the delta applied the rows are those
of a new export of the new one (``export.delta.rows``). The same holds for dense weights (``export.delta.dense``).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from export.delta.dense import dense_changes
from export.delta.report import DeltaReport, report_of
from export.delta.rows import Pair, changed_rows, paired, touched_rows
from export.graph.inputs.mapping import schema_of
from export.graph.managed import find_managed
from export.graph.prepared import Progress
from recsys.artifact.delta.apply import apply, check_fit, prepare
from recsys.artifact.delta.file import DeltaFile, DeltaWriter
from recsys.artifact.delta.header import DeltaHeader
from recsys.artifact.load import load_rows
from recsys.artifact.loaded_rows import LoadedRows
from recsys.artifact.mappings import planned, tables_of
from recsys.base.files import replacing
from recsys.errors import ArtifactError, ExportError, VerificationError
from recsys.find_collections import find_collections
from recsys.managed.changes import MappingChange, mapping_change
from recsys.managed.frozen import freezable_modules
from recsys.managed.slots import owners_of
from recsys.quant import float_weights
from recsys.sharding.plan.device_rows import table_path


@dataclass(frozen=True, kw_only=True)
class DeltaConfig:
    """How to make a delta.

    Attributes:
        artifact: The artifact.
        after: The earlier deltas of the artifact, in order; the old checkpoint is that of the last.
        tables_only: Leave differing dense weights as they are.
        touched: The rows that the training from the old to the new model touched, by table path, int64 ``[N]``
            ascending; None if that is not known.
        check_all: Compare every row of the old model with the artifact.
        overwrite: Replace an existing delta.
    """

    artifact: Path
    after: tuple[Path, ...] = ()
    tables_only: bool = False
    touched: Mapping[str, Tensor] | None = None
    check_all: bool = False
    overwrite: bool = False


def export_delta(
    old: nn.Module, new: nn.Module, path: Path, config: DeltaConfig, progress: Progress | None = None
) -> DeltaReport:
    """Write the rows, mappings of raw IDs and dense weights that differ between two models.

    Args:
        old: The model that the artifact, with the earlier deltas, was made of. Neither model is changed.
        new: The same model after more training.
        path: The file to write.
        config: The options.
        progress: Called with a step's name, the number of units done and the total.

    Raises:
        ExportError: The models differ in more than weights, or the artifact was not made of ``old``.
        ArtifactError: The artifact or an earlier delta cannot be read, or they do not belong together.
        DiskFullError: There is no room for the delta.
    """
    started = time.monotonic()
    check_replaceable(path, config.overwrite)
    changed = _changed_dense(old, new)
    base, num_left_before = _base(config)
    _check_hashes(old, new)
    mappings = _mapping_changes(old, new, base)
    tables = paired(base, _float_tables_of(old), _float_tables_of(new))
    dense: Mapping[str, Tensor] = {}
    if (changed or num_left_before) and not config.tables_only:
        dense = dense_changes(new, config.artifact, base.manifest, base.dense)
    header = DeltaHeader(
        model=base.manifest.name,
        artifact=base.digest,
        base=base.state,
        created_s=round(time.time(), 3),
        num_dense_left=len(changed) if config.tables_only else 0,
    )
    with written(path, config.overwrite) as work:
        with closing(DeltaWriter(work, header)) as writer:
            _write_tables(writer, tables, base, config, progress or (lambda *_: None))
            managed = tables_of(base.mappings)
            for table, change in mappings.items():
                writer.add_mapping(table, managed[table].info.num_rows, change)
            for name, weight in dense.items():
                writer.add_dense(name, weight)
            writer.finish()
        digest, header = read_back(work, base, dense)
    return report_of(path, digest, header, time.monotonic() - started)


def _base(config: DeltaConfig) -> tuple[LoadedRows, int]:
    """Return the artifact's rows in host memory, with the earlier deltas, and the dense weights that these left."""
    # The bytes of rows that were not touched are not read.
    base, num_dense_left = load_rows(config.artifact, verify_checksums=config.touched is None), 0
    for path in config.after:
        prepared = prepare(base, path)
        num_dense_left += prepared.num_dense_left
        apply(prepared)
    return base, num_dense_left


def _write_tables(
    writer: DeltaWriter, tables: Sequence[Pair], base: LoadedRows, config: DeltaConfig, progress: Progress
) -> None:
    blob = base.ranks[0].rows
    done, total = 0, sum(pair.table.num_embeddings for pair in tables)
    for pair in tables:
        if config.touched is not None:
            none = torch.empty(0, dtype=torch.int64)
            writer.add(pair.table, *touched_rows(pair, blob, config.touched.get(pair.table.name, none)))
            done += pair.table.num_embeddings
            progress("compare", done, total)
            continue
        for num_rows, numbers, rows in changed_rows(pair, blob, check_all=config.check_all):
            writer.add(pair.table, numbers, rows)
            done += num_rows
            progress("compare", done, total)


def read_back(work: Path, base: LoadedRows, dense: Mapping[str, Tensor]) -> tuple[str, DeltaHeader]:
    """Read the written delta back, as a server would."""
    with DeltaFile(work) as file:
        check_fit(file.header, base)
        for table in file.header.tables:
            file.read(table)
        managed = tables_of(base.mappings)
        for mapping in file.header.mappings:
            planned(managed[mapping.name], file.read_mapping(mapping))
        for weight in file.header.dense:
            if not torch.equal(file.read_dense(weight), dense[weight.name]):
                raise VerificationError(
                    f"dense weight {weight.name!r}: the delta holds other numbers than were written"
                )
        return file.digest, file.header


def check_replaceable(path: Path, overwrite: bool) -> None:
    """Check that the destination is free, or a delta that may be replaced.

    Raises:
        ExportError: The destination exists and must not be replaced.
    """
    if not path.exists():
        return
    if not overwrite:
        raise ExportError(f"out: {path.name!r} exists; choose another name or pass --force")
    try:
        with DeltaFile(path):
            return
    except ArtifactError:
        raise ExportError(f"out: {path.name!r} exists and is no delta; it is not replaced") from None


@contextmanager
def written(path: Path, overwrite: bool) -> Iterator[Path]:
    """Yield a file to write. It replaces the destination if nothing raises, else it is removed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as partial:
        yield partial
        check_replaceable(path, overwrite)


def _float_tables_of(model: nn.Module) -> dict[str, Tensor]:
    """Return each table's float weight ``[R, D]``, by table path.

    Raises:
        ExportError: The model has no tables.
    """
    return {
        table_path(path, name): weight
        for path, collection in find_collections(model, error=ExportError).items()
        for name, weight in float_weights(collection).items()
    }


def _changed_dense(old: nn.Module, new: nn.Module) -> list[str]:
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
        # A plain model whose padding has become a row of numbers.
        is_of_padding = any(name.startswith("computed_") for name in names)
        hint = (
            ". If training has changed a row of zeros for padding, export the whole model again; with padding_idx in "
            "its table, that row stays zero"
        )
        raise ExportError(
            f"delta: the old and the new checkpoint differ in the shape of {names[0]!r} and {len(names) - 1} more, or "
            f"one lacks it; expected two checkpoints of one model{hint if is_of_padding else ''}"
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


def _check_hashes(old: nn.Module, new: nn.Module) -> None:
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


def _mapping_changes(old: nn.Module, new: nn.Module, base: LoadedRows) -> dict[str, MappingChange]:
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
