"""The rows of pieces that are kept: their columns, and their labels.

Shape letters: L labels, N number of rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from recsys.data.examples import Ints
from recsys.data.tables.columns import Columns
from recsys.data.tables.reading.pieces import Piece
from recsys.data.tables.values.arrow_types import plain_table
from recsys.inputs.columns import LabelColumn


def kept_columns(piece: Piece, names: Sequence[str], rows: Ints) -> Columns:
    """Return columns of some of a piece's kept rows."""
    places = rows if piece.kept is None else np.flatnonzero(piece.kept)[rows]
    table = plain_table(piece.read(names), keeps_encoded=True)
    # Taking copies; most often rows follow each other, as all of a piece do.
    is_run = (
        len(places) > 0 and places[-1] - places[0] == len(places) - 1 and bool((np.diff(places) == 1).all())
    )
    part = table.slice(int(places[0]), len(places)) if is_run else table.take(places)
    return Columns(part, lambda row: piece.place(int(places[row])))


def label_blocks(pieces: Iterable[Piece], labels: Sequence[LabelColumn]) -> Iterator[NDArray[np.float32]]:
    """Yield the labels of each piece's kept rows, ``[N, L]``."""
    names = [label.name for label in labels]
    for piece in pieces:
        columns = kept_columns(piece, names, np.arange(len(piece)))
        yield np.stack([columns.label(label) for label in labels], axis=1)
