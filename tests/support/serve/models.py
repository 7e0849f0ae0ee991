"""A small model with every kind of input that the wire knows, exported for real; and ways to hold it up.

Shape letters: B rows of a batch, F sparse inputs, N number of IDs.
"""

from __future__ import annotations

import threading
from pathlib import Path

import torch
from torch import Tensor, nn

from export.config import ExportConfig
from export.pipeline import export_model
from recsys import (
    EmbeddingBagCollection,
    EmbeddingBagConfig,
    KeyedJaggedTensor,
    PoolingType,
)
from recsys.inputs.signature import DenseInput, IdPolicy, Output, Signature, SparseInput, TableUse
from serve.engine.reference.executor import ServedModel

SIGNATURE = Signature(
    dense=(DenseInput(name="context", width=3), DenseInput(name="price", width=1)),
    sparse=(
        SparseInput(name="user", tables=(TableUse(name="plain.users", num_embeddings=50),), pooling="sum"),
        SparseInput(name="genres", tables=(TableUse(name="plain.genres", num_embeddings=7),), pooling="mean"),
        SparseInput(
            name="item",
            tables=(TableUse(name="plain.catalog", num_embeddings=11, id_policy=IdPolicy.HASH),),
            pooling="sum",
        ),
        SparseInput(
            name="tags",
            tables=(TableUse(name="weighted.tags", num_embeddings=20),),
            pooling="sum",
            weighted=True,
        ),
    ),
    outputs=(Output(name="score", shape=()), Output(name="vectors", shape=(2, 3))),
)


class SmallModel(nn.Module):
    """Unweighted and weighted tables, two dense inputs, two outputs; each row's answer depends on its inputs."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.plain = EmbeddingBagCollection(
            tables=[
                EmbeddingBagConfig(name="users", embedding_dim=8, num_embeddings=50, feature_names=["user"]),
                EmbeddingBagConfig(
                    name="genres",
                    embedding_dim=4,
                    num_embeddings=7,
                    feature_names=["genres"],
                    pooling=PoolingType.MEAN,
                ),
                EmbeddingBagConfig(
                    name="catalog", embedding_dim=4, num_embeddings=11, feature_names=["item"]
                ),
            ]
        )
        self.weighted = EmbeddingBagCollection(
            tables=[
                EmbeddingBagConfig(name="tags", embedding_dim=4, num_embeddings=20, feature_names=["tags"])
            ],
            is_weighted=True,
        )
        self.over = nn.Linear(3 + 1 + 16 + 4, 7)

    def forward(
        self, context: Tensor, price: Tensor, plain: KeyedJaggedTensor, weighted: KeyedJaggedTensor
    ) -> dict[str, Tensor]:
        pooled = [self.plain(plain).values(), self.weighted(weighted).values()]
        over = self.over(torch.cat([context, price, *pooled], dim=1))
        return {"score": over[:, 0].sigmoid(), "vectors": over[:, 1:].reshape(-1, 2, 3)}


def export_small(path: Path, seed: int = 0) -> None:
    """Write an artifact of the small model, for one device and for two."""
    config = ExportConfig(
        name="small",
        targets=(("cpu",), ("cpu", "cpu")),
        dense_widths={"context": 3, "price": 1},
        table_id_policies={"catalog": IdPolicy.HASH},
    )
    export_model(SmallModel(seed).eval(), path, config)


class GatedModel:
    """A real model that waits at a gate before each call, so that a test decides when a batch ends.

    Attributes:
        gate: calls pass while it is set; set at first, for the warm-up.
        started: released once for each call that has reached the gate.
        batches: rows of each call that has passed.
    """

    def __init__(self, model: ServedModel) -> None:
        self._model = model
        self.signature = model.signature
        self.gate = threading.Event()
        self.gate.set()
        self.started = threading.Semaphore(0)
        self.batches: list[int] = []

    def forward(self, *inputs: Tensor) -> dict[str, Tensor]:
        self.started.release()
        self.gate.wait()
        self.batches.append(len(inputs[0]))
        return self._model.forward(*inputs)

    def close_gate(self) -> None:
        """From now on calls wait; earlier ones (the warm-up's) are forgotten."""
        self.gate.clear()
        self.started = threading.Semaphore(0)
        self.batches.clear()


class FailingModel:
    """A real model that fails on batches which hold a given ID, with a given error."""

    def __init__(self, model: ServedModel, bad_id: int, error: Exception | None = None) -> None:
        self._model = model
        self._bad_id = bad_id
        self._error = error or RuntimeError("at /secret/path 0x7f00: the model does not like this ID")
        self.num_calls = 0
        self.signature = model.signature

    def forward(self, *inputs: Tensor) -> dict[str, Tensor]:
        self.num_calls += 1
        if self._bad_id in inputs[len(self.signature.dense) + 1]:
            raise self._error
        return self._model.forward(*inputs)
