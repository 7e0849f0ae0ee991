"""Servers warm up with rows that the model takes, and tell clients which those are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from torch import Tensor, nn

from export.config import ExportConfig
from export.pipeline import export_model
from recsys import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor
from serve.client.sampling import example_request
from tests.conformance.support.artifacts import GRAPH_FORMAT, NUM_SLOTS, Exported, export_slots
from tests.conformance.support.harness import running
from tests.support.serve.messages.cases import Sample, assert_answers

pytestmark = pytest.mark.engine


def test_bags_of_one_size_are_served(tmp_path: Path) -> None:
    slots = export_slots(tmp_path / "slots")
    with running(slots.path, folder=tmp_path) as server:
        metadata = server.client().metadata()
        sizes = {
            sparse.name: sparse.num_ids if sparse.HasField("num_ids") else None for sparse in metadata.sparse
        }
        assert sizes == {"slots": NUM_SLOTS, "user": None}
        made = example_request(metadata, 5, np.random.default_rng(3))
        sample = Sample(5, {}, made["sparse"], {})
        assert_answers(server.client().predict(sample.dense, sample.sparse), slots.answer(sample))


class _BestTwo(nn.Module):
    """The best two of a request's rows: fails on one row."""

    def __init__(self) -> None:
        super().__init__()
        table = EmbeddingBagConfig(name="t", embedding_dim=4, num_embeddings=30, feature_names=["item"])
        self.ebc = EmbeddingBagCollection(tables=[table])

    def forward(self, features: KeyedJaggedTensor) -> dict[str, Tensor]:
        return {"best": self.ebc(features).values().sum(dim=1).topk(2).indices}


def test_rows_that_belong_together_are_never_alone(tmp_path: Path) -> None:
    config = ExportConfig(name="best", batch="request", graph_format=GRAPH_FORMAT)
    export_model(_BestTwo().eval(), tmp_path / "best", config)
    best = Exported(tmp_path / "best")
    with running(best.path, folder=tmp_path) as server:
        for num_rows in (2, 7):
            sample = best.sample(num_rows)
            assert_answers(server.client().predict(sample.dense, sample.sparse), best.answer(sample))
