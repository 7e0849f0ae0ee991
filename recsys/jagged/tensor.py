"""JaggedTensor: rows of different lengths, of one feature.

Shape letters: B batch, D embedding dimension, N number of IDs.

The jagged types are plain Python objects that hold tensors (or, under FX, proxies) and do not read their
contents: every shape follows from shapes or arguments. So they leave no trace in an exported graph, and cause
no hidden synchronization with a device. Only these read tensors: ``validate``, the ``sync`` methods,
``to_dense``, printing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from recsys.jagged.checks import (
    TensorLike,
    as_rows,
    as_tensor,
    check_contents,
    check_shapes,
    empty_maker,
    has_no_rows,
    moved,
    printed_rows,
    printed_shape,
    split_rows,
)
from recsys.jagged.recorded import Recorded, call_later
from recsys.ops import fbgemm, is_traced, lengths_to_offsets


class JaggedBase(Recorded):
    """Rows of different lengths; lengths and offsets are computed from each other on first use."""

    def __init__(
        self,
        values: TensorLike,
        weights: TensorLike | None,
        lengths: TensorLike | None,
        offsets: TensorLike | None,
    ) -> None:
        self._values = as_tensor(values, "values", default=torch.int64)
        self._weights = None if weights is None else as_tensor(weights, "weights", default=torch.float32)
        self._lengths, self._offsets = as_rows(lengths, "lengths"), as_rows(offsets, "offsets")
        if self._offsets is not None and has_no_rows(self._values, self._lengths, self._offsets):
            # TorchRec's form of no rows: offsets without the leading zero.
            self._lengths, self._offsets = self._offsets, None

    def values(self) -> Tensor:
        """Return all rows one after the other: ``[N]``, or ``[N, D]`` in a JaggedTensor."""
        return self._values

    def weights(self) -> Tensor:
        """Return the weights, ``[N]``.

        Raises:
            ValueError: There are no weights.
        """
        if self._weights is None:
            raise ValueError(f"weights: this {type(self).__name__} has none")
        return self._weights

    def weights_or_none(self) -> Tensor | None:
        """Return the weights, ``[N]``, or None."""
        return self._weights

    def lengths(self) -> Tensor:
        """Return the lengths, ``[n]``; they are computed from the offsets on first use."""
        if self._lengths is None:
            assert self._offsets is not None
            self._lengths = self._offsets[1:] - self._offsets[:-1]
        return self._lengths

    def lengths_or_none(self) -> Tensor | None:
        """Return the lengths, ``[n]``, if they were given or computed, or None."""
        return self._lengths

    def offsets(self) -> Tensor:
        """Return the offsets with the leading zero, ``[n + 1]``; they are computed from the lengths on first use."""
        if self._offsets is None:
            assert self._lengths is not None
            self._offsets = lengths_to_offsets(self._lengths)
        return self._offsets

    def offsets_or_none(self) -> Tensor | None:
        """Return the offsets, ``[n + 1]``, if they were given or computed, or None."""
        return self._offsets

    def device(self) -> torch.device:
        """Return the device of the values."""
        return self._values.device

    def size_in_bytes(self) -> int:
        """Return the size of all tensors that are given or computed."""
        return sum(tensor.element_size() * tensor.numel() for tensor in self._tensors())

    def record_stream(self, stream: torch.Stream) -> None:
        """Keep the tensors' memory until the work now queued on ``stream`` is done."""
        for tensor in self._tensors():
            tensor.record_stream(stream)

    def clear_storage(self) -> int:
        """Free the memory of all tensors, whose contents are lost; return its size in bytes."""
        size = self.size_in_bytes()
        for tensor in self._tensors():
            tensor.untyped_storage().resize_(0)
        return size

    def _tensors(self) -> list[Tensor]:
        given = (self._values, self._weights, self._lengths, self._offsets)
        return [tensor for tensor in given if tensor is not None]

    def _arguments(self) -> dict[str, Any]:
        return moved(self, lambda t: t)

    def _copy_tensors(self, other: JaggedBase, non_blocking: bool) -> None:
        for name in ("_values", "_weights", "_lengths", "_offsets"):
            mine, theirs = getattr(self, name), getattr(other, name)
            if mine is not None and theirs is not None:
                mine.copy_(theirs, non_blocking=non_blocking)
        # What only one of the two has computed would be stale.
        if self._lengths is not None and other._lengths is None:
            self._lengths.copy_(other.lengths(), non_blocking=non_blocking)
        if self._offsets is not None and other._offsets is None:
            self._offsets.copy_(other.offsets(), non_blocking=non_blocking)


