"""What JaggedTensor and KeyedJaggedTensor share: the four tensors and how they are asked for.

Shape letters: n rows (B of one feature, F * B of several), N number of values.
"""

from __future__ import annotations

import torch
from torch import Tensor

from recsys.jagged_checks import TensorLike, as_tensor
from recsys.ops import lengths_to_offsets


class JaggedBase:
    """Rows of different lengths; lengths or offsets are computed from one another when first asked for."""

    def __init__(
        self,
        values: TensorLike,
        weights: TensorLike | None,
        lengths: TensorLike | None,
        offsets: TensorLike | None,
    ) -> None:
        self._values = as_tensor(values, "values", default=torch.int64)
        self._weights = None if weights is None else as_tensor(weights, "weights", default=torch.float32)
        self._lengths = None if lengths is None else as_tensor(lengths, "lengths", default=torch.int64)
        self._offsets = None if offsets is None else as_tensor(offsets, "offsets", default=torch.int64)

    def values(self) -> Tensor:
        """``[N]`` (or ``[N, D]`` in a JaggedTensor), all rows one after the other."""
        return self._values

    def weights(self) -> Tensor:
        """``[N]``.

        Raises:
            ValueError: there are no weights.
        """
        if self._weights is None:
            raise ValueError(f"weights: this {type(self).__name__} has none")
        return self._weights

    def weights_or_none(self) -> Tensor | None:
        """``[N]``, or None."""
        return self._weights

    def lengths(self) -> Tensor:
        """``[n]``, computed from the offsets where they were not given."""
        if self._lengths is None:
            assert self._offsets is not None
            self._lengths = self._offsets[1:] - self._offsets[:-1]
        return self._lengths

    def lengths_or_none(self) -> Tensor | None:
        """``[n]`` where given or computed already, or None."""
        return self._lengths

    def offsets(self) -> Tensor:
        """``[n + 1]`` with the leading zero, computed from the lengths where they were not given."""
        if self._offsets is None:
            assert self._lengths is not None
            self._offsets = lengths_to_offsets(self._lengths)
        return self._offsets

    def offsets_or_none(self) -> Tensor | None:
        """``[n + 1]`` where given or computed already, or None."""
        return self._offsets

    def device(self) -> torch.device:
        """The device of the values."""
        return self._values.device
