"""A trained model with crossed features and an output that is a number: its answers are those that training knows."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd  # type: ignore[import-untyped]
import pytest

from export.config import ExportConfig
from export.pipeline import export_model
from recsys.configs import DataType
from recsys.inputs.schema import Schema
from recsys.train import Model, fit
from serve.client import Context
from serve.client.errors import InvalidRequestError
from tests.conformance.support.harness import ServerUnderTest, running
from tests.conformance.support.http_calls import ask

pytestmark = pytest.mark.engine

_NUM_ROWS = 1_200
_SCHEMA = {
    "labels": [{"name": "click"}, {"name": "seconds", "loss": "mse"}],
    "dense": ["price"],
    "tables": [
        {"name": "user", "features": ["user"], "rows": 16, "ids": "hash", "strings": "xxh64"},
        {"name": "category", "features": ["category"], "rows": 8, "ids": "fmix64"},
        {"name": "city", "features": ["city"], "rows": 9, "ids": "vocabulary", "strings": "xxh64"},
    ],
    "crosses": [
        {"name": "user_category", "features": ["user", "category"], "rows": 4_000},
        {"name": "all_three", "features": ["city", "category", "user"], "rows": 500},
    ],
}


def _clicks() -> pd.DataFrame:
    """Clicks that follow the pair of user and category, not one of the two; seconds that follow the category."""
    generator = np.random.default_rng(0)
    user, category = generator.integers(0, 30, _NUM_ROWS), generator.integers(0, 6, _NUM_ROWS)
    clicks = pd.DataFrame(
        {
            "user": [f"u{i}" for i in user],
            "category": [str(5 - 7_919 * i) for i in category],
            "city": [f"c{i}" for i in generator.integers(0, 5, _NUM_ROWS)],
            "price": generator.random(_NUM_ROWS).astype(np.float32),
            "click": (generator.random((30, 6)) > 0.5)[user, category].astype(int),
            "seconds": 300 + 40.0 * category + generator.normal(0, 20, _NUM_ROWS),
        }
    )
    for i, name in enumerate(("user", "category", "city")):
        clicks.loc[i :: 17 + i, name] = None
    return clicks


@pytest.fixture(scope="module")
def trained() -> Model:
    settings: dict[str, Any] = {"model": "dcn", "embedding_dim": 4, "over_layers": [8], "epochs": 4}
    return fit(_clicks(), schema=Schema.from_json(_SCHEMA), batch_size=64, callbacks=[], **settings).model


@pytest.fixture(scope="module")
def serving(trained: Model, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerUnderTest]:
    folder = tmp_path_factory.mktemp("trained")
    # Rows in float32, so that another row cannot pass for a rounded one.
    config = ExportConfig(name="clicks", data_type=DataType.FP32, context=("user", "category"))
    export_model(trained.module, folder / "artifact", config)
    with running(folder / "artifact", "--http-port", "0", folder=folder) as server:
        yield server


def _inputs(rows: pd.DataFrame) -> tuple[dict[str, Any], dict[str, list[list[Any]]]]:
    sparse = {
        name: [[] if value is None else [value] for value in rows[name]]
        for name in ("user", "category", "city")
    }
    return {"dense_features": rows[["price"]].to_numpy()}, sparse


def _assert_same(found: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    assert [*found] == ["click", "seconds"]
    np.testing.assert_allclose(found["click"], expected["click"], atol=2e-6)
    np.testing.assert_allclose(found["seconds"], expected["seconds"], rtol=2e-6)


def test_metadata_has_the_features_that_are_crossed_and_says_so(serving: ServerUnderTest) -> None:
    sparse = serving.client().metadata().sparse
    assert {feature.name: feature.max_ids for feature in sparse} == {"user": 1, "category": 1, "city": 1}


def test_answers_are_those_of_the_trained_model(serving: ServerUnderTest, trained: Model) -> None:
    rows = _clicks()[:300]
    expected = trained.predict(rows)
    _assert_same(serving.client().predict(*_inputs(rows)), expected)
    # Clicks follow the pairs, and seconds the category in the column's unit.
    assert np.corrcoef(expected["click"], rows["click"])[0, 1] > 0.5
    assert np.abs(expected["seconds"] - rows["seconds"]).mean() < 50
    assert expected["seconds"].mean() > 300


def test_answers_over_rest_are_those_of_the_trained_model(serving: ServerUnderTest, trained: Model) -> None:
    rows = _clicks()[:8]
    dense, sparse = _inputs(rows)
    body = {"dense": {"dense_features": dense["dense_features"].tolist()}, "sparse": sparse}
    reply = ask(f"http://{serving.http_address}/v1/models/clicks:predict", body)
    _assert_same(reply.json()["outputs"], trained.predict(rows))


@pytest.mark.parametrize("shared", [["user"], ["category"], ["user", "category"]], ids="+".join)
def test_contexts_are_crossed_with_each_other_and_with_candidates(
    serving: ServerUnderTest, trained: Model, shared: list[str]
) -> None:
    for number in (1, 0):  # the second has no user
        rows = _clicks()[:40].assign(**_clicks().iloc[number][shared].to_dict())
        dense, sparse = _inputs(rows)
        context = Context(sparse={name: sparse.pop(name)[:1] for name in shared})
        _assert_same(serving.client().predict(dense, sparse, context=context), trained.predict(rows))


def test_several_values_are_refused(serving: ServerUnderTest) -> None:
    dense, sparse = _inputs(_clicks()[3:6])
    several = {**sparse, "city": [["c1"], ["c1", "c2"], []]}
    expected = r"sparse\['city'\].lengths: got 2 in row 1, expected at most 1: the model crosses the feature"
    with pytest.raises(InvalidRequestError, match=expected):
        serving.client().predict(dense, several)
    body = {"dense": {"dense_features": dense["dense_features"].tolist()}, "sparse": several}
    reply = ask(f"http://{serving.http_address}/v1/models/clicks:predict", body)
    assert reply.status == 400
    assert re.search(expected, reply.json()["error"])
    context = Context(sparse={"user": [["u1", "u2"]]})
    del sparse["user"]
    with pytest.raises(
        InvalidRequestError, match=r"context_sparse\['user'\].lengths: got 2 in row 0, expected at most 1"
    ):
        serving.client().predict(dense, sparse, context=context)
    assert serving.total("recsys_requests_total", outcome="failed") == 0
