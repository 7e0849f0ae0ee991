"""CUDA graphs: batches of a model on one CUDA device, padded to a few sizes and replayed as recorded work.

Shape letters: B rows of a batch, R rows of a bucket, C ID capacity of a bucket, F features, N number of IDs, P parts.

A graph that was exported for one CUDA device has two methods beside ``forward`` (``export.graph.cutting``). For each
bucket, a number of rows and a capacity of IDs, the work after the first is recorded once: one copy of all parts from
page-locked memory, the device's part of the model, one copy of all outputs back. A batch is padded with rows without
IDs, its parts are put into their places, and the recorded work is replayed and waited for once.

Lookups read IDs up to the last offset only, so that what follows a batch's IDs in the buffer is not read.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from recsys.artifact.batches.answers import warm_up_rows
from recsys.artifact.batches.samples import Batch
from recsys.artifact.cuda.recorder import CudaRecorder, Recorder
from recsys.artifact.targets import Target
from recsys.errors import TargetError
from recsys.inputs.signature import Signature

#: The methods of a graph that can be recorded; ``export.graph.cutting`` describes them.
TO_SEND, ON_DEVICE = "to_send", "on_device"
METHODS = (TO_SEND, ON_DEVICE)
# The capacity of a bucket where none is said, per row and sparse input; and the least, which is 8 KiB to copy.
_IDS_PER_BAG = 4
_LEAST_IDS = 1024
# int32 words to which places are aligned: 64 bytes, more than the widest load of a CUDA thread.
_ALIGNMENT_WORDS = 16


@dataclass(frozen=True, kw_only=True)
class CudaGraphOptions:
    """Which batches run as CUDA graphs.

    Attributes:
        rows: The rows of each bucket; empty for no CUDA graphs. A batch takes the smallest that holds it.
        ids_per_row: Each bucket's capacity of IDs, per row; 0 for four for each sparse input. It is 1024 at least.

    Raises:
        ValueError: A number is too small.
    """

    rows: tuple[int, ...] = ()
    ids_per_row: int = 0

    def __post_init__(self) -> None:
        if any(rows < 1 for rows in self.rows):
            raise ValueError(f"cuda_graph_rows: got {list(self.rows)}, expected numbers of rows, from 1")
        if self.ids_per_row < 0:
            raise ValueError(f"cuda_graph_ids_per_row: got {self.ids_per_row}, expected at least 0")


@dataclass(frozen=True, kw_only=True)
class Capture:
    """How a model's batches are recorded.

    Attributes:
        options: The buckets.
        signature: The model's signature.
        device: The model's.
        recorder: Makes what records the work of the device, once for each version of the weights.
        verified: Rows that the model takes; None without any.
    """

    options: CudaGraphOptions
    signature: Signature
    device: torch.device
    recorder: Callable[[torch.device], Recorder]
    verified: Batch | None = None

    @staticmethod
    def on_target(
        target: Target, signature: Signature, options: CudaGraphOptions, verified: Batch | None = None
    ) -> Capture:
        """Return how to record batches of a target.

        Raises:
            TargetError: They cannot be recorded.
        """
        devices = {torch.device(device) for device in target.devices}
        why = ""
        if len(devices) > 1 or next(iter(devices)).type != "cuda":
            why = "expected a target of one CUDA device"
        elif signature.by_request:
            why = "expected rows that do not depend on each other, which padding with further rows leaves as they are"
        elif any(use.pooling == "none" for use in signature.sparse):
            why = "expected pooled lookups alone: the sizes of sequences follow the IDs of a batch"
        if why:
            raise _refused(options, target, why)
        return Capture(
            options=options,
            signature=signature,
            device=devices.pop(),
            recorder=CudaRecorder,
            verified=verified,
        )


def check_recordable(module: Any, target: Target, options: CudaGraphOptions) -> None:
    """Check that a target's graph has the methods to record.

    Raises:
        TargetError: It does not.
    """
    if not all(hasattr(module, name) for name in METHODS):
        raise _refused(
            options,
            target,
            "expected a graph with the methods to record: export it again with this release; models that look several "
            "arguments up in one collection, compute IDs, or read tensors in host memory get none",
        )


def _refused(options: CudaGraphOptions, target: Target, why: str) -> TargetError:
    return TargetError(
        f"cuda_graph_rows: got {list(options.rows)} for target {target.name!r}, {why}; leave it out otherwise"
    )


class BucketedForward:
    """The ``forward`` of a model, replayed for batches that fit a bucket, and called for all others.

    Any number of threads may call it. One that finds its bucket in use calls ``forward``.

    Args:
        module: The frozen model with its methods. All buckets are recorded at once.
        capture: How.

    Raises:
        RuntimeError: The device cannot record the model's work, or has too little memory.
    """

    def __init__(self, module: Any, capture: Capture) -> None:
        self._forward: Callable[..., dict[str, Tensor]] = module.forward
        self._to_send: Callable[..., tuple[list[Tensor], list[int]]] = module.to_send
        self._widths = [dense.width for dense in capture.signature.dense]
        self._num_features = len(capture.signature.sparse)
        recorder = capture.recorder(capture.device)
        with torch.inference_mode():
            self._buckets = [
                _Bucket(module, rows, capture, recorder) for rows in sorted(set(capture.options.rows))
            ]

    def __call__(self, *inputs: Tensor) -> dict[str, Tensor]:
        """Predict; see ``recsys.inputs.signature`` for inputs and outputs."""
        found = self._replayed(inputs)
        return self._forward(*inputs) if found is None else found

    def _replayed(self, inputs: Sequence[Tensor]) -> dict[str, Tensor] | None:
        """Return the outputs; None if no bucket takes the batch now."""
        num_rows = self._num_rows(inputs)
        if num_rows is None:
            return None
        dense, (lengths, values, *weights) = inputs[: len(self._widths)], inputs[len(self._widths) :]
        for bucket in self._buckets:
            if num_rows <= bucket.num_rows and values.numel() <= bucket.max_ids:
                break
        else:
            return None
        more = bucket.num_rows - num_rows
        if more:
            dense = [functional.pad(tensor, (0, 0, 0, more)) for tensor in dense]
            by_feature = lengths.view(self._num_features, num_rows)
            lengths = functional.pad(by_feature, (0, more)).view(-1)
        return bucket.run(*self._to_send(*dense, lengths, values, *weights), num_rows)

    def _num_rows(self, inputs: Sequence[Tensor]) -> int | None:
        """Return B; None for inputs that do not fit together: ``forward`` says what is wrong."""
        num_dense = len(self._widths)
        if len(inputs) < num_dense + 2:
            return None
        # Exported models have at least one sparse input.
        num_rows, rest = divmod(inputs[num_dense].numel(), self._num_features)
        shapes = [(num_rows, width) for width in self._widths]
        is_whole = rest == 0 and [tuple(tensor.shape) for tensor in inputs[:num_dense]] == shapes
        return num_rows if is_whole else None


class _Bucket:
    """Recorded work for batches of up to R rows and C IDs.

    Args:
        module: The frozen model.
        num_rows: R.
        capture: How to record.
        recorder: Records.

    Attributes:
        num_rows: R.
        max_ids: C. Each group of lookups has room for as many: one that looks a feature up twice may need more.
    """

    def __init__(self, module: Any, num_rows: int, capture: Capture, recorder: Recorder) -> None:
        signature, options, device = capture.signature, capture.options, recorder.device
        self.num_rows = num_rows
        per_row = options.ids_per_row or _IDS_PER_BAG * len(signature.sparse)
        self.max_ids = max(num_rows * per_row, _LEAST_IDS)
        made = warm_up_rows(signature, capture.verified, num_rows)
        parts, self._sizes = module.to_send(*made.inputs())
        fewest, _ = module.to_send(*_with_fewest_ids(made, signature).inputs())
        # The parts that hold something for each ID, whose size tells two batches of the same rows apart.
        self._of_ids = [part.shape != few.shape for part, few in zip(parts, fewest, strict=True)]
        shapes = [
            (max(self.max_ids, part.numel()),) if of_ids else tuple(part.shape)
            for part, of_ids in zip(parts, self._of_ids, strict=True)
        ]
        self._parts = _Packed(shapes, [part.dtype for part in parts], device)
        self._names = [output.name for output in signature.outputs]
        self._outputs = _Packed(
            [output.dims(num_rows) for output in signature.outputs],
            [torch.int64 if output.is_integer else torch.float32 for output in signature.outputs],
            device,
        )
        self._on_device: Callable[[list[Tensor], list[int]], list[Tensor]] = module.on_device
        self._lock = threading.Lock()
        # Valid IDs and offsets, for the calls before the record.
        self._parts.fill(parts)
        self._replay = recorder.record(self._work)

    def _work(self) -> None:
        self._parts.to_device()
        outputs = self._on_device(self._parts.on_device, self._sizes)
        for place, output in zip(self._outputs.on_device, outputs, strict=True):
            place.copy_(output)
        self._outputs.to_host()

    def run(self, parts: Sequence[Tensor], sizes: list[int], num_rows: int) -> dict[str, Tensor] | None:
        """Return the outputs of the first rows; None if the parts do not fit, or another thread's batch runs.

        Args:
            parts: The P tensors that are to be sent.
            sizes: What ``to_send`` returned beside them.
            num_rows: B.
        """
        if sizes != self._sizes or not self._fits(parts) or not self._lock.acquire(blocking=False):
            return None
        try:
            self._parts.fill(parts)
            self._replay()
            outputs = [output[:num_rows].clone() for output in self._outputs.on_host]
        finally:
            self._lock.release()
        return dict(zip(self._names, outputs, strict=True))

    def _fits(self, parts: Sequence[Tensor]) -> bool:
        return all(
            part.dtype is place.dtype
            and (part.numel() <= place.numel() if of_ids else part.shape == place.shape)
            for part, place, of_ids in zip(parts, self._parts.on_host, self._of_ids, strict=True)
        )


class _Packed:
    """Tensors at fixed places of a buffer in host memory, page-locked for a CUDA device, and of one on the device.

    Args:
        shapes: The shapes of the tensors.
        dtypes: int64 or float32.
        device: The device.

    Attributes:
        on_host: The tensors in host memory; zeros at first.
        on_device: The tensors on the device.
    """

    def __init__(
        self, shapes: Sequence[tuple[int, ...]], dtypes: Sequence[torch.dtype], device: torch.device
    ) -> None:
        words = [
            prod(shape) * dtype.itemsize // torch.int32.itemsize
            for shape, dtype in zip(shapes, dtypes, strict=True)
        ]
        # Behind each place there is room up to the next aligned word.
        starts = list(accumulate((-(-n // _ALIGNMENT_WORDS) * _ALIGNMENT_WORDS for n in words), initial=0))
        # Filled within inference mode or without.
        with torch.inference_mode(False):
            self._host = torch.zeros(starts[-1], dtype=torch.int32, pin_memory=device.type == "cuda")
            self._device = torch.zeros(starts[-1], dtype=torch.int32, device=device)
            self.on_host, self.on_device = (
                [
                    buffer[start : start + n].view(dtype).view(shape)
                    for start, n, dtype, shape in zip(starts, words, dtypes, shapes, strict=False)
                ]
                for buffer in (self._host, self._device)
            )
        self._filled = [0] * len(shapes)

    def fill(self, tensors: Sequence[Tensor]) -> None:
        """Put tensors into their places in host memory, with zeros behind shorter ones."""
        for i, (place, tensor) in enumerate(zip(self.on_host, tensors, strict=True)):
            n = tensor.numel()
            if n == place.numel():
                place.copy_(tensor)
            else:
                place[:n].copy_(tensor)
                place[n : self._filled[i]].zero_()
            self._filled[i] = n

    def to_device(self) -> None:
        """Start one copy of all places to the device."""
        self._device.copy_(self._host, non_blocking=True)

    def to_host(self) -> None:
        """Start one copy of all places from the device."""
        self._host.copy_(self._device, non_blocking=True)


def _with_fewest_ids(batch: Batch, signature: Signature) -> Batch:
    """Return a batch with empty bags, but for inputs whose bags hold the same number of IDs in every batch."""
    is_fixed = torch.tensor([use.num_ids is not None for use in signature.sparse], dtype=torch.bool)
    kept = is_fixed.repeat_interleave(batch.num_rows).repeat_interleave(batch.lengths)
    lengths = batch.lengths * is_fixed.repeat_interleave(batch.num_rows)
    weights = None if batch.weights is None else batch.weights[kept]
    return replace(batch, lengths=lengths, values=batch.values[kept], weights=weights)
