"""The rows that exports are verified with: held-out rows, tables, random rows that follow the schema."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from pyarrow import csv, parquet
from torch import Tensor, nn

from export.config import ExportConfig
from export.pipeline import export_model
from export.source.load import Source, load_model
from export.verify.run import hardly_varying
from recsys import EmbeddingBagCollection, KeyedJaggedTensor
from recsys.artifact.batches.samples import joined, random_batch
from recsys.artifact.load import load_artifact
from recsys.artifact.parts import read_manifest
from recsys.base.hashing import hash_text
from recsys.checkpoint import Checkpoint, save_checkpoint
from recsys.configs import DataType
from recsys.data.tables.dataset import table_dataset
from recsys.errors import CheckpointError, ExportError, VerificationError
from recsys.inputs.example_rows import DATA_SKETCH, EXAMPLE_ROWS
from recsys.inputs.schema import DenseColumn, LabelColumn, Schema, TableSpec
from recsys.inputs.signature import DenseInput, Output, Signature, SparseInput
from recsys.models.dense import DenseTransforms
from recsys.train.callbacks import Callback
from recsys.train.config import ModelConfig, RunConfig, TrainConfig
from recsys.train.job import TrainJob, train_over_ranks
from recsys.train.stepping.ranks import ONE_RANK
from tests.support.helpers import bag

_EPOCH_MS = 1_700_000_000_000.0
_SCHEMA = Schema(
    labels=(LabelColumn(name="click"),),
    dense=(
        DenseColumn(name="clock", mean=_EPOCH_MS, std=1e9),
        DenseColumn(name="price", log1p=True, mean=3.0),
    ),
    tables=(
        TableSpec(name="site", num_embeddings=100, feature_names=("site",), ids="hash", strings="xxh64"),
        TableSpec(name="item", num_embeddings=50, feature_names=("item",), ids="vocabulary"),
    ),
)


def _table(num_rows: int = 2000) -> pa.Table:
    generator = np.random.default_rng(0)
    site = generator.integers(0, 30, num_rows)
    price = pa.array(generator.lognormal(3, 1, num_rows).round(2), mask=generator.random(num_rows) < 0.1)
    return pa.table(
        {
            "click": (generator.random(num_rows) < site / 30).astype(np.int64),
            "clock": _EPOCH_MS + generator.normal(0, 1e9, num_rows).round(),
            "price": price,
            "site": [f"site {i}" for i in site],
            "item": generator.integers(0, 40, num_rows) * 2**32 - 7,
        }
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a table, ``model.pt`` and the directory ``run`` of a training on it."""
    folder = tmp_path_factory.mktemp("samples")
    parquet.write_table(_table(), folder / "clicks.parquet")
    csv.write_csv(_table(), folder / "clicks.csv")
    job = TrainJob(
        dataset=table_dataset(folder / "clicks.parquet", _SCHEMA),
        model=ModelConfig(embedding_dim=8, dense_layers=(8,), over_layers=(8,)),
        train=TrainConfig(batch_size=128),
        run=RunConfig(example_rows=100, sketch_rows=150),
        checkpoint_dir=folder / "run",
    )
    trained = train_over_ranks(job, ONE_RANK, Callback(), whole=True)
    assert trained.state_dict is not None
    checkpoint = Checkpoint(
        factory=job.factory,
        arguments=trained.arguments,
        state_dict=trained.state_dict,
        info=job.example_rows | job.data_sketch,
    )
    save_checkpoint(folder / "model.pt", checkpoint)
    save_checkpoint(folder / "bare.pt", replace(checkpoint, info={}))
    return folder


def _exported(path: Path, checkpoint: Path, **options: Any) -> Any:
    return export_model(load_model(Source(path=checkpoint)), path, ExportConfig(**options))


@pytest.mark.parametrize("source", ["model.pt", "run"])
def test_an_export_is_verified_on_held_out_rows(folder: Path, tmp_path: Path, source: str) -> None:
    report = _exported(tmp_path / "a", folder / source)
    assert report.samples == "100 held-out rows of the training, 64 with random IDs"
    assert report.num_samples == 164
    manifest = read_manifest(tmp_path / "a")
    assert manifest.verification["samples"] == report.samples
    # The last rows of the table, as a client would send them.
    sent = {
        (float(np.float32(row["clock"])), row["price"], row["site"], row["item"])
        for row in _table().slice(1800).to_pylist()
    }
    dense, sparse = manifest.examples["dense"]["dense_features"], manifest.examples["sparse"]
    rows = list(zip(dense, sparse["site"], sparse["item"], strict=True))
    assert len(rows) == 100
    for (clock, price), (site,), (item,) in rows:
        assert (float(np.float32(clock)), price, site, item) in sent
    batch = manifest.example_batch()
    assert batch is not None
    scores = load_artifact(tmp_path / "a").forward(*batch.inputs())["score"]
    assert float(scores.std()) > 1e-3


