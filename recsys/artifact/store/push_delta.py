"""Write the rows that a delta replaces to nodes.

Shape letters: N rows of a delta.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from recsys.artifact.delta.file import DeltaFile
from recsys.artifact.delta.header import TableDelta
from recsys.artifact.store.keys import (
    CHUNK_ROWS,
    StoredBlock,
    about_key,
    kept,
    key_prefix,
    number_of,
    records,
)
from recsys.artifact.store.nodes import Nodes, StoreError, stored_blocks
from recsys.artifact.store.push import OnProgress, PushReport
from recsys.rows.layout import block_rows

#: Rows that a node is asked for at a time.
_AT_ONCE = 4096


def push_delta(path: Path, address: str, on_progress: OnProgress | None = None) -> PushReport:
    """Write the rows that a delta replaces, before servers apply it; or go on where that was interrupted.

    Servers that have not applied it read the rows before it.

    Args:
        path: The delta.
        address: The nodes, as ``push_artifact`` was given them.
        on_progress: Called with the table, its rows that are written, and its rows in the delta.

    Raises:
        ArtifactError: The delta cannot be read.
        ValueError: The address is wrong.
        StoreError: The nodes cannot be reached, do not hold the artifact's rows, or are in another state.
    """
    with DeltaFile(path) as delta, Nodes(address) as nodes:
        header = delta.header
        prefix = key_prefix(header.model, header.artifact)
        with nodes.writing(prefix):
            abouts = nodes.abouts_of_artifact(prefix)
            number = _number_for(abouts, header.bases, delta.digest)
            stored = stored_blocks(abouts[0])
            num_rows = num_bytes = 0
            open_nodes = [
                node for node, about in enumerate(abouts) if about[b"current"].decode() != delta.digest
            ]
            if open_nodes:
                for table in header.tables:
                    of_table = [one for one in stored if one.block.table == table.name]
                    if not of_table:
                        continue
                    numbers, rows = delta.read(table)
                    for block, places, cut in _blocks(table, of_table, numbers, rows):
                        _write(nodes, prefix, block, (places, cut), number, on_progress)
                        num_rows += len(places)
                        num_bytes += cut.size
            for node in open_nodes:
                with nodes.named(node):
                    nodes.clients[node].hset(
                        about_key(prefix),
                        mapping={f"state:{delta.digest}": number, "current": delta.digest, "number": number},
                    )
        return PushReport(
            model=header.model,
            digest=delta.digest,
            number=number,
            tables={},
            num_rows=num_rows,
            num_bytes=num_bytes,
            was_there=not open_nodes,
        )


def _number_for(abouts: Sequence[dict[bytes, bytes]], bases: Sequence[str], digest: str) -> int:
    """Return the number of the state that a delta leads to.

    Raises:
        StoreError: It does not fit the nodes' state.
    """
    numbers = set()
    for node, about in enumerate(abouts):
        current, number = about[b"current"].decode(), int(about[b"number"])
        if current == digest:
            numbers.add(number)
        elif current in bases:
            numbers.add(number + 1)
        else:
            raise StoreError(
                f"node {node + 1} of {len(abouts)} holds state {current!r} of the rows, expected "
                f"{' or '.join(map(repr, bases))}: push deltas in the order in which they were made, each once"
            )
    if len(numbers) != 1:
        raise StoreError(
            "the nodes hold different states of the rows: empty them, and push the artifact again"
        )
    return numbers.pop()


def _blocks(
    table: TableDelta, of_table: Sequence[StoredBlock], numbers: torch.Tensor, rows: torch.Tensor
) -> Iterator[tuple[StoredBlock, list[int], npt.NDArray[np.uint8]]]:
    """Yield each block with its changed rows: their numbers within it, and their bytes ``[N, row_bytes]``."""
    for block in of_table:
        first, end = (
            int(torch.searchsorted(numbers, bound)) for bound in (block.block.row_start, block.block.row_end)
        )
        if first == end:
            continue
        cut = block_rows(rows[first:end], table.embedding_dim, block.block)
        yield block, (numbers[first:end] - block.block.row_start).tolist(), cut.numpy()


def _write(
    nodes: Nodes,
    prefix: str,
    block: StoredBlock,
    changed: tuple[list[int], npt.NDArray[np.uint8]],
    number: int,
    on_progress: OnProgress | None,
) -> None:
    """Replace rows of a block, and keep the records before them."""
    places, rows = changed
    size = block.record_bytes
    made = records(rows, number)
    for first in range(0, len(places), _AT_ONCE):
        of_nodes: dict[int, list[int]] = {}
        for at in range(first, min(first + _AT_ONCE, len(places))):
            of_nodes.setdefault(places[at] // CHUNK_ROWS % len(nodes), []).append(at)
        for node, positions in of_nodes.items():
            keys = [block.chunk_key(prefix, places[at] // CHUNK_ROWS) for at in positions]
            starts = [places[at] % CHUNK_ROWS * size for at in positions]
            reads: Any = nodes.clients[node].pipeline(transaction=False)
            writes: Any = nodes.clients[node].pipeline(transaction=False)
            for at, key, start in zip(positions, keys, starts, strict=True):
                reads.getrange(key, start, start + size - 1)
                reads.get(block.old_key(prefix, places[at]))
            with nodes.named(node):
                found = reads.execute()
            for i, (at, key, start) in enumerate(zip(positions, keys, starts, strict=True)):
                before, old = found[2 * i], found[2 * i + 1] or b""
                if len(before) != size:
                    raise StoreError(f"node {node + 1} of {len(nodes)} lacks rows: push the artifact again")
                if number_of(before) >= number:
                    continue  # written before it was interrupted
                # In this order: who finds the new record finds the one before it, too.
                writes.set(block.old_key(prefix, places[at]), kept(before, old, size))
                writes.setrange(key, start, made[at].tobytes())
            with nodes.named(node):
                writes.execute()
        nodes.go_on_writing(prefix)
        if on_progress is not None:
            on_progress(block.block.table, min(first + _AT_ONCE, len(places)), len(places))
