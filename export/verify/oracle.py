"""The oracle: predictions from stored rows, computed without FBGEMM, sharding or tracing.

Shape letters: B batch, D embedding dim, R rows, N number of IDs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from recsys.configs import BaseEmbeddingConfig, EmbeddingBagConfig, PoolingType, embedding_names
from recsys.embedding import pool
from recsys.jagged.keyed import KeyedTensor
from recsys.jagged.keyed_jagged import KeyedJaggedTensor
from recsys.jagged.tensor import JaggedTensor
from recsys.rows.format import dequantize_rows, row_error_bounds
from recsys.rows.layout import BlobLayout
from recsys.sharding.plan.device_rows import table_path
from recsys.signature import IdPolicy

# fp32 sums in another order: a few units in the last place of the terms' magnitudes.
_FP32_SLACK = 2.0**-20


@dataclass(frozen=True, kw_only=True)
class StoredRows:
    """Read access to the rows of a model's tables."""

    layout: BlobLayout
    blob: Tensor

    def read(self, table: str, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Return rows ``[N, D]`` float32, and the bound of their difference to the float table, ``[N]``."""
        columns, bounds = [], torch.zeros(ids.numel())
        for block in self.layout.blocks:
            if block.table == table:
                rows = block.rows(self.blob)[ids]
                columns.append(dequantize_rows(rows, block.row_format))
                bounds = torch.maximum(bounds, row_error_bounds(rows, block.row_format))
        return torch.cat(columns, dim=1), bounds


@dataclass(frozen=True, kw_only=True)
class FloatRows:
    """Read access to the rows of a model's float tables, in the place of ``StoredRows``.

    Attributes:
        weights: The float weight ``[R, D]`` of each table, by table path.
    """

    weights: Mapping[str, Tensor]

    def read(self, table: str, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Return rows ``[N, D]``, zeros behind the last, and bounds of 0, ``[N]``."""
        weight = self.weights[table]
        rows = weight[ids.clamp(max=weight.shape[0] - 1)].to(torch.float32)
        return rows * (ids < weight.shape[0]).unsqueeze(1), torch.zeros(ids.numel())


def by_policy(ids: Tensor, table: BaseEmbeddingConfig, policy: IdPolicy) -> Tensor:
    """Return the rows that IDs read under a policy."""
    if policy is IdPolicy.HASH:
        return ids % table.num_embeddings
    if policy is IdPolicy.ZERO:
        bad = (ids < 0) | (ids >= table.num_embeddings)
        return torch.where(bad, table.num_embeddings, ids)
    return ids


class OracleCollection(nn.Module):
    """Replaces a collection; looks up stored rows in plain torch.

    Args:
        path: The collection's path.
        tables: Its tables, with their stored data types.
        rows: The rows of the whole model, stored or float.
        policies: By table path.
        output: Whether lookups take weights, and the dtype that they return.
    """

    def __init__(
        self,
        path: str,
        tables: Sequence[BaseEmbeddingConfig],
        rows: StoredRows | FloatRows,
        policies: Mapping[str, IdPolicy],
        is_weighted: bool,
        output_dtype: torch.dtype,
    ) -> None:
        super().__init__()
        self._path = path
        self._tables = list(tables)
        self._rows = rows
        self._policies = policies
        self._is_weighted = is_weighted
        self._output_dtype = output_dtype
        self.bounds: list[dict[str, Tensor]] = []

    def forward(self, features: KeyedJaggedTensor) -> KeyedTensor | dict[str, JaggedTensor]:
        """Look up as the collection does; keep in ``bounds`` the permitted difference of each call's outputs."""
        self.bounds.append({})
        found: dict[str, JaggedTensor] = {}
        pooled: dict[str, Tensor] = {}
        for table, names in zip(self._tables, embedding_names(self._tables), strict=True):
            path = table_path(self._path, table.name)
            for feature, name in zip(table.feature_names, names, strict=True):
                jagged = features[feature]
                ids = by_policy(jagged.values(), table, self._policies.get(path, IdPolicy.REJECT))
                rows, bounds = self._rows.read(path, ids)
                if isinstance(table, EmbeddingBagConfig):
                    pooled[name] = self._pooled(rows, bounds, jagged, table.pooling, name)
                else:
                    self.bounds[-1][name] = bounds.unsqueeze(1)
                    found[name] = JaggedTensor(rows.to(self._output_dtype), lengths=jagged.lengths())
        if found:
            return found
        dims = [output.shape[1] for output in pooled.values()]
        return KeyedTensor(list(pooled), dims, torch.cat(list(pooled.values()), dim=1).to(self._output_dtype))

    def _pooled(
        self, rows: Tensor, bounds: Tensor, jagged: JaggedTensor, pooling: PoolingType, name: str
    ) -> Tensor:
        weights = jagged.weights().to(torch.float32) if self._is_weighted else None
        places = JaggedTensor(torch.arange(rows.shape[0]), lengths=jagged.lengths())
        slack = bounds + rows.abs().amax(dim=1) * _FP32_SLACK if rows.shape[0] else bounds
        magnitude = None if weights is None else weights.abs()
        self.bounds[-1][name] = pool(slack.unsqueeze(1), places, pooling, magnitude)
        return pool(rows, places, pooling, weights)
