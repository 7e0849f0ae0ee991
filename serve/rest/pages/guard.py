"""What keeps pages of other sites from using the port through a visitor's browser.

A page of another site cannot read answers, because there is no CORS, but it could send requests. Browsers say where a
request comes from, in headers that no script can set.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from urllib.parse import urlsplit

from aiohttp import web

from serve.errors import NotAllowedError, short
from serve.net.sockets import is_loopback

_SAME = ("same-origin", "none")
_SAFE_METHODS = ("GET", "HEAD")
_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@web.middleware
async def refuse_other_sites(request: web.Request, handler: _Handler) -> web.StreamResponse:
    """Refuse requests that pages of other sites send, except for links to pages of this one.

    Raises:
        NotAllowedError: the request comes from another site.
    """
    if request.method not in _SAFE_METHODS:
        site, origin = request.headers.get("Sec-Fetch-Site"), request.headers.get("Origin")
        if site is not None:
            is_own = site in _SAME
        else:
            is_own = origin is None or _host(origin) == request.headers.get("Host", "").lower()
        if not is_own:
            raise NotAllowedError(
                f"Origin: got {short(origin or 'none')}, expected a page of this server; "
                "--no-rest-pages admits pages of other sites"
            )
    return await handler(request)


def check_local(request: web.Request) -> None:
    """Check that a browser was given an address of this machine, for a port that listens on loopback.

    A name of another site that resolves to this machine would make its pages those of this server.

    Raises:
        NotAllowedError: the request names another host.
    """
    host = request.headers.get("Host", "")
    try:
        name = urlsplit(f"//{host}").hostname
    except ValueError:
        name = None
    if not is_loopback(name or ""):
        raise NotAllowedError(
            f"Host: got {short(host)}, expected localhost or a loopback address, on which this port listens"
        )


def _host(origin: str) -> str:
    """Return host and port of an origin; empty for the opaque ``null``."""
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""