class JaggedTensor(JaggedBase):
    """Rows of different lengths of one feature.

    Args:
        values: ``[N]`` or ``[N, D]``, all rows one after the other; a list is converted to a tensor.
        weights: ``[N]``, one per value, or None.
        lengths: ``[B]``, int32 or int64, the number of values of each row.
        offsets: ``[B + 1]``, where each row starts, and the end of the last one.

    Raises:
        ValueError: The shapes disagree. ``validate()`` also checks the contents.
    """

    def __init__(
        self,
        values: TensorLike,
        weights: TensorLike | None = None,
        lengths: TensorLike | None = None,
        offsets: TensorLike | None = None,
    ) -> None:
        super().__init__(values, weights, lengths, offsets)
        check_shapes(self._values, self._weights, self._lengths, self._offsets)

    @staticmethod
    def empty(
        is_weighted: bool = False,
        device: torch.device | None = None,
        values_dtype: torch.dtype | None = None,
        weights_dtype: torch.dtype | None = None,
        lengths_dtype: torch.dtype = torch.int32,
    ) -> JaggedTensor:
        """Return a jagged tensor of no rows."""
        return JaggedTensor(
            values=torch.empty(0, dtype=values_dtype, device=device),
            weights=torch.empty(0, dtype=weights_dtype, device=device) if is_weighted else None,
            lengths=torch.empty(0, dtype=lengths_dtype, device=device),
        )

    @staticmethod
    def empty_like(jt: JaggedTensor, device: torch.device | None = None) -> JaggedTensor:
        """Return a jagged tensor of no rows; on a given device, one of the same shapes whose contents are not set."""
        if is_traced(jt):
            made: JaggedTensor = call_later(_empty_like, jt, device)
            return made
        return JaggedTensor(**moved(jt, empty_maker(device)))

    def copy_(self, jt: JaggedTensor, non_blocking: bool = False) -> JaggedTensor:
        """Copy the tensors' contents from another jagged tensor of the same shapes; return this one."""
        self._copy_tensors(jt, non_blocking)
        return self

    @staticmethod
    def from_dense(values: Sequence[Tensor], weights: Sequence[Tensor] | None = None) -> JaggedTensor:
        """Return one row from each tensor of the list; lengths are int32."""
        lengths = torch.tensor([v.shape[0] for v in values], dtype=torch.int32)
        return JaggedTensor(
            values=torch.cat(list(values)) if len(values) else torch.empty(0),
            weights=None if weights is None else torch.cat(list(weights)),
            lengths=lengths.to(values[0].device) if len(values) else lengths,
        )

    @staticmethod
    def from_dense_lengths(values: Tensor, lengths: Tensor, weights: Tensor | None = None) -> JaggedTensor:
        """Return the first ``lengths[b]`` values of each row ``b`` of a padded ``[B, L]`` tensor."""
        mask = torch.arange(values.shape[1], device=values.device)[None, :] < lengths[:, None]
        return JaggedTensor(
            values=values[mask], weights=None if weights is None else weights[mask], lengths=lengths
        )

    def to(self, device: torch.device | str, non_blocking: bool = False) -> JaggedTensor:
        """Return the same on another device."""
        return JaggedTensor(**moved(self, lambda t: t.to(device=device, non_blocking=non_blocking)))

    def to_dense(self) -> list[Tensor]:
        """Return one tensor per row. Reads the offsets."""
        return split_rows(self._values, self.offsets())

    def to_dense_weights(self) -> list[Tensor] | None:
        """Return one tensor of weights per row, or None. Reads the offsets."""
        return None if self._weights is None else split_rows(self._weights, self.offsets())

    def to_padded_dense(self, desired_length: int | None = None, padding_value: float = 0.0) -> Tensor:
        """Return rows cut or padded to ``desired_length``: ``[B, L]`` or ``[B, L, D]``. None reads the longest length.

        The result keeps the values' dtype.
        """
        return self._padded(self._values, desired_length, padding_value)

    def to_padded_dense_weights(
        self, desired_length: int | None = None, padding_value: float = 0.0
    ) -> Tensor | None:
        """Return the weights as ``to_padded_dense`` gives the values, or None."""
        return None if self._weights is None else self._padded(self._weights, desired_length, padding_value)

    def _padded(self, data: Tensor, desired_length: int | None, padding_value: float) -> Tensor:
        if desired_length is None:
            if is_traced(self._values, self._lengths, self._offsets):
                raise ValueError("desired_length: got None under a tracer, expected a number")
            desired_length = int(self.lengths().max()) if self.lengths().numel() else 0
        # The operator does not check offsets; none may point beyond the values.
        offsets = self.offsets().clamp(min=0, max=data.size(0))
        padded: Tensor = fbgemm.jagged_to_padded_dense(data, [offsets], [desired_length], padding_value)
        return padded

    def validate(self) -> JaggedTensor:
        """Check the contents (which reads them) and return the jagged tensor itself.

        Raises:
            ValueError: Negative lengths, a sum that misses the number of values, offsets that do not start at
                0, fall, lack the end, or disagree with the lengths.
        """
        check_contents(self._values, self._lengths, self._offsets)
        return self

    def __str__(self) -> str:
        rows = printed_rows(self._values, self._weights, self.offsets(), indent=4)
        return f"JaggedTensor({{\n    {rows}\n}})\n"

    def __repr__(self) -> str:
        return f"JaggedTensor(values={printed_shape(self._values)}, rows={printed_shape(self._lengths, self._offsets)})"


def _empty_like(jt: JaggedTensor, device: torch.device | None) -> JaggedTensor:
    return JaggedTensor.empty_like(jt, device)
