"""A page in a headless Chromium, driven over the DevTools protocol; nothing outside loopback is reached."""

from __future__ import annotations

import asyncio
import contextlib
import re
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

import aiohttp

CHROMIUM = shutil.which("chromium")
_PATIENCE_S = 60.0
_FLAGS = (
    "--headless=new",
    "--no-sandbox",  # tests may run as root
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--no-first-run",
    "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1, EXCLUDE localhost",
    "--remote-debugging-port=0",
)


class Page:
    """One page. Its methods belong to one event loop.

    Attributes:
        problems: what the page's console reported: errors, exceptions, violations of its policy.
    """

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._numbers = count(1)
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self.problems: list[str] = []
        self._reader = asyncio.ensure_future(self._read())

    async def call(self, method: str, **parameters: Any) -> Any:
        """Call a method of the protocol."""
        number = next(self._numbers)
        self._waiting[number] = asyncio.get_running_loop().create_future()
        await self._socket.send_json({"id": number, "method": method, "params": parameters})
        return await asyncio.wait_for(self._waiting[number], _PATIENCE_S)

    async def evaluate(self, expression: str) -> Any:
        """The value of an expression in the page; a promise is awaited."""
        found = await self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    async def open(self, address: str) -> None:
        """Load an address and wait until it is complete."""
        for domain in ("Page", "Runtime", "Log", "Network"):
            await self.call(f"{domain}.enable")
        await self.call("Page.navigate", url=address)
        await self.wait_for("document.readyState === 'complete' && location.href !== 'about:blank'")

    async def wait_for(self, condition: str) -> None:
        """Wait until an expression is true."""
        async with asyncio.timeout(_PATIENCE_S):
            while not await self.evaluate(condition):
                await asyncio.sleep(0.02)

    def close(self) -> None:
        """Read no further messages."""
        self._reader.cancel()

    async def _read(self) -> None:
        async for message in self._socket:
            data = message.json()
            if "id" in data:
                waiting = self._waiting.pop(data["id"])
                if "error" in data:
                    waiting.set_exception(RuntimeError(data["error"]["message"]))
                else:
                    waiting.set_result(data["result"])
            elif data["method"] == "Runtime.exceptionThrown":
                self.problems.append(data["params"]["exceptionDetails"]["text"])
            elif data["method"] == "Log.entryAdded" and data["params"]["entry"]["level"] == "error":
                self.problems.append(data["params"]["entry"]["text"])


@asynccontextmanager
async def browsing() -> AsyncIterator[Page]:
    """An empty page of a browser of its own."""
    assert CHROMIUM is not None
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        process = await asyncio.create_subprocess_exec(
            CHROMIUM,
            *_FLAGS,
            f"--user-data-dir={profile}",
            "about:blank",
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            port = await asyncio.wait_for(_port(process), _PATIENCE_S)
            async with aiohttp.ClientSession() as session:
                async with session.get(f"http://127.0.0.1:{port}/json/list") as response:
                    pages = [one for one in await response.json() if one["type"] == "page"]
                async with session.ws_connect(pages[0]["webSocketDebuggerUrl"], max_msg_size=0) as socket:
                    page = Page(socket)
                    yield page
                    page.close()
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
            await process.communicate()


async def _port(process: asyncio.subprocess.Process) -> int:
    assert process.stderr is not None
    while line := await process.stderr.readline():
        found = re.search(rb"DevTools listening on ws://127\.0\.0\.1:(\d+)/", line)
        if found is not None:
            return int(found[1])
    raise AssertionError("the browser did not start")
