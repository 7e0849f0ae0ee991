"""Requests with an object per row: TensorFlow Serving's, Vertex AI's and MLflow's bodies, live, and what is wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from recsys.inputs.signature import DenseInput, IdPolicy, Output, Signature, SparseInput, TableUse
from serve.config.models import BatchLimits
from serve.engine.reference.executor import ServedModel
from serve.errors import RequestError
from serve.rest.plain_json import read_plain
from serve.rest.row_json import plain_of_rows
from tests.support.serve.live import LiveServer
from tests.support.serve.messages.cases import Sample, answer
from tests.support.serve.messages.rest_calls import PREDICT, ask, sample_of

pytest.importorskip("aiohttp", reason="HTTP is in the extra 'rest'")

_LIMITS = BatchLimits(max_request_rows=4)
_TABLE = TableUse(name="t", num_embeddings=9, id_policy=IdPolicy.HASH)
_SIGNATURE = Signature(
    dense=(DenseInput(name="d", width=2, missing=True, columns=("price", "age")), DenseInput(name="hours", width=1)),
    sparse=(
        SparseInput(name="user", tables=(_TABLE,), pooling="sum", strings="xxh64"),
        SparseInput(name="genres", tables=(_TABLE,), pooling="sum"),
    ),
    outputs=(Output(name="score", shape=()),),
)  # fmt: skip
_ROW = {"user": "u1", "genres": [1, 4], "price": 3, "age": None, "hours": 0.5}


def _instances(sample: Sample) -> list[dict[str, Any]]:
    fields = {
        **sample.dense,
        "price": [row[0] for row in sample.dense["price"]],
        **sample.sparse,
        **{f"{name}.weights": weights for name, weights in sample.weights.items()},
    }
    return [{name: values[i] for name, values in fields.items()} for i in range(sample.num_rows)]


def _columns(sample: Sample) -> dict[str, Any]:
    rows = _instances(sample)
    return {"index": [*range(len(rows))], "columns": [*rows[0]], "data": [[*row.values()] for row in rows]}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (PREDICT, lambda sample: {"instances": _instances(sample), "signature_name": "serving_default"}),
        ("/invocations", lambda sample: {"dataframe_records": _instances(sample), "params": None}),
        ("/invocations", lambda sample: {"dataframe_split": _columns(sample)}),
    ],
    ids=["instances", "records", "split"],
)
def test_each_form_is_answered_row_by_row(
    rest: LiveServer, model: ServedModel, path: str, body: Callable[[Sample], Any]
) -> None:
    sample = sample_of(5)
    got = ask(rest, "POST", path, body(sample)).json()
    expected = answer(model, sample)
    assert [*got] == ["predictions"]
    for name, array in expected.items():
        rows = np.array([row[name] for row in got["predictions"]], array.dtype)
        np.testing.assert_array_equal(rows, array)


def test_a_context_has_the_fields_that_all_rows_share(rest: LiveServer, model: ServedModel) -> None:
    sample = sample_of(3)
    for part in (sample.dense, sample.sparse, sample.weights):
        for name in {"context", "user", "tags"} & set(part):
            part[name] = [part[name][0]] * 3
    rows = _instances(sample)
    context = {name: rows[0].pop(name) for name in ("context", "user", "tags", "tags.weights")}
    for row in rows[1:]:
        for name in context:
            del row[name]
    got = ask(rest, "POST", PREDICT, {"context": context, "instances": rows}).json()
    np.testing.assert_allclose(
        [row["score"] for row in got["predictions"]], answer(model, sample)["score"], rtol=1e-5, atol=1e-6
    )
    everything = {"context": _instances(sample)[0], "instances": [{}, {}]}
    assert len(ask(rest, "POST", PREDICT, everything).json()["predictions"]) == 2


def test_no_rows_and_readiness(rest: LiveServer) -> None:
    assert ask(rest, "POST", PREDICT, {"instances": []}).json() == {"predictions": []}
    assert ask(rest, "GET", "/ping").json() == {"ready": True}
    wrong = ask(rest, "POST", PREDICT, {"instances": [{}]})
    assert wrong.status == 400
    assert wrong.json()["error"].startswith("instances[0]: missing 'context', expected all of ")


def test_values_are_read_as_training_reads_tables() -> None:
    rows = [
        {**_ROW, "label": 1},
        {**_ROW, "user": 12, "genres": "7.0", "price": float("nan"), "hours": [True]},
        {**_ROW, "user": ["a", None, 3.0, True], "genres": [2.0, None, "", " 5 "]},
        {**_ROW, "user": None, "genres": ""},
    ]
    assert plain_of_rows({"instances": rows}, _SIGNATURE, _LIMITS) == {
        "dense": {"d": [[3, None], [None, None], [3, None], [3, None]], "hours": [[0.5], [1], [0.5], [0.5]]},
        "sparse": {"user": [["u1"], ["12"], ["a", "3", "true"], []], "genres": [[1, 4], [7], [2, 5], []]},
        "weights": {},
    }
    assert (
        read_plain(plain_of_rows({"instances": rows}, _SIGNATURE, _LIMITS), _SIGNATURE, _LIMITS).num_rows == 4
    )


def _rows(**values: Any) -> dict[str, Any]:
    return {"instances": [_ROW, {**_ROW, **values}]}


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (_rows(price="3"), "instances[1]['price']: got a text, expected a number, or null"),
        (_rows(hours=None), "instances[1]['hours']: got null, expected a number: the model fills no"),
        (_rows(hours=10**400), "instances[1]['hours']: got 1000"),
        (_rows(hours=[1, 2]), "instances[1]['hours']: got a list"),
        (_rows(user=1.5), "instances[1]['user']: got 1.5, expected a text, or a whole number"),
        (_rows(user={"id": 1}), "instances[1]['user']: got an object"),
        (_rows(user=[["u"]]), "instances[1]['user']: got a list"),
        (_rows(genres=["x"]), "instances[1]['genres']: got 'x', expected a whole number of 64 bits"),
        (_rows(genres=2**63), "instances[1]['genres']: got 9223372036854775808, expected"),
        (_rows(genres="9" * 70), "instances[1]['genres']: got '999"),
        (_rows(genres=2.0**53), "instances[1]['genres']: got 9007199254740992.0, expected"),
        ({"dataframe_records": [{"user": "u"}]}, "dataframe_records[0]: missing 'price', expected all of"),
        ({"instances": [3]}, "instances[0]: got a whole number, expected an object"),
        ({"instances": {}}, "body['instances']: got an object, expected a list"),
        ({"instances": [_ROW] * 5}, "num_rows: got 5, expected at most 4"),
        ({"instances": [], "dataframe_records": []}, "body: got more than one of"),
        ({"instances": [], "sparse": {}}, "body: got an unknown entry 'sparse'"),
        ({"instances": [], "signature_name": "x"}, "signature_name: got 'x'"),
        ({"instances": [], "parameters": {"k": 1}}, "parameters: got entries"),
        ({"instances": [_ROW], "context": {"user": "u"}}, "context: got 'user', expected it in the context or in"),
        ({"instances": [{}], "context": {"price": 1}}, "instances[0]: missing 'hours'"),
        ({"dataframe_split": {"columns": ["user"], "data": [[1, 2]]}}, "dataframe_split['data'][0]: got 2 values"),
        ({"dataframe_split": {"columns": ["a", "a"], "data": []}}, "dataframe_split['columns']: got texts that"),
        ({"dataframe_split": {"columns": [[]], "data": []}}, "dataframe_split['columns']: got texts that"),
        ({"dataframe_split": {"rows": []}}, "dataframe_split: got an unknown entry 'rows'"),
        ({"dataframe_split": {"columns": [], "data": [3]}}, "dataframe_split['data'][0]: got a whole number"),
    ],
)  # fmt: skip
def test_errors_name_row_and_field(body: dict[str, Any], text: str) -> None:
    with pytest.raises(RequestError) as raised:
        plain_of_rows(body, _SIGNATURE, _LIMITS)
    assert str(raised.value).startswith(text)


def test_a_model_without_an_entry_for_each_row_takes_no_rows() -> None:
    signature = replace(_SIGNATURE, outputs=(Output(name="mean", shape=(), batch_dims=()),))
    with pytest.raises(RequestError, match="the output 'mean' has no entry for each row"):
        plain_of_rows({"instances": [_ROW]}, signature, _LIMITS)
