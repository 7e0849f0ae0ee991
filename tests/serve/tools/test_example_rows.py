"""The rows of a model's training are the examples of tools, of the REST port's pages and of the metadata."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from export.config import ExportConfig
from export.pipeline import export_model
from export.source.load import Source, load_model
from recsys.artifact.batches.samples import batch_of_request
from recsys.artifact.load import load_artifact
from recsys.artifact.parts import read_manifest
from recsys.checkpoint import Checkpoint, save_checkpoint
from recsys.data.tables.dataset import table_dataset
from recsys.inputs.schema import DenseColumn, LabelColumn, Schema, TableSpec
from recsys.train.callbacks import Callback
from recsys.train.config import ModelConfig, TrainConfig
from recsys.train.job import TrainJob, train_over_ranks
from recsys.train.stepping.ranks import ONE_RANK
from serve.bench.load.requests import Mix, Shape, draw_requests
from serve.client import Client
from serve.config.models import ModelSettings
from serve.engine import native
from serve.engine.interface import ModelInfo, Servable
from serve.profiler.batches import Shape as ProfileShape
from serve.profiler.batches import draw
from serve.rest.pages.examples import plain_examples, tensor_examples
from serve.rpc.metadata import servable_metadata
from serve.tools import predict
from serve.wire import predict_pb2 as wire
from tests.support.serve.spawned import spawned

_CLOCK = 1_700_000_000_000.0
_SCHEMA = Schema(
    labels=(LabelColumn(name="click"),),
    dense=(DenseColumn(name="clock", mean=_CLOCK, std=1e9), DenseColumn(name="price", log1p=True)),
    tables=(
        TableSpec(
            name="site",
            num_embeddings=100,
            feature_names=("site",),
            ids="hash",
            strings="xxh64",
            separator="|",
        ),
        TableSpec(name="item", num_embeddings=50, feature_names=("item",), ids="vocabulary"),
        TableSpec(name="hour", num_embeddings=24, feature_names=("hour",)),
    ),
)
_ITEMS = [2**40 + i for i in range(30)]


def _table(num_rows: int = 600) -> pa.Table:
    generator = np.random.default_rng(0)
    site = generator.integers(0, 20, (num_rows, 3))
    price = pa.array(generator.lognormal(3, 1, num_rows).round(2), mask=generator.random(num_rows) < 0.3)
    return pa.table(
        {
            "click": (generator.random(num_rows) < site[:, 0] / 20).astype(np.int64),
            "clock": _CLOCK + generator.normal(0, 1e9, num_rows).round(),
            "price": price,
            "site": [f"séite {a}|{b}|{c}" for a, b, c in site.tolist()],
            "item": [_ITEMS[i] for i in generator.integers(0, 30, num_rows)],
            "hour": generator.integers(0, 24, num_rows),
        }
    )


def _exported(table: pa.Table, schema: Schema, folder: Path, config: ExportConfig) -> Path:
    """Train on a table, and return the artifact."""
    job = TrainJob(
        dataset=table_dataset(table, schema),
        model=ModelConfig(embedding_dim=8, dense_layers=(8,), over_layers=(8,)),
        train=TrainConfig(batch_size=64),
    )
    trained = train_over_ranks(job, ONE_RANK, Callback(), whole=True)
    assert trained.state_dict is not None
    checkpoint = Checkpoint(
        factory=job.factory,
        arguments=trained.arguments,
        state_dict=trained.state_dict,
        info=dict(job.example_rows),
    )
    save_checkpoint(folder / "model.pt", checkpoint)
    export_model(load_model(Source(path=folder / "model.pt")), folder / "artifact", config)
    return folder / "artifact"


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trained model with a context, and the rows of its training."""
    return _exported(_table(), _SCHEMA, tmp_path_factory.mktemp("examples"), ExportConfig(context=("site",)))


def test_values_with_separators_within_quotes_are_sent_as_they_are(tmp_path: Path) -> None:
    names = [f"Home, {'Kitchen' if i % 2 else 'Garden'}" for i in range(60)]
    table = pa.table(
        {
            "click": [0, 1, 1] * 20,
            "quoted": [json.dumps([name, f"c{i % 5}"]) for i, name in enumerate(names)],
            "plain": [f"{i % 7}, {i % 3}" for i in range(60)],
        }
    )
    texts = TableSpec(
        name="quoted",
        num_embeddings=50,
        feature_names=("quoted",),
        ids="hash",
        strings="xxh64",
        separator=",",
    )
    schema = Schema(
        labels=(LabelColumn(name="click"),),
        dense=(),
        tables=(texts, replace(texts, name="plain", feature_names=("plain",))),
    )
    manifest = read_manifest(_exported(table, schema, tmp_path, ExportConfig()))
    assert {sparse.name: sparse.separator for sparse in manifest.signature.sparse} == {
        "quoted": "",
        "plain": ",",
    }
    assert set(manifest.examples["sparse"]["quoted"][0]) <= {*names, *(f"c{i}" for i in range(5))}


class _Loaded:
    """As much of a servable as its metadata needs."""

    def __init__(self, artifact: Path) -> None:
        manifest = read_manifest(artifact)
        self.info = ModelInfo.of_manifest(manifest)
        self.signature = manifest.signature
        self.settings = ModelSettings()
        self.deltas: list[str] = []


@pytest.fixture
def servable(artifact: Path) -> Any:
    return _Loaded(artifact)


