"""Deduplication: equal bags of a feature are stored once, in a batch with a batch size per feature.

A request's user features are the same for all of its candidates, so a batch has few distinct bags of them.
Looking up each once saves input, lookups and exchange; the inverse indices expand the results to the full
batch.

Shape letters: B batch, F features, N number of IDs, U distinct bags of a feature.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from recsys.jagged.keyed_jagged import KeyedJaggedTensor

Int64s = NDArray[np.int64]


def deduplicate(kjt: KeyedJaggedTensor) -> KeyedJaggedTensor:
    """Return the same batch with each feature's equal bags (the same IDs and weights in the same order) stored once.

    Args:
        kjt: F features, one batch of B, in host memory. Its contents are checked (``validate``) and read.

    Returns:
        A variable batch: for each feature its U distinct bags in order of first occurrence, and inverse
        indices ``[F, B]``. Dtypes are kept; lengths per key are known. ``expand`` is the inverse.

    Raises:
        ValueError: The contents are wrong, or the batch is on a device, has a batch size per feature already, or
            values that are not IDs: not one-dimensional or not integers.
    """
    if kjt.variable_stride_per_key():
        raise ValueError("kjt: got a batch size per feature, expected one batch for all; expand it first")
    _check_readable(kjt)
    num_keys, stride = len(kjt.keys()), kjt.stride()
    first = _first_equal_rows(kjt)
    kept = np.flatnonzero(first == np.arange(len(first)))
    strides = np.bincount(kept // max(stride, 1), minlength=num_keys)
    number = np.empty_like(first)
    number[kept] = np.arange(len(kept)) - np.repeat(np.cumsum(strides) - strides, strides)
    values, weights, lengths = _rows_of(kjt, kept)
    return KeyedJaggedTensor(
        kjt.keys(),
        values,
        weights=weights,
        lengths=lengths,
        stride_per_key_per_rank=strides.reshape(-1, 1).tolist(),
        inverse_indices=(kjt.keys(), torch.from_numpy(number[first].reshape(num_keys, stride))),
    ).sync()


def expand(kjt: KeyedJaggedTensor) -> KeyedJaggedTensor:
    """Return the full batch of a batch with inverse indices.

    Args:
        kjt: A variable batch with inverse indices, in host memory. Its contents are checked and read.

    Returns:
        F features, one batch of B; lengths per key are known.

    Raises:
        ValueError: The contents are wrong, the batch is on a device, or there are no inverse indices.
    """
    names, inverse = kjt.inverse_indices()
    _check_readable(kjt)
    at = list(map(names.index, kjt.keys()))
    starts = np.asarray(kjt.lengths_offset_per_key()[:-1], dtype=np.int64)
    values, weights, lengths = _rows_of(kjt, (inverse.numpy()[at] + starts[:, None]).reshape(-1))
    return KeyedJaggedTensor(kjt.keys(), values, weights=weights, lengths=lengths, stride=kjt.stride()).sync()


def _check_readable(kjt: KeyedJaggedTensor) -> None:
    inverse = kjt.inverse_indices_or_none()
    tensors = [kjt.values(), kjt.lengths(), *([] if inverse is None else [inverse[1]])]
    devices = sorted({str(t.device) for t in tensors if t.device.type != "cpu"})
    if devices:
        raise ValueError(
            f"kjt: got tensors on {devices}, expected host memory: how many rows there are depends on them"
        )
    kjt.validate()


def _first_equal_rows(kjt: KeyedJaggedTensor) -> Int64s:
    """Return for each row the number of the first row of its feature with equal contents, ``[F * B]``.

    Rows of one length are sorted as a matrix, by feature, then by contents, so that equal rows are adjacent.
    The loop is over distinct lengths, of which there are few: their sum is at most N.
    """
    contents = _contents(kjt)
    lengths = kjt.lengths().numpy()
    starts = np.cumsum(lengths, dtype=np.int64) - lengths
    key_of_row = np.arange(len(lengths)) // max(kjt.stride(), 1)
    first = np.empty(len(lengths), dtype=np.int64)
    by_length = np.argsort(lengths, kind="stable")
    ends = np.flatnonzero(np.diff(lengths[by_length])) + 1
    for rows in np.split(by_length, ends):
        if len(rows) == 0:
            continue
        ids = starts[rows, None] + np.arange(lengths[rows[0]])
        table = np.column_stack([key_of_row[rows], contents[ids].reshape(len(rows), -1)])
        order = np.lexsort(table.T[::-1])  # stable: equal rows keep their order
        ordered = table[order]
        starts_group = np.ones(len(rows), dtype=bool)
        starts_group[1:] = (ordered[1:] != ordered[:-1]).any(axis=1)
        ordered_rows = rows[order]
        first[ordered_rows] = ordered_rows[starts_group][np.cumsum(starts_group) - 1]
    return first


def _contents(kjt: KeyedJaggedTensor) -> Int64s:
    """Return IDs and the bits of their weights as integers: ``[N, 1]`` or ``[N, 2]``."""
    values, weights = kjt.values(), kjt.weights_or_none()
    for name, tensor in (("values", values), ("weights", weights)):
        if tensor is not None and tensor.dim() != 1:
            raise ValueError(f"{name}: got shape {list(tensor.shape)}, expected one dimension")
    if values.is_floating_point() and values.numel():
        raise ValueError(f"values: got dtype {values.dtype}, expected integers")
    columns = [values.to(torch.int64)]
    if weights is not None:
        bits = {2: torch.int16, 4: torch.int32, 8: torch.int64}[weights.element_size()]
        columns.append(weights.detach().contiguous().view(bits).to(torch.int64))
    stacked: Int64s = torch.stack(columns, dim=1).numpy()
    return stacked


def _rows_of(kjt: KeyedJaggedTensor, rows: Int64s) -> tuple[Tensor, Tensor | None, Tensor]:
    """Return values, weights and lengths of the given rows, in this order."""
    weights, lengths = kjt.weights_or_none(), kjt.lengths()[torch.from_numpy(rows)]
    sizes = lengths.numpy().astype(np.int64)
    starts = kjt.offsets().numpy()[:-1][rows] - (np.cumsum(sizes) - sizes)
    ids = torch.from_numpy(np.repeat(starts, sizes) + np.arange(sizes.sum()))
    return kjt.values()[ids], None if weights is None else weights[ids], lengths
