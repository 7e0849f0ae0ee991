"""Deltas: the rows, mappings of raw IDs and dense weights that differ between two checkpoints.

Shape letters: D embedding dim, N rows of a delta, R rows.

The artifact's rows are compared with both checkpoints: rows of the old one must equal the artifact's byte for
byte, so that with the delta applied the rows are those of a new export of the new one. The same holds for dense
weights (``export.delta.dense``).
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
from export.delta.models import changed_dense, check_hashes, float_tables_of, mapping_changes
from export.delta.report import DeltaReport, report_of
from export.graph.prepared import Progress
from export.tables.mapped import release
from recsys.artifact.delta.apply import apply, check_fit, prepare
from recsys.artifact.delta.file import DeltaFile, DeltaWriter
from recsys.artifact.delta.header import DeltaHeader
from recsys.artifact.load import load_rows
from recsys.artifact.loaded_rows import LoadedRows
from recsys.artifact.mappings import planned, tables_of
from recsys.base.files import replacing
from recsys.errors import ArtifactError, ExportError, VerificationError
from recsys.rows.format import quantize_rows
from recsys.rows.layout import RowBlock, block_rows
from recsys.rows.quantize import CHUNK_ROWS, QuantizationError, StoredTable, stored_rows


@dataclass(frozen=True, kw_only=True)
class DeltaConfig:
    """How to make a delta.

    Attributes:
        artifact: The artifact.
        after: The earlier deltas of the artifact, in order; the old checkpoint is that of the last.
        tables_only: Leave differing dense weights as they are.
        overwrite: Replace an existing delta.
    """

    artifact: Path
    after: tuple[Path, ...] = ()
    tables_only: bool = False
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
    changed = changed_dense(old, new)
    base, num_left_before = _base(config)
    check_hashes(old, new)
    mappings = mapping_changes(old, new, base)
    tables = _paired(base, float_tables_of(old), float_tables_of(new))
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
            _write_tables(writer, tables, base, progress or (lambda *_: None))
            for table, change in mappings.items():
                writer.add_mapping(table, tables_of(base.mappings)[table].info.num_rows, change)
            for name, weight in dense.items():
                writer.add_dense(name, weight)
            writer.finish()
        digest, header = read_back(work, base, dense)
    return report_of(path, digest, header, time.monotonic() - started)


def _base(config: DeltaConfig) -> tuple[LoadedRows, int]:
    """Return the artifact's rows in host memory, with the earlier deltas, and the dense weights that these left."""
    base, num_dense_left = load_rows(config.artifact), 0
    for path in config.after:
        prepared = prepare(base, path)
        num_dense_left += prepared.num_dense_left
        apply(prepared)
    return base, num_dense_left


@dataclass(frozen=True, kw_only=True)
class _Pair:
    """A table in both models, ``[R, D]`` float, and the places of its rows in the artifact."""

    table: StoredTable
    old: Tensor
    new: Tensor
    blocks: Sequence[RowBlock]


def _paired(base: LoadedRows, old: Mapping[str, Tensor], new: Mapping[str, Tensor]) -> list[_Pair]:
    stored = {info.table.name: info.table for info in base.manifest.tables}
    missing, unknown = sorted(set(stored) - set(new)), sorted(set(new) - set(stored))
    # With some of the outputs, the artifact holds some of the tables; it holds none of a collection that nothing reads.
    held = {name.rpartition(".")[0] for name in stored}
    unknown = [name for name in unknown if name.rpartition(".")[0] in held]
    if missing or (unknown and "outputs" not in base.manifest.options):
        raise ExportError(
            f"delta: the checkpoints lack tables {missing[:8]} and have tables {unknown[:8]} that the artifact does "
            "not have; expected the artifact of the old checkpoint"
        )
    pairs = []
    for name, table in stored.items():
        shape = (table.num_embeddings, table.embedding_dim)
        if tuple(new[name].shape) != shape:
            raise ExportError(
                f"delta: table {name!r} got {list(new[name].shape)} in the checkpoints, expected {list(shape)}, as in "
                "the artifact"
            )
        blocks = [block for block in base.manifest.layout.blocks if block.table == name]
        pairs.append(_Pair(table=table, old=old[name], new=new[name], blocks=blocks))
    return pairs


def _write_tables(writer: DeltaWriter, tables: Sequence[_Pair], base: LoadedRows, progress: Progress) -> None:
    blob = base.ranks[0].rows
    done, total = 0, sum(pair.table.num_embeddings for pair in tables)
    for pair in tables:
        for first in range(0, pair.table.num_embeddings, CHUNK_ROWS):
            numbers, rows = _changed_rows(pair, blob, first)
            writer.add(pair.table, numbers, rows)
            done += min(CHUNK_ROWS, pair.table.num_embeddings - first)
            progress("compare", done, total)
        release(pair.old)
        release(pair.new)


def _changed_rows(pair: _Pair, blob: Tensor, first: int) -> tuple[Tensor, Tensor]:
    """Return the changed rows of at most ``CHUNK_ROWS``: numbers ``[N]`` and rows ``[N, row_bytes]``."""
    old, new = (
        weight[first : first + CHUNK_ROWS].detach().to(torch.float32).contiguous()
        for weight in (pair.old, pair.new)
    )
    table = pair.table
    # By their bits: 0.0 and -0.0 are stored differently.
    moved = (old.view(torch.int32) != new.view(torch.int32)).any(dim=1).nonzero().flatten()
    try:
        rows = quantize_rows(old, table.data_type, first)
    except ValueError as error:
        raise ExportError(
            f"delta: old checkpoint: table {table.name!r}, {error}; expected the checkpoint that the artifact was made "
            "of"
        ) from None
    foreign = _differing(rows, pair, blob, first)
    if foreign.numel():
        raise ExportError(
            f"delta: table {table.name!r}, row {first + int(foreign[0])}: the artifact holds other numbers than the "
            "old checkpoint; expected the checkpoint that the artifact was made of, or, with --after, the last delta"
        )
    if not moved.numel():
        return moved, rows[:0]
    try:
        rows[moved] = stored_rows(new[moved], table, 0, QuantizationError())
    except ValueError:
        _say_which(new, table, first)
        raise
    changed = _differing(rows, pair, blob, first)
    return first + changed, rows[changed]


def _say_which(new: Tensor, table: StoredTable, first: int) -> None:
    """Raise the error of a row that cannot be stored with the row's own number."""
    try:
        stored_rows(new, table, first, QuantizationError())
    except ValueError as error:
        raise ExportError(f"delta: new checkpoint: {error}") from None


def _differing(rows: Tensor, pair: _Pair, blob: Tensor, first: int) -> Tensor:
    """Return the rows that differ from the artifact's."""
    differs = torch.zeros(len(rows), dtype=torch.bool)
    for block in pair.blocks:
        stored = block.rows(blob)[first : first + len(rows)]
        differs |= (block_rows(rows, pair.table.embedding_dim, block) != stored).any(dim=1)
    return differs.nonzero().flatten()


def read_back(work: Path, base: LoadedRows, dense: Mapping[str, Tensor]) -> tuple[str, DeltaHeader]:
    """Read the written delta back, as a server would."""
    with DeltaFile(work) as file:
        check_fit(file.header, base)
        for table in file.header.tables:
            file.read(table)
        for mapping in file.header.mappings:
            planned(tables_of(base.mappings)[mapping.name], file.read_mapping(mapping))
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
