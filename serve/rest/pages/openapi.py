"""The description of the HTTP port in OpenAPI 3.1, made from the signatures of the models that it serves."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import quote

from google.protobuf.message import Message

from recsys.base.machine import package_version
from serve.engine.interface import Servable
from serve.quality.labels import MAX_ITEMS, RESULTS
from serve.rest.pages.examples import INSTANCES, RANKING, ROWS, plain_examples, row_examples, tensor_examples
from serve.rest.pages.schemas import (
    Json,
    arrays,
    message_schema,
    objects,
    plain_answer,
    plain_request,
    rows_answer,
    rows_request,
    tensor_answer,
    tensor_request,
)
from serve.rpc.open_inference import SERVER_NAME
from serve.wire import open_inference_pb2 as wire

OPENAPI = "3.1.0"
SERVER_TAG = "server"
PLAIN, TENSORS = "plain JSON", "tensors"
_SUMMARIES = {
    ROWS: "a score for each row",
    RANKING: "a ranking: the context's row stands for all rows",
    INSTANCES: "an object per row",
}
_JSON = "application/json"
_ABOUT = (
    "Predictions of recommendation models. Every model takes two forms of requests: **plain JSON** with one list per "
    "row and input, or one object per row, and the **tensors** of the Open Inference Protocol (KServe v2), whose "
    "metadata is served too."
)
_ERRORS = {
    "400": "The request contradicts itself or the model; the text names field, got and expected.",
    "403": "The request comes from a page of another site.",
    "404": "The model or version does not exist.",
    "408": "The body was not there in time.",
    "413": "The body is too large.",
    "415": "The body is compressed with something else than gzip or deflate.",
    "429": "The queue is full; Retry-After gives the seconds after which to retry.",
    "500": "The model failed; the server's log says why.",
    "503": "Not ready, or stopping.",
    "504": "The deadline passed.",
}
_OF_QUERY = ("404", "503")
_TIMEOUT: Json = {
    "name": "timeout_ms",
    "in": "query",
    "description": "Milliseconds after which the request ends with 504; none where it is missing.",
    "schema": {"type": "integer", "minimum": 0},
}


@dataclass(frozen=True, kw_only=True)
class Model:
    """A model that answers.

    Attributes:
        name: its name.
        serving: the version that answers requests that name none; None if there is none.
        versions: every version that answers, by name.
    """

    name: str
    serving: Servable | None
    versions: Mapping[str, Servable]


def document(models: Sequence[Model], seed: int = 0) -> Json:
    """Return the description.

    Args:
        models: the models that answer.
        seed: of the examples.
    """
    keys = _Keys()
    paths: Json = {**_server_paths()}
    schemas: Json = {"Error": objects({"error": {"type": "string"}}, ["error"])}
    for model in models:
        paths |= _model_paths(model, keys.of(model.name), schemas, seed, is_only=len(models) == 1)
    return {
        "openapi": OPENAPI,
        "info": {
            "title": SERVER_NAME,
            "version": package_version(SERVER_NAME) or "unknown",
            "description": _ABOUT,
        },
        "tags": [
            *({"name": _tag(model.name)} for model in models),
            {"name": SERVER_TAG, "description": "The server, and all models."},
        ],
        "paths": paths,
        "components": {
            "schemas": schemas,
            "responses": {f"E{code}": _error(code, about) for code, about in _ERRORS.items()},
        },
    }


class _Keys:
    """Names for components and operations: each model's own, changed where OpenAPI has no such names."""

    def __init__(self) -> None:
        self._taken: set[str] = set()

    def of(self, name: str) -> str:
        key = plain = re.sub(r"[^A-Za-z0-9_]", "_", name)[:64]
        number = 1
        while key in self._taken:
            number += 1
            key = f"{plain}_{number}"
        self._taken.add(key)
        return key


