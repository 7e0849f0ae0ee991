"""What an artifact should predict: what the model's own layers make of the stored rows.

The rows are read by plain torch, without FBGEMM, sharding or tracing.

Shape letters: B batch, D embedding dim, R rows, N number of IDs.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from export.graph.modules import replace_modules
from export.graph.prepared import PreparedModel
from recsys.artifact.parts import ROWS_NAME, map_rows
from recsys.base.hashing import mix_ids
from recsys.configs import BaseEmbeddingConfig, EmbeddingBagConfig, PoolingType, embedding_names
from recsys.embedding import pool
from recsys.inputs.signature import IdPolicy
from recsys.jagged.keyed import KeyedTensor
from recsys.jagged.keyed_jagged import KeyedJaggedTensor
from recsys.jagged.tensor import JaggedTensor
from recsys.rows.format import dequantize_rows, row_error_bounds
from recsys.rows.layout import BlobLayout

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
    """Read access to the rows of a model's float tables, where others have ``StoredRows``.

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
    if policy is IdPolicy.FMIX64:
        return torch.from_numpy(mix_ids(ids.numpy())) % table.num_embeddings
    if policy is IdPolicy.ZERO:
        bad = (ids < 0) | (ids >= table.num_embeddings)
        return torch.where(bad, table.num_embeddings, ids)
    return ids


class OracleCollection(nn.Module):
    """Replaces a collection; looks up stored rows in plain torch.

    Args:
        paths: Its tables' paths, by name.
        tables: Its tables, with their stored data types.
        rows: The rows of the whole model, stored or float.
        policies: By table path.
        output: Whether lookups take weights, and the dtype that they return.
    """

    def __init__(
        self,
        paths: Mapping[str, str],
        tables: Sequence[BaseEmbeddingConfig],
        rows: StoredRows | FloatRows,
        policies: Mapping[str, IdPolicy],
        is_weighted: bool,
        output_dtype: torch.dtype,
    ) -> None:
        super().__init__()
        self._paths = paths
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
            path = self._paths[table.name]
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


def float_model(prepared: PreparedModel) -> nn.Module:
    """Return the float model, in eval mode.

    Collections apply policies where samples in range do not spare them that: where the model computes IDs, and where a
    policy changes every ID.
    """
    rows = FloatRows(weights=prepared.weights)
    applied = {}
    for path, paths in prepared.stored.paths.items():
        policies = {prepared.stored.policies[at] for at in paths.values()}
        is_beyond = path in prepared.input_mapping.computed and policies & {IdPolicy.HASH, IdPolicy.ZERO}
        if is_beyond or IdPolicy.FMIX64 in policies:
            applied[path] = _oracle(prepared, path, rows, torch.float32)
    return replace_modules(prepared.model, applied)


def oracles(prepared: PreparedModel, work: Path, dtype: torch.dtype) -> dict[str, OracleCollection]:
    """Return for each collection what looks up its stored rows, in plain torch."""
    layout = prepared.stored.layout
    blob = map_rows(work / ROWS_NAME, layout, random_access=True)
    rows = StoredRows(layout=layout, blob=blob)
    return {path: _oracle(prepared, path, rows, dtype) for path in prepared.collections}


def _oracle(
    prepared: PreparedModel, path: str, rows: StoredRows | FloatRows, dtype: torch.dtype
) -> OracleCollection:
    stored = prepared.stored
    tables, paths, is_weighted = stored.tables[path], stored.paths[path], path in stored.weighted
    return OracleCollection(paths, tables, rows, stored.policies, is_weighted, dtype)


def with_collections(prepared: PreparedModel, collections: Mapping[str, nn.Module]) -> nn.Module:
    """Return the model with dense layers in the artifact's dtype and other collections."""
    if "" in collections:
        return collections[""]
    model = replace_modules(prepared.model, {path: nn.Identity() for path in collections})
    if prepared.dense_dtype is not torch.float32:
        # Without the collections, so that no rows are copied.
        rows = [weight for one in prepared.collections.values() for weight in one.parameters()]
        model = copy.deepcopy(model, {id(weight): weight for weight in rows}).to(prepared.dense_dtype)
    return replace_modules(model, collections)
