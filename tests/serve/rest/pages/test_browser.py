"""The form in a real browser. Debian's package ``chromium`` has one; skips where it is not installed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from tests.support.serve.browser import CHROMIUM, Page, browsing
from tests.support.serve.live import LiveServer
from tests.support.serve.messages.rest_calls import ask

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")


def run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(scenario, 240))


def address(live: LiveServer) -> str:
    return f"http://127.0.0.1:{live.server.http_port}/"


async def opened(page: Page, live: LiveServer) -> None:
    """Open the first page and wait for its example."""
    await page.open(address(live))
    await page.wait_for("document.getElementById('request').value !== ''")


async def value(page: Page, name: str) -> str:
    found = await page.evaluate(f"document.getElementById('{name}').value")
    assert isinstance(found, str)
    return found


async def choices(page: Page, name: str) -> list[str]:
    found: list[str] = await page.evaluate(
        f"[...document.getElementById('{name}').options].map(o => o.value)"
    )
    return found


async def fill(page: Page, name: str, text: str) -> None:
    at = f"document.getElementById('{name}')"
    await page.evaluate(f"{at}.value = {json.dumps(text)}; {at}.dispatchEvent(new Event('change'))")


async def sent(page: Page) -> tuple[str, str]:
    """Send the request; the status and the answer that are shown."""
    await page.evaluate("document.getElementById('status').textContent = ''")
    await page.evaluate("document.getElementById('send').click()")
    await page.wait_for("document.getElementById('status').textContent !== ''")
    status, text = await page.evaluate(
        "['status', 'answer'].map(name => document.getElementById(name).textContent)"
    )
    return status, text


def test_every_choice_of_the_form_is_answered(many: LiveServer) -> None:
    async def scenario() -> None:
        seen = []
        async with browsing() as page:
            await opened(page, many)
            for model in await choices(page, "model"):
                await fill(page, "model", model)
                for version in await choices(page, "version"):
                    await fill(page, "version", version)
                    for form in await choices(page, "kind"):
                        await fill(page, "kind", form)
                        for example in await choices(page, "example"):
                            await fill(page, "example", example)
                            status, text = await sent(page)
                            assert status == "200 OK", text
                            answer = json.loads(text)
                            if example == "instances":
                                assert [*answer] == ["predictions"]
                            else:
                                answered = answer.get("version") or answer["model_version"]
                                assert version in ("", answered)
                                assert answer.get("model", answer.get("model_name")) == model
                            seen.append((model, version, form, example))
            assert page.problems == []
        assert len(seen) == len(set(seen)) == 19
        assert ("ranker", "2", "tensors", "ranking") in seen

    run(scenario())


def test_another_example_replaces_the_request(many: LiveServer) -> None:
    async def scenario() -> None:
        async with browsing() as page:
            await opened(page, many)
            before = await value(page, "request")
            await page.evaluate("document.getElementById('another').click()")
            await page.wait_for(f"document.getElementById('request').value !== {json.dumps(before)}")
            status, _ = await sent(page)
            assert status == "200 OK"

    run(scenario())


def test_the_servers_error_is_shown_as_text(many: LiveServer) -> None:
    async def scenario() -> None:
        async with browsing() as page:
            await opened(page, many)
            await fill(page, "model", "ranker")
            body = json.loads(await value(page, "request"))
            body["sparse"]["<img src=x onerror=alert(1)>"] = [[1]]
            await page.evaluate(f"document.getElementById('request').value = {json.dumps(json.dumps(body))}")
            status, text = await sent(page)
            assert status == "400 Bad Request"
            assert "sparse: got an unknown input '<img src=x onerror=alert(1)>', expected 'user'" in text
            assert await page.evaluate("document.images.length") == 0
            await page.evaluate("document.getElementById('request').value = '{'")
            status, text = await sent(page)
            assert status == "400 Bad Request"
            assert "that are not JSON" in text

    run(scenario())


@asynccontextmanager
async def another_site(text: str) -> AsyncIterator[str]:
    """The address of a page of another origin, and of another site: localhost and 127.0.0.1 are two."""

    async def answer(_: web.Request) -> web.Response:
        return web.Response(text=text, content_type="text/html")

    application = web.Application()
    application.router.add_get("/", answer)
    runner = web.AppRunner(application)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://localhost:{runner.addresses[0][1]}/"
    finally:
        await runner.cleanup()


def test_a_page_of_another_site_gets_nothing(many: LiveServer) -> None:
    """It sends a valid request that needs no preflight, and one that does; and it cannot frame the page."""
    script = """(async () => {
        const tried = [];
        for (const type of ['text/plain', 'application/json']) try {
            const response = await fetch(%s, {method: 'POST', body: %s, headers: {'Content-Type': type}});
            tried.push(response.status);
        } catch (error) { tried.push(error.name); }
        return tried;
    })()"""
    path = "/v1/models/ranker:predict"
    examples = ask(many, "GET", "/openapi.json").json()["paths"][path]["post"]["requestBody"]["content"]
    body = json.dumps(examples["application/json"]["examples"]["rows"]["value"])
    url = address(many)[:-1] + path

    def num_answered() -> int:
        stats = ask(many, "GET", "/v2/models/ranker/stats").json()["model_stats"]
        return sum(one["inference_stats"]["success"]["count"] for one in stats)

    async def scenario() -> None:
        frame = f"<!doctype html><title>another site</title><iframe src='{address(many)}'></iframe>"
        async with browsing() as page, another_site(frame) as site:
            await page.open(site)
            before = num_answered()
            tried = await page.evaluate(script % (json.dumps(url), json.dumps(body)))
            assert tried == ["TypeError", "TypeError"]
            assert num_answered() == before
            async with asyncio.timeout(60):
                while not any("frame-ancestors" in problem for problem in page.problems):
                    await asyncio.sleep(0.02)

    run(scenario())


@pytest.mark.parametrize("path", ["", "docs"])
@pytest.mark.parametrize("width", [390, 1280])
def test_nothing_is_wider_than_the_window(many: LiveServer, path: str, width: int) -> None:
    async def scenario() -> None:
        async with browsing() as page:
            await page.call(
                "Emulation.setDeviceMetricsOverride",
                width=width,
                height=800,
                deviceScaleFactor=1,
                mobile=width < 640,
            )
            await page.open(address(many) + path)
            await page.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true; })")
            assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth")
            colors = []
            for scheme in ("light", "dark"):
                features = [{"name": "prefers-color-scheme", "value": scheme}]
                await page.call("Emulation.setEmulatedMedia", features=features)
                colors.append(await page.evaluate("getComputedStyle(document.body).backgroundColor"))
            assert colors == ["rgb(246, 247, 249)", "rgb(17, 22, 28)"]
            assert page.problems == []

    run(scenario())
