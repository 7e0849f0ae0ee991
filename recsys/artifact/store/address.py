"""Addresses of the nodes that hold rows, such as ``redis://host:6379,other:6379``."""

from __future__ import annotations

import re

SCHEME = "redis://"
_NODE = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9_.-]+)(?::([0-9]{1,5}))?")
_DEFAULT_PORT = 6379
_MAX_PORT = 65535


class StoreAddressError(ValueError):
    """An address that names no nodes; the text says what was got and expected."""


def parse_nodes(address: str) -> tuple[tuple[str, int], ...]:
    """Return host and port of each node of an address, in order.

    Raises:
        StoreAddressError: The address is wrong.
    """
    nodes = []
    for text in address.removeprefix(SCHEME).split(","):
        found = _NODE.fullmatch(text) if address.startswith(SCHEME) else None
        port = int(found[2] or _DEFAULT_PORT) if found else 0
        if found is None or not 1 <= port <= _MAX_PORT:
            raise StoreAddressError(f"got {address!r}, expected redis://HOST:PORT with ,HOST:PORT for others")
        nodes.append((found[1].strip("[]"), port))
    if len(set(nodes)) < len(nodes):
        raise StoreAddressError(f"got {address!r}, expected each node once")
    return tuple(nodes)
