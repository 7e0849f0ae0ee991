"""What a server tells those who watch it: metrics as documented, lines of the log, and no traces unasked."""

from __future__ import annotations

import json
import re
import socket
import urllib.request
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import pytest

from serve.client import Feedback
from tests.conformance.support.artifacts import Exported
from tests.conformance.support.harness import (
    TOKEN,
    ServerUnderTest,
    put_version,
    running,
    status_of,
    with_admin,
)

pytestmark = pytest.mark.engine

PAGE = Path(__file__).parents[3] / "docs" / "operate" / "metrics.md"
# | `name{labels}` | type | what it is |
_ROW = re.compile(r"^\| `(\w+)(?:\{([\w, ]*)\})?` \| (counter|histogram|gauge) \| (.*) \|$", re.MULTILINE)
_OUTCOME = re.compile(r"^\| `(\w+)` \| `([A-Z_]+)` \|", re.MULTILINE)
_SAMPLE = re.compile(r"^(\w+)(?:\{(.*)\})? (\S+)$")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


class Documented(NamedTuple):
    kind: str
    labels: frozenset[str]
    about: str


class Shown(NamedTuple):
    """A metrics page: types by name, and label sets by the name of the family."""

    kinds: dict[str, str]
    labels: dict[str, list[dict[str, str]]]


DOCUMENTED = {
    name: Documented(kind, frozenset(re.findall(r"\w+", labels)), about)
    for name, labels, kind, about in _ROW.findall(PAGE.read_text())
}


