"""The sizes of bags in the signature, of models that do not take bags of any size.

Shape letters: B batch, D embedding dim, N number of IDs.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from export.config import ExportConfig
from export.delta.delta import DeltaConfig, export_delta
from export.pipeline import export_model
from recsys import EmbeddingBagCollection, EmbeddingCollection, EmbeddingConfig, KeyedJaggedTensor
from recsys.artifact.batches.answers import made_batch
from recsys.artifact.batches.samples import random_batch
from recsys.artifact.delta.apply import apply, prepare
from recsys.artifact.load import LoadedArtifact, load_artifact
from recsys.errors import ExportError
from tests.support.helpers import bag

_SLOTS, _DIM = 3, 4


class _Slots(nn.Module):
    """A history of exactly three items, and bags of any size."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(31)
        table = EmbeddingConfig(name="t", embedding_dim=_DIM, num_embeddings=40, feature_names=["history"])
        self.items = EmbeddingCollection(tables=[table])
        self.users = EmbeddingBagCollection([bag("u", 30, _DIM, ["user"])])
        self.out = nn.Linear((_SLOTS + 1) * _DIM, 1)

    def forward(self, features: KeyedJaggedTensor) -> Tensor:
        rows: Tensor = self.items(features)["history"].values().reshape(-1, _SLOTS * _DIM)
        scores: Tensor = self.out(torch.cat([rows, self.users(features).values()], dim=1)).squeeze(1)
        return scores


def _samples(folder: Path, request: dict[str, Any]) -> Path:
    path = folder / "samples.json"
    path.write_text(json.dumps(request))
    return path


def _history(folder: Path) -> Path:
    rows = [[i, 39 - i, (7 * i) % 40] for i in range(20)]
    return _samples(folder, {"sparse": {"history": rows, "user": [[i] * (i % 3) for i in range(20)]}})


def _sizes(artifact: LoadedArtifact) -> dict[str, int | None]:
    return {feature.name: feature.num_ids for feature in artifact.signature.sparse}


def test_sizes_are_those_of_a_sample_that_fits(tmp_path: Path) -> None:
    model = _Slots().eval()
    export_model(model, tmp_path / "a", ExportConfig(samples=_history(tmp_path)))
    artifact = load_artifact(tmp_path / "a")
    assert _sizes(artifact) == {"history": _SLOTS, "user": None}
    for batch in (
        made_batch(artifact.signature, 5),
        random_batch(artifact.signature, 5, torch.Generator().manual_seed(1)),
    ):
        assert batch.lengths.view(2, 5)[0].tolist() == [_SLOTS] * 5
        features = KeyedJaggedTensor(["history", "user"], batch.values, lengths=batch.lengths)
        expected = model(features)
        (found,) = artifact.forward(*batch.inputs()).values()
        torch.testing.assert_close(found, expected, atol=0.05, rtol=0)


def test_models_that_take_any_bags_have_no_sizes(tmp_path: Path) -> None:
    table = EmbeddingBagCollection([bag("u", 30, _DIM, ["user"])])
    export_model(nn.Sequential(table).eval(), tmp_path / "a", ExportConfig(features={"input": ("user",)}))
    assert _sizes(load_artifact(tmp_path / "a")) == {"user": None}


def test_dense_deltas_apply_to_fixed_bags(tmp_path: Path) -> None:
    """Making such a delta traces the model again, and applying it calls the new graph."""
    old, new = _Slots().eval(), _Slots().eval()
    with torch.no_grad():
        new.out.bias += 0.5
    export_model(old, tmp_path / "a", ExportConfig(samples=_history(tmp_path)))
    export_delta(old, new, tmp_path / "d", DeltaConfig(artifact=tmp_path / "a"))
    artifact = load_artifact(tmp_path / "a")
    inputs = made_batch(artifact.signature, 4).inputs()
    (before,) = artifact.forward(*inputs).values()
    apply(prepare(artifact.rows, tmp_path / "d"))
    (after,) = artifact.forward(*inputs).values()
    torch.testing.assert_close(after, before + 0.5)


class _UpTo100(nn.Module):
    """Takes at most 100 rows at once."""

    def __init__(self) -> None:
        super().__init__()
        self.users = EmbeddingBagCollection([bag("u", 30, _DIM, ["user"])])
        self.register_buffer("zeros", torch.zeros(100, _DIM))

    def forward(self, features: KeyedJaggedTensor) -> Tensor:
        rows: Tensor = self.users(features).values()
        return (rows + self.zeros.narrow(0, 0, rows.size(0))).sum(dim=1)


def test_a_model_that_a_server_could_not_warm_up_is_refused(tmp_path: Path) -> None:
    samples = _samples(tmp_path, {"sparse": {"user": [[i] for i in range(8)]}})
    with pytest.raises(ExportError) as caught:
        export_model(_UpTo100().eval(), tmp_path / "a", ExportConfig(samples=samples))
    assert str(caught.value).startswith(
        "model: forward failed on 128 rows, the samples over and over: RuntimeError: "
    )
    assert "Servers warm up with such rows: expected it to take any number of rows. At tests/export/" in str(
        caught.value
    )
    assert not (tmp_path / "a").exists()
