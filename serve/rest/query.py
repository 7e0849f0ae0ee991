"""Parameters of an address, and whole numbers in headers."""

from __future__ import annotations

from aiohttp import web

from serve.errors import RequestError, short

_MAX_DIGITS = 12


def query_number(request: web.Request, name: str) -> int | None:
    """Return the number of the only parameter that an address may have; None if it is missing.

    Raises:
        RequestError: there is another parameter, or the value is not a whole number.
    """
    unknown = next((given for given in request.query if given != name), None)
    if unknown is not None:
        raise RequestError(f"address: got an unknown parameter {short(unknown)}, expected {name!r} at most")
    text = request.query.get(name)
    return None if text is None else whole_number(name, text)


def whole_number(field: str, text: str) -> int:
    """Parse a whole number.

    Raises:
        RequestError: the text is something else, or too long.
    """
    if not (text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS):
        raise RequestError(f"{field}: got {text[:32]!r}, expected a whole number")
    return int(text)
