"""Batch sizes of a KeyedJaggedTensor: one for all keys, or one for each key (variable batch per feature).

Also the checks of other arguments given per key.

Shape letters: B (full) batch, F features.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from operator import index
from typing import TypedDict

import torch
from torch import Tensor

from recsys.jagged.checks import TensorLike, as_tensor
from recsys.ops import is_traced

StridePerKeyPerRank = Tensor | Sequence[Sequence[int]]
InverseIndices = tuple[Sequence[str], TensorLike]


@dataclass(frozen=True, kw_only=True)
class VariableBatch:
    """The batch sizes of a variable batch.

    Attributes:
        stride_per_key_per_rank: The batch size of each key on each rank.
        stride_per_key: The batch size of each key, over all ranks.
        inverse_indices: Keys, and for each of them B row numbers of its batch, ``[F, B]`` int64: the rows of the
            full batch. None if the full batch is not known.
    """

    stride_per_key_per_rank: list[list[int]]
    stride_per_key: list[int]
    inverse_indices: tuple[list[str], Tensor] | None


class VariableArguments(TypedDict, total=False):
    """The arguments of a KeyedJaggedTensor that give it a variable batch."""

    stride_per_key_per_rank: StridePerKeyPerRank | None
    inverse_indices: InverseIndices | None


class RepeatedKeys(list[str]):
    """Keys of which some occur several times, each time with the same rows: ``permute`` makes them."""


def listed_keys(keys: Sequence[str]) -> list[str]:
    """Return keys as a list, which still says whether some are repeated."""
    return RepeatedKeys(keys) if isinstance(keys, RepeatedKeys) else list(keys)


def moved_variable(variable: VariableBatch | None, move: Callable[[Tensor], Tensor]) -> VariableArguments:
    """Return the arguments for a variable batch with its tensor moved."""
    if variable is None:
        return {}
    inverse = variable.inverse_indices
    return {
        "stride_per_key_per_rank": variable.stride_per_key_per_rank,
        "inverse_indices": None if inverse is None else (inverse[0], move(inverse[1])),
    }


def copied_variable(
    mine: VariableBatch | None, theirs: VariableBatch | None, non_blocking: bool
) -> VariableBatch | None:
    """Return a variable batch's sizes with its inverse indices copied into another one's tensor, if both have any."""
    if mine is None or theirs is None or mine.inverse_indices is None or theirs.inverse_indices is None:
        return theirs
    names, rows = theirs.inverse_indices
    return replace(theirs, inverse_indices=(names, mine.inverse_indices[1].copy_(rows, non_blocking)))


def check_keys(keys: Sequence[str], name: str = "keys") -> None:
    """Check that each key occurs once, except in ``RepeatedKeys``.

    Raises:
        ValueError: Names the duplicate keys.
    """
    if len(set(keys)) != len(keys) and not isinstance(keys, RepeatedKeys):
        doubled = sorted({key for key in keys if keys.count(key) > 1})
        raise ValueError(f"{name}: got {doubled} more than once, expected each key once")


def check_caches(
    keys: Sequence[str],
    sizes: Sequence[int],
    offsets: Sequence[int] | None,
    positions: Mapping[str, int] | None,
    name: str = "offset_per_key",
) -> None:
    """Check arguments that repeat others: offsets those of ``sizes``, positions those of ``keys``.

    Raises:
        ValueError: They differ.
    """
    if offsets is not None and list(offsets) != list(accumulate(sizes, initial=0)):
        raise ValueError(
            f"{name}: got {list(offsets)}, expected the start of each of {list(sizes)} and the end; leave it out"
        )
    at = {key: i for i, key in enumerate(keys)}
    if positions is not None and dict(positions) != at:
        raise ValueError(f"index_per_key: got {dict(positions)}, expected {at}; leave it out")


def checked_length_per_key(
    keys: Sequence[str], length_per_key: Sequence[int] | None, offset_per_key: Sequence[int] | None
) -> list[int] | None:
    """Return one number per key, from either argument; None if neither is given.

    Raises:
        ValueError: The numbers of values and keys differ.
    """
    if length_per_key is None and offset_per_key is not None:
        length_per_key = [b - a for a, b in pairwise(offset_per_key)]
    if length_per_key is None:
        return None
    if len(length_per_key) != len(keys):
        raise ValueError(
            f"length_per_key: got {len(length_per_key)} for {len(keys)} keys, expected one per key"
        )
    return list(length_per_key)


def inverse_rows(inverse_indices: tuple[list[str], Tensor], keys: Sequence[str]) -> tuple[list[str], Tensor]:
    """Return the inverse indices of these keys, in this order: a view if they are adjacent."""
    names, rows = inverse_indices
    at = {name: i for i, name in enumerate(names)}
    positions = [at[key] for key in keys]
    start = positions[0] if positions else 0
    if positions == list(range(start, start + len(positions))):
        return listed_keys(keys), rows[start : start + len(positions)]
    parts = rows.unbind()  # stacked without a tensor of positions, which would need a copy to the device
    return listed_keys(keys), torch.stack([parts[i] for i in positions])


def with_stride_per_key(
    stride_per_key_per_rank: StridePerKeyPerRank | None, stride_per_key: Sequence[int] | None
) -> StridePerKeyPerRank | None:
    """Return batch sizes per key and rank: those of one rank where only batch sizes per key are given and differ.

    Raises:
        ValueError: Both are given and disagree.
    """
    if stride_per_key is None:
        return stride_per_key_per_rank
    sizes = list(stride_per_key)
    if stride_per_key_per_rank is None:
        return [[n] for n in sizes] if len(set(sizes)) > 1 else None
    summed = [sum(ranks) for ranks in _as_lists(stride_per_key_per_rank)]
    if summed != sizes:
        raise ValueError(
            f"stride_per_key: got {sizes}, expected the sums of stride_per_key_per_rank, {summed}; leave it out"
        )
    return stride_per_key_per_rank


def checked_variable_batch(
    keys: Sequence[str],
    stride_per_key_per_rank: StridePerKeyPerRank | None,
    inverse_indices: InverseIndices | None,
) -> VariableBatch | None:
    """Return batch sizes as plain numbers and inverse indices as a tensor; None if all keys share one batch.

    Raises:
        ValueError: Batch sizes are not one list per key and one number per rank, or are negative; inverse indices
            come without them, lack a key, or have another shape or type.
    """
    if stride_per_key_per_rank is None:
        if inverse_indices is not None:
            raise ValueError(
                "inverse_indices: got them without stride_per_key_per_rank, expected both: the batch size of "
                "each key cannot be told from the lengths"
            )
        return None
    per_rank = _as_lists(stride_per_key_per_rank)
    if len(per_rank) != len(keys):
        raise ValueError(
            f"stride_per_key_per_rank: got {len(per_rank)} for {len(keys)} keys, expected one list per key"
        )
    num_ranks = sorted({len(ranks) for ranks in per_rank})
    if len(num_ranks) > 1:
        raise ValueError(
            f"stride_per_key_per_rank: got lists of {num_ranks} ranks, expected the same number for every key"
        )
    negative = {key: ranks for key, ranks in zip(keys, per_rank, strict=True) if any(n < 0 for n in ranks)}
    if negative:
        raise ValueError(f"stride_per_key_per_rank: got {negative}, expected 0 or more")
    return VariableBatch(
        stride_per_key_per_rank=per_rank,
        stride_per_key=[sum(ranks) for ranks in per_rank],
        inverse_indices=None if inverse_indices is None else _checked_inverse(keys, inverse_indices),
    )


def _as_lists(given: StridePerKeyPerRank) -> list[list[int]]:
    if is_traced(given):
        raise ValueError("stride_per_key_per_rank: got a traced value, expected plain numbers")
    if isinstance(given, Tensor):
        if given.device.type != "cpu":
            raise ValueError(
                f"stride_per_key_per_rank: got a tensor on {given.device}, expected numbers in host memory: "
                "reading it would wait for the device"
            )
        if given.dim() != 2 or given.is_floating_point():
            raise ValueError(
                f"stride_per_key_per_rank: got {given.dtype} {list(given.shape)}, expected integers [keys, ranks]"
            )
        lists: list[list[int]] = given.tolist()  # host memory
        return lists
    try:
        return [[index(n) for n in ranks] for ranks in given]
    except TypeError:
        raise ValueError(
            f"stride_per_key_per_rank: got {given}, expected a list for each key with a whole number for each rank"
        ) from None


def _checked_inverse(keys: Sequence[str], given: InverseIndices) -> tuple[list[str], Tensor]:
    try:
        names, listed = given
    except (TypeError, ValueError):
        raise ValueError("inverse_indices: expected a pair of keys and a tensor [keys, batch]") from None
    names, rows = listed_keys(names), as_tensor(listed, "inverse_indices", default=torch.int64)
    check_keys(names, "inverse_indices")
    known = set(names)
    missing = [key for key in keys if key not in known]
    if missing:
        raise ValueError(f"inverse_indices: got keys {names}, expected {missing} too: a row for every key")
    if is_traced(rows):
        return names, rows
    if rows.dim() != 2 or rows.shape[0] != len(names):
        raise ValueError(
            f"inverse_indices: got shape {list(rows.shape)} for {len(names)} keys, expected [keys, batch]"
        )
    if rows.dtype != torch.int64:
        raise ValueError(f"inverse_indices: got dtype {rows.dtype}, expected int64")
    return names, rows


def checked_variable_stride(
    variable: VariableBatch, lengths: Tensor | None, offsets: Tensor | None, stride: int | None
) -> int:
    """Return B if batch sizes differ: the inverse indices' size, else ``stride``, else the largest batch.

    Raises:
        ValueError: The batch sizes do not sum to the rows, or ``stride`` and the inverse indices disagree.
    """
    if is_traced(lengths, offsets):
        raise ValueError(
            "stride_per_key_per_rank: got a batch under a tracer, expected tensors: its sizes would become "
            "constants of the graph"
        )
    name, given, extra = _rows(lengths, offsets)
    num_rows = sum(variable.stride_per_key)
    if given.numel() != num_rows + extra:
        raise ValueError(
            f"{name}: got {given.numel()}, expected the sum of stride_per_key_per_rank{' + 1' if extra else ''} "
            f"= {num_rows + extra}"
        )
    if variable.inverse_indices is None:
        return max(variable.stride_per_key, default=0) if stride is None else stride
    full_stride = variable.inverse_indices[1].shape[-1]
    if stride is not None and stride != full_stride:
        raise ValueError(
            f"stride: got {stride} with inverse_indices of {full_stride} rows, expected them to be equal"
        )
    return full_stride


def checked_stride(
    keys: Sequence[str], lengths: Tensor | None, offsets: Tensor | None, stride: int | None
) -> int:
    """Return B if all keys share one batch, from the number of rows.

    Raises:
        ValueError: The number of rows is not a multiple of the number of keys.
    """
    name, given, extra = _rows(lengths, offsets)
    num_keys = len(keys)
    if is_traced(given) or is_traced(stride):
        if stride is not None:
            return stride
        num_rows = given.size(0) - extra
        return num_rows // num_keys if num_keys else 0
    num_rows = given.numel() - extra
    if num_keys == 0:
        return stride or 0
    if isinstance(num_rows, torch.SymInt):
        # torch.export: a comparison would fix the batch size, or relate it to the number of keys.
        return num_rows // num_keys if stride is None else stride
    if stride is not None and num_rows == stride * num_keys:
        return stride
    expected = f"keys × batch{' + 1' if extra else ''}"
    if stride is not None:
        expected += f" = {num_keys} × {stride}{' + 1' if extra else ''} = {num_keys * stride + extra}"
    if stride is not None or num_rows % num_keys:
        lacks_end = extra and (num_rows + 1) % num_keys == 0
        hint = ": the end of the last row belongs to the offsets" if lacks_end else ""
        raise ValueError(f"{name}: got {num_rows + extra} for {num_keys} keys, expected {expected}{hint}")
    return num_rows // num_keys


def _rows(lengths: Tensor | None, offsets: Tensor | None) -> tuple[str, Tensor, int]:
    if lengths is not None:
        return "lengths", lengths, 0
    assert offsets is not None
    return "offsets", offsets, 1


def check_inverse_contents(keys: Sequence[str], variable: VariableBatch) -> None:
    """Check that every inverse index is a row of its key's batch. Reads the tensor.

    Raises:
        ValueError: Names a key, a position and what was found there.
    """
    if variable.inverse_indices is None:
        return
    _, rows = inverse_rows(variable.inverse_indices, keys)
    ends = torch.tensor(variable.stride_per_key, dtype=torch.int64, device=rows.device).unsqueeze(1)
    wrong = ((rows < 0) | (rows >= ends)).nonzero()
    if wrong.numel():
        at, position = wrong[0].tolist()
        raise ValueError(
            f"inverse_indices[{keys[at]!r}]: got {int(rows[at, position])} at position {position}, expected a row "
            f"of the key's batch, 0 <= row < {variable.stride_per_key[at]}"
        )
