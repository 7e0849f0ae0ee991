"""What an artifact should predict: what the model's own layers make of the stored rows, read by plain torch.

Shape letters: B batch.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from export.graph.binding import Binding
from export.graph.graph import split_features
from export.graph.prepared import PreparedModel
from export.graph.tree import exchanged
from export.verify.compare import model_outputs
from export.verify.oracle import FloatRows, OracleCollection, StoredRows
from export.verify.retrieval import ItemScores, comparable, item_scores
from recsys.artifact.load import ROWS_NAME, map_rows
from recsys.artifact.ranking import picked
from recsys.artifact.samples import Batch
from recsys.embedding import EmbeddingBagCollection
from recsys.sharding.plan.device_rows import table_path
from recsys.signature import IdPolicy


def arguments(binding: Binding, batch: Batch, dtype: torch.dtype = torch.float32) -> dict[str, Any]:
    """Return the keyword arguments of the float model's ``forward`` for a batch."""
    dense = {name: tensor.to(dtype) for name, tensor in zip(binding.dense, batch.dense, strict=True)}
    return {**dense, **split_features(binding, batch.lengths, batch.values, batch.weights)}


def float_model(prepared: PreparedModel) -> nn.Module:
    """Return the float model, in eval mode.

    Where it computes IDs for tables with a policy, collections apply the policy: those IDs cannot be chosen in range.
    """
    rows = FloatRows(weights=prepared.weights)
    applied = {
        path: _oracle(prepared, path, rows, torch.float32)
        for path in prepared.binding.computed
        if any(
            prepared.stored.policies[table_path(path, table.name)] in (IdPolicy.HASH, IdPolicy.ZERO)
            for table in prepared.stored.tables[path]
        )
    }
    return exchanged(prepared.model, applied)


def oracles(prepared: PreparedModel, work: Path, dtype: torch.dtype) -> dict[str, OracleCollection]:
    """Return for each collection what looks up its stored rows, in plain torch."""
    layout = prepared.stored.layout
    blob = map_rows(work / ROWS_NAME, layout, random_access=True)
    rows = StoredRows(layout=layout, blob=blob)
    return {path: _oracle(prepared, path, rows, dtype) for path in prepared.collections}


def _oracle(
    prepared: PreparedModel, path: str, rows: StoredRows | FloatRows, dtype: torch.dtype
) -> OracleCollection:
    collection = prepared.collections[path]
    is_weighted = isinstance(collection, EmbeddingBagCollection) and collection.is_weighted()
    tables, policies = prepared.stored.tables[path], prepared.stored.policies
    return OracleCollection(path, tables, rows, policies, is_weighted, dtype)


def with_collections(prepared: PreparedModel, collections: Mapping[str, nn.Module]) -> nn.Module:
    """Return the model with dense layers in the artifact's dtype and other collections."""
    if "" in collections:
        return collections[""]
    model = exchanged(prepared.model, {path: nn.Identity() for path in collections})
    if prepared.dense_dtype is not torch.float32:
        # Without the collections, so that no rows are copied.
        model = copy.deepcopy(model).to(prepared.dense_dtype)
    return exchanged(model, collections)


class Reference:
    """The model with its layers in the artifact's dtype, over the stored rows.

    Args:
        prepared: The model.
        work: The directory that holds the rows.

    Attributes:
        outputs: Of the samples, ready to be compared.
        scores: The scores of any item for the samples, if the model retrieves items.
    """

    def __init__(self, prepared: PreparedModel, work: Path) -> None:
        self._prepared = prepared
        collections = oracles(prepared, work, prepared.dense_dtype)
        self._model = with_collections(prepared, {**collections, **prepared.managed.learned()})
        self.outputs, self.scores = self._predict(prepared.samples)

    def of(self, rows: Tensor) -> tuple[dict[str, Tensor], ItemScores | None]:
        """Return the same for a batch of some rows of the samples."""
        if self._prepared.signature.by_request:
            return self._predict(picked(self._prepared.signature, self._prepared.samples, rows))
        scores = self.scores and ItemScores(users=self.scores.users[rows], items=self.scores.items)
        return {name: tensor[rows] for name, tensor in self.outputs.items()}, scores

    def _predict(self, batch: Batch) -> tuple[dict[str, Tensor], ItemScores | None]:
        call = arguments(self._prepared.binding, batch, self._prepared.dense_dtype)
        with torch.no_grad():
            outputs, scores = model_outputs(self._model(**call)), item_scores(self._model, call)
        return comparable(outputs, scores), scores