def _server_paths() -> Json:
    ready = objects({"ready": {"type": "boolean"}}, ["ready"])
    ask_index = objects({"ready": {"type": "boolean", "description": "Whether to list ready versions only."}})
    index = _operation("index", SERVER_TAG, "Every version of every model, with its state")
    index["requestBody"] = {"content": {_JSON: {"schema": ask_index}}}
    one = wire.RepositoryIndexResponse.ModelIndex
    labels = _operation("feedback", SERVER_TAG, "Labels for answers; 403 where no answers are kept for them")
    labels["requestBody"] = {"content": {_JSON: {"schema": _labels()}}, "required": True}
    counts = {f"num_{result}": {"type": "integer"} for result in RESULTS}
    refusal = objects(
        {"item": {"type": "integer"}, "result": {"type": "string"}, "message": {"type": "string"}},
        ["item", "result", "message"],
    )
    taken = objects({**counts, "refused": arrays(refusal)}, [*counts, "refused"])
    return {
        "/v1/feedback": {"post": {**labels, "responses": _answers(taken, ("400", "403", "413"))}},
        "/ping": _get(
            "ping", SERVER_TAG, "As /v2/health/ready: MLflow's and SageMaker's address", ready, also_503=ready
        ),
        "/v2": _get("server", SERVER_TAG, "Name, release and extensions", _of(wire.ServerMetadataResponse)),
        "/v2/health/live": _get(
            "live",
            SERVER_TAG,
            "Whether the process answers",
            objects({"live": {"type": "boolean"}}, ["live"]),
        ),
        "/v2/health/ready": _get("ready", SERVER_TAG, "Whether requests are accepted", ready, also_503=ready),
        "/v2/repository/index": {"post": {**index, "responses": _answers(arrays(_of(one)), ("400", "403"))}},
        "/v2/models/stats": _get(
            "statistics", SERVER_TAG, "Counts and times of all models", _of(wire.ModelStatisticsResponse)
        ),
    }


def _labels() -> Json:
    """Return the schema of labels for answers."""
    row, value = {"type": "integer", "minimum": 0}, {"enum": [0, 1]}
    by_name = {"type": "object", "additionalProperties": {"anyOf": [value, arrays(value)]}}
    item = objects(
        {
            "request_id": {"type": "string", "description": "The ID that the request had."},
            "model": {"type": "string"},
            "rows": arrays(row),
            "labels": by_name,
        },
        ["request_id", "labels"],
    )
    return objects({"items": {**arrays(item), "maxItems": MAX_ITEMS}}, ["items"])


def _model_paths(model: Model, key: str, schemas: Json, seed: int, *, is_only: bool) -> Json:
    """Return a model's paths, ``/invocations`` too where it is the only one; add its versions' to ``schemas``."""
    v1, v2 = (f"/{protocol}/models/{quote(model.name, safe='')}" for protocol in ("v1", "v2"))
    paths: Json = {}
    examples = {}
    for version, servable in model.versions.items():
        _add_schemas(servable, f"{key}.{version}", schemas)
        plain = plain_examples(servable, seed)
        examples[version] = {
            PLAIN: {**plain, **row_examples(servable.signature, plain)},
            TENSORS: tensor_examples(servable.signature, plain),
        }
    named = [("", model.serving.info.version)] if model.serving is not None else []
    for version, answering in [*named, *((version, version) for version in model.versions)]:
        at = f"/versions/{quote(version, safe='')}" if version else ""
        for form, path in ((PLAIN, f"{v1}{at}:predict"), (TENSORS, f"{v2}{at}/infer")):
            asked = _Asked(model=model.name, version=version, form=form)
            schema = f"{key}.{answering}"
            paths[path] = {"post": _prediction(asked, key, schema, examples[answering][form])}
    if is_only and model.serving is not None:
        asked = _Asked(model=model.name, version="", form=PLAIN)
        schema, given = f"{key}.{model.serving.info.version}", examples[model.serving.info.version][PLAIN]
        invocation = _prediction(asked, key, schema, given)
        # Without the marks by which the form finds addresses: it has this one by the model's name.
        shown = {name: value for name, value in invocation.items() if not name.startswith("x-")}
        paths["/invocations"] = {"post": {**shown, "operationId": f"invoke_{key}"}}
    paths |= _queries(model, key, v2, "")
    of_version = {
        "name": "version",
        "in": "path",
        "required": True,
        "schema": {"enum": [*model.versions]},
    }
    for path, item in _queries(
        model, f"{key}_version", f"{v2}/versions/{{version}}", " of a version"
    ).items():
        paths[path] = {"parameters": [of_version], **item}
    return paths


def _add_schemas(servable: Servable, key: str, schemas: Json) -> None:
    signature = servable.signature
    schemas[f"{key}.PlainRequest"] = plain_request(signature, servable.settings.limits)
    schemas[f"{key}.PlainAnswer"] = plain_answer(signature)
    schemas[f"{key}.RowsRequest"] = rows_request(signature, servable.settings.limits)
    schemas[f"{key}.RowsAnswer"] = rows_answer(signature)
    schemas[f"{key}.TensorRequest"] = tensor_request(signature)
    schemas[f"{key}.TensorAnswer"] = tensor_answer(signature)


