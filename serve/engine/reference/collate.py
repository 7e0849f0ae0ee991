"""Collation of requests into one key-major batch, and checks of the batch's outputs.

Shape letters: B rows of the batch, F sparse inputs, N number of IDs of the batch.

FBGEMM's ops do the reordering: a Python loop over features and requests takes 20 to 60 times as long. These
ops validate nothing (with wrong lengths they write out of bounds, with a batch without rows they divide by
zero), so only requests checked by ``serve.engine.reference.request_check`` may come here.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from recsys.inputs.signature import Output, Signature
from recsys.ops import fbgemm
from serve.engine.reference.request_check import CheckedRequest
from serve.engine.reference.sparse_arrays import SparseArrays


def collate(requests: Sequence[CheckedRequest]) -> tuple[Tensor, ...]:
    """Collate checked requests, in order.

    Args:
        requests: at least one, all checked against the same signature, all with a context or all without; one if
            the signature says ``by_request``.

    Returns:
        The arguments of the model's ``forward`` (``recsys.inputs.signature``), or, if the requests have contexts, of
        its ``forward_ranking`` (``recsys.artifact.batches.ranking``); on the CPU.
    """
    dense = [_rows([r.dense[i] for r in requests]) for i in range(len(requests[0].dense))]
    num_rows = [r.num_rows for r in requests]
    sparse = _sparse([r.sparse for r in requests], num_rows)
    contexts = [r.context for r in requests if r.context is not None]
    if not contexts:
        return (*dense, *sparse)
    assert len(contexts) == len(requests)
    row_context = np.repeat(np.arange(len(requests), dtype=np.int64), num_rows)
    return (*dense, *_sparse(contexts, [1] * len(contexts)), *sparse, torch.from_numpy(row_context))


def _rows(arrays: Sequence[npt.NDArray[np.float32]]) -> Tensor:
    """Concatenate into new memory: a request's arrays are read-only views of the message's bytes."""
    return torch.from_numpy(arrays[0].copy() if len(arrays) == 1 else np.concatenate(arrays))


def _sparse(parts: Sequence[SparseArrays], num_bags: list[int]) -> tuple[Tensor, ...]:
    """Return lengths, values and, if there are any, weights of all requests, key-major.

    Args:
        parts: one per request, each key-major, with ``num_bags`` bags per input.
        num_bags: bags per input of each request.
    """
    if len(parts) == 1:
        lengths, values = torch.from_numpy(parts[0].lengths), torch.from_numpy(parts[0].values)
        weights = None if parts[0].weights is None else torch.from_numpy(parts[0].weights)
    else:
        lengths = torch.from_numpy(np.concatenate([p.lengths for p in parts]))
        values = torch.from_numpy(np.concatenate([p.values for p in parts]))
        weights = None
        if parts[0].weights is not None:
            weights = torch.from_numpy(np.concatenate([p.weights for p in parts if p.weights is not None]))
        if lengths.numel() > 0:
            lengths, values, weights = _key_major(lengths, values, weights, num_bags)
    return (lengths, values) if weights is None else (lengths, values, weights)


def _key_major(
    lengths: Tensor, values: Tensor, weights: Tensor | None, num_bags: list[int]
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Reorder from request-major (each request key-major) to key-major. There must be at least one bag."""
    row_offsets = np.zeros(len(num_bags) + 1, np.int32)
    np.cumsum(num_bags, out=row_offsets[1:])
    batch_offsets = torch.from_numpy(row_offsets)
    total_rows = int(row_offsets[-1])
    batch_lengths = fbgemm.reorder_batched_ad_lengths(lengths, batch_offsets, total_rows, False)
    offsets = fbgemm.asynchronous_complete_cumsum(lengths)
    batch_offsets_of_ids = fbgemm.asynchronous_complete_cumsum(batch_lengths)

    def reorder(per_id: Tensor) -> Tensor:
        reordered: Tensor = fbgemm.reorder_batched_ad_indices(
            offsets, per_id, batch_offsets_of_ids, batch_offsets, total_rows, False, -1
        )
        return reordered

    return batch_lengths, reorder(values), None if weights is None else reorder(weights)


def check_outputs(outputs: dict[str, Tensor], signature: Signature, num_rows: int) -> list[bytes]:
    """Return the batch's outputs as little-endian bytes, in the signature's order.

    Args:
        outputs: what ``forward`` returned.
        signature: names and shapes of the outputs.
        num_rows: B.

    Raises:
        RuntimeError: the model's outputs do not match its signature.
    """
    return [_output_bytes(outputs, output, num_rows) for output in signature.outputs]


def _output_bytes(outputs: dict[str, Tensor], output: Output, num_rows: int) -> bytes:
    tensor = outputs.get(output.name)
    expected = output.dims(num_rows)
    dtype = torch.int64 if output.is_integer else torch.float32
    if tensor is None or tensor.dtype != dtype or tuple(tensor.shape) != expected:
        got = "nothing" if tensor is None else f"{tensor.dtype} {tuple(tensor.shape)}"
        raise RuntimeError(f"output {output.name!r}: got {got}, expected {output.dtype} {expected}")
    return tensor.detach().numpy().astype("<i8" if output.is_integer else "<f4", copy=False).tobytes()