def test_rows_of_a_lossy_type_differ_where_random_rows_of_another_scale_hide_it(
    folder: Path, tmp_path: Path
) -> None:
    lossy = _exported(tmp_path / "lossy", folder / "model.pt", data_type=DataType.INT2)
    exact = _exported(tmp_path / "exact", folder / "model.pt", data_type=DataType.FP32)
    differences = [report.differences["cpu"]["score"].max_abs for report in (lossy, exact)]
    assert differences[0] > 1e-4 > 1e-6 > differences[1]


def test_random_rows_follow_the_schema_where_the_checkpoint_holds_none(folder: Path, tmp_path: Path) -> None:
    report = _exported(tmp_path / "a", folder / "bare.pt", data_type=DataType.INT2)
    assert report.samples == "256 random rows (the checkpoint holds none)"
    assert not report.hardly_varying
    assert report.differences["cpu"]["score"].max_abs > 1e-4
    assert not read_manifest(tmp_path / "a").examples
    assert read_manifest(tmp_path / "a").data_sketch is None


@pytest.mark.parametrize("source", ["model.pt", "run"])
def test_an_artifact_has_the_sketch_of_its_checkpoint(folder: Path, tmp_path: Path, source: str) -> None:
    _exported(tmp_path / "a", folder / source)
    sketch = read_manifest(tmp_path / "a").data_sketch
    assert sketch is not None
    assert sketch.num_rows == 150
    assert set(sketch.dense) == {"clock", "price"}
    # Clients send texts of sites, and raw IDs of items.
    assert set(sketch.sparse["site"].values) <= {hash_text(f"site {i}") for i in range(100)}
    assert set(sketch.sparse["item"].values) <= {i * 2**32 - 7 for i in range(40)}
    assert len(sketch.sparse["item"].values) > 20


def test_a_damaged_sketch_is_refused(folder: Path, tmp_path: Path) -> None:
    held = torch.load(folder / "model.pt", weights_only=True)
    held["info"][DATA_SKETCH]["dense"]["price"]["missing"] = -1
    torch.save(held, tmp_path / "wrong.pt")
    with pytest.raises(CheckpointError, match=r"data_sketch.dense.price.missing: got '-1'"):
        load_model(Source(path=tmp_path / "wrong.pt"))


@pytest.mark.parametrize("name", ["clicks.csv", "clicks.parquet"])
def test_samples_may_be_a_table(folder: Path, tmp_path: Path, name: str) -> None:
    report = _exported(tmp_path / "a", folder / "bare.pt", samples=folder / name)
    assert report.samples == f"2000 rows of {name}"
    assert report.differences["cpu"]["score"].max_abs > 0


def test_samples_may_be_a_folder_of_part_files(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "parts").mkdir()
    for i in range(2):
        parquet.write_table(_table().slice(i * 10, 10), tmp_path / "parts" / f"{i}.parquet")
    report = _exported(tmp_path / "a", folder / "bare.pt", samples=tmp_path / "parts")
    assert report.num_samples == 20


def test_a_table_needs_a_schema(folder: Path, tmp_path: Path) -> None:
    model = _Constant(EmbeddingBagCollection([bag("t", 10, 4, ["f"])]))
    with pytest.raises(ExportError, match="no schema that says which column is what"):
        export_model(model, tmp_path / "a", ExportConfig(samples=folder / "clicks.csv"))


def test_rows_that_do_not_fit_the_inputs_are_left_out_and_it_is_said(folder: Path, tmp_path: Path) -> None:
    # Hashes are refused without the hash policy.
    report = _exported(tmp_path / "a", folder / "model.pt", strings={"item": "xxh64"}, outputs=("score",))
    assert report.num_samples == 164
    model = load_model(Source(path=folder / "model.pt"))
    getattr(model, EXAMPLE_ROWS).sparse.pop("site")
    report = export_model(model, tmp_path / "b")
    assert report.samples == "256 random rows (those of the checkpoint have other inputs)"


def test_damaged_rows_of_a_checkpoint_are_named(folder: Path, tmp_path: Path) -> None:
    held = torch.load(folder / "model.pt", weights_only=True)
    held["info"][EXAMPLE_ROWS]["sparse"]["site"][3] = ["a", 1]
    torch.save(held, tmp_path / "damaged.pt")
    with pytest.raises(CheckpointError, match=r"examples.sparse.site: got .*'a', 1.*, expected lists of IDs"):
        load_model(Source(path=tmp_path / "damaged.pt"))