def _sent() -> set[tuple[Any, ...]]:
    return {
        (float(np.float32(row["clock"])), row["price"], row["site"], row["item"], row["hour"])
        for row in _table().slice(540).to_pylist()
    }


def _rows(request: dict[str, Any]) -> list[tuple[Any, ...]]:
    sparse = request["sparse"]
    return [
        (float(np.float32(clock)), price, "|".join(sites), item, hour)
        for (clock, price), sites, (item,), (hour,) in zip(
            request["dense"]["dense_features"], sparse["site"], sparse["item"], sparse["hour"], strict=True
        )
    ]


def test_pages_show_rows_of_the_training(servable: Any) -> None:
    plain = plain_examples(servable, seed=1)
    assert set(_rows(plain["rows"])) <= _sent()
    assert plain["ranking"]["context"]["sparse"]["site"] == plain["rows"]["sparse"]["site"][:1]
    tensors = {one["name"]: one for one in tensor_examples(servable.signature, plain)["rows"]["inputs"]}
    assert tensors["site.values"]["datatype"] == "BYTES"
    assert plain_examples(servable, seed=2) != plain


def test_metadata_has_as_many_examples_as_are_asked_for(servable: Any) -> None:
    assert not servable_metadata(servable, 0).HasField("examples")
    assert servable_metadata(servable, 0, 5).examples.num_rows == 5
    assert servable_metadata(servable, 0, 10_000).examples.num_rows == 60
    servable.info = ModelInfo(name="without")
    assert not servable_metadata(servable, 0, 5).HasField("examples")


def test_examples_that_do_not_fit_are_not_shown(artifact: Path) -> None:
    manifest = read_manifest(artifact)
    manifest.examples["sparse"]["site"][0] = [3.5]  # type: ignore[index]
    assert not ModelInfo.of_manifest(manifest).examples


@pytest.fixture(params=["reference", "native"])
def address(request: pytest.FixtureRequest, artifact: Path, tmp_path: Path) -> Iterator[str]:
    if request.param == "native" and not list(Path(native.__file__).parent.glob("_engine*.so")):
        pytest.skip("the native engine is not built")
    command = [sys.executable, "-m", "serve.app.cli", str(artifact), "--port", "0", "--metrics-port", "0"]
    with spawned([*command, "--json", "--engine", request.param], tmp_path / "log") as server:
        yield server.address


def test_predict_prints_and_sends_rows_of_the_training(
    address: str, artifact: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert predict.main([address, "--example", "--rows", "7", "--full"]) == 0
    text = capsys.readouterr().out
    request = json.loads(text)
    assert len(set(_rows(request))) == 7
    assert set(_rows(request)) <= _sent()
    (tmp_path / "request.json").write_text(text)
    assert predict.main([address, "--json-request", str(tmp_path / "request.json"), "--json"]) == 0
    answered = json.loads(capsys.readouterr().out)["score"]
    loaded = load_artifact(artifact)
    batch = batch_of_request(request, loaded.signature, "example")
    assert answered == pytest.approx(loaded.forward(*batch.inputs())["score"].tolist(), abs=1e-6)
    assert predict.main([address, "--random", "--rows", "100", "--json"]) == 0
    assert np.std(json.loads(capsys.readouterr().out)["score"]) > 1e-4
    with Client(address) as client:
        assert client.metadata(num_examples=4).examples.num_rows == 4
        assert client.metadata().artifact.digest == loaded.digest
        assert [sparse.separator for sparse in client.metadata().sparse] == ["|", "", ""]
        assert not client.metadata().HasField("examples")


def _drawn(servable: Servable, **shape: Any) -> list[wire.PredictRequest]:
    metadata = servable_metadata(servable, 0, 100)
    drawn = draw_requests(metadata, Shape(rows=Mix.of(20), **shape), 10, np.random.default_rng(0))
    return [request for request, _ in drawn]


def test_bench_draws_numbers_sizes_and_raw_ids_of_the_training(servable: Any) -> None:
    clocks = {clock for clock, *_ in _sent()}
    for request in _drawn(servable):
        (dense,) = request.dense
        assert set(np.frombuffer(dense.values, "<f4")[::2].tolist()) <= clocks
        site, item, hour = request.sparse
        assert np.frombuffer(site.lengths, "<i4").tolist() == [3] * 20
        assert len(site.strings) == 60
        assert set(np.frombuffer(item.values, "<i8").tolist()) <= set(_ITEMS)
        assert max(np.frombuffer(hour.values, "<i8")) < 24
    given = _drawn(servable, ids_per_bag=Mix.of(2), has_bag_sizes=True)[0]
    assert all(np.frombuffer(sparse.lengths, "<i4").tolist() == [2] * 20 for sparse in given.sparse)
    random = _drawn(servable, like_examples=False)[0]
    assert np.abs(np.frombuffer(random.dense[0].values, "<f4")).max() < 10


@pytest.mark.parametrize("ranking", [False, True])
def test_profile_draws_them_too(artifact: Path, ranking: bool) -> None:
    manifest = read_manifest(artifact)
    shape = ProfileShape(examples=manifest.example_batch(), ranking=ranking)
    for drawn in draw(manifest, 16, shape, np.random.default_rng(0), 3):
        assert float(drawn.inputs[0][:, 0].min()) > 1e12
    plain = draw(manifest, 16, ProfileShape(examples=manifest.example_batch()), np.random.default_rng(0), 1)[
        0
    ]
    _, lengths, values = plain.inputs
    assert lengths.tolist() == [3] * 16 + [1] * 32
    assert set(values[48:64].tolist()) <= set(_ITEMS)
