"""Counts of lists as dense features: counted in the graph, in training and in exports alike."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from export.pipeline import export_model
from recsys import KeyedJaggedTensor
from recsys.artifact.load import load_artifact
from recsys.data.scoring import scores
from recsys.data.tables.dataset import rows_of
from recsys.data.tables.schema_file import read_schema, to_toml
from recsys.errors import SchemaError
from recsys.inputs.schema import DenseColumn, LabelColumn, Schema, TableSpec
from recsys.models.click import ClickModel
from recsys.train.fitting import fit
from tests.export.lower.test_lowering import kinds_of, lowered


def _schema(*, dense: bool) -> Schema:
    return Schema(
        labels=(LabelColumn(name="click"),),
        dense=(DenseColumn(name="price", std=2.0),) if dense else (),
        tables=(
            TableSpec(name="tags", num_embeddings=9, feature_names=("tags",), pooling="MEAN"),
            TableSpec(name="item", num_embeddings=9, feature_names=("item",)),
        ),
        counts=("tags",),
    )


def _table(num_rows: int = 800) -> pa.Table:
    """A click where a row has more than four tags."""
    generator = np.random.default_rng(0)
    lengths = generator.integers(9, size=num_rows)
    return pa.table(
        {
            "tags": [generator.integers(9, size=length).tolist() for length in lengths],
            "item": generator.integers(9, size=num_rows),
            "price": generator.random(num_rows),
            "click": (lengths > 4).astype(int),
        }
    )


@pytest.mark.parametrize(
    ("model", "dense"),
    [("dlrm", True), ("dlrm", False), ("dcn", True), ("wukong", False), ("deepfm", False)],
)
def test_counts_are_learned_and_exported_without_a_region(tmp_path: Path, model: str, dense: bool) -> None:
    table, schema = _table(), _schema(dense=dense)
    fitted = fit(
        table, schema=schema, model=model, epochs=3, batch_size=64, learning_rate=0.01, embedding_dim=8, callbacks=[]
    )  # fmt: skip
    # Means of tags say nothing of their number.
    assert (fitted.report.kept.held_out.auc or 0) > 0.9
    module = fitted.model.module
    assert set(kinds_of(lowered(module))) == {"plan"}
    export_model(module, tmp_path / "a")
    artifact = load_artifact(tmp_path / "a")
    assert sum(one.width for one in artifact.signature.dense) == int(dense)
    (block,) = rows_of(table.slice(0, 50), schema)
    found = scores(artifact, block.take(np.arange(50)))["score"]
    np.testing.assert_allclose(found, fitted.model.predict(table.slice(0, 50))["score"], atol=0.01)


def test_a_count_is_the_logarithm_of_one_more() -> None:
    class _Inner(torch.nn.Module):
        def forward(self, dense: torch.Tensor, _: Any) -> torch.Tensor:
            return dense

    kjt = KeyedJaggedTensor(keys=["tags", "item"], values=[1, 2, 3, 4], lengths=[3, 0, 1, 0])
    found = ClickModel(_Inner(), _schema(dense=True)).logits(torch.tensor([[1.0], [4.0]]), kjt)
    torch.testing.assert_close(found, torch.tensor([[0.5, np.log(4.0)], [2.0, 0.0]], dtype=torch.float32))


def test_the_schema_has_them(tmp_path: Path) -> None:
    schema = _schema(dense=True)
    (tmp_path / "s.toml").write_text(to_toml(schema))
    assert read_schema(tmp_path / "s.toml") == schema == Schema.from_json(schema.to_json())
    assert schema.with_sparse({"item"}).counts == ()
    with pytest.raises(
        SchemaError, match=r"schema.counts: got \['price'\], expected different ones of the sparse"
    ):
        Schema.from_json({**schema.to_json(), "counts": ["price"]})