@pytest.mark.parametrize("options", [{"context": ("item",)}, {"single_file": True}])
def test_other_forms_keep_the_rows(folder: Path, tmp_path: Path, options: dict[str, Any]) -> None:
    _exported(tmp_path / "a", folder / "model.pt", **options)
    path = tmp_path / "a"
    manifest = read_manifest(path if path.exists() else path.with_suffix(".pt"))
    batch = manifest.example_batch()
    assert batch is not None
    assert batch.num_rows == 100


class _Constant(nn.Module):
    """The same output for all rows."""

    def __init__(self, ebc: EmbeddingBagCollection) -> None:
        super().__init__()
        self.ebc = ebc

    def forward(self, features: KeyedJaggedTensor) -> dict[str, Tensor]:
        pooled = self.ebc(features).values()
        return {"saturated": (100 + pooled.sum(dim=1)).sigmoid()}


def test_outputs_that_hardly_vary_are_no_pass(tmp_path: Path) -> None:
    model = _Constant(EmbeddingBagCollection([bag("t", 10, 4, ["f"])]))
    with pytest.raises(
        VerificationError, match=r"\['saturated'\]: hardly vary over 256 random rows.*--samples"
    ):
        export_model(model, tmp_path / "a")
    assert not (tmp_path / "a").exists()
    report = export_model(model, tmp_path / "a", ExportConfig(accept_unproven=True))
    assert report.hardly_varying == ("saturated",)
    assert read_manifest(tmp_path / "a").verification["hardly_varying"] == ["saturated"]


def test_variation_is_judged_as_the_comparison_does() -> None:
    rows = torch.arange(8.0)
    outputs = {
        "varies": 0.5 + rows * 1e-3,
        "tiny": rows * 1e-15,
        "one": 1 - rows * 1e-7,
        "wide": torch.stack([torch.ones(8), rows], dim=1),
        "whole": torch.zeros(8, dtype=torch.int64),
        "positions": torch.arange(8),
        "no rows": torch.tensor(3.0),
    }
    assert hardly_varying(outputs, 8) == ("tiny", "one", "whole")
    assert hardly_varying({"one row": torch.ones(1)}, 1) == ()


def test_random_numbers_are_those_that_the_transforms_expect() -> None:
    columns = (
        DenseColumn(name="clock", mean=_EPOCH_MS, std=1e9),
        DenseColumn(name="price", log1p=True, mean=3.0, std=0.5),
        DenseColumn(name="age", clip=(0, 1), mean=0.5, std=0.2),
        DenseColumn(name="step", buckets=(10.0, 20.0, 30.0)),
        DenseColumn(name="plain"),
    )
    schema = replace(_SCHEMA, dense=columns)
    dense = DenseInput(name="d", width=5, columns=schema.dense_names)
    signature = Signature(dense=(dense,), sparse=(), outputs=(Output(name="o", shape=()),))
    batch = random_batch(signature, 4000, torch.Generator().manual_seed(0), schema=schema)
    transformed = DenseTransforms(columns)(batch.dense[0])
    assert transformed[:, :4].mean(dim=0) == pytest.approx([0, 0, 0, 0], abs=0.1)
    assert transformed[:, [0, 1, 3]].std(dim=0) == pytest.approx([1, 1, 1], abs=0.1)
    assert float(transformed[:, 4:].mean(dim=0).min()) > 0.1  # each bucket


def test_joined_batches_keep_features_apart() -> None:
    sparse = tuple(SparseInput(name=name, tables=(), pooling="none") for name in "ab")
    signature = Signature(dense=(), sparse=sparse, outputs=(Output(name="o", shape=()),))
    one, two = (random_batch(signature, n, torch.Generator().manual_seed(n)) for n in (3, 5))
    both = joined([one, two])
    assert both.num_rows == 8
    ends = [int(batch.lengths[: batch.num_rows].sum()) for batch in (one, two)]
    expected = torch.cat(
        [one.values[: ends[0]], two.values[: ends[1]], one.values[ends[0] :], two.values[ends[1] :]]
    )
    assert torch.equal(both.values, expected)
    assert both.lengths.sum() == len(expected)


def test_examples_survive_json(folder: Path, tmp_path: Path) -> None:
    _exported(tmp_path / "a", folder / "model.pt")
    text = (tmp_path / "a" / "manifest.json").read_text()
    assert len(text.splitlines()) < 1000  # examples take one line
    assert read_manifest(tmp_path / "a").examples == json.loads(text)["examples"]
