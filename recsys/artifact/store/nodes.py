"""Connections to the nodes that hold rows."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from recsys.artifact.store.address import SCHEME, parse_nodes
from recsys.artifact.store.keys import StoredBlock, about_key

_TIMEOUT_S = 10
#: A writer that has died holds the others off for so long.
_LOCK_S = 60
_BLOCK = "block:"


class StoreError(RuntimeError):
    """The nodes cannot be reached, or hold something else; the text says which node and what to do."""


class Nodes:
    """The nodes of an address, in order; a context manager.

    Args:
        address: Such as ``redis://host:6379,other:6379``.

    Raises:
        ValueError: The address is wrong.
        StoreError: A package is missing, or a node cannot be reached.
    """

    def __init__(self, address: str) -> None:
        addresses = parse_nodes(address)
        try:
            import redis
        except ImportError:
            raise StoreError(f"{SCHEME} needs the package redis: install the extra `redis`") from None
        self._errors = (redis.RedisError, OSError)
        self.clients: list[Any] = [
            redis.Redis(
                host=host, port=port, socket_timeout=_TIMEOUT_S, socket_connect_timeout=_TIMEOUT_S, protocol=2
            )
            for host, port in addresses
        ]
        for node in range(len(self)):
            with self.named(node):
                self.clients[node].ping()

    def __len__(self) -> int:
        return len(self.clients)

    def __enter__(self) -> Nodes:
        return self

    def __exit__(self, *_: object) -> None:
        for client in self.clients:
            client.close()

    def part(self, node: int) -> str:
        """Return which part of all rows a node holds, such as ``0/3``."""
        return f"{node}/{len(self)}"

    @contextmanager
    def named(self, node: int) -> Iterator[None]:
        """Let errors of a client name its node."""
        try:
            yield
        except self._errors as error:
            what = str(error).partition("\n")[0] or type(error).__name__
            raise StoreError(f"node {node + 1} of {len(self)}: {what}") from error

    def about(self, node: int, prefix: str) -> dict[bytes, bytes]:
        """Return what a node says of an artifact's rows; empty if it holds none."""
        with self.named(node):
            found: dict[bytes, bytes] = self.clients[node].hgetall(about_key(prefix))
        return found

    def abouts_of_artifact(self, prefix: str) -> list[dict[bytes, bytes]]:
        """Return what each node says of the rows of an artifact that all of them hold.

        Raises:
            StoreError: One does not hold its part.
        """
        abouts = [self.about(node, prefix) for node in range(len(self))]
        for node, about in enumerate(abouts):
            if about.get(b"complete", b"").decode() != self.part(node):
                raise StoreError(
                    f"node {node + 1} of {len(self)} does not hold part {self.part(node)} of the artifact's rows: push "
                    "the artifact first, and name the same nodes in the same order"
                )
        return abouts

    @contextmanager
    def writing(self, prefix: str) -> Iterator[None]:
        """Let no other process write the rows of an artifact meanwhile.

        Raises:
            StoreError: One does.
        """
        key, token = f"{prefix}:writer", uuid.uuid4().hex.encode()
        client = self.clients[0]
        with self.named(0):
            if not client.set(key, token, nx=True, ex=_LOCK_S):
                raise StoreError(
                    f"another process writes these rows; if it has ended, wait {_LOCK_S} seconds for its lock"
                )
        try:
            yield
        finally:
            with self.named(0):
                if client.get(key) == token:
                    client.delete(key)

    def go_on_writing(self, prefix: str) -> None:
        """Hold the lock for longer."""
        with self.named(0):
            self.clients[0].expire(f"{prefix}:writer", _LOCK_S)


def stored_blocks(about: dict[bytes, bytes]) -> list[StoredBlock]:
    """Return the blocks that a node says it holds.

    Raises:
        ValueError: It does not say so.
    """
    named = sorted((name, text) for name, text in about.items() if name.startswith(_BLOCK.encode()))
    return [StoredBlock.from_json(text) for _, text in named]


def block_fields(blocks: list[StoredBlock], digests: list[str]) -> dict[str, str]:
    """Return what a node says of blocks, with the SHA-256 of each block's rows."""
    fields: dict[str, str] = {}
    tables: dict[str, list[str]] = {}
    for i, (block, digest) in enumerate(zip(blocks, digests, strict=True)):
        fields[f"{_BLOCK}{i:06d}"] = block.to_json()
        tables.setdefault(block.block.table, []).append(digest)
    return fields | {f"table:{name}": ",".join(found) for name, found in tables.items()}
