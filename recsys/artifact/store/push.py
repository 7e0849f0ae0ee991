"""Write the rows of an artifact to nodes."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from recsys.artifact.loaded_rows import artifact_digest
from recsys.artifact.manifest import Manifest
from recsys.artifact.parts import read_manifest
from recsys.artifact.store.keys import CHUNK_ROWS, StoredBlock, about_key, key_prefix, records
from recsys.artifact.store.nodes import Nodes, StoreError, block_fields
from recsys.errors import ArtifactError

#: Bytes that are sent to the nodes at a time.
_BATCH_BYTES = 8 << 20

#: What is done, how much of it, and of how much.
OnProgress = Callable[[str, int, int], None]


@dataclass(kw_only=True)
class PushReport:
    """What nodes hold now.

    Attributes:
        model: The model's name.
        digest: The artifact's digest.
        number: The number of the state that they hold.
        tables: The rows' SHA-256 of each block of each table, as the manifest has them.
        num_rows: Rows that were written.
        num_bytes: Their stored bytes.
        was_there: Whether nothing was to do.
    """

    model: str
    digest: str
    number: int
    tables: dict[str, list[str]]
    num_rows: int
    num_bytes: int
    was_there: bool


def outside_blocks(manifest: Manifest, over_bytes: int) -> tuple[list[StoredBlock], list[str]]:
    """Return the blocks of tables of more bytes, and their SHA-256."""
    dims = {info.table.name: info.table.embedding_dim for info in manifest.tables}
    found = [
        (StoredBlock(block=block, embedding_dim=dims[block.table]), digest)
        for block, digest in zip(manifest.layout.blocks, manifest.block_sha256, strict=True)
        if manifest.layout.table_bytes[block.table] > over_bytes
    ]
    return [block for block, _ in found], [digest for _, digest in found]


def push_artifact(
    artifact: Path, address: str, over_bytes: int, on_progress: OnProgress | None = None
) -> PushReport:
    """Write the rows of an artifact's large tables to nodes, or go on where that was interrupted.

    Args:
        artifact: A folder.
        address: Such as ``redis://host:6379,other:6379``.
        over_bytes: Tables of more bytes are written.
        on_progress: Called with the table, its rows that are written, and its rows.

    Raises:
        ArtifactError: The artifact cannot be read, or its rows were changed.
        ValueError: The address is wrong.
        StoreError: The nodes cannot be reached, or hold the rows as other parts.
    """
    manifest = read_manifest(artifact)
    if manifest.rows_path is None or not artifact.is_dir():
        raise StoreError(f"got {artifact.name!r}, a single file, expected an artifact's folder")
    blocks, digests = outside_blocks(manifest, over_bytes)
    if not blocks:
        raise StoreError(f"no table of {artifact.name!r} has more than {over_bytes:,} bytes")
    own = artifact_digest(manifest)
    prefix = key_prefix(manifest.name, own)
    fields = block_fields(blocks, digests)
    tables: dict[str, list[str]] = {}
    for block, digest in zip(blocks, digests, strict=True):
        tables.setdefault(block.block.table, []).append(digest)
    with Nodes(address) as nodes, nodes.writing(prefix):
        writer = _Writer(nodes, prefix, fields)
        number = writer.number
        if not writer.is_complete:
            blob = np.memmap(artifact / manifest.rows_path, dtype=np.uint8, mode="r")
            for i, (block, digest) in enumerate(zip(blocks, digests, strict=True)):
                start = block.block.offset_bytes
                rows = blob[start : start + block.block.num_bytes].reshape(block.block.num_rows, -1)
                writer.write(f"block:{i:06d}", block, rows, digest, on_progress)
            writer.finish(own)
        return PushReport(
            model=manifest.name,
            digest=own,
            number=number,
            tables=tables,
            num_rows=writer.num_rows,
            num_bytes=writer.num_bytes,
            was_there=writer.is_complete,
        )


class _Writer:
    """Writes blocks; each node says how many chunks of a block have passed it."""

    def __init__(self, nodes: Nodes, prefix: str, fields: dict[str, str]) -> None:
        self._nodes, self._prefix = nodes, prefix
        self.num_rows = self.num_bytes = 0
        abouts = [nodes.about(node, prefix) for node in range(len(nodes))]
        self.is_complete = all(b"complete" in about for about in abouts)
        self.number = max((int(about.get(b"number", b"0")) for about in abouts), default=0)
        wanted = {name.encode(): text.encode() for name, text in fields.items()}
        for node, about in enumerate(abouts):
            part = about.get(b"part", b"").decode()
            if part not in ("", nodes.part(node)):
                raise StoreError(
                    f"node {node + 1} of {len(nodes)} holds part {part} of these rows, expected "
                    f"{nodes.part(node)}: name the same nodes in the same order, or empty them first"
                )
            held = {name for name in about if name.startswith(b"block:")}
            if part and {name: about[name] for name in held} != {
                name: text for name, text in wanted.items() if name.startswith(b"block:")
            }:
                raise StoreError(
                    f"node {node + 1} of {len(nodes)} holds other tables of this artifact: give the same "
                    "--rows-over-bytes, or empty the nodes first"
                )
            if not part:
                with nodes.named(node):
                    nodes.clients[node].hset(about_key(prefix), mapping={"part": nodes.part(node), **fields})
        self._done = abouts

    def write(
        self,
        name: str,
        block: StoredBlock,
        rows: npt.NDArray[np.uint8],
        digest: str,
        on_progress: OnProgress | None,
    ) -> None:
        """Write the chunks of a block that are not there yet.

        Raises:
            ArtifactError: The rows do not match their digest.
            StoreError: A node fails.
        """
        field, num_nodes = f"done:{name}", len(self._nodes)
        done = [int(about.get(field.encode(), b"0")) for about in self._done]
        found = hashlib.sha256()
        at_once = max(_BATCH_BYTES // (CHUNK_ROWS * block.record_bytes), 1) * num_nodes
        for first in range(0, block.num_chunks, at_once):
            last = min(first + at_once, block.num_chunks)
            part = np.ascontiguousarray(rows[first * CHUNK_ROWS : last * CHUNK_ROWS])
            found.update(part.data)
            made = records(part, 0)
            for node in range(num_nodes):
                chunks = [i for i in range(max(first, done[node]), last) if i % num_nodes == node]
                if not chunks:
                    continue
                pipeline: Any = self._nodes.clients[node].pipeline(transaction=False)
                for chunk in chunks:
                    start = (chunk - first) * CHUNK_ROWS
                    pipeline.set(
                        block.chunk_key(self._prefix, chunk), made[start : start + CHUNK_ROWS].tobytes()
                    )
                    count = min(CHUNK_ROWS, block.block.num_rows - chunk * CHUNK_ROWS)
                    self.num_rows += count
                    self.num_bytes += count * block.block.row_bytes
                pipeline.hset(about_key(self._prefix), field, last)
                with self._nodes.named(node):
                    pipeline.execute()
            self._nodes.go_on_writing(self._prefix)
            if on_progress is not None:
                on_progress(
                    block.block.table, min(last * CHUNK_ROWS, block.block.num_rows), block.block.num_rows
                )
        if found.hexdigest() != digest:
            raise ArtifactError(
                f"rows of table {block.block.table!r}: the checksum does not match; they were changed"
            )

    def finish(self, digest: str) -> None:
        """Let servers read the rows."""
        for node, about in enumerate(self._done):
            if b"complete" in about:
                continue
            with self._nodes.named(node):
                self._nodes.clients[node].hset(
                    about_key(self._prefix),
                    mapping={
                        "number": 0,
                        "current": digest,
                        f"state:{digest}": 0,
                        "complete": self._nodes.part(node),
                    },
                )
