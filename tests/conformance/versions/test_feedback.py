"""Labels for answers: two versions' metrics over gRPC, REST and a client, and everything that is refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from recsys.metrics.binned import logits_of
from recsys.metrics.exact import Metrics, measure
from serve.client import FEEDBACK, Feedback
from serve.client.errors import PredictError
from serve.wire import admin_pb2
from serve.wire import feedback_pb2 as wire
from tests.conformance.support.artifacts import Exported
from tests.conformance.support.harness import ServerUnderTest, put_version, running, status_of, with_admin
from tests.conformance.support.http_calls import Reply, ask, plain_body

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def server(
    small: Exported, other: Exported, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerUnderTest]:
    """Version 1 serves, version 2 is the canary of a half; answers are kept."""
    folder = tmp_path_factory.mktemp("feedback")
    models = folder / "models"
    put_version(models, "small", "1", small.path)
    put_version(models, "small", "2", other.path)
    arguments: list[str | Path] = ["--repository", models, "--http-port", "0", *with_admin(folder)]
    arguments += ["--quality-within-s", "600"]
    with running(*arguments, folder=folder) as started:
        admin = started.admin()
        admin.LoadModel(admin_pb2.LoadModelRequest(model="small", version="1"))
        # A request's first user chooses, so that the same requests go to each version in every run.
        route(started, serve="1", canary="2", canary_percent=50.0, canary_key="feature:user")
        yield started


def route(server: ServerUnderTest, **routing: Any) -> None:
    request = admin_pb2.SetRoutingRequest(model="small", routing=admin_pb2.Routing(**routing))
    server.admin().SetRouting(request)


def rest(server: ServerUnderTest, body: Any) -> Reply:
    return ask(f"http://{server.http_address}/v1/feedback", body)


def gauges(server: ServerUnderTest, label: str, window: str = "1h") -> dict[tuple[str, str, str], float]:
    """Each value by its name, version and arm."""
    found = {}
    for sample, value in server.metrics().items():
        name, _, labels = sample.partition("{")
        if (
            name.startswith("recsys_quality_")
            and f'label="{label}"' in labels
            and f'window="{window}"' in labels
        ):
            parts = dict(part.split("=") for part in labels.rstrip("}").replace('"', "").split(","))
            found[name.removeprefix("recsys_quality_"), parts["version"], parts["arm"]] = value
    return found


def test_versions_are_measured_apart_and_exactly(server: ServerUnderTest, small: Exported) -> None:
    client = server.client()
    scores: dict[str, list[np.ndarray]] = {"1": [], "2": []}
    labels: dict[str, list[np.ndarray]] = {"1": [], "2": []}
    for i in range(60):
        sample = small.sample(5, seed=i)
        answer = client.predict(sample.dense, sample.sparse, sample.weights, request_id=f"exact-{i}")
        got = answer["score"].reshape(-1)
        # Clicks follow the scores of the first version.
        truth = small.answer(sample)["score"].reshape(-1)
        clicks = (truth > np.median(truth)).astype(np.float32)
        response = client.feedback([Feedback(request_id=f"exact-{i}", labels={"click": clicks})])
        assert (response.num_taken, len(response.refused)) == (5, 0)
        scores[answer.version].append(got)
        labels[answer.version].append(clicks)
    shown = gauges(server, "click")
    auc = {}
    for version, arm in (("1", "serving"), ("2", "canary")):
        assert len(scores[version]) > 10
        exact: Metrics = measure(logits_of(np.concatenate(scores[version])), np.concatenate(labels[version]))
        assert shown["labels", version, arm] == exact.num_rows
        assert shown["ne", version, arm] == pytest.approx(exact.ne, rel=1e-9)
        assert shown["calibration", version, arm] == pytest.approx(exact.calibration, rel=1e-9)
        assert shown["ctr", version, arm] == pytest.approx(float(np.concatenate(labels[version]).mean()))
        assert exact.auc is not None
        assert abs(shown["auc", version, arm] - exact.auc) <= shown["auc_error", version, arm] + 1e-9
        auc[version] = shown["auc", version, arm]
    assert auc["1"] > auc["2"] + 0.1


def test_labels_that_come_at_once_find_their_answers(server: ServerUnderTest, small: Exported) -> None:
    client = server.client()
    sample = small.sample(1)
    for i in range(100):
        client.predict(sample.dense, sample.sparse, sample.weights, request_id=f"now-{i}")
        assert client.feedback([Feedback(request_id=f"now-{i}", labels={"now": 1})]).num_taken == 1


def test_rest_takes_the_same_labels(server: ServerUnderTest, small: Exported) -> None:
    client = server.client()
    sample = small.sample(3)
    client.predict(sample.dense, sample.sparse, sample.weights, request_id="rest-1")
    item = {"request_id": "rest-1", "labels": {"watch": [0, 1, 1]}}
    reply = rest(server, {"items": [item, {"request_id": "never", "labels": {"watch": 1}}]})
    assert reply.status == 200
    body = reply.json()
    (refused,) = body.pop("refused")
    assert body == {"num_taken": 3, "num_late": 0, "num_unknown": 1, "num_doubled": 0, "num_invalid": 0}
    assert refused == {
        "item": 1,
        "result": "unknown",
        "message": "request_id: got 'never', whose answer is not kept",
    }
    assert rest(server, {"items": [item]}).json()["num_doubled"] == 3
    assert sum(v for (name, *_), v in gauges(server, "watch").items() if name == "labels") == 3


def test_rest_refuses_what_is_no_body_of_labels(server: ServerUnderTest) -> None:
    for body, status, text in (
        (b"nonsense", 400, "that are not JSON"),
        ({"items": [{"id": "a"}]}, 400, "items[0]: got an unknown field 'id'"),
        (
            {"items": [{"request_id": "a", "labels": {}}] * 5000},
            400,
            "items: got 5000, expected at most 4096",
        ),
        (b" " * (300 << 10), 413, "expected at most"),
    ):
        reply = rest(server, body)
        assert reply.status == status, reply
        assert text in reply.json()["error"]
    assert ask(f"http://{server.http_address}/v1/feedback").status == 405


def test_grpc_refuses_what_is_no_message_of_labels(server: ServerUnderTest) -> None:
    call = server.channel().unary_unary(FEEDBACK)
    code, text = status_of(lambda: call(b"\xff\xff\xff", timeout=60))
    assert (code, "FeedbackRequest" in text) == (grpc.StatusCode.INVALID_ARGUMENT, True)
    many = wire.FeedbackRequest(items=[wire.FeedbackItem(request_id="a")] * 5000).SerializeToString()
    code, text = status_of(lambda: call(many, timeout=60))
    assert (code, text) == (
        grpc.StatusCode.INVALID_ARGUMENT,
        "items: got 5000, expected at most 4096 in one call; split it",
    )


def test_requests_without_an_id_get_no_labels(server: ServerUnderTest, small: Exported) -> None:
    sample = small.sample(2)
    client = server.client()
    client.predict(sample.dense, sample.sparse, sample.weights)
    request = wire.FeedbackRequest(items=[wire.FeedbackItem(labels=[wire.Label(name="x", values=[1, 0])])])
    answer = wire.FeedbackResponse.FromString(
        server.channel().unary_unary(FEEDBACK)(request.SerializeToString(), timeout=60)
    )
    assert answer.num_invalid == 2
    assert answer.refused[0].message.startswith("request_id: got an empty text")


def test_labels_of_other_protocols_requests_are_taken(server: ServerUnderTest, small: Exported) -> None:
    sample = small.sample(2)
    body = {"id": "plain-1", **plain_body(sample)}
    reply = ask(f"http://{server.http_address}/v1/models/small:predict", body)
    assert reply.status == 200, reply
    assert (
        rest(server, {"items": [{"request_id": "plain-1", "labels": {"y": [1, 0]}}]}).json()["num_taken"] == 2
    )


def test_a_shadow_is_measured_by_the_same_labels(small: Exported, other: Exported, tmp_path: Path) -> None:
    models = tmp_path / "models"
    put_version(models, "small", "1", small.path)
    put_version(models, "small", "2", other.path)
    arguments = ["--repository", models, "--quality-within-s", "600"]
    with running(*arguments, *with_admin(tmp_path), folder=tmp_path) as server:
        server.admin().LoadModel(admin_pb2.LoadModelRequest(model="small", version="1"))
        route(server, serve="1", shadow="2", shadow_percent=100.0)
        client = server.client()
        sample = small.sample(4)
        client.predict(sample.dense, sample.sparse, sample.weights, request_id="a")
        while not server.total("recsys_feedback_answers_total", result="kept") >= 2:
            pass
        assert client.feedback([Feedback(request_id="a", labels={"click": [1, 0, 1, 0]})]).num_taken == 4
        shown = gauges(server, "click")
        exact = measure(logits_of(other.answer(sample)["score"].reshape(-1)), np.asarray([1.0, 0, 1, 0]))
        assert shown["labels", "1", "serving"] == shown["labels", "2", "shadow"] == 4
        assert shown["ne", "2", "shadow"] == pytest.approx(exact.ne, rel=1e-5)


def test_without_the_settings_labels_are_refused_and_nothing_is_shown(
    small: Exported, tmp_path: Path
) -> None:
    with running(small.path, "--http-port", "0", folder=tmp_path) as server:
        with pytest.raises(PredictError, match="this server keeps no answers for labels") as raised:
            server.client().feedback([Feedback(request_id="a", labels={"click": 1})])
        assert raised.value.code is grpc.StatusCode.PERMISSION_DENIED
        reply = rest(server, {"items": []})
        assert reply.status == 403
        assert not any(name.startswith(("recsys_quality", "recsys_feedback")) for name in server.metrics())