@dataclass(frozen=True, kw_only=True)
class _Asked:
    """What an address predicts with: the model, the version or empty for the routing's choice, the form."""

    model: str
    version: str
    form: str


def _prediction(asked: _Asked, key: str, schema: str, examples: Json) -> Json:
    which = f"by version {asked.version}" if asked.version else "by the version that the routing chooses"
    verb, kinds = ("predict", ("Plain", "Rows")) if asked.form == PLAIN else ("infer", ("Tensor",))
    operation = _operation(
        f"{verb}_{key}" + (f"_version_{asked.version}" if asked.version else ""),
        _tag(asked.model),
        f"Predict {which}: {asked.form}",
    )
    content = {
        "schema": _any_of([f"{schema}.{kind}Request" for kind in kinds]),
        "examples": {name: {"summary": _SUMMARIES[name], "value": value} for name, value in examples.items()},
    }
    return {
        **operation,
        "x-model": asked.model,
        "x-version": asked.version,
        "x-form": asked.form,
        "parameters": [_TIMEOUT],
        "requestBody": {"required": True, "content": {_JSON: content}},
        "responses": _answers(_any_of([f"{schema}.{kind}Answer" for kind in kinds]), tuple(_ERRORS)),
    }


def _queries(model: Model, key: str, at: str, which: str) -> Json:
    """Return the paths that tell of a model, or of one of its versions."""
    metadata = _of(wire.ModelMetadataResponse)
    digest = {"type": "string", "description": "Digest of the artifact's manifest."}
    metadata["properties"]["parameters"] = objects({"digest": digest}, ["digest"])
    ready = objects({"name": {"type": "string"}, "ready": {"type": "boolean"}}, ["name", "ready"])
    tag = _tag(model.name)
    return {
        at: _get(f"metadata_{key}", tag, f"Tensors{which}, and the versions that answer", metadata),
        f"{at}/ready": _get(
            f"ready_{key}", tag, f"Whether requests{which} are answered", ready, also_503=ready
        ),
        f"{at}/config": _get(f"config_{key}", tag, f"Configuration{which}", _of(wire.ModelConfig)),
        f"{at}/stats": _get(
            f"statistics_{key}", tag, f"Counts and times{which}", _of(wire.ModelStatisticsResponse)
        ),
    }


def _get(name: str, tag: str, summary: str, answer: Json, also_503: Json | None = None) -> Json:
    operation = _operation(name, tag, summary)
    responses = _answers(answer, () if tag == SERVER_TAG else _OF_QUERY)
    if also_503 is not None:
        responses["503"] = {"description": _ERRORS["503"], "content": {_JSON: {"schema": also_503}}}
    return {"get": {**operation, "responses": responses}}


def _operation(name: str, tag: str, summary: str) -> Json:
    return {"operationId": name, "tags": [tag], "summary": summary}


def _answers(answer: Json, errors: Sequence[str]) -> Json:
    references = {code: {"$ref": f"#/components/responses/E{code}"} for code in errors}
    return {"200": {"description": "The answer.", "content": {_JSON: {"schema": answer}}}, **references}


def _error(code: str, about: str) -> Json:
    response: Json = {"description": about, "content": {_JSON: {"schema": _ref("Error")}}}
    if code == "429":
        seconds = {"schema": {"type": "integer"}, "description": "Whole seconds."}
        response["headers"] = {"Retry-After": seconds}
    return response


def _of(message: type[Message]) -> Json:
    return message_schema(message.DESCRIPTOR)


def _tag(model: str) -> str:
    return f"model {model}"


def _ref(name: str) -> Json:
    return {"$ref": f"#/components/schemas/{name}"}


def _any_of(names: Sequence[str]) -> Json:
    return _ref(names[0]) if len(names) == 1 else {"anyOf": [_ref(name) for name in names]}


def operations(description: Json, tag: str) -> Iterator[tuple[str, str, Json]]:
    """Yield method, path and operation of everything under a tag, in the order of the description."""
    for path, item in description["paths"].items():
        for method in ("get", "post"):
            if method in item and tag in item[method]["tags"]:
                yield method, path, item[method]
