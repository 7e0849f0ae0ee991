"""The pages: what they say, what they permit, where they are served."""

from __future__ import annotations

import contextlib
import http.client
import re
import ssl
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from torch import Tensor

from recsys.pages import source_hash
from serve.config.settings import RestConfig, ServerConfig
from serve.engine.reference.executor import ServedModel
from tests.support.serve.certificates import Authority, write_tls
from tests.support.serve.live import LiveServer
from tests.support.serve.messages.rest_calls import CONFIG, ask
from tests.support.serve.models import GatedModel

PAGES = ("/", "/docs")
EVIL = """"><script>alert('x')</script>{{ 7 * 7 }}&'"""
_VOID = {"meta", "br", "link"}


class Strict(HTMLParser):
    """Every element is closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.texts: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.inline: dict[str, str] = {}
        # A place where a line may break is no part of a text.
        self.feed(text.replace("<wbr>", ""))
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag not in _VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] in ("script", "style"):
            self.inline[self.open[-1]] = data
        else:
            self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())


def page(live: LiveServer, path: str) -> Strict:
    reply = ask(live, "GET", path)
    assert reply.status == 200
    assert reply.headers["content-type"] == "text/html; charset=utf-8"
    return Strict(reply.data.decode())


def test_the_first_page_has_models_versions_and_health(many: LiveServer) -> None:
    found = page(many, "/")
    assert "ready health 2 of 3 models answer reference engine" in found.text
    for words in (
        "eu-west.clicks_1 answers",
        "7 ready serves",
        "broken does not answer version state routing tables digest 3 failed Version 3: ",
        "2 ready serves",
        "1 ready canary, 5 %",
    ):
        assert words in found.text
    assert re.search(r"ready serves 904 B [0-9a-f]{12}", found.text)


def test_the_documentation_has_inputs_outputs_and_calls(many: LiveServer) -> None:
    found = page(many, "/docs")
    for words in (
        "ranker, version 2 serves",
        "ranker, version 1 ",
        "eu-west.clicks_1, version 7 serves",
        "genres sparse, a list of IDs per row genres.values INT64 [N] genres.lengths INT32 [B] 0 to 6",
        "tags.weights FP32 [N] 0 to 19 tags, 20 rows pooling: sum context",
        "item sparse, a list of texts or IDs per row item.values BYTES [N] (texts) or INT64 [N]",
        "item.lengths INT32 [B] any; texts are hashed by xxh64 catalog, 11 rows",
        "context dense, [B, 3] context FP32 [B, 3] context",
        "vectors FP32 [B, 2, 3]",
        "POST /v1/models/ranker:predict",
        "POST /v2/models/ranker/versions/1/infer",
        "GET /v2/models/stats",
        "Example: a ranking: the context's row stands for all rows",
        "429 The queue is full",
    ):
        assert words in found.text, words
    assert "x-form" not in found.text


@pytest.mark.parametrize("path", PAGES)
def test_a_page_needs_nothing_from_elsewhere_and_permits_nothing_else(many: LiveServer, path: str) -> None:
    reply = ask(many, "GET", path)
    found = Strict(reply.data.decode())
    assert {value for name, value in found.attributes if name in ("src", "href", "action")} == {
        "data:,",
        "./",
        "docs",
        "openapi.json",
    }
    assert not [name for name, _ in found.attributes if name.startswith("on") or name == "style"]
    policy = dict(one.split(" ", 1) for one in reply.headers["content-security-policy"].split("; "))
    assert policy["default-src"] == policy["base-uri"] == policy["frame-ancestors"] == "'none'"
    assert policy["style-src"] == source_hash(found.inline["style"])
    if path == "/":
        assert policy["script-src"] == source_hash(found.inline["script"])
    else:
        assert "script" not in found.tags
    assert "unsafe" not in str(policy)
    assert reply.headers["x-content-type-options"] == "nosniff"
    assert reply.headers["cross-origin-resource-policy"] == "same-origin"


class Evil(GatedModel):
    """A real model whose inputs, tables and outputs have hostile names."""

    def __init__(self, model: ServedModel) -> None:
        super().__init__(model)
        signature = model.signature
        first, *others = signature.sparse
        (table,) = first.tables
        self.signature = replace(
            signature,
            dense=tuple(replace(one, name=EVIL + one.name) for one in signature.dense),
            sparse=(replace(first, name=EVIL, tables=(replace(table, name=EVIL),)), *others),
            outputs=tuple(replace(one, name=EVIL + one.name) for one in signature.outputs),
        )

    def forward(self, *inputs: Tensor) -> dict[str, Tensor]:
        return {EVIL + name: values for name, values in super().forward(*inputs).items()}


def test_names_of_a_model_are_text_everywhere(model: ServedModel) -> None:
    with LiveServer(Evil(model), CONFIG) as live:
        docs = page(live, "/docs")
        assert docs.text.count(EVIL) > 6
        assert "script" not in docs.tags
        assert page(live, "/").tags.count("script") == 1
        described = ask(live, "GET", "/openapi.json")
        assert described.headers["content-type"].startswith("application/json")
        operation = described.json()["paths"]["/v1/models/small:predict"]["post"]
        example, instances = operation["requestBody"]["content"]["application/json"]["examples"].values()
        assert EVIL in example["value"]["sparse"]
        assert EVIL in instances["value"]["instances"][0]
        assert ask(live, "POST", "/v1/models/small:predict", example["value"]).status == 200


def test_the_pages_come_before_the_models(model: ServedModel) -> None:
    gated = GatedModel(model)
    gated.close_gate()
    # The gate opens before the server stops, also if the test fails.
    with LiveServer(gated, CONFIG, wait=False) as live, contextlib.ExitStack() as at_end:
        at_end.callback(gated.gate.set)
        assert gated.started.acquire(timeout=60)
        found = page(live, "/")
        assert "not ready health 0 of 1 models answer" in found.text
        assert "small does not answer" in found.text
        assert ask(live, "GET", "/openapi.json").json()["paths"].keys() == {
            "/ping",
            "/v2",
            "/v2/health/live",
            "/v2/health/ready",
            "/v2/repository/index",
            "/v2/models/stats",
            "/v1/feedback",
        }
        gated.gate.set()
        live.wait_until_ready()
        assert "1 of 1 models answer" in page(live, "/").text


@pytest.mark.parametrize(
    ("host", "pages", "is_served"),
    [
        ("127.0.0.1", None, True),
        ("localhost", None, True),
        ("127.0.0.1", False, False),
        ("0.0.0.0", None, False),
        ("0.0.0.0", True, True),
    ],
)
def test_pages_are_served_on_loopback_or_where_they_are_asked_for(
    model: ServedModel, host: str, pages: bool | None, is_served: bool
) -> None:
    config = ServerConfig(host=host, port=0, metrics_port=None, http_port=0, rest=RestConfig(pages=pages))
    with LiveServer(model, config) as live:
        for path in (*PAGES, "/openapi.json"):
            reply = ask(live, "GET", path)
            assert reply.status == (200 if is_served else 404)
            assert ask(live, "POST", path).status == (405 if is_served else 404)
        assert ask(live, "GET", "/v2/health/ready").status == 200


def test_the_pages_are_behind_the_ports_tls(model: ServedModel, tmp_path: Path) -> None:
    authority, clients = Authority(), Authority("clients")
    client = clients.issue("visitor")
    (tmp_path / "client.pem").write_bytes(client.certificate + client.key)
    tls = write_tls(tmp_path, authority.issue(), clients.certificate)
    with LiveServer(model, replace(CONFIG, tls=tls)) as live:
        known = ssl.create_default_context(cadata=authority.certificate.decode())
        known.load_cert_chain(tmp_path / "client.pem")
        unknown = ssl.create_default_context(cadata=authority.certificate.decode())
        for path in (*PAGES, "/openapi.json"):
            assert get_over_tls(live, path, known) == 200
            with pytest.raises((ssl.SSLError, ConnectionError)):
                get_over_tls(live, path, unknown)


def get_over_tls(live: LiveServer, path: str, context: ssl.SSLContext) -> int:
    connection = http.client.HTTPSConnection("localhost", live.server.http_port, timeout=60, context=context)
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    finally:
        connection.close()
