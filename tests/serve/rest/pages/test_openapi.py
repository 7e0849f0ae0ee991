"""The description of the HTTP port: valid OpenAPI, and true of what a live server does."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from openapi_spec_validator import OpenAPIV31SpecValidator

from serve.config.models import ModelSettings
from serve.engine.interface import ModelInfo
from serve.rest.pages.examples import plain_examples, tensor_examples
from serve.rest.pages.openapi import Model, document
from tests.support.serve.live import LiveServer
from tests.support.serve.messages.rest_calls import ask
from tests.support.serve.models import SIGNATURE

Json = dict[str, Any]
JSON = "application/json"


@pytest.fixture(scope="module")
def described(many: LiveServer) -> Json:
    reply = ask(many, "GET", "/openapi.json")
    assert reply.status == 200
    described: Json = reply.json()
    return described


def errors(described: Json, schema: Json, value: Any) -> list[str]:
    """What of a value contradicts a schema of the description."""
    validator = Draft202012Validator({**schema, "components": described["components"]})
    return [error.message for error in validator.iter_errors(value)]


def predictions(described: Json) -> Iterator[tuple[str, Json]]:
    for path, item in described["paths"].items():
        if "x-form" in item.get("post", {}):
            yield path, item["post"]


def answer_schema(operation: Json, code: str = "200") -> Json:
    schema: Json = operation["responses"][code]["content"][JSON]["schema"]
    return schema


def test_it_is_valid_openapi(described: Json) -> None:
    assert described["openapi"] == "3.1.0"
    OpenAPIV31SpecValidator(described).validate()


def test_it_has_both_forms_of_every_version_that_answers(described: Json) -> None:
    found = {(one["x-model"], one["x-version"], one["x-form"]) for _, one in predictions(described)}
    versions = [("eu-west.clicks_1", v) for v in ("", "7")] + [("ranker", v) for v in ("", "1", "2")]
    assert found == {(*one, form) for one in versions for form in ("plain JSON", "tensors")}
    assert "/v1/models/eu-west.clicks_1/versions/7:predict" in described["paths"]


def test_each_example_fits_its_schema_and_is_answered_as_described(many: LiveServer, described: Json) -> None:
    names = []
    for path, operation in predictions(described):
        content = operation["requestBody"]["content"][JSON]
        for name, example in content["examples"].items():
            assert errors(described, content["schema"], example["value"]) == []
            reply = ask(many, "POST", path, example["value"], {"Content-Type": JSON})
            assert reply.status == 200, (path, name, reply.data)
            assert errors(described, answer_schema(operation), reply.json()) == []
            names.append(name)
    # The model with a context has a ranking in its two addresses, as routed and by version, in both forms.
    assert [names.count(name) for name in ("rows", "ranking", "instances")] == [10, 4, 5]


def test_other_examples_are_answered_too(many: LiveServer, described: Json) -> None:
    other = ask(many, "GET", "/openapi.json?example=5").json()
    for (path, operation), (_, before) in zip(predictions(other), predictions(described), strict=True):
        examples, first = (one["requestBody"]["content"][JSON]["examples"] for one in (operation, before))
        assert examples != first
        for example in examples.values():
            assert ask(many, "POST", path, example["value"]).status == 200
    assert ask(many, "GET", "/openapi.json?example=5").json() == other


@pytest.mark.parametrize("query", ["example=x", "example=-1", "example=1234567890123", "seed=1"])
def test_wrong_queries_are_refused(many: LiveServer, query: str) -> None:
    reply = ask(many, "GET", f"/openapi.json?{query}")
    assert reply.status == 400
    assert "expected" in reply.json()["error"]


def test_every_other_address_answers_as_described(many: LiveServer, described: Json) -> None:
    num_asked = 0
    for path, item in described["paths"].items():
        versions = [version for one in item.get("parameters", []) for version in one["schema"]["enum"]]
        for name in versions or [""]:
            at = path.replace("{version}", name)
            for method in {"get", "post"} & set(item):
                # Labels: tests/conformance/versions/test_feedback.py.
                if "x-form" in item[method] or path == "/v1/feedback":
                    continue
                reply = ask(many, method.upper(), at)
                assert reply.status == 200, at
                assert errors(described, answer_schema(item[method]), reply.json()) == []
                num_asked += 1
    # Six of the server; four of each model and of each of the three versions.
    assert num_asked == 6 + 4 * (2 + 3)


WRONG: dict[str, Callable[[Json], Any]] = {
    "unknown part": lambda b: b.update(sparce={}),
    "unknown input": lambda b: b["dense"].update(prize=[[1.0]]),
    "wide row": lambda b: b["dense"].update(context=[[1, 2, 3, 4]]),
    "ID beyond the table": lambda b: b["sparse"].update(user=[[50]]),
    "negative ID": lambda b: b["sparse"].update(user=[[-1]]),
    "ID that is not whole": lambda b: b["sparse"].update(user=[[1.5]]),
    "weights of an unweighted input": lambda b: b["weights"].update(user=[[1.0]]),
    "priority": lambda b: b.update(priority=4),
    "long id": lambda b: b.update(id="x" * 129),
    "row without a field": lambda b: (b.clear(), b.update(instances=[{"user": 1}])),
    "row that is no object": lambda b: (b.clear(), b.update(instances=[[1]])),
}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=list(WRONG))
def test_the_schema_refuses_what_the_server_refuses(
    many: LiveServer, described: Json, wrong: Callable[[Json], Any]
) -> None:
    operation = described["paths"]["/v1/models/ranker:predict"]["post"]
    content = operation["requestBody"]["content"][JSON]
    body = copy.deepcopy(content["examples"]["rows"]["value"])
    wrong(body)
    assert errors(described, content["schema"], body)
    reply = ask(many, "POST", "/v1/models/ranker:predict", body)
    assert reply.status == 400
    assert errors(described, {"$ref": "#/components/schemas/Error"}, reply.json()) == []


class Described:
    """As much of a version as its description needs."""

    def __init__(self, name: str, version: str, signature: Any = SIGNATURE) -> None:
        self.info = ModelInfo(name=name, version=version)
        self.signature = signature
        self.settings = ModelSettings()
        self.deltas: list[str] = []


def test_names_that_openapi_does_not_have_stay_apart() -> None:
    names = ["a b", "a_b", "a/b", "{x}", "<script>alert(1)</script>", "server", "ä"]
    models = []
    for name in names:
        servable: Any = Described(name, "1")
        models.append(Model(name=name, serving=servable, versions={"1": servable}))
    made = document(models)
    OpenAPIV31SpecValidator(made).validate()
    assert {one["x-model"] for _, one in predictions(made)} == set(names)
    paths = set(made["paths"])
    assert {"/v1/models/a%20b:predict", "/v1/models/a%2Fb:predict", "/v2/models/%7Bx%7D/infer"} <= paths


def test_a_model_that_no_version_serves_has_addresses_by_version_alone() -> None:
    servable: Any = Described("m", "1")
    made = document([Model(name="m", serving=None, versions={"1": servable})])
    OpenAPIV31SpecValidator(made).validate()
    assert [path for path, _ in predictions(made)] == [
        "/v1/models/m/versions/1:predict",
        "/v2/models/m/versions/1/infer",
    ]


def test_lists_of_crossed_features_have_at_most_one_value() -> None:
    user, *others = SIGNATURE.sparse
    servable: Any = Described(
        "m", "1", replace(SIGNATURE, sparse=(replace(user, num_ids=1, max_ids=1), *others))
    )
    made = document([Model(name="m", serving=servable, versions={"1": servable})])
    OpenAPIV31SpecValidator(made).validate()
    content = made["paths"]["/v1/models/m:predict"]["post"]["requestBody"]["content"][JSON]
    body = copy.deepcopy(content["examples"]["rows"]["value"])
    assert errors(made, content["schema"], body) == []
    body["sparse"]["user"][1] = []
    assert errors(made, content["schema"], body) == []
    body["sparse"]["user"][1] = [1, 2]
    assert errors(made, content["schema"], body)
    assert "A list of IDs per row, at most 1; IDs: 0 to 49." in json.dumps(made)


def test_a_context_that_holds_every_input_gives_the_number_of_rows() -> None:
    names = (*(one.name for one in SIGNATURE.dense), *(one.name for one in SIGNATURE.sparse))
    signature = replace(SIGNATURE, context=names)
    servable: Any = Described("m", "1", signature)
    plain = plain_examples(servable, 0)
    assert set(plain["ranking"]) == {"context"}
    assert plain["ranking"]["context"]["num_rows"] == 2
    assert list(tensor_examples(signature, plain)) == ["rows"]
