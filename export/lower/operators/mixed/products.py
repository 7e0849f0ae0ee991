"""The products of all pairs of vectors of contexts and rows: those of two contexts' vectors once for each context.

Shape letters: B rows, V vectors, C those of contexts, R those of rows, D embedding dim.
"""

from __future__ import annotations

from itertools import combinations

from export.lower.operators.forms import matmul
from export.lower.operators.mixed.pieces import (
    flat,
    is_expanded,
    of_contexts_part,
    once_per_value,
    side_by_side,
)
from export.lower.operators.views import permute
from export.lower.values import Expand, Join, Part, Products, Space, Value


@once_per_value
def apart(value: Value) -> Value | None:
    """Return the products of the pairs of a row's vectors as columns of those of contexts, of rows, and of both.

    Args:
        value: What may be such products.

    Returns:
        The same numbers in the same order; None if no two vectors are of contexts.
    """
    if not isinstance(value, Products) or value.space is not Space.ROWS:
        return None
    num, dim = value.source.dims
    vectors = _vectors(value.source, num, dim)
    if vectors is None:
        return None
    contexts = [i for i, part in enumerate(vectors) if is_expanded(part.value)]
    rows = [i for i in range(num) if i not in contexts]
    if len(contexts) < 2 or not rows:
        return None
    of_contexts = side_by_side([of_contexts_part(vectors[i]) for i in contexts], (len(contexts), dim))
    of_rows = side_by_side([vectors[i] for i in rows], (len(rows), dim))
    expanded = Expand(dims=of_contexts.dims, dtype=of_contexts.dtype, source=of_contexts)
    once = _products(of_contexts)
    both = matmul(of_rows, permute(expanded, 0, 2, 1)).settled()
    # By pair, where its product is.
    found: dict[tuple[int, int], Part] = {}
    within = Expand(dims=once.dims, dtype=once.dtype, source=once)
    for i, pair in enumerate(combinations(contexts, 2)):
        found[pair] = Part(value=within, offset=i, width=1)
    if len(rows) > 1:
        among = _products(of_rows)
        for i, pair in enumerate(combinations(rows, 2)):
            found[pair] = Part(value=among, offset=i, width=1)
    for i, row in enumerate(rows):
        for j, context in enumerate(contexts):
            pair = (min(row, context), max(row, context))
            found[pair] = Part(value=both, offset=i * len(contexts) + j, width=1)
    parts = flat([found[pair] for pair in combinations(range(num), 2)])
    return Join(dims=value.dims, parts=tuple(parts))


def _products(vectors: Value) -> Products:
    num = vectors.dims[0]
    return Products(dims=(num * (num - 1) // 2,), space=vectors.space, source=vectors)


def _vectors(value: Value, num: int, dim: int) -> list[Part] | None:
    """Return each of some vectors; None if one consists of several parts."""
    found: list[Part] = []
    for part in flat([Part(value=value, offset=0, width=num * dim)]):
        count, rest = divmod(part.width, dim)
        if rest:
            return None
        found += [Part(value=part.value, offset=part.offset + i * dim, width=dim) for i in range(count)]
    return found
