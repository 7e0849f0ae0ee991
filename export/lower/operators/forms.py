"""What is computed by forms: operands of several dimensions number by number, and sums of their products.

Shape letters: B rows; G matrices, M rows, N columns, K what is summed.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor

from export.lower.bags import IdsSpace
from export.lower.formed import Broadcast, Contract
from export.lower.kinds import ElementwiseKind
from export.lower.operators.views import lifted_to, permute, with_axes
from export.lower.strided import (
    Axis,
    Strided,
    contiguous,
    lifted,
    loops_of,
    operand,
    strided,
    with_rows,
    without_rows,
)
from export.lower.values import Called, NotLoweredError, Space, Value, operator

# A matrix with fewer columns than the kernel takes at once is better the first one.
_FEW_COLUMNS = 16
_NONE = Axis(1, 0)


def both(first: Any, second: Any) -> tuple[Strided, Strided]:
    """Return two operands as views in one space; one of them is a value or a view of one.

    Raises:
        NotLoweredError: One is nothing that a step reads, or they are of two spaces.
    """
    given = [one for one in (first, second) if isinstance(one, Called)]
    spaces = {space for one in given if (space := _space_of(one)) is not None}
    # What is computed of dense weights is there for each row, and so for each ID.
    spaces -= {space.rows for space in spaces if isinstance(space, IdsSpace)}
    if len(spaces) > 1:
        raise NotLoweredError("it computes with rows and contexts")
    space = spaces.pop() if spaces else Space.ROWS
    views = []
    for one in (first, second):
        if isinstance(one, (int, float)):
            one = torch.tensor(one)
        if not isinstance(one, (Value, Strided, Tensor)):
            raise NotLoweredError(f"it computes with {type(one).__name__}")
        view = strided(lifted(one, space))
        views.append(view if view.value.space is space else _in_space(view, space))
    return views[0], views[1]


def _space_of(one: Any) -> Space | None:
    """Return the space of an operand; None if its numbers are the same for every row."""
    if isinstance(one, Strided):
        return one.value.space if one.has_rows else None
    return one.space if isinstance(one, Value) else None


def _in_space(view: Strided, space: Space) -> Strided:
    return Strided(value=lifted_to(view.value, space), offset=view.offset, axes=view.axes)


def result_dtype(first: torch.dtype, second: torch.dtype) -> torch.dtype:
    """Return the type of what is computed of two values."""
    return torch.promote_types(first, second)


def broadcast(
    kind: ElementwiseKind, first: Strided, second: Strided, dtype: torch.dtype, factor: float = 0.0
) -> Any:
    """Return what two operands make number by number, each repeated where the other one has more numbers."""
    first, second = _in_order(first), _in_order(second)
    ndim = max(first.ndim, second.ndim)
    rows = [ndim - view.ndim + view.axes.index(None) for view in (first, second) if view.has_rows]
    has_rows = bool(rows)
    if len(set(rows)) > 1 or any(at != 0 for at in rows):
        raise NotLoweredError("it broadcasts over rows")
    axes = [[*[_NONE] * (ndim - view.ndim), *view.axes] for view in (first, second)]
    if has_rows:
        if any(one[0] is not None and one[0].size != 1 for one in axes):
            raise NotLoweredError("it broadcasts over rows")
        axes = [one[1:] for one in axes]
    dims, strides = [], ([], [])  # type: ignore[var-annotated]
    for pair in zip(*axes, strict=True):
        size = max(axis.size for axis in pair if axis is not None)
        for axis, steps in zip(pair, strides, strict=True):
            if axis is None or axis.size not in (1, size):
                raise NotLoweredError("it broadcasts over rows")
            steps.append(axis.stride if axis.size == size and size != 1 else 0)
        dims.append(size)
    sizes, (out, a, b) = loops_of(dims, [axis.stride for axis in contiguous(dims)], *strides)
    made = Broadcast(
        dims=tuple(dims), space=first.value.space, dtype=dtype, kind=kind, factor=factor,
        sizes=tuple(sizes), strides=tuple(out), operands=[operand(first, a), operand(second, b)],
    )  # fmt: skip
    return made if has_rows else without_rows(made)


def _in_order(view: Strided) -> Strided:
    """Return numbers that are the same for every row in order: a copy of them is made once."""
    is_repeated = any(axis.stride == 0 and axis.size > 1 for axis in view.of_row)
    return view if view.has_rows or is_repeated else without_rows(with_rows(view).settled())


def contract(first: Strided, second: Strided, names: tuple[str, str], out: str) -> Any:
    """Return sums of products, as ``torch.einsum`` names the dimensions of operands and result.

    Raises:
        NotLoweredError: They are not sums over matrices.
    """
    sizes: dict[str, int] = {}
    by: list[dict[str, int]] = []
    rows: set[str] = set()
    for view, dims_of_view in zip((first, second), names, strict=True):
        if len(dims_of_view) != view.ndim or len(set(dims_of_view)) != len(dims_of_view):
            raise NotLoweredError(f"it computes sums of products of the form {names[0]},{names[1]}->{out}")
        steps: dict[str, int] = {}
        by.append(steps)
        for letter, axis in zip(dims_of_view, view.axes, strict=True):
            if axis is None:
                rows.add(letter)
            elif axis.size != 1 or letter not in sizes:
                sizes[letter] = max(axis.size, sizes.get(letter, 1))
                steps[letter] = axis.stride if axis.size > 1 else 0
    if any(letter in sizes for letter in rows) and any(sizes.get(letter, 1) != 1 for letter in rows):
        raise NotLoweredError("it broadcasts over rows")
    if len(rows) > 1 or any(letter not in out for letter in rows):
        raise NotLoweredError("it sums over rows, or multiplies each with each")
    letters = [letter for letter in out if letter not in rows]
    if not set(letters) <= set(sizes):
        raise NotLoweredError(f"it computes sums of products of the form {names[0]},{names[1]}->{out}")
    dims = [sizes[letter] for letter in letters]
    to = dict(zip(letters, (axis.stride for axis in contiguous(dims)), strict=True))
    made = _contracted((first, second), by, sizes, letters, to, dims)
    if not rows:
        return without_rows(made)
    at = out.index(rows.pop())
    return made if at == 0 else permute(made, [*range(1, at + 1), 0, *range(at + 1, made.ndim)])


def _contracted(
    views: tuple[Strided, Strided],
    by: list[dict[str, int]],
    sizes: dict[str, int],
    letters: list[str],
    to: dict[str, int],
    dims: list[int],
) -> Value:
    (first, second), (a, b) = views, by
    summed = [letter for letter in sizes if letter not in to]
    several = [letter for letter in letters if sizes[letter] > 1]
    each = [letter for letter in several if letter in a and letter in b]
    of_first = [letter for letter in several if letter in a and letter not in b]
    of_second = [letter for letter in several if letter in b and letter not in a]
    num_columns = prod(sizes[letter] for letter in of_second)
    if num_columns < _FEW_COLUMNS <= prod(sizes[letter] for letter in of_first):
        return _contracted((second, first), [b, a], sizes, letters, to, dims)
    loops = [_merged(group, sizes, (to, a, b)) for group in (each, of_first, of_second, summed)]
    return Contract(
        dims=tuple(dims),
        space=first.value.space,
        sizes=tuple(size for size, _ in loops),
        strides=tuple(steps[0] for _, steps in loops),
        operands=[
            operand(first, [steps[1] for _, steps in loops]),
            operand(second, [steps[2] for _, steps in loops]),
        ],
    )


def _merged(
    letters: Sequence[str], sizes: dict[str, int], strides: Sequence[dict[str, int]]
) -> tuple[int, list[int]]:
    """Return one loop over some dimensions."""
    found, (*steps,) = loops_of(
        [sizes[letter] for letter in letters],
        *[[of.get(letter, 0) for letter in letters] for of in strides],
    )
    if any(size != 1 for size in found[:-1]):
        raise NotLoweredError("it multiplies matrices of more dimensions than a form has loops")
    return found[-1], [of[-1] for of in steps]


@operator("einsum", views=True)
def einsum(equation: str, *operands: Any) -> Any:
    """Return sums of products of two operands."""
    given = list(operands[0]) if len(operands) == 1 and isinstance(operands[0], (list, tuple)) else operands
    names, arrow, out = equation.replace(" ", "").partition("->")
    parts = names.split(",")
    if len(given) != 2 or len(parts) != 2 or not arrow or "." in equation:
        raise NotLoweredError(f"it computes einsum({equation!r})")
    first, second = both(*given)
    letters = set(parts[0]) | set(parts[1])
    if letters <= set(out):
        # Nothing is summed: products number by number.
        dtype = result_dtype(first.dtype, second.dtype)
        first, second = _aligned(first, parts[0], out), _aligned(second, parts[1], out)
        return broadcast(ElementwiseKind.MULTIPLY, first, second, dtype)
    return contract(first, second, (parts[0], parts[1]), out)


def _aligned(view: Strided, names: str, out: str) -> Strided:
    """Return a view with a dimension for each letter of the result."""
    if len(names) != view.ndim or len(set(names)) != len(names):
        raise NotLoweredError(f"it takes the diagonal of {names!r}")
    axes: list[Axis | None] = [view.axes[names.index(letter)] if letter in names else _NONE for letter in out]
    return strided(with_axes(view, axes))


def matmul(first: Any, second: Any) -> Any:
    """Return the products of matrices, or of vectors."""
    a, b = both(first, second)
    # Letters from behind: those of matrices, and those of rows and columns.
    outer = "hgfe"[4 - max(a.ndim - 2, b.ndim - 2, 0) :]
    if len(outer) != max(a.ndim - 2, b.ndim - 2, 0) or min(a.ndim, b.ndim) < 1:
        raise NotLoweredError("it multiplies matrices of many dimensions")
    of_first = outer[len(outer) - max(a.ndim - 2, 0) :] + ("mk" if a.ndim > 1 else "k")
    of_second = outer[len(outer) - max(b.ndim - 2, 0) :] + ("kn" if b.ndim > 1 else "k")
    out = outer + ("m" if a.ndim > 1 else "") + ("n" if b.ndim > 1 else "")
    return contract(a, b, (of_first, of_second), out)


@operator("conv1d", views=True)
def conv1d(
    value: Any, weight: Tensor, bias: Any = None, stride: Any = 1, padding: Any = 0, *rest: Any
) -> Any:
    """Return a convolution over single places: a linear layer over the dimension before the last."""
    dilation, groups = rest[0] if rest else 1, rest[1] if len(rest) > 1 else 1
    is_single = weight.shape[-1] == 1 and all(one in (1, (1,), [1]) for one in (stride, dilation))
    if not is_single or groups != 1 or padding not in (0, (0,), [0], "valid", "same"):
        raise NotLoweredError("a convolution over several places")
    a, b = both(weight, value)
    found = contract(Strided(value=a.value, offset=a.offset, axes=a.axes[:2]), b, ("mk", "bkn"), "bmn")
    if bias is None:
        return found
    view, by = both(found, bias)
    by = Strided(value=by.value, offset=by.offset, axes=(*by.axes, _NONE))
    return broadcast(ElementwiseKind.ADD, by, view, torch.float32)