def shown(server: ServerUnderTest) -> Shown:
    """The page as Prometheus reads it."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"http://{server.metrics_address}/metrics", timeout=60) as response:
        text = response.read().decode()
    kinds = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE))
    labels: dict[str, list[dict[str, str]]] = defaultdict(list)
    for line in text.splitlines():
        if (match := _SAMPLE.match(line)) and not line.startswith("#"):
            name, given, _ = match.groups()
            family = name
            if name not in kinds:
                family = re.sub(r"_(bucket|sum|count|created)$", "", name)
            found = dict(_LABEL.findall(given or ""))
            found.pop("le", None)
            labels[family].append(found)
    return Shown(kinds, labels)


@pytest.fixture(scope="module")
def watched(small: Exported, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerUnderTest]:
    """One model of a repository, with everything on that has metrics; its log in JSON."""
    folder = tmp_path_factory.mktemp("watched")
    put_version(folder / "models", "small", "1", small.path)
    arguments = ["--repository", folder / "models", "--capture-path", folder / "requests.capture"]
    arguments += ["--log-as-json", "--log-requests", "errors", *with_admin(folder)]
    arguments += ["--quality-within-s", "600", "--quality-drift-share", "1"]
    with running(*arguments, folder=folder) as started:
        yield started


def test_the_page_is_read() -> None:
    assert len(DOCUMENTED) > 25
    assert DOCUMENTED["recsys_requests_total"].labels == {"model", "version", "outcome"}


def test_every_documented_metric_is_shown_with_its_type_and_labels(
    watched: ServerUnderTest, small: Exported
) -> None:
    sample = small.sample(2)
    client = watched.client()
    client.predict(sample.dense, sample.sparse, sample.weights, request_id="labelled")
    client.feedback([Feedback(request_id="labelled", labels={"click": [0, 1]})])
    page = shown(watched)
    # Traces and shadows have series where they are on; the page says of the others that they begin with zeros.
    optional = {"recsys_traces_dropped_total", "recsys_shadow_total", "recsys_captured_requests_total"}
    assert set(DOCUMENTED) - set(page.kinds) <= optional
    for name in set(DOCUMENTED) & set(page.kinds):
        assert page.kinds[name] == DOCUMENTED[name].kind, name
        for labels in page.labels[name]:
            assert set(labels) == DOCUMENTED[name].labels, name


def test_no_metric_is_shown_that_is_not_documented(watched: ServerUnderTest) -> None:
    ours = {name for name in shown(watched).kinds if name.startswith(("recsys_", "process_"))}
    assert not {name for name in ours if name not in DOCUMENTED and not name.endswith("_created")}


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("recsys_requests_total", "outcome"),
        ("recsys_stage_seconds", "stage"),
        ("recsys_model_state", "state"),
    ],
)
def test_labels_take_the_documented_values_from_the_beginning(
    watched: ServerUnderTest, name: str, label: str
) -> None:
    expected = {
        "outcome": {outcome for outcome, _ in _OUTCOME.findall(PAGE.read_text())},
        "stage": {"queue", "collate", "execute", "respond"},
        "state": {"loading", "ready", "draining", "failed"},
    }[label]
    ours = [labels for labels in shown(watched).labels[name] if labels["model"] == "small"]
    assert {labels[label] for labels in ours} == expected
    assert {labels["version"] for labels in ours} == {"1"}


def counted(server: ServerUnderTest, outcome: str, model: str) -> float:
    return server.total("recsys_requests_total", outcome=outcome, model=model)


def test_each_request_is_counted_once_by_its_outcome(watched: ServerUnderTest, small: Exported) -> None:
    sample, call = small.sample(2), watched.predict_bytes()
    wrong, stranger = sample.request(), sample.request()
    wrong.num_rows = 3
    stranger.model = "secret-model"
    before = {
        one: (counted(watched, one, "small"), counted(watched, one, ""))
        for one in ("ok", "invalid", "not_found")
    }
    rows = watched.total("recsys_batch_rows_sum")
    for request in (sample.request(), wrong, stranger):
        status_of(lambda request=request: call(request.SerializeToString(), timeout=60))
    status_of(lambda: call(b"\xff", timeout=60))
    grown = {
        one: (counted(watched, one, "small") - named, counted(watched, one, "") - nameless)
        for one, (named, nameless) in before.items()
    }
    assert grown == {"ok": (1, 0), "invalid": (1, 1), "not_found": (0, 1)}
    assert watched.total("recsys_batch_rows_sum") - rows == 2
    assert "secret-model" not in str(shown(watched))


def log_lines(server: ServerUnderTest) -> list[dict[str, Any]]:
    return [json.loads(line) for line in server.log.read_text().splitlines() if line.startswith("{")]


def test_the_log_has_a_line_for_each_request_that_failed_and_holds_no_secret(
    small: Exported, tmp_path: Path
) -> None:
    arguments = [small.path, "--log-as-json", *with_admin(tmp_path)]
    with running(*arguments, folder=tmp_path) as server:
        call = server.predict_bytes()
        good, wrong, forged = (small.sample(1).request() for _ in range(3))
        good.request_id, wrong.request_id = "a-good-one", "a-wrong-one"
        wrong.num_rows = 2
        forged.request_id = 'x"}\n{"level": "FORGED"} \u202e'
        forged.model = "other"
        for request in (good, wrong, forged):
            status_of(lambda request=request: call(request.SerializeToString(), timeout=60))
        admin = server.channel(server.admin_address).unary_unary("/recsys.v1.AdminService/ListModels")
        for token in (TOKEN, "another-token-that-is-wrong"):
            status_of(lambda token=token: admin(b"", metadata=[("authorization", f"Bearer {token}")]))
        code, _ = server.stop()
        assert code == 0
    text = server.log.read_text()
    assert text.isascii()
    assert TOKEN not in text
    assert "another-token-that-is-wrong" not in text
    lines = log_lines(server)
    assert all({"time", "level", "logger", "message"} <= set(line) for line in lines)
    assert not [line for line in lines if line["level"] == "FORGED"]
    requests = {line["request_id"]: line for line in lines if line["logger"] == "serve.requests"}
    assert set(requests) == {"a-wrong-one", forged.request_id}
    line = requests["a-wrong-one"]
    assert (line["outcome"], line["code"], line["protocol"]) == ("invalid", "INVALID_ARGUMENT", "recsys")
    assert (line["model"], line["version"]) == ("small", server.ready["version"])
    assert line["duration_ms"] >= 0
    assert "got 4 bytes, expected 8" in line["reason"] or "expected" in line["reason"]
    assert requests[forged.request_id]["outcome"] == "not_found"


def test_no_trace_leaves_a_server_that_was_not_told_where_to(small: Exported, tmp_path: Path) -> None:
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    with socket.socket() as collector:
        collector.bind(("127.0.0.1", 0))
        collector.listen()
        collector.setblocking(False)
        endpoint = f"http://127.0.0.1:{collector.getsockname()[1]}"
        environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint, "OTEL_TRACES_EXPORTER": "otlp"}
        with running(small.path, folder=tmp_path, environment=environment) as server:
            data = small.sample(1).request().SerializeToString()
            status = status_of(
                lambda: server.predict_bytes()(data, timeout=60, metadata=[("traceparent", parent)])
            )
            assert status[0] is grpc.StatusCode.OK
            assert server.stop()[0] == 0
        with pytest.raises(BlockingIOError):  # nobody has called
            collector.accept()
