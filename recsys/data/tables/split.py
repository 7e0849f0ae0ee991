"""Which rows of a table are learned from, and which are held out.

Shape letters: N number of rows.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from recsys.data.examples import Ints, held_out_rows
from recsys.data.lines import DataError
from recsys.data.tables.columns import Columns, time_of
from recsys.data.tables.pieces import Piece
from recsys.schema import Schema


def split(pieces: Sequence[Piece], schema: Schema) -> tuple[list[Piece], list[Piece]]:
    """Return the pieces to learn from and those to measure on."""
    num_rows = sum(map(len, pieces))
    if num_rows < 2:
        raise DataError(
            f"data: got {num_rows} rows, expected at least 2: one to learn from, one to measure on"
        )
    if schema.time is not None:
        is_late = _late_rows(pieces, schema)
    else:
        first = num_rows - held_out_rows(num_rows, schema.held_out)
        starts = np.cumsum([0, *map(len, pieces)])
        is_late = [
            _numbered(piece, start) >= first
            for piece, start in zip(pieces, starts[:-1].tolist(), strict=True)
        ]
    parts = [
        [piece.keeping(late if held_out else ~late) for piece, late in zip(pieces, is_late, strict=True)]
        for held_out in (False, True)
    ]
    train, held_out = ([piece for piece in part if len(piece)] for part in parts)
    if not train or not held_out:
        what = "train on" if not train else "hold out"
        raise DataError(
            f"schema.time: got column {schema.time!r}, by which there are no rows to {what}; expected another "
            "held_out_from, or no time"
        )
    return train, held_out


def _numbered(piece: Piece, start: int) -> Ints:
    """Return the number of each of the piece's rows among all kept ones."""
    return start + np.cumsum(piece.mask) - 1


def _late_rows(pieces: Sequence[Piece], schema: Schema) -> list[NDArray[np.bool_]]:
    assert schema.time is not None
    times = [Columns(piece.read([schema.time]), piece.place).times(schema.time) for piece in pieces]
    if schema.held_out_from:
        bound = time_of(schema.held_out_from)
    else:
        kept = np.concatenate([t[piece.mask] for t, piece in zip(times, pieces, strict=True)])
        place = len(kept) - held_out_rows(len(kept), schema.held_out)
        bound = np.partition(kept, place)[place]
        if bound == kept.min() and bound < kept.max():
            # Most rows have the first time: hold out all later ones.
            bound = kept[kept > bound].min()
    return [t >= bound for t in times]
