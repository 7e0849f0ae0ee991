"""Rows that differ between two models, as an artifact stores them.

Shape letters: D embedding dim, N rows of a delta, R rows.

Floats are compared first, by their bits, and only rows that differ are quantized. Where it is known which rows a
training touched, only these are read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from export.tables import release
from recsys.artifact.loaded_rows import LoadedRows
from recsys.errors import ExportError
from recsys.rows.format import quantize_rows
from recsys.rows.layout import RowBlock, block_rows
from recsys.rows.quantize import CHUNK_ROWS, QuantizationError, StoredTable, stored_rows

# One in so many rows that are equal in both models is compared with the artifact.
_CHECK_EVERY = 64
# So many rows that were not touched are compared in both models and with the artifact.
_NUM_CHECKED = 512
_SEED = 20260102


@dataclass(frozen=True, kw_only=True)
class Pair:
    """A table in both models, ``[R, D]`` float, and the places of its rows in the artifact."""

    table: StoredTable
    old: Tensor
    new: Tensor
    blocks: Sequence[RowBlock]


def paired(base: LoadedRows, old: Mapping[str, Tensor], new: Mapping[str, Tensor]) -> list[Pair]:
    """Return the artifact's tables in both models.

    Raises:
        ExportError: The models have other tables than the artifact.
    """
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
        pairs.append(Pair(table=table, old=old[name], new=new[name], blocks=blocks))
    return pairs


def changed_rows(pair: Pair, blob: Tensor, *, check_all: bool) -> Iterator[tuple[int, Tensor, Tensor]]:
    """Yield the changed rows of a table, part by part.

    Args:
        pair: The table.
        blob: The artifact's rows.
        check_all: Whether every row of the old model is compared with the artifact; if not, those that changed and
            some others.

    Yields:
        The rows that were compared, and those that changed: numbers ``[N]`` and rows ``[N, row_bytes]``.

    Raises:
        ExportError: The artifact was not made of the old model, or a row cannot be stored.
    """
    for first in range(0, pair.table.num_embeddings, CHUNK_ROWS):
        old, new = (_floats(weight[first : first + CHUNK_ROWS]) for weight in (pair.old, pair.new))
        moved = _moved(old, new)
        checked = torch.ones(len(old), dtype=torch.bool) if check_all else moved.clone()
        checked[::_CHECK_EVERY] = True
        numbers = checked.nonzero().flatten()
        _check_artifact(pair, blob, first + numbers, old if check_all else old[numbers])
        numbers = moved.nonzero().flatten()
        yield len(old), *_stored(pair, blob, first + numbers, new[numbers])
    release(pair.old)
    release(pair.new)


def touched_rows(pair: Pair, blob: Tensor, touched: Tensor) -> tuple[Tensor, Tensor]:
    """Return the rows that changed among those that a training touched; otherwise as ``changed_rows``.

    Args:
        pair: The table.
        blob: The artifact's rows.
        touched: ``[N]`` int64, ascending.

    Raises:
        ExportError: As ``changed_rows``, or a row differs that the training has not touched.
    """
    generator = torch.Generator().manual_seed(_SEED)
    drawn = torch.randint(pair.table.num_embeddings, (_NUM_CHECKED,), generator=generator).unique()
    numbers = torch.cat([touched, drawn[~torch.isin(drawn, touched)]])
    old, new = _floats(pair.old[numbers]), _floats(pair.new[numbers])
    moved = _moved(old, new)
    if moved[len(touched) :].any():
        row = int(numbers[len(touched) :][moved[len(touched) :]][0])
        raise ExportError(
            f"delta: table {pair.table.name!r}, row {row}: it differs, but the new checkpoint says that its training "
            "has not touched it; expected the checkpoint that it started from, or pass --check-all"
        )
    _check_artifact(pair, blob, numbers, old)
    return _stored(pair, blob, touched[moved[: len(touched)]], new[: len(touched)][moved[: len(touched)]])


def _floats(rows: Tensor) -> Tensor:
    return rows.detach().to(torch.float32).contiguous()


def _moved(old: Tensor, new: Tensor) -> Tensor:
    """Return the rows that differ by their bits: 0.0 and -0.0 are stored differently."""
    return (old.view(torch.int32) != new.view(torch.int32)).any(dim=1)


def _check_artifact(pair: Pair, blob: Tensor, numbers: Tensor, old: Tensor) -> None:
    """Check that the artifact holds rows of the old model.

    Raises:
        ExportError: Names the first that it does not hold.
    """
    try:
        # No error of quantization is measured.
        rows = _by_number(lambda rows, first: quantize_rows(rows, pair.table.data_type, first), numbers, old)
    except ValueError as error:
        raise ExportError(
            f"delta: old checkpoint: table {pair.table.name!r}, {error}; expected the checkpoint that the artifact was "
            "made of"
        ) from None
    foreign = numbers[differ(rows, pair.table, pair.blocks, blob, numbers)]
    if foreign.numel():
        raise ExportError(
            f"delta: table {pair.table.name!r}, row {int(foreign[0])}: the artifact holds other numbers than the "
            "old checkpoint; expected the checkpoint that the artifact was made of, or, with --after, the last delta"
        )


def _stored(pair: Pair, blob: Tensor, numbers: Tensor, new: Tensor) -> tuple[Tensor, Tensor]:
    """Return the rows whose stored bytes differ from the artifact's, and the bytes."""
    if not numbers.numel():
        return numbers, torch.empty(0, pair.table.row_format.row_bytes(), dtype=torch.uint8)
    try:
        rows = quantized(pair.table, numbers, new)
    except ValueError as error:
        raise ExportError(f"delta: new checkpoint: {error}") from None
    found = differ(rows, pair.table, pair.blocks, blob, numbers)
    return numbers[found], rows[found]


def quantized(table: StoredTable, numbers: Tensor, weights: Tensor) -> Tensor:
    """Return stored rows ``[N, row_bytes]`` of float32 ones ``[N, D]``.

    Raises:
        ValueError: A row cannot be stored; names its number.
    """
    return _by_number(
        lambda rows, first: stored_rows(rows, table, first, QuantizationError()), numbers, weights
    )


def _by_number(store: Callable[[Tensor, int], Tensor], numbers: Tensor, weights: Tensor) -> Tensor:
    """Return what a function, which is told the first row's number, makes of rows.

    Raises:
        ValueError: A row cannot be stored; names its number.
    """
    try:
        return store(weights, 0)
    except ValueError:
        for number, row in zip(numbers.tolist(), weights.split(1), strict=True):
            store(row, number)
        raise


def differ(
    rows: Tensor, table: StoredTable, blocks: Sequence[RowBlock], blob: Tensor, numbers: Tensor
) -> Tensor:
    """Return which rows differ from an artifact's, bool ``[N]``.

    Args:
        rows: ``[N, row_bytes]`` uint8.
        table: The table.
        blocks: The places of its rows.
        blob: The artifact's rows.
        numbers: ``[N]`` int64.
    """
    found = torch.zeros(len(rows), dtype=torch.bool)
    is_run = len(numbers) > 0 and int(numbers[-1]) - int(numbers[0]) + 1 == len(numbers)
    for block in blocks:
        held = block.rows(blob)
        held = held[int(numbers[0]) : int(numbers[-1]) + 1] if is_run else held[numbers]
        found |= (block_rows(rows, table.embedding_dim, block) != held).any(dim=1)
    return found
