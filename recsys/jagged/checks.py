"""Helpers of the jagged types: lists to tensors, checks of shapes and contents, printed forms.

Shape letters: B batch, F features, N number of IDs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from recsys.ops import is_traced

TensorLike = Tensor | Sequence[Any]


def as_tensor(data: TensorLike, name: str, *, default: torch.dtype) -> Tensor:
    """Return a tensor unchanged, or a list as a tensor; an empty list gets ``default`` as its dtype."""
    if isinstance(data, Tensor) or is_traced(data):
        return data  # type: ignore[return-value]
    if not isinstance(data, Sequence) or isinstance(data, (str, bytes)):
        raise ValueError(f"{name}: got {type(data).__name__}, expected a tensor or a list of numbers")
    try:
        tensor = torch.tensor(data, dtype=default if len(data) == 0 else None)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"{name}: cannot make a tensor of this list: {error}") from None
    return tensor.to(default) if default.is_floating_point else tensor


def as_rows(data: TensorLike | None, name: str) -> Tensor | None:
    """Return lengths or offsets as a tensor; of no elements, they are integers whatever they were given as."""
    if data is None:
        return None
    tensor = as_tensor(data, name, default=torch.int64)
    if is_traced(tensor) or torch.compiler.is_compiling():
        return tensor
    return tensor.to(torch.int64) if tensor.is_floating_point() and tensor.numel() == 0 else tensor


def check_shapes(
    values: Tensor, weights: Tensor | None, lengths: Tensor | None, offsets: Tensor | None
) -> None:
    """Check shapes and dtypes. Proxies, and tensors under ``torch.export``, are not: their shapes are not known.

    Raises:
        ValueError: A field is wrong; the message names it, what was found and what was expected.
    """
    if torch.compiler.is_compiling():
        return
    for name, rows in (("lengths", lengths), ("offsets", offsets)):
        if rows is None or is_traced(rows):
            continue
        if rows.dim() != 1:
            raise ValueError(f"{name}: got shape {list(rows.shape)}, expected one dimension")
        if rows.is_floating_point():
            raise ValueError(f"{name}: got dtype {rows.dtype}, expected int32 or int64")
    if not is_traced(values) and values.dim() == 0:
        raise ValueError("values: got a single number, expected one dimension at least")
    if lengths is None and offsets is None:
        raise ValueError("lengths, offsets: got neither, expected at least one of them")
    if offsets is not None and not is_traced(offsets) and offsets.numel() == 0:
        raise ValueError("offsets: got no elements, expected the leading 0 at least")
    if (
        lengths is not None
        and offsets is not None
        and not is_traced(lengths, offsets)
        and offsets.numel() != lengths.numel() + 1
    ):
        raise ValueError(
            f"offsets: got {offsets.numel()} for {lengths.numel()} lengths, expected {lengths.numel() + 1}: "
            "one for the start of each row and the end of the last"
        )
    if weights is not None and not is_traced(values, weights) and weights.shape[:1] != values.shape[:1]:
        raise ValueError(
            f"weights: got {list(weights.shape)} for values {list(values.shape)}, expected one weight per value"
        )


def check_contents(values: Tensor, lengths: Tensor | None, offsets: Tensor | None) -> None:
    """Check contents. Reads the tensors, so it synchronizes with an accelerator.

    Raises:
        ValueError: A field is wrong; the message names it, what was found and what was expected.
    """
    num_values = values.shape[0]
    if lengths is not None:
        negative = (lengths < 0).nonzero().flatten()
        if negative.numel():
            at = int(negative[0])
            raise ValueError(f"lengths: got {int(lengths[at])} at position {at}, expected 0 or more")
        if int(lengths.sum()) != num_values:
            raise ValueError(
                f"lengths: got a sum of {int(lengths.sum())} for {num_values} values, expected them to be equal"
            )
    if offsets is None:
        return
    if int(offsets[0]) != 0:
        raise ValueError(f"offsets: got {int(offsets[0])} as the first, expected 0")
    falling = (offsets[1:] < offsets[:-1]).nonzero().flatten()
    if falling.numel():
        at = int(falling[0])
        raise ValueError(
            f"offsets: got {int(offsets[at])} and then {int(offsets[at + 1])} at position {at + 1}, "
            "expected them never to fall"
        )
    if int(offsets[-1]) != num_values:
        raise ValueError(
            f"offsets: got {int(offsets[-1])} as the last for {num_values} values, expected {num_values}: "
            f"the end of the last row belongs to the offsets (append {num_values})"
        )
    if lengths is not None and not torch.equal(offsets.diff().to(torch.int64), lengths.to(torch.int64)):
        at = int((offsets.diff() != lengths).nonzero()[0])
        raise ValueError(
            f"offsets: got a row of {int(offsets[at + 1] - offsets[at])} at position {at} where lengths "
            f"say {int(lengths[at])}, expected them to agree"
        )


def has_no_rows(values: Tensor, lengths: Tensor | None, offsets: Tensor) -> bool:
    """Return whether there are no values, no lengths and no offsets: not even the leading zero."""
    if torch.compiler.is_compiling() or is_traced(values, lengths, offsets) or values.dim() == 0:
        return False
    return (
        values.shape[0] == 0
        and offsets.dim() == 1
        and offsets.shape[0] == 0
        and (lengths is None or lengths.numel() == 0)
    )


def empty_maker(device: torch.device | None) -> Callable[[Tensor], Tensor]:
    """Return what makes an empty tensor like another one: of no elements, or of the same shape on a device."""
    if device is None:
        return lambda t: t.new_empty(0)
    return lambda t: torch.empty_like(t, device=device)


def split_rows(data: Tensor, offsets: Tensor) -> list[Tensor]:
    """Return one tensor for each row of a jagged tensor: views. Reads the offsets."""
    if offsets.shape[0] == 1:
        return []  # nothing to read: right for tensors without contents too
    return [data[start:end] for start, end in pairwise(offsets.tolist())]


def rows_as_lists(data: Tensor, offsets: Tensor) -> list[Any]:
    """Return the rows of a jagged tensor as plain lists, for printing."""
    return [row.tolist() for row in split_rows(data, offsets)]


def printed_rows(values: Tensor, weights: Tensor | None, offsets: Tensor, *, indent: int) -> str:
    """Return the printed form of one feature: its rows, or its rows and their weights."""
    rows = str(rows_as_lists(values, offsets))
    if weights is None:
        return rows
    pad = " " * indent
    return f'"values": {rows},\n{pad}"weights": {rows_as_lists(weights, offsets)}'


def moved(jagged: Any, move: Callable[[Tensor], Tensor]) -> dict[str, Any]:
    """Return the constructor's tensor arguments for a copy of a jagged tensor with each tensor moved."""
    tensors = {
        "values": jagged._values,
        "weights": jagged._weights,
        "lengths": jagged._lengths,
        "offsets": jagged._offsets,
    }
    return {name: None if t is None else move(t) for name, t in tensors.items()}


def printed_shape(*tensors: Tensor | None) -> str:
    """Return dtype and shape of the first tensor that is not None."""
    given = next(t for t in tensors if t is not None)
    return "traced" if is_traced(given) else f"{str(given.dtype).removeprefix('torch.')}{list(given.shape)}"
