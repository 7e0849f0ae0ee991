"""Drift of inputs on a live server: requests unlike the training data, of three protocols."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from export.config import ExportConfig
from export.delta.delta import DeltaConfig, export_delta
from export.pipeline import export_model
from recsys.inputs.example_rows import DATA_SKETCH, ExampleRows
from recsys.inputs.signature import IdPolicy
from recsys.inputs.sketch import sketch_of
from serve.wire import admin_pb2
from tests.conformance.support.artifacts import Exported
from tests.conformance.support.harness import ServerUnderTest, put_version, running, with_admin
from tests.support.models.managed import POOL, Managed, trained
from tests.support.serve.models import SmallModel

pytestmark = pytest.mark.engine


def export_with_sketch(path: Path) -> Path:
    """A model whose data had 40 users of 50, and items within its table."""
    random = np.random.default_rng(0)
    model = SmallModel(0).eval()
    rows = ExampleRows(
        num_rows=2000,
        dense={"price[0]": random.normal(size=2000).astype(np.float32).tolist()},
        sparse={
            "user": [[int(u)] for u in random.integers(0, 40, 2000)],
            "item": [[int(i)] for i in random.integers(0, 11, 2000)],
        },
    )
    setattr(model, DATA_SKETCH, sketch_of(rows))
    config = ExportConfig(
        name="small", dense_widths={"context": 3, "price": 1}, table_id_policies={"catalog": IdPolicy.HASH}
    )
    export_model(model, path, config)
    return path


def shown(server: ServerUnderTest, name: str) -> dict[tuple[str, ...], float]:
    """Values of the last hour by input, and by what of it an index is of."""
    found = {}
    for sample, value in server.metrics().items():
        labels = dict(re.findall(r'(\w+)="([^"]*)"', sample))
        if sample.startswith(f"{name}{{") and labels["window"] == "1h":
            found[tuple(labels[key] for key in ("input", "of") if key in labels)] = value
    return found


def test_inputs_unlike_the_training_data_are_shown(tmp_path: Path) -> None:
    path = export_with_sketch(tmp_path / "m")
    with running(path, "--quality-drift-share", "1", folder=tmp_path) as server:
        random = np.random.default_rng(1)
        client = server.client()
        for _ in range(10):
            client.predict(
                dense={
                    "context": np.zeros((50, 3), np.float32),
                    "price": random.normal(size=(50, 1)).astype(np.float32),
                },
                sparse={
                    "user": [[int(u)] for u in random.integers(0, 40, 50)],
                    # Half of them are beyond the table, which takes IDs modulo its rows.
                    "item": [[int(i)] for i in random.integers(0, 22, 50)],
                    "genres": [[], [1]] * 25,
                    "tags": [[1]] * 50,
                },
                weights={"tags": [[1.0]] * 50},
            )
        # Records are taken and compared beside serving.
        while server.total("recsys_drift_requests_total", result="compared") < 10:
            pass
        indices = shown(server, "recsys_drift_psi")
        assert indices["price[0]", "numbers"] < 0.1
        assert indices["user", "values"] < 0.2 < 0.4 < indices["item", "values"]
        # Inputs that the data did not have get no index.
        assert ("tags", "lengths") not in indices
        unknown = shown(server, "recsys_drift_unknown_ratio")
        assert 0.4 < unknown[("item",)] < 0.6
        assert ("user",) not in unknown
        assert shown(server, "recsys_drift_missing_ratio")[("genres",)] == 0.5
        assert shown(server, "recsys_drift_rows") == {(): 500}


def test_an_artifact_without_a_sketch_has_shares_and_no_index(small: Exported, tmp_path: Path) -> None:
    with running(small.path, "--quality-drift-share", "1", folder=tmp_path) as server:
        sample = small.sample(300)
        server.client().predict(sample.dense, sample.sparse, sample.weights)
        while server.total("recsys_drift_requests_total", result="compared") < 1:
            pass
        assert shown(server, "recsys_drift_psi") == {}
        assert shown(server, "recsys_drift_missing_ratio")


def num_unknown(model: Managed, table: str) -> int:
    """How many IDs of ``POOL`` own no row of a table."""
    modules = model.bags.managed_collision_collection.managed_collision_modules()
    raw_ids, _ = modules[table].owners()
    return len(set(POOL) - set(raw_ids.tolist()))


def test_raw_ids_are_unknown_until_a_delta_brings_them(tmp_path: Path) -> None:
    before = trained(Managed(), 0)
    after = trained(before, 1)
    config = ExportConfig(name="m")
    export_model(before, tmp_path / "a", config)
    put_version(tmp_path / "models", "m", "1", tmp_path / "a")
    folder = tmp_path / "models" / "m" / "deltas"
    folder.mkdir()
    export_delta(before, after, folder / "1.delta", DeltaConfig(artifact=tmp_path / "a"))
    bags = [[i] for i in POOL]
    sparse = dict.fromkeys(("user", "friend", "ware", "word"), bags)
    sparse["day"] = [[i % 7] for i in range(len(POOL))]
    arguments: list[str | Path] = ["--repository", tmp_path / "models", "--quality-drift-share", "1"]
    with running(*arguments, *with_admin(tmp_path), folder=tmp_path) as server:
        client = server.client()
        unknown = dict.fromkeys(("users", "wares", "words"), 0)
        for number, model in enumerate((before, after), 1):
            if model is after:
                delta = admin_pb2.ApplyDeltaRequest(model="m", version="1", delta="1.delta")
                server.admin().ApplyDelta(delta)
            client.predict({"price": np.zeros((len(POOL), 2), np.float32)}, sparse)
            while server.total("recsys_drift_requests_total", result="compared") < number:
                pass
            shares = shown(server, "recsys_drift_unknown_ratio")
            for feature, table in (("user", "users"), ("ware", "wares"), ("word", "words")):
                unknown[table] += num_unknown(model, table)
                assert shares[(feature,)] == pytest.approx(unknown[table] / number / len(POOL)), feature
