"""Many requests → one key-major batch, and one batch's outputs → many answers.

Shape letters: B rows of the batch, F sparse inputs, N number of IDs of the batch.

The reordering is FBGEMM's: a Python loop over features and requests takes 20 to 60 times as long. These ops
validate nothing (lengths that lie make them write anywhere, a batch without rows makes them divide by zero),
so only what ``serve.request_check`` has passed may come here.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from recsys.ops import fbgemm
from recsys.signature import Output, Signature
from serve.request_check import CheckedRequest


def collate(requests: Sequence[CheckedRequest]) -> tuple[Tensor, ...]:
    """Put checked requests together, in their order.

    Args:
        requests: at least one, all checked against the same signature.

    Returns:
        What the model's ``forward`` takes, on the CPU: float32 ``[B, width]`` for each dense input,
        ``lengths`` int64 ``[F * B]``, ``values`` int64 ``[N]``, both key-major, and ``weights`` float32
        ``[N]`` where the requests have them.
    """
    if len(requests) == 1:
        return _alone(requests[0])
    dense = [
        torch.from_numpy(np.concatenate([r.dense[i] for r in requests]))
        for i in range(len(requests[0].dense))
    ]
    lengths = torch.from_numpy(np.concatenate([r.lengths for r in requests]))
    values = torch.from_numpy(np.concatenate([r.values for r in requests]))
    weights = None
    if requests[0].weights is not None:
        weights = torch.from_numpy(np.concatenate([r.weights for r in requests if r.weights is not None]))
    if lengths.numel() > 0:
        lengths, values, weights = _key_major(lengths, values, weights, [r.num_rows for r in requests])
    sparse = (lengths, values) if weights is None else (lengths, values, weights)
    return (*dense, *sparse)


def _alone(request: CheckedRequest) -> tuple[Tensor, ...]:
    """A single request is key-major already; its dense arrays are read-only views of the wire's bytes."""
    dense = [torch.from_numpy(array.copy()) for array in request.dense]
    sparse = [torch.from_numpy(request.lengths), torch.from_numpy(request.values)]
    if request.weights is not None:
        sparse.append(torch.from_numpy(request.weights))
    return (*dense, *sparse)


def _key_major(
    lengths: Tensor, values: Tensor, weights: Tensor | None, num_rows: list[int]
) -> tuple[Tensor, Tensor, Tensor | None]:
    """From request-major (each request key-major in itself) to key-major; there is at least one row."""
    row_offsets = np.zeros(len(num_rows) + 1, np.int32)
    np.cumsum(num_rows, out=row_offsets[1:])
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
    """The batch's outputs as little-endian bytes, in the signature's order.

    Args:
        outputs: what ``forward`` returned.
        signature: says which outputs, and their shapes.
        num_rows: B.

    Raises:
        RuntimeError: the model returned something other than its signature says.
    """
    return [_output_bytes(outputs, output, num_rows) for output in signature.outputs]


def _output_bytes(outputs: dict[str, Tensor], output: Output, num_rows: int) -> bytes:
    tensor = outputs.get(output.name)
    expected = (num_rows, *output.shape)
    if tensor is None or tensor.dtype != torch.float32 or tuple(tensor.shape) != expected:
        got = "nothing" if tensor is None else f"{tensor.dtype} {tuple(tensor.shape)}"
        raise RuntimeError(f"output {output.name!r}: got {got}, expected float32 {expected}")
    return tensor.detach().numpy().astype("<f4", copy=False).tobytes()
