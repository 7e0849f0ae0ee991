"""What pages of other sites may not do through a visitor's browser."""

from __future__ import annotations

from dataclasses import replace

import pytest

from serve.config.settings import RestConfig
from serve.engine.reference.executor import ServedModel
from tests.support.serve.live import LiveServer
from tests.support.serve.messages.rest_calls import CONFIG, PREDICT, ask, plain_body, sample_of

BODY = plain_body(sample_of(1))


@pytest.fixture(scope="module")
def port(rest: LiveServer) -> int:
    assert rest.server.http_port is not None
    return rest.server.http_port


OTHERS: dict[str, dict[str, str]] = {
    "old browser": {"Origin": "http://evil.example"},
    "other port": {"Origin": "http://127.0.0.1:1"},
    "opaque": {"Origin": "null"},
    "no origin at all": {"Origin": ""},
    "broken": {"Origin": "http://[evil"},
    "cross-site": {"Origin": "http://evil.example", "Sec-Fetch-Site": "cross-site"},
    "same-site": {"Origin": "http://127.0.0.1:1", "Sec-Fetch-Site": "same-site"},
    "form": {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"},
    "unknown": {"Sec-Fetch-Site": "x"},
}


@pytest.mark.parametrize("headers", OTHERS.values(), ids=list(OTHERS))
@pytest.mark.parametrize(
    "content_type", ["application/json", "text/plain", "application/x-www-form-urlencoded"]
)
def test_requests_of_other_sites_are_refused(
    rest: LiveServer, headers: dict[str, str], content_type: str
) -> None:
    reply = ask(rest, "POST", PREDICT, BODY, {**headers, "Content-Type": content_type})
    assert reply.status == 403
    assert "expected a page of this server" in reply.json()["error"]


@pytest.mark.parametrize(
    "headers",
    [
        pytest.param({}, id="no browser"),
        pytest.param({"Content-Type": "application/x-www-form-urlencoded"}, id="curl"),
        pytest.param({"Origin": "http://127.0.0.1:{port}"}, id="old browser"),
        pytest.param(
            {"Origin": "http://127.0.0.1:{port}", "Sec-Fetch-Site": "same-origin"}, id="same-origin"
        ),
        pytest.param({"Origin": "https://proxy.example", "Sec-Fetch-Site": "same-origin"}, id="proxy"),
    ],
)
def test_requests_of_the_page_and_of_programs_are_answered(
    rest: LiveServer, port: int, headers: dict[str, str]
) -> None:
    headers = {name: value.format(port=port) for name, value in headers.items()}
    assert ask(rest, "POST", PREDICT, BODY, headers).status == 200


@pytest.mark.parametrize("path", [PREDICT, "/", "/openapi.json"])
def test_a_preflight_permits_nothing(rest: LiveServer, path: str) -> None:
    headers = {
        "Origin": "http://evil.example",
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "content-type",
    }
    reply = ask(rest, "OPTIONS", path, headers=headers)
    assert reply.status == 403
    assert not [name for name in reply.headers if name.startswith("access-control")]


def test_links_from_other_sites_lead_to_the_page(rest: LiveServer) -> None:
    headers = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
    assert ask(rest, "GET", "/", headers=headers).status == 200


@pytest.mark.parametrize("path", ["/", "/docs", "/openapi.json"])
@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("evil.example", 403),
        ("evil.example:{port}", 403),
        ("127.0.0.1.evil.example", 403),
        ("[evil", 403),
        ("", 403),
        ("localhost:{port}", 200),
        ("LOCALHOST", 200),
        ("127.0.0.1:9000", 200),
        ("[::1]:{port}", 200),
    ],
)
def test_on_loopback_the_pages_have_addresses_of_this_machine_alone(
    rest: LiveServer, port: int, path: str, host: str, status: int
) -> None:
    """A name of another site that leads here would make its pages this server's."""
    reply = ask(rest, "GET", path, headers={"Host": host.format(port=port)})
    assert reply.status == status
    if status == 403:
        assert "expected localhost or a loopback address" in reply.json()["error"]


def test_other_sites_are_not_refused_where_there_are_no_pages(model: ServedModel) -> None:
    with LiveServer(model, replace(CONFIG, rest=RestConfig(pages=False))) as live:
        assert ask(live, "POST", PREDICT, BODY, {"Origin": "http://shop.example"}).status == 200
