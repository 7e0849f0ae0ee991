"""Servers warm up with rows that the model takes, and tell clients which those are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from export.config import ExportConfig
from export.delta.delta import DeltaConfig, export_delta
from export.pipeline import export_model
from recsys import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor
from serve.client.sampling import example_request
from serve.wire import admin_pb2
from tests.conformance.support.artifacts import NUM_SLOTS, Exported, export_slots
from tests.conformance.support.harness import put_version, running, with_admin
from tests.support.models.position_models import MODELS, rows_of, samples_of
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
    config = ExportConfig(name="best", batch="request")
    export_model(_BestTwo().eval(), tmp_path / "best", config)
    best = Exported(tmp_path / "best")
    with running(best.path, folder=tmp_path) as server:
        for num_rows in (2, 7):
            sample = best.sample(num_rows)
            assert_answers(server.client().predict(sample.dense, sample.sparse), best.answer(sample))


def test_models_that_take_positions_are_warmed_up_with_verified_rows(tmp_path: Path) -> None:
    """They fail on zeros and on random numbers, as made rows have; so would a delta's new graph."""
    repository, answers = tmp_path / "models", {}
    for name, make in MODELS.items():
        dense = {"dense_widths": {"position": 1}, "context": ("position",)} if name == "dense" else {}
        samples = samples_of(name, tmp_path / f"{name}.json")
        config = ExportConfig(name=name, samples=samples, **dense)
        export_model(make().eval(), tmp_path / name, config)
        put_version(repository, name, "1", tmp_path / name)
        rows = rows_of(name, 9, seed=3)
        sample = Sample(9, rows["dense"], rows["sparse"], {})
        answers[name] = (sample, Exported(tmp_path / name).answer(sample))
    changed = MODELS["feature"]().eval()
    with torch.no_grad():
        changed.get_parameter("positions").neg_()
    deltas = repository / "feature" / "deltas"
    deltas.mkdir()
    export_delta(
        MODELS["feature"]().eval(), changed, deltas / "a.delta", DeltaConfig(artifact=tmp_path / "feature")
    )
    with running("--repository", repository, *with_admin(tmp_path), folder=tmp_path) as server:
        for name, (sample, expected) in answers.items():
            client = server.client(model=name)
            assert_answers(client.predict(sample.dense, sample.sparse), expected)
            made = example_request(client.metadata(num_examples=16), 5, np.random.default_rng(3))
            client.predict(made.get("dense", {}), made["sparse"])
        server.admin().ApplyDelta(admin_pb2.ApplyDeltaRequest(model="feature", delta="a.delta"))
        sample, expected = answers["feature"]
        found = server.client(model="feature").predict(sample.dense, sample.sparse)
        assert_answers(found, {name: -values for name, values in expected.items()})
