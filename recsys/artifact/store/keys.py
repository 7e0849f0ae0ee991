"""How the rows of an artifact lie in nodes; ``cpp_client/outside/store_keys.h`` reads them.

Shape letters: K rows of a chunk, R rows.

A key holds a chunk of ``CHUNK_ROWS`` rows of a block, one record each: the number of the state that the row belongs
to, and its stored bytes. A command for a part of a value reads one record. Chunk ``i`` lies in node ``i % nodes``.
States have the numbers 0, 1, 2, ... of the artifact and the deltas behind it. Where a delta replaces a row, the
records before it are kept under a key of their own: the newest ones, and that of the artifact.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from recsys.configs import DataType
from recsys.rows.layout import RowBlock

#: Measured with rows of 72 bytes: 81 bytes of memory for each row, and 2 million reads in a second of a node's
#: processor; a key for each row takes 184 bytes, and 1.1 million.
CHUNK_ROWS = 256
NUMBER_BYTES = 4
#: Records before the present one that are kept, beside that of the artifact.
KEPT_RECORDS = 3


def key_prefix(model: str, digest: str) -> str:
    """Return what all keys of an artifact begin with."""
    return f"recsys:{model}:{digest}"


def about_key(prefix: str) -> str:
    """Return the key of the hash in which a node says what it holds."""
    return f"{prefix}:about"


@dataclass(frozen=True, kw_only=True)
class StoredBlock:
    """A block of rows of an artifact, and the dimension of its table.

    Attributes:
        block: The block.
        embedding_dim: The dimension of the table's vectors.
    """

    block: RowBlock
    embedding_dim: int

    @property
    def record_bytes(self) -> int:
        """Bytes of a row with the number of its state."""
        return NUMBER_BYTES + self.block.row_bytes

    @property
    def num_chunks(self) -> int:
        """Keys that hold its rows."""
        return -(-self.block.num_rows // CHUNK_ROWS)

    def chunk_key(self, prefix: str, chunk: int) -> str:
        """Return the key of a chunk."""
        block = self.block
        return f"{prefix}:{{{block.table}:{block.column_start}:{block.row_start}:{chunk}}}"

    def old_key(self, prefix: str, row: int) -> str:
        """Return the key of the records of a row of the block before its present one."""
        return f"{self.chunk_key(prefix, row // CHUNK_ROWS)}:{row}"

    def to_json(self) -> str:
        """Return a text that ``from_json`` reads back."""
        block = self.block
        return json.dumps(
            {
                "table": block.table,
                "embedding_dim": self.embedding_dim,
                "data_type": block.data_type.value,
                "rows": [block.row_start, block.row_end],
                "columns": [block.column_start, block.column_end],
                "row_alignment": block.row_alignment,
            }
        )

    @classmethod
    def from_json(cls, text: bytes) -> StoredBlock:
        """Read a block of a node.

        Raises:
            ValueError: It is none.
        """
        try:
            data: Any = json.loads(text)
            block = RowBlock(
                table=str(data["table"]),
                data_type=DataType(data["data_type"]),
                row_start=int(data["rows"][0]),
                row_end=int(data["rows"][1]),
                column_start=int(data["columns"][0]),
                column_end=int(data["columns"][1]),
                offset_bytes=0,
                row_alignment=int(data["row_alignment"]),
            )
            return cls(block=block, embedding_dim=int(data["embedding_dim"]))
        except (KeyError, TypeError, IndexError) as error:
            raise ValueError(f"a node describes its rows in an unknown form: {error}") from None


def records(rows: npt.NDArray[np.uint8], number: int) -> npt.NDArray[np.uint8]:
    """Return rows ``[K, row_bytes]`` as records ``[K, record_bytes]`` of a state."""
    made = np.empty((rows.shape[0], NUMBER_BYTES + rows.shape[1]), dtype=np.uint8)
    made[:, :NUMBER_BYTES] = np.frombuffer(number.to_bytes(NUMBER_BYTES, "little"), dtype=np.uint8)
    made[:, NUMBER_BYTES:] = rows
    return made


def number_of(record: bytes) -> int:
    """Return the number of the state that a record belongs to."""
    return int.from_bytes(record[:NUMBER_BYTES], "little")


def kept(before: bytes, old: bytes, record_bytes: int) -> bytes:
    """Return the records to keep of a row.

    Args:
        before: Its present record, which is replaced.
        old: Those before it, the newest first.
        record_bytes: Bytes of each.
    """
    known = [old[at : at + record_bytes] for at in range(0, len(old), record_bytes)]
    # It is the first of them already where a writer ended before it replaced the row.
    if known[:1] != [before]:
        known.insert(0, before)
    if len(known) <= KEPT_RECORDS + 1:
        return b"".join(known)
    return b"".join([*known[:KEPT_RECORDS], known[-1]])
