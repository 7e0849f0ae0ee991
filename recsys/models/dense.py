"""The transforms of dense features, as a part of the model's graph: serving does what training did.

Shape letters: B batch, C columns, W width of the result, U bucket units.
"""

# Annotations are not deferred: FX carries them into graphs, where TorchScript cannot read them as texts.

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from recsys.inputs.schema import DenseColumn


class DenseTransforms(nn.Module):
    """Fills, clips, scales and bucketizes dense features, ``[B, C]`` to ``[B, W]``.

    The result has the columns without buckets first, then the units of each column with buckets, of which one is 1.
    A missing value is NaN in the input. Where no column has a transform, no operator runs.

    Args:
        columns: C columns.

    Attributes:
        in_features: C.
        out_features: W.
    """

    missing: Tensor
    least: Tensor
    most: Tensor
    is_log: Tensor
    mean: Tensor
    std: Tensor
    kept: Tensor
    unit_columns: Tensor
    lower: Tensor
    upper: Tensor

    def __init__(self, columns: Sequence[DenseColumn]) -> None:
        super().__init__()
        self.in_features = len(columns)
        self.out_features = sum(column.width for column in columns)
        self._fills = any(not column.is_plain for column in columns)
        self._clips = any(column.clip for column in columns)
        self._logs = any(column.log1p for column in columns)
        self._scales = any(column.mean != 0 or column.std != 1 for column in columns)
        self._buckets = any(column.buckets for column in columns)
        unbounded = (float("-inf"), float("inf"))
        self._constant("missing", [column.missing for column in columns])
        self._constant("least", [(column.clip or unbounded)[0] for column in columns])
        self._constant("most", [(column.clip or unbounded)[1] for column in columns])
        self._constant("is_log", [column.log1p for column in columns])
        self._constant("mean", [column.mean for column in columns])
        self._constant("std", [column.std for column in columns])
        bucketized = [(i, column.buckets) for i, column in enumerate(columns) if column.buckets]
        self._constant("kept", [i for i, column in enumerate(columns) if not column.buckets], torch.int64)
        units = [i for i, bounds in bucketized for _ in range(len(bounds) + 1)]
        self._constant("unit_columns", units, torch.int64)
        self._constant("lower", [x for _, bounds in bucketized for x in (unbounded[0], *bounds)])
        self._constant("upper", [x for _, bounds in bucketized for x in (*bounds, unbounded[1])])

    def _constant(self, name: str, data: Sequence[float], dtype: torch.dtype | None = None) -> None:
        # The device is named because constants are in no checkpoint: a model built on the meta device needs them.
        kind = dtype or (torch.bool if name == "is_log" else torch.float32)
        self.register_buffer(name, torch.tensor(data, dtype=kind, device="cpu"), persistent=False)

    def forward(self, features: Tensor) -> Tensor:
        """Map float32 ``[B, C]`` to ``[B, W]``."""
        if self._fills:
            features = torch.where(torch.isnan(features), self.missing, features)
        if self._clips:
            features = torch.minimum(torch.maximum(features, self.least), self.most)
        if self._logs:
            logs = torch.sign(features) * torch.log1p(torch.abs(features))
            features = torch.where(self.is_log, logs, features)
        if self._scales:
            features = (features - self.mean) / self.std
        if self._buckets:
            values = features.index_select(1, self.unit_columns)
            units = torch.logical_and(torch.ge(values, self.lower), torch.lt(values, self.upper))
            features = torch.cat((features.index_select(1, self.kept), units.to(features.dtype)), dim=1)
        return features
