"""Read the rows that nodes hold back, and compare them with the artifact's digests."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np

from recsys.artifact.loaded_rows import artifact_digest
from recsys.artifact.parts import read_manifest
from recsys.artifact.store.keys import CHUNK_ROWS, NUMBER_BYTES, StoredBlock, key_prefix, number_of
from recsys.artifact.store.nodes import Nodes, StoreError, stored_blocks
from recsys.artifact.store.push import OnProgress
from recsys.rows.layout import RowBlock

#: Chunks that are read at a time.
_AT_ONCE = 256


def check_rows(artifact: Path, address: str, on_progress: OnProgress | None = None) -> int:
    """Compare the artifact's rows in nodes with the SHA-256 of its manifest; return how many rows they are.

    Where deltas have replaced rows, the artifact's own are compared.

    Args:
        artifact: Its folder; only the manifest is read.
        address: The nodes, as ``push_artifact`` was given them.
        on_progress: Called with the table, its rows that were read, and all of its block.

    Raises:
        ArtifactError: The manifest cannot be read.
        ValueError: The address is wrong.
        StoreError: The nodes cannot be reached, or hold no rows or others.
    """
    manifest = read_manifest(artifact)
    prefix = key_prefix(manifest.name, artifact_digest(manifest))
    expected = {
        _place(block): digest
        for block, digest in zip(manifest.layout.blocks, manifest.block_sha256, strict=True)
    }
    num_rows = 0
    with Nodes(address) as nodes:
        for block in stored_blocks(nodes.abouts_of_artifact(prefix)[0]):
            found, table = hashlib.sha256(), block.block.table
            for first in range(0, block.num_chunks, _AT_ONCE):
                chunks = range(first, min(first + _AT_ONCE, block.num_chunks))
                for rows in _read(nodes, prefix, block, chunks):
                    found.update(rows)
                if on_progress is not None:
                    done = min((first + len(chunks)) * CHUNK_ROWS, block.block.num_rows)
                    on_progress(table, done, block.block.num_rows)
            if found.hexdigest() != expected.get(_place(block.block)):
                raise StoreError(
                    f"rows of table {table!r}, from row {block.block.row_start:,} on: the nodes hold others than the "
                    "artifact: empty the nodes, and push the artifact again"
                )
            num_rows += block.block.num_rows
    return num_rows


def _place(block: RowBlock) -> tuple[str, int, int]:
    return block.table, block.column_start, block.row_start


def _read(nodes: Nodes, prefix: str, block: StoredBlock, chunks: range) -> list[bytes]:
    """Return the artifact's rows of some chunks of a block, in order."""
    found: dict[int, bytes] = {}
    for node in range(len(nodes)):
        own = [chunk for chunk in chunks if chunk % len(nodes) == node]
        pipeline: Any = nodes.clients[node].pipeline(transaction=False)
        for chunk in own:
            pipeline.get(block.chunk_key(prefix, chunk))
        with nodes.named(node):
            values = pipeline.execute()
        for chunk, value in zip(own, values, strict=True):
            count = min(CHUNK_ROWS, block.block.num_rows - chunk * CHUNK_ROWS)
            if len(value or b"") != count * block.record_bytes:
                raise StoreError(f"node {node + 1} of {len(nodes)} lacks rows: push the artifact again")
            records = np.frombuffer(value, dtype=np.uint8).reshape(count, -1).copy()
            replaced = np.flatnonzero(records[:, :NUMBER_BYTES].any(axis=1))
            for row in replaced.tolist():
                pipeline.get(block.old_key(prefix, chunk * CHUNK_ROWS + row))
            with nodes.named(node):
                olds = pipeline.execute() if len(replaced) else []
            for row, old in zip(replaced.tolist(), olds, strict=True):
                # The last one that is kept is the artifact's.
                record = (old or b"")[-block.record_bytes :]
                if len(record) != block.record_bytes or number_of(record) != 0:
                    raise StoreError(f"node {node + 1} of {len(nodes)} lacks rows: push the artifact again")
                records[row] = np.frombuffer(record, dtype=np.uint8)
            found[chunk] = records[:, NUMBER_BYTES:].tobytes()
    return [found[chunk] for chunk in chunks]
